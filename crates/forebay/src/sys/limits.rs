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

/// How many descriptors this process may have (`RLIMIT_NOFILE`).
pub fn descriptors() -> u64 {
    current(libc::RLIMIT_NOFILE)
}

/// This process gets no descriptor from here on.
#[cfg(test)]
pub fn no_descriptors() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `none` is ours, initialised, and lives during the call.
    let set = check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) });
    set.expect("a lower limit");
}

/// `u64::MAX` is no limit.
fn current(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is ours, initialised, and lives during the call.
    match check(unsafe { libc::getrlimit(resource, &raw mut limit) }) {
        Ok(()) if limit.rlim_cur != libc::RLIM_INFINITY => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Somebody else has looked: so it is now.
pub fn note_file_bytes(bytes: u64) {
    FILE_BYTES.store(bytes, Relaxed);
}

/// As [`file_bytes`], as it is now.
pub fn look_at_file_bytes() -> u64 {
    let bytes = current(libc::RLIMIT_FSIZE);
    FILE_BYTES.store(bytes, Relaxed);
    bytes
}
