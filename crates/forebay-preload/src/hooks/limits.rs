//! The process's limit on the size of files, kept at hand: every write looks at it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::{c_int, pid_t, rlimit};

use crate::raw;
use crate::real;

/// No byte may be written from here on.
static FILE_SIZE: AtomicU64 = AtomicU64::new(u64::MAX);

/// The limit.
#[inline(always)]
pub fn file_size() -> u64 {
    FILE_SIZE.load(Relaxed)
}

/// Asks the kernel what it is.
pub fn look() {
    let mut limit = rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the target is ours.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    FILE_SIZE.store(limit.rlim_cur, Relaxed);
}

/// What the kernel does to a thread that writes beyond the limit. The call fails with `EFBIG` where the program lives on.
#[cold]
pub fn exceeded() {
    let (process, thread) = (raw::process_id() as usize, raw::thread_id() as usize);
    let args = [process, thread, libc::SIGXFSZ as usize, 0, 0, 0];
    // SAFETY: takes no memory.
    unsafe { raw::call(libc::SYS_tgkill, args) };
}

export! {
    /// `setrlimit`.
    fn setrlimit64 | setrlimit(resource: c_int, limit: *const rlimit) -> c_int {
        // SAFETY: the caller's arguments.
        let result = unsafe { real::setrlimit64(resource, limit) };
        look();
        result
    }

    /// `prlimit`.
    fn prlimit64 | prlimit(process: pid_t, resource: c_int, limit: *const rlimit, before: *mut rlimit) -> c_int {
        // SAFETY: the caller's arguments.
        let result = unsafe { real::prlimit64(process, resource, limit, before) };
        look();
        result
    }
}
