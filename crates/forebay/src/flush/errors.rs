//! Flush errors that stay until they have been told (promise 2).
//!
//! A failed flush leaves its bytes owed and adds one to the file's error sequence. Every open description
//! remembers the sequence that it has reported; the next sync or close of each returns the error. A flush
//! that leaves nothing owed clears the errno: what was owed is on the device after all. What a sync could not make durable stays
//! an error all the same, for descriptions that have not heard of it.

use crate::memory::files::{FileEntry, UNHEARD, UNSYNCED};
use crate::sync::Ordering;

/// Bits of an errno; those of a sequence number that are left beside them tell half a million failures apart.
const ERRNO_BITS: u32 = 12;
const ERRNO_MASK: u32 = (1 << ERRNO_BITS) - 1;
/// Ticks to wait after the first failure; doubles with each further one.
const RETRY_TICKS: u32 = 64;

/// Notes a failed flush. `tick` is the session's clock: background flushing waits longer after each failure.
pub fn record(file: &FileEntry, errno: i32, tick: u32) {
    let failures = file.failures.fetch_add(1, Ordering::Relaxed).min(8);
    file.retry_tick.store(
        tick.wrapping_add(RETRY_TICKS << failures),
        Ordering::Relaxed,
    );
    next_sequence(file, errno);
}

/// Notes that the device could not make durable what it has been given. Every description hears of it once; no later
/// flush takes it back, since nothing is owed that could be tried again. Until one has heard of it, it is news to each description that
/// is opened.
pub fn record_sync(file: &FileEntry, errno: i32) {
    unheard_since(file, sequence(file));
    let sequence = next_sequence(file, errno);
    let word = (sequence << ERRNO_BITS) | errno as u32 & ERRNO_MASK;
    file.sync_error.store(word, Ordering::Release);
    file.flags.fetch_or(UNSYNCED, Ordering::AcqRel);
    // Once more: somebody may just have heard of an earlier one, and taken the mark for that one's.
    unheard_since(file, sequence.wrapping_sub(1));
}

/// Notes that the device has made durable what it has been given.
pub fn synced(file: &FileEntry) {
    if file.flags.load(Ordering::Relaxed) & UNSYNCED != 0 {
        file.flags.fetch_and(!UNSYNCED, Ordering::AcqRel);
    }
}

/// Returns the new sequence.
fn next_sequence(file: &FileEntry, errno: i32) -> u32 {
    loop {
        let seen = file.error.load(Ordering::Acquire);
        let next = ((seen >> 32).wrapping_add(1) << 32) | errno as u32 as u64;
        if file
            .error
            .compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return (next >> 32) as u32;
        }
    }
}

/// Notes that a flush has succeeded; clears the error if nothing is owed any more.
pub fn succeeded(file: &FileEntry) {
    if file.failures.load(Ordering::Relaxed) == 0 || file.owed_pages.load(Ordering::Acquire) != 0 {
        return;
    }
    file.failures.store(0, Ordering::Relaxed);
    let seen = file.error.load(Ordering::Acquire);
    let cleared = seen & !0xffff_ffff;
    let _ = file
        .error
        .compare_exchange(seen, cleared, Ordering::AcqRel, Ordering::Relaxed);
}

/// Whether a background flush may be tried at `tick`.
pub fn may_retry(file: &FileEntry, tick: u32) -> bool {
    file.failures.load(Ordering::Relaxed) == 0
        || tick.wrapping_sub(file.retry_tick.load(Ordering::Relaxed)) < u32::MAX / 2
}

/// Notes that nobody had the file open when its flush failed.
pub fn nobody_heard(file: &FileEntry) {
    unheard_since(file, sequence(file).wrapping_sub(1));
}

/// Nobody has heard of what comes after this sequence number, nor of what has not been heard of before.
fn unheard_since(file: &FileEntry, before: u32) {
    if file.flags.load(Ordering::Acquire) & UNHEARD == 0 {
        file.unheard_since.store(before, Ordering::Release);
        file.flags.fetch_or(UNHEARD, Ordering::AcqRel);
    }
}

/// The sequence that a description begins with: an error that nobody has heard of is news to the description that comes next.
pub fn sequence_to_begin_with(file: &FileEntry) -> u32 {
    match file.flags.load(Ordering::Acquire) & UNHEARD {
        0 => sequence(file),
        _ => file.unheard_since.load(Ordering::Acquire),
    }
}

/// The sequence as it is now.
pub fn sequence(file: &FileEntry) -> u32 {
    (file.error.load(Ordering::Acquire) >> 32) as u32
}

/// The errno that a description with this `seen` sequence has not reported yet; brings `seen` up to date.
pub fn unreported(file: &FileEntry, seen: &std::sync::atomic::AtomicU32) -> Option<i32> {
    let word = file.error.load(Ordering::Acquire);
    let sequence = (word >> 32) as u32;
    let before = seen.swap(sequence, Ordering::AcqRel);
    if before == sequence {
        return None;
    }
    let errno = match word as u32 as i32 {
        0 => sync_since(file, before),
        errno => Some(errno),
    };
    // Where nobody has it open, it is the session itself that hears.
    if file.opens() != 0 {
        file.flags.fetch_and(!UNHEARD, Ordering::AcqRel);
        // Unless one has come since.
        if sync_since(file, sequence).is_some() {
            unheard_since(file, sequence);
        }
    }
    errno
}

/// The errno of a failed sync that came after the sequence number `before`.
fn sync_since(file: &FileEntry, before: u32) -> Option<i32> {
    let word = file.sync_error.load(Ordering::Acquire);
    let later = (word >> ERRNO_BITS).wrapping_sub(before) << ERRNO_BITS;
    let is_later = later != 0 && later <= u32::MAX / 2;
    (word != 0 && is_later).then_some((word & ERRNO_MASK) as i32)
}
