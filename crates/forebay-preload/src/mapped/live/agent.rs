//! The thread that hears of those who wait for a lease.
//!
//! It is there while anything is mapped under one, and for some seconds longer. All signals are blocked in it, so that no handler of the program's
//! runs there; the kernel's word that somebody waits is a signal to this thread alone, which it waits for. A signal can be lost: it looks by itself
//! once a second.

use std::os::unix::fs::MetadataExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};

use libc::{c_int, c_void};

use super::super::Lock;
use super::{Held, any, replace_those};
use crate::inside::NotCancelled;
use crate::raw;

/// What the kernel sends: nothing happens by it where it is not asked for.
pub const SIGNAL: c_int = libc::SIGURG;

/// The kernel's number of the thread; 0: there is none, [`BEGINS`]: there is one soon.
static NUMBER: AtomicI32 = AtomicI32::new(0);
const BEGINS: i32 = -1;
/// libc's.
static THREAD: AtomicU64 = AtomicU64::new(0);
/// Somebody waits for its end.
static ENDS: AtomicBool = AtomicBool::new(false);
/// Looks without anything mapped, after which it ends.
const IDLE_MAX: u32 = 5;
static IDLE: AtomicU32 = AtomicU32::new(0);
/// What the thread that has made it had blocked.
static MASK: AtomicU64 = AtomicU64::new(0);
/// Where memory is short a thread flushes and evicts, as any does.
const STACK_BYTES: usize = 1024 * 1024;
/// Links of `/proc/self/task` where there are two threads: the first one and this.
const TWO_LINKS: u64 = 4;
/// Those of libc's, by which it has other threads do something, and those of faults stay.
const NOT_BLOCKED: [c_int; 7] = [
    32,
    33,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
];

/// Whether there is one.
pub fn is_there() -> bool {
    NUMBER.load(Ordering::Acquire) != 0
}

/// Its number; it is made if there is none. `None`: it cannot be.
pub fn thread() -> Option<libc::pid_t> {
    let is_missing = {
        let _lock = Lock::take();
        IDLE.store(0, Relaxed);
        let is_missing = NUMBER.load(Relaxed) == 0;
        if is_missing {
            THREAD.store(0, Relaxed);
            NUMBER.store(BEGINS, Relaxed);
        }
        is_missing
    };
    // Not under the lock: libc asks for memory, and the program's allocator may unmap some.
    if is_missing {
        match begin() {
            Some(thread) => THREAD.store(thread, Ordering::Release),
            None => NUMBER.store(0, Ordering::Release),
        }
    }
    loop {
        match NUMBER.load(Ordering::Acquire) {
            0 => return None,
            BEGINS => std::thread::yield_now(),
            number => return Some(number),
        }
    }
}

fn begin() -> Option<libc::pthread_t> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = 0;
    let before = set_mask(all_blocked());
    MASK.store(before, Relaxed);
    // SAFETY: our own variables, initialised by the first call before the others read them.
    let made = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr()) == 0 && {
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
            let made = libc::pthread_create(&raw mut thread, attributes.as_ptr(), run, null_mut());
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            made == 0
        }
    };
    set_mask(before);
    made.then_some(thread)
}

fn all_blocked() -> u64 {
    let bit = |signal: &c_int| 1u64 << (signal - 1);
    !NOT_BLOCKED.iter().fold(0, |all, signal| all | bit(signal))
}

/// Sets what the thread has blocked, by a call that passes no hook. What was.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let arguments = [
        libc::SIG_SETMASK as usize,
        (&raw const mask).expose_provenance(),
        (&raw mut before).expose_provenance(),
        size_of::<u64>(),
        0,
        0,
    ];
    // SAFETY: two words of our own, alive during the call.
    unsafe { raw::call(libc::SYS_rt_sigprocmask, arguments) };
    before
}

/// Waits for the signal, a second at most. Whether it came.
fn wait() -> bool {
    let set = 1u64 << (SIGNAL - 1);
    let time = libc::timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let arguments = [
        (&raw const set).expose_provenance(),
        0,
        (&raw const time).expose_provenance(),
        size_of::<u64>(),
        0,
        0,
    ];
    // SAFETY: memory of our own, alive during the call.
    unsafe { raw::call(libc::SYS_rt_sigtimedwait, arguments) == SIGNAL as isize }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    NUMBER.store(raw::thread_id() as i32, Ordering::Release);
    loop {
        let is_told = wait();
        replace_those(|held: &Held| !held.is_held());
        if ends(is_told) {
            return null_mut();
        }
    }
}

/// Whether all threads of the program's have ended: the first one stays in the kernel's list after its end.
fn is_alone() -> bool {
    let are_two = std::fs::metadata("/proc/self/task").is_ok_and(|task| task.nlink() == TWO_LINKS);
    let has_ended = |stat: String| {
        let (_, after_name) = stat.rsplit_once(')')?;
        Some(after_name.trim_start().starts_with('Z'))
    };
    are_two
        && std::fs::read_to_string("/proc/self/stat")
            .ok()
            .and_then(has_ended)
            == Some(true)
}

/// Whether it is to end, and nobody takes it for being there any more.
fn ends(is_told: bool) -> bool {
    let _lock = Lock::take();
    if ENDS.load(Relaxed) && !any() {
        return true;
    }
    if any() && !is_alone() {
        IDLE.store(0, Relaxed);
        return false;
    }
    let is_idle = !is_told && IDLE.fetch_add(1, Relaxed) >= IDLE_MAX;
    let is_alone = is_alone();
    if !ENDS.load(Relaxed) && (is_idle || is_alone) {
        if is_alone {
            // libc ends the process with this thread, in which the program's functions for that run.
            set_mask(MASK.load(Relaxed));
        }
        NUMBER.store(0, Ordering::Release);
        // SAFETY: this thread, which nobody waits for: who does so takes the number under the lock.
        unsafe { libc::pthread_detach(libc::pthread_self()) };
        return true;
    }
    false
}

/// Whether a thread is there and stays for what is entered now.
pub fn stays(_lock: &Lock, thread: libc::pid_t) -> bool {
    NUMBER.load(Relaxed) == thread && !ENDS.load(Relaxed)
}

/// The thread is about to end: nothing new is mapped that it would have to look after.
pub struct Ending(());

impl Ending {
    /// `None`: there is none, or somebody else ends it.
    pub fn begin() -> Option<Self> {
        let _lock = Lock::take();
        let is_there = NUMBER.load(Relaxed) != 0;
        (is_there && !ENDS.swap(true, Relaxed)).then_some(Ending(()))
    }

    /// Ends it, and waits for that.
    pub fn wait(self) {
        let _cancel = NotCancelled::new();
        let (number, thread) = loop {
            let known = (
                NUMBER.load(Ordering::Acquire),
                THREAD.load(Ordering::Acquire),
            );
            match known {
                // It could not be made after all.
                (0, _) => return,
                (BEGINS, _) | (_, 0) => std::thread::yield_now(),
                known => break known,
            }
        };
        let process = raw::process_id() as usize;
        let arguments = [process, number as usize, SIGNAL as usize, 0, 0, 0];
        // SAFETY: the first call takes no memory. The thread's number is its own until it is joined, here alone: one that ends by itself
        // looks under the lock whether somebody waits for it.
        unsafe {
            raw::call(libc::SYS_tgkill, arguments);
            libc::pthread_join(thread as libc::pthread_t, null_mut());
        }
        let _lock = Lock::take();
        NUMBER.store(0, Ordering::Release);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        ENDS.store(false, Relaxed);
    }
}

/// A child has none.
pub fn in_child() {
    if is_there() {
        NUMBER.store(0, Ordering::Release);
        ENDS.store(false, Relaxed);
    }
}
