//! Descriptors of streams that are libc's own, which reads and writes them by calls that pass no hook: a managed file that comes to such a
//! number (`dup2`) is the kernel's.
//!
//! A bit for each number, from the stream's beginning to its end, even where the number is closed meanwhile. Of streams that begin past the library
//! (`tmpfile`) nothing is known. Threads that use a stream have been told of it, and so of its bit: no orderings.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::c_int;

/// Numbers from the last one on share its bit, which stays.
const LAST: usize = (1 << 16) - 1;

static BITS: [AtomicU64; LAST / 64 + 1] = [const { AtomicU64::new(0) }; LAST / 64 + 1];

fn place(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd).ok()?.min(LAST);
    Some((&BITS[number / 64], 1 << (number % 64)))
}

/// Whether a stream of libc's own is over the descriptor.
pub fn has(fd: c_int) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// One is from now on.
pub fn begins(fd: c_int) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Relaxed);
    }
}

/// It is closed.
pub fn ends(fd: c_int) {
    if has(fd)
        && (fd as usize) < LAST
        && let Some((word, bit)) = place(fd)
    {
        word.fetch_and(!bit, Relaxed);
    }
}
