//! When a file begins to be managed, and when it is better left to the kernel: by what a program has done with it so far.

use std::sync::atomic::Ordering::Relaxed;

use forebay::limits::{CALLS_A_SMALL_FILE, LARGE_REQUEST_BYTES, MANAGED_LIFE_NS, SMALL_FILE_BYTES};

use super::{ASKED_FROM, config};
use crate::habit;
use crate::table::Written;

/// Calls that show of what kind a new file's are, where the files before it were worth managing ([`habit`]).
const CALLS_BY_HABIT: u64 = 8;
/// So many calls to a file that was long when it was opened say nothing yet, however long they have taken.
const CALLS_OF_A_LONG_FILE: u64 = 16;

/// Whether a file that so much has been written to, and that was so long before, is to be managed. `synced`: the
/// program has made it durable again and again meanwhile. `in_store`: it is in a mounted store; there the kernel makes a request to the mount's process
/// of each write, some 20 us, and for large ones twice the copies. So requests of all sizes count, and few are enough.
pub fn is_large(written: Written, size: u64, synced: bool, in_store: bool) -> bool {
    let Written {
        calls,
        bytes,
        spent_ns,
    } = written;
    let from = ASKED_FROM.load(Relaxed);
    let is_little = from != 0 && bytes <= from;
    if is_little && (calls < 2 || !in_store && size <= from) {
        return false;
    }
    let Some(config) = config() else {
        return false;
    };
    let in_store = in_store && config.manage_stores;
    let small = config.small_file_bytes;
    if in_store {
        return calls >= CALLS_BY_HABIT || bytes > small / 4;
    }
    // A user who wants files to be larger wants no guesses.
    let by_habit =
        calls >= CALLS_BY_HABIT && small <= SMALL_FILE_BYTES && habit::is_of_many_writes();
    if !by_habit && bytes <= small / 4 && (calls < 2 || size < small) {
        return false;
    }
    // Large requests: the kernel takes them as fast, and the file needs no managing. Few requests of a new file: it may be complete, and
    // what they would have gained is less than what managing the file takes.
    let by_large_requests = bytes / calls.max(1) >= LARGE_REQUEST_BYTES;
    let enough = small / (SMALL_FILE_BYTES / CALLS_A_SMALL_FILE);
    // Of a long file each write may be dear, since the kernel may have to read the page first, or cheap. The kernel's time says which: once
    // its writes have taken as long as managing the file does, no more can be lost than as much again. One write may have waited for something
    // else, and a file that is opened anew for each few writes is never worth it.
    let soon = if size < small {
        calls < enough
    } else {
        small >= SMALL_FILE_BYTES && (calls <= CALLS_OF_A_LONG_FILE || spent_ns < MANAGED_LIFE_NS)
    };
    let by_few = !by_habit && soon;
    synced || !by_large_requests && !by_few || bytes > config.large_file_bytes
}

/// Whether files begin by what the kernel's calls on them have taken: by default, and not in a store, where each is a request to another process.
pub fn begins_by_time(in_store: bool) -> bool {
    config().is_some_and(|config| {
        config.small_file_bytes >= SMALL_FILE_BYTES && !(in_store && config.manage_stores)
    })
}

/// Whether a read of a file that the session has in memory, and that nobody uses, is better left to the kernel: to manage it takes as long as many
/// small reads. `spent_ns` is what the kernel's calls on it have taken so far.
pub fn is_read_by_kernel(spent_ns: u64, len: usize, in_store: bool) -> bool {
    (len as u64) < LARGE_REQUEST_BYTES && spent_ns < MANAGED_LIFE_NS && begins_by_time(in_store)
}

/// Whether a file that has had so many small syncs in a row is better left to the kernel.
pub fn is_synced_often(syncs: u32) -> bool {
    config()
        .is_some_and(|config| config.kernel_after_syncs != 0 && syncs >= config.kernel_after_syncs)
}
