//! What a device file looked like after the session's own last change: its length and times. A process that finds it otherwise knows that somebody from
//! outside has changed it.

use crate::device::DeviceStat;
use crate::ids::FileId;
use crate::memory::arena::Arena;
use crate::memory::files::FileEntry;
use crate::memory::threads::Me;
use crate::sync::Ordering;

/// Remembers what the device file looks like after our own last change, the one that `changes` counts.
pub fn witness(entry: &FileEntry, stat: &DeviceStat, changes: u32) {
    entry.set_witness(as_witness(stat), changes);
}

/// What of a device file is remembered: length, time of the last modification and of the last change.
pub fn as_witness(stat: &DeviceStat) -> [u64; 3] {
    [stat.len, stat.mtime_ns, stat.ctime_ns]
}

/// How many changes of a device file have begun, if none is under way but this thread's. If it is still as many later, nobody else was at it in between.
pub fn changes_alone(me: Me<'_>, id: FileId) -> Option<u32> {
    let entry = me.arena.file_unchecked(id);
    // Counted first: whose change is counted is seen at it, or has ended it.
    let changes = entry.changes.load(Ordering::Acquire);
    let threads = me.arena.counts().threads;
    let is_alone = !entry.is_changed_by(threads, |thread| thread != me.id);
    is_alone.then_some(changes)
}

/// As [`witness`], after a change of ours that has ended; with the last, what the file looks like now is remembered. `stat` is told how many changes have
/// begun.
pub fn witness_end(arena: &Arena, id: FileId, mut stat: impl FnMut(u32) -> Option<DeviceStat>) {
    let entry = arena.file_unchecked(id);
    loop {
        let changes = entry.changes.load(Ordering::Acquire);
        // The thread that is at it will look.
        if entry.is_changing(arena.counts().threads) {
            return;
        }
        let Some(stat) = stat(changes) else { return };
        witness(entry, &stat, changes);
        // Somebody may have come and gone meanwhile, and what we saw be older than what we wrote it over.
        if entry.changes.load(Ordering::Acquire) == changes {
            return;
        }
    }
}

/// Whether the device file is as [`witness`] last saw it.
pub fn is_as_witnessed(entry: &FileEntry, stat: &DeviceStat) -> bool {
    let words = entry.witness.iter();
    words
        .zip(as_witness(stat))
        .all(|(word, value)| word.load(Ordering::Acquire) == value)
}

/// Whether it is known how the device file looked after our last change, and it looks otherwise.
pub fn is_changed(entry: &FileEntry, stat: &DeviceStat, threads: u32) -> bool {
    let known = entry.witness(threads);
    known.is_some_and(|known| known != as_witness(stat))
}
