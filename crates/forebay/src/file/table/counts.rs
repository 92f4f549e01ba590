//! How many descriptions an entry counts, of those that the kernel's locks tell of (`session::opens`).

use super::{lock, unlock};
use crate::ids::FileId;
use crate::memory::files::FileEntry;
use crate::memory::threads::Me;
use crate::session::shared::Shared;
use crate::sync::{AtomicU32, Ordering};

/// An entry is being made for its first description.
pub(super) fn begin(entry: &FileEntry, writes: bool) {
    entry.writers.store(writes.into(), Ordering::Relaxed);
    entry.opens.store(1, Ordering::Relaxed);
}

/// Counts one more. Under the table lock, which is held until the caller has its lock of the kernel's as well.
pub(super) fn add(entry: &FileEntry, writes: bool) {
    entry.opens.fetch_add(1, Ordering::SeqCst);
    if writes {
        entry.writers.fetch_add(1, Ordering::SeqCst);
    }
}

/// Takes one open description of this process away. Whether it was the session's last.
pub fn close(shared: &Shared, id: FileId, writes: bool) -> bool {
    let entry = shared.arena.file_unchecked(id);
    // Nobody who corrects the counts comes in between: this process still has its lock.
    if writes {
        take(&entry.writers);
    }
    take(&entry.opens);
    shared.take_open(id, writes);
    !shared.is_open(id)
}

/// A word that has been written over says nothing, but it does not wrap.
fn take(count: &AtomicU32) {
    if count.load(Ordering::Acquire) != 0 {
        count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Corrects what an entry counts: who has died took nothing back. What somebody may have open stays counted, however many have died beside
/// him. The caller is in no operation.
pub fn recount(shared: &Shared, me: Me<'_>, id: FileId) {
    let entry = shared.arena.file_unchecked(id);
    let opens_dead = || entry.opens.load(Ordering::Acquire) != 0 && !shared.is_open(id);
    let writers_dead = || entry.writers() != 0 && !shared.is_written(id);
    // Whoever opens counts under the table lock.
    if (opens_dead() || writers_dead()) && lock(me) {
        if writers_dead() {
            entry.writers.store(0, Ordering::Release);
        }
        if opens_dead() {
            entry.opens.store(0, Ordering::Release);
        }
        unlock(me);
    }
}
