//! Signals of faults that somebody has sent (`kill`, `pthread_kill`) to a thread that is inside: they wait here, because they cannot be
//! blocked there. A copy from or to the program's memory may raise the same at any time.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

use libc::{c_int, siginfo_t};

use super::bit;
use crate::inside;
use crate::raw;

/// One of each number at most, as with the kernel; the first with its `siginfo`.
struct Kept {
    signals: Cell<u64>,
    first: Cell<c_int>,
    info: UnsafeCell<MaybeUninit<siginfo_t>>,
}

thread_local! {
    static KEPT: Kept = const {
        Kept {
            signals: Cell::new(0),
            first: Cell::new(0),
            info: UnsafeCell::new(MaybeUninit::uninit()),
        }
    };
}

/// Keeps one until the thread is out. Called in its handler.
pub fn keep(signal: c_int, info: &siginfo_t) {
    KEPT.with(|kept| {
        if kept.signals.get() == 0 {
            // SAFETY: this thread's own. Another of these signals that comes in between finds the same, and is written over.
            unsafe { (*kept.info.get()).write(*info) };
            kept.first.set(signal);
        }
        kept.signals.set(kept.signals.get() | bit(signal));
    });
    inside::owe_fault();
}

/// Sends what has waited to the thread, which is out.
pub fn send() {
    KEPT.with(|kept| {
        // SAFETY: initialised if any signal was kept, which is why this is called; a copy, because handlers run at each sending.
        let mut info = unsafe { *kept.info.get() };
        let (signals, first) = (kept.signals.replace(0), kept.first.get());
        let (process, thread) = (raw::process_id() as usize, raw::thread_id() as usize);
        for signal in (1..=64).filter(|&signal| signals & bit(signal) != 0) {
            if signal == first {
                // SAFETY: written by `keep`, since the signal is among those that were kept.
                unsafe { super::send_again(signal, info.as_mut_ptr()) };
            } else {
                let args = [process, thread, signal as usize, 0, 0, 0];
                // SAFETY: takes no memory.
                unsafe { raw::call(libc::SYS_tgkill, args) };
            }
        }
    });
}
