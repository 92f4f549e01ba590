//! Limits of the calling process (`getrlimit`).

use super::check;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What [`look_at_file_bytes`] saw last.
static FILE_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);

/// How long this process may make files, bytes (`RLIMIT_FSIZE`), as it was when it was last looked at. `u64::MAX` is no limit.
#[inline]
pub fn file_bytes() -> u64 {
    FILE_BYTES.load(Relaxed)
}

/// Lets this process have as many descriptors as it may. How many that are; 0: nobody knows.
pub fn raise_descriptors() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is ours, initialised, and lives during the calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 0;
        }
        let raised = libc::rlimit {
            rlim_cur: limit.rlim_max,
            ..limit
        };
        match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) {
            0 => limit.rlim_max,
            _ => limit.rlim_cur,
        }
    }
}

/// As [`file_bytes`], as it is now.
pub fn look_at_file_bytes() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is ours, initialised, and lives during the call.
    let bytes = match check(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) }) {
        Ok(()) if limit.rlim_cur != libc::RLIM_INFINITY => limit.rlim_cur,
        _ => u64::MAX,
    };
    FILE_BYTES.store(bytes, Relaxed);
    bytes
}
