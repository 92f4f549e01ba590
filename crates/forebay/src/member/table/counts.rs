//! How many descriptions an entry counts, of those that the kernel's locks tell of (`member::opens`).

use super::{lock, unlock};
use crate::ids::FileId;
use crate::member::shared::Shared;
use crate::memory::files::{CLOSING, FileEntry, TOLD, VANISHED};
use crate::memory::threads::Me;
use crate::sync::Ordering;

/// One description, as the entry's word counts it.
fn one(writes: bool) -> u64 {
    if writes { 1 << 32 } else { 1 }
}

/// All descriptions of one kind.
fn all(writes: bool) -> u64 {
    one(writes) * u64::from(u32::MAX)
}

/// An entry is being made for its first description.
pub(super) fn begin(entry: &FileEntry, writes: bool) {
    entry.openers.store(one(writes), Ordering::Release);
}

/// Counts one more. Under the table lock, which is held until the caller has its lock of the kernel's as well.
pub(super) fn add(entry: &FileEntry, writes: bool) {
    entry.openers.fetch_add(one(writes), Ordering::SeqCst);
}

/// One more has been opened: what the last close has left in the entry is over.
pub(super) fn go_on(entry: &FileEntry, writes: bool) {
    entry.flags.fetch_and(!(VANISHED | TOLD), Ordering::AcqRel);
    if writes {
        // Whatever its last close was, its time is not the last any more.
        entry.flags.fetch_and(!CLOSING, Ordering::AcqRel);
    }
    entry.assert_entry();
}

/// Takes one open description of this process away. Whether it was the session's last.
pub fn close(shared: &Shared, id: FileId, writes: bool) -> bool {
    // While the entry counts this one. Once it does not it may be dropped, and be another file's before the lock is let go.
    let opened = shared.opened(id);
    // No process that corrects the counts comes in between: this process still has its lock.
    take(shared.arena.file_unchecked(id), writes);
    shared.take_open(opened, writes);
    !shared.is_open(id)
}

/// A word that has been written over says nothing, but neither half of it wraps.
fn take(entry: &FileEntry, writes: bool) {
    let mut seen = entry.openers.load(Ordering::Acquire);
    while seen & all(writes) != 0 {
        let fewer = seen - one(writes);
        match entry
            .openers
            .compare_exchange(seen, fewer, Ordering::SeqCst, Ordering::Acquire)
        {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Corrects what an entry counts: a process that has died took nothing back. Each kind by itself; what somebody may have open of a kind
/// stays counted, however many of that kind have died beside it. The caller is in no operation.
pub fn recount(shared: &Shared, me: Me<'_>, id: FileId) {
    let entry = shared.arena.file_unchecked(id);
    let are_dead = |writes| {
        entry.openers.load(Ordering::Acquire) & all(writes) != 0 && !shared.is_open_by(id, writes)
    };
    // A process that opens the file counts itself under the table lock.
    if (are_dead(false) || are_dead(true)) && lock(me) {
        for writes in [false, true] {
            if are_dead(writes) {
                entry.openers.fetch_and(!all(writes), Ordering::AcqRel);
            }
        }
        unlock(me);
    }
}
