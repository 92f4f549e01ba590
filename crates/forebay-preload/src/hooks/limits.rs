//! The process's limits on the size of files and on descriptors, kept at hand: every write looks at the first, and whatever the engine
//! opens at the second.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::{c_int, pid_t, rlimit};

use crate::raw;
use crate::real;

/// No byte may be written from here on.
static FILE_SIZE: AtomicU64 = AtomicU64::new(u64::MAX);

/// How many numbers there are for descriptors, and how many there could be.
static DESCRIPTORS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The limit on the size of files.
#[inline(always)]
pub fn file_size() -> u64 {
    FILE_SIZE.load(Relaxed)
}

/// How many numbers there are for descriptors.
pub fn descriptors() -> u64 {
    DESCRIPTORS[0].load(Relaxed)
}

/// How many there can be without more rights than the process has.
pub fn descriptors_max() -> u64 {
    DESCRIPTORS[1].load(Relaxed)
}

/// Asks the kernel what they are.
pub fn look() {
    let ask = |resource, known| {
        let mut limit = rlimit {
            rlim_cur: known,
            rlim_max: known,
        };
        // SAFETY: the target is ours.
        unsafe { libc::getrlimit(resource, &raw mut limit) };
        limit
    };
    let size = ask(libc::RLIMIT_FSIZE, libc::RLIM_INFINITY);
    FILE_SIZE.store(size.rlim_cur, Relaxed);
    let descriptors = ask(libc::RLIMIT_NOFILE, 0);
    DESCRIPTORS[0].store(descriptors.rlim_cur, Relaxed);
    DESCRIPTORS[1].store(descriptors.rlim_max, Relaxed);
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
