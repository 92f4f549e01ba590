//! What this program was started with, as far as it does not stay so: a broken pipe is an error to it and ends nobody, and `/dev/null` is opened
//! where one of the descriptors 0 to 2 is closed; [`super::signals::hold_back`] hears of children again. A program that this one
//! starts is to have what it would have had without it. And a program that was told to ignore a hangup (`nohup`) or an interrupt does not end by
//! one.
//!
//! An executable whose `main` the C library calls begins with [`begin`], which does what the standard library would. Where nobody calls it, nothing
//! was noted.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// A bit for each of 0 to 2.
static CLOSED: AtomicU8 = AtomicU8::new(0);
/// A bit for each of [`NOTED`].
static IGNORED: AtomicU32 = AtomicU32::new(0);
/// Signals of which somebody wants to know.
const NOTED: [libc::c_int; 6] = [
    libc::SIGPIPE,
    libc::SIGCHLD,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
];

/// Notes it, and makes the process one that others' code can be called in. The first that `main` does.
pub fn begin() {
    for fd in 0..3 {
        // SAFETY: takes no memory.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Relaxed);
            // SAFETY: a string that ends in a null byte. It gets the lowest number that is free, which is this one. Without it a file that is opened
            // next would be taken for the standard output.
            if unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) } < 0 {
                std::process::abort();
            }
        }
    }
    for signal in NOTED.into_iter().filter(|&signal| is_ignored(signal)) {
        IGNORED.fetch_or(1 << signal, Relaxed);
    }
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is set; the target is this call's own, and filled where the call succeeds.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Whether a signal was ignored: one of `SIGPIPE`, `SIGCHLD`, `SIGHUP`, `SIGINT`, `SIGQUIT` and `SIGTERM`.
pub fn ignores(signal: i32) -> bool {
    debug_assert!(NOTED.contains(&signal), "nobody has noted {signal}");
    IGNORED.load(Relaxed) & 1 << signal != 0
}

/// The standard descriptors that were closed.
pub fn closed() -> impl Iterator<Item = RawFd> {
    let closed = CLOSED.load(Relaxed);
    (0..3).filter(move |fd| closed & 1 << fd != 0)
}
