//! Signals of the real-time range that wait: they are queued, and must arrive in the order in which they were sent.
//!
//! One that was sent to the thread once more would come after those of its number that are pending by then. So it is kept here, and
//! a *carrier* of the same number is sent instead. Whatever of that number arrives from then on is put behind what is
//! kept, and the first of it is handed out; a carrier only hands out.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

use libc::{c_int, siginfo_t};

use crate::raw;

/// The kernel's first signal of the real-time range; libc keeps some for itself.
const FIRST: c_int = 32;
/// Kept by a thread at most. There is one for each number that came while the thread was inside, rarely more.
const KEPT_MAX: usize = 4;

/// In the order of arrival.
struct Kept {
    count: Cell<usize>,
    infos: UnsafeCell<MaybeUninit<[siginfo_t; KEPT_MAX]>>,
}

thread_local! {
    static KEPT: Kept = const {
        Kept { count: Cell::new(0), infos: UnsafeCell::new(MaybeUninit::uninit()) }
    };
}

/// Its address is in carriers.
static MARK: u8 = 0;

/// What comes of a signal that has arrived.
#[derive(PartialEq, Eq)]
pub enum Arrived {
    /// `info` is that of the signal to go on with.
    Go,
    /// Nothing is left to hand out.
    Nothing,
}

impl Kept {
    /// Adds one at the end. `false`: no room.
    ///
    /// # Safety
    /// All signals of the range are blocked.
    unsafe fn push(&self, info: &siginfo_t) -> bool {
        let count = self.count.get();
        if count == KEPT_MAX {
            return false;
        }
        // SAFETY: this thread's own, in a handler that no other of these interrupts; within the array.
        unsafe { self.infos.get().cast::<siginfo_t>().add(count).write(*info) };
        self.count.set(count + 1);
        true
    }

    /// Takes the first of a number.
    ///
    /// # Safety
    /// As for [`Kept::push`].
    unsafe fn pop(&self, signal: c_int) -> Option<siginfo_t> {
        let count = self.count.get();
        let infos = self.infos.get().cast::<siginfo_t>();
        // SAFETY: this thread's own; the first `count` are initialised.
        unsafe {
            let at = (0..count).find(|&at| (*infos.add(at)).si_signo == signal)?;
            let first = infos.add(at).read();
            infos.add(at).copy_from(infos.add(at + 1), count - at - 1);
            self.count.set(count - 1);
            Some(first)
        }
    }
}

fn is_carrier(info: &siginfo_t) -> bool {
    // SAFETY: of a queued signal, which has a value.
    info.si_code == libc::SI_QUEUE
        && unsafe { info.si_value() }.sival_ptr.addr() == (&raw const MARK).addr()
}

/// A carrier, laid out as the kernel lays out what `rt_sigqueueinfo` is given.
fn carrier(signal: c_int) -> siginfo_t {
    #[repr(C)]
    struct Queued {
        number: c_int,
        errno: c_int,
        code: c_int,
        process: c_int,
        user: u32,
        value: usize,
    }
    const { assert!(std::mem::offset_of!(Queued, value) == 24) };
    let mut info = MaybeUninit::<siginfo_t>::zeroed();
    let queued = Queued {
        number: signal,
        errno: 0,
        code: libc::SI_QUEUE,
        process: raw::process_id() as c_int,
        user: 0,
        value: (&raw const MARK).addr(),
    };
    // SAFETY: a `siginfo` is longer, and plain numbers throughout.
    unsafe {
        info.as_mut_ptr().cast::<Queued>().write(queued);
        info.assume_init()
    }
}

/// A signal has arrived where it must wait. What to send to the thread for it.
///
/// # Safety
/// All signals are blocked.
pub unsafe fn to_send(info: &siginfo_t) -> siginfo_t {
    // SAFETY: the caller's promise.
    let kept = || KEPT.with(|kept| unsafe { kept.push(info) });
    if info.si_signo < FIRST || is_carrier(info) || !kept() {
        return *info;
    }
    carrier(info.si_signo)
}

/// A signal has arrived where it may go on. `info` becomes that of the first.
///
/// # Safety
/// `info` is the kernel's, for the handler.
#[inline]
pub unsafe fn arrived(info: &mut siginfo_t) -> Arrived {
    if info.si_signo < FIRST {
        return Arrived::Go;
    }
    let carries = is_carrier(info);
    if !carries && KEPT.with(|kept| kept.count.get() == 0) {
        return Arrived::Go;
    }
    // SAFETY: the caller's promise.
    unsafe { hand_out(info, carries) }
}

/// # Safety
/// As for [`arrived`].
#[cold]
unsafe fn hand_out(info: &mut siginfo_t, carries: bool) -> Arrived {
    let mask = super::block_all();
    // SAFETY: all are blocked.
    let first = KEPT.with(|kept| unsafe {
        let first = kept.pop(info.si_signo);
        // There is room: one has just been taken out.
        if first.is_some() && !carries {
            kept.push(info);
        }
        first
    });
    super::unblock(mask);
    match first {
        Some(first) => *info = first,
        None if carries => return Arrived::Nothing,
        None => {}
    }
    Arrived::Go
}
