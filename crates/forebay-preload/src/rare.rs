//! The process's lock of all that is rare (opening, closing, giving away), and what goes on without it.
//!
//! No thread waits for another while it has the lock, nor is in a call that takes long: a file that begins to be managed waits for the keeper's
//! guard, one that is closed for its device. They say that they are under way ([`Passing`], [`Apart`]), and a thread that must not meet them
//! takes the lock, so that none begins, and waits for those that have begun. All of these words lie in a page that a forked child finds wiped.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, fence};

use crate::attach;
use crate::inside::Inside;
use crate::raw;
use crate::table;

/// Nobody has the lock; somebody has it; and others may sleep until it is free.
const FREE: u64 = 0;
const TAKEN: u64 = 1;
const WANTED: u64 = 2;
/// How often a lock is looked at before its waiter sleeps: it is held for some microseconds.
const SPINS: u32 = 100;

/// The right to the lock. A forked child finds it free. Its holder is inside: a handler that came in between, and closed a file, would wait for itself.
pub struct Rare {
    _inside: Inside,
}

impl Rare {
    /// Waits for it.
    pub fn lock() -> Self {
        let inside = Inside::enter();
        attach::has_slot();
        let word = table::wiped(table::WIPED_LOCK_RARE);
        let take = |_: &u32| {
            let taken = word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Relaxed);
            if taken.is_err() {
                std::hint::spin_loop();
            }
            taken.is_ok()
        };
        if !(0..SPINS).any(|round| take(&round)) {
            while word.swap(WANTED, Ordering::Acquire) != FREE {
                sleep_while(word.as_ptr().cast(), WANTED as u32);
            }
        }
        Rare { _inside: inside }
    }

    /// The same, once no thread has descriptors at numbers that nobody knows of ([`Passing`]). None gets any as long as this is held.
    pub fn lock_alone() -> Self {
        let rare = Rare::lock();
        let passing = table::wiped(table::WIPED_PASSING);
        let mut round = 0;
        while passing.load(Ordering::SeqCst) != 0 {
            round += 1;
            forebay::sync::relax(round);
        }
        rare
    }
}

impl Drop for Rare {
    fn drop(&mut self) {
        let word = table::wiped(table::WIPED_LOCK_RARE);
        if word.swap(FREE, Ordering::Release) == WANTED {
            wake(word.as_ptr().cast(), 1);
        }
    }
}

/// What goes on without the lock, since it may take long: a process that leaves the session waits for it to end.
pub struct Apart(());

impl Apart {
    /// It begins, and the lock is free.
    pub fn begin(rare: Rare) -> Self {
        table::wiped(table::WIPED_APART).fetch_add(1, Ordering::SeqCst);
        drop(rare);
        Apart(())
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        one_fewer(table::wiped(table::WIPED_APART));
    }
}

/// A thread has descriptors of the engine's for a moment, at whatever numbers: a thread that closes all numbers but the engine's, or puts a file
/// at a number of its choice, waits for that to end ([`Rare::lock_alone`]). The thread that has them takes no lock of what is rare meanwhile.
pub struct Passing(());

impl Passing {
    /// It begins.
    pub fn begin(_rare: &Rare) -> Self {
        table::wiped(table::WIPED_PASSING).fetch_add(1, Ordering::SeqCst);
        Passing(())
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        one_fewer(table::wiped(table::WIPED_PASSING));
    }
}

/// A child that a handler has forked in the middle counts none.
fn one_fewer(count: &AtomicU64) {
    let _ = count.fetch_update(Ordering::SeqCst, Relaxed, |n| n.checked_sub(1));
}

/// Something that threads of the process wait for, from [`Event::begin`] to [`Event::end`].
pub struct Event(AtomicU32);

impl Event {
    /// Nothing is under way.
    pub const fn new() -> Self {
        Event(AtomicU32::new(0))
    }

    /// Whether it is under way.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// It is.
    pub fn begin(&self) {
        self.0.store(1, Ordering::Release);
    }

    /// It is not any more.
    pub fn end(&self) {
        self.0.store(0, Ordering::Release);
        fence(Ordering::SeqCst);
        wake(self.0.as_ptr(), i32::MAX as usize);
    }

    /// Waits for its end.
    pub fn wait(&self) {
        while self.is_on() {
            sleep_while(self.0.as_ptr(), 1);
        }
    }
}

/// Sleeps while a word of the process's is `value`. Returns early at will.
fn sleep_while(word: *mut u32, value: u32) {
    const WAIT: usize = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the word is mapped for good; no time is passed.
    let slept = unsafe {
        raw::call(
            libc::SYS_futex,
            [word.addr(), WAIT, value as usize, 0, 0, 0],
        )
    };
    let is_refused =
        slept < 0 && slept != -(libc::EAGAIN as isize) && slept != -(libc::EINTR as isize);
    if is_refused {
        std::thread::yield_now();
    }
}

/// Wakes some threads that sleep on a word.
fn wake(word: *mut u32, how_many: usize) {
    const WAKE: usize = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: as above.
    unsafe { raw::call(libc::SYS_futex, [word.addr(), WAKE, how_many, 0, 0, 0]) };
}
