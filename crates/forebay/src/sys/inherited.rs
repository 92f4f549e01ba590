//! What this program was started with, as far as it does not stay so: the standard library ignores `SIGPIPE` before `main`, and opens
//! `/dev/null` where one of the descriptors 0 to 2 is closed; [`super::signals::hold_back`] hears of children again. A program that this one
//! starts is to have what it would have had without it.
//!
//! Who wants to know calls [`note`] from the executable's constructors; where nobody does, nothing was changed.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// A bit for each of 0 to 2.
static CLOSED: AtomicU8 = AtomicU8::new(0);
static IGNORES_PIPES: AtomicBool = AtomicBool::new(false);
static IGNORES_CHILDREN: AtomicBool = AtomicBool::new(false);

/// Notes it. A constructor: it runs before the standard library does.
pub extern "C" fn note() {
    for fd in 0..3 {
        // SAFETY: takes no memory.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Relaxed);
        }
    }
    IGNORES_PIPES.store(ignores(libc::SIGPIPE), Relaxed);
    IGNORES_CHILDREN.store(ignores(libc::SIGCHLD), Relaxed);
}

fn ignores(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is set; the target is this call's own, and filled where the call succeeds.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Whether a broken pipe was ignored.
pub fn ignores_pipes() -> bool {
    IGNORES_PIPES.load(Relaxed)
}

/// Whether the ends of children were ignored.
pub fn ignores_children() -> bool {
    IGNORES_CHILDREN.load(Relaxed)
}

/// The standard descriptors that were closed.
pub fn closed() -> impl Iterator<Item = RawFd> {
    let closed = CLOSED.load(Relaxed);
    (0..3).filter(move |fd| closed & 1 << fd != 0)
}
