//! Threads that ask a device to make a file durable.
//!
//! What the kernel could not write it says once to each description, and descriptions of the session share one. A thread that hears of it notes it for
//! the others. A thread that hears nothing waits for those that began before: one of them may have heard, and not have noted it yet. That is a moment
//! where they run, and no longer than [`PATIENCE`]: `/proc` does not tell of all threads that are frozen that they are.

use super::{Me, is_dead, stops};
use crate::ids::{FileId, ThreadId};
use crate::memory::files::FileEntry;
use crate::sync::time::Instant;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

/// Syncs that the thread has made, above; the file of the one under way + 1, or 0, below.
const SYNC: u64 = 1 << 32;
/// Rounds of a wait after which it is asked whether the other one goes on.
const ASK_ROUNDS: u32 = 64;
/// How long one sync waits for others.
const PATIENCE: Duration = Duration::from_secs(2);

/// Ends the sync also where it panics.
struct UnderWay<'a> {
    entry: &'a FileEntry,
    word: &'a AtomicU64,
    made: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.word.store(self.made, Release);
        self.entry.syncs.fetch_sub(1, Release);
    }
}

impl Me<'_> {
    /// Makes a call that may hear what the kernel could not write, and notes what it hears.
    pub fn at_sync<T>(self, file: FileId, sync: impl FnOnce() -> T) -> T {
        let (entry, word) = (self.arena.file_unchecked(file), &self.slot().syncing);
        let made = (word.load(Relaxed) & !(SYNC - 1)).wrapping_add(SYNC);
        // Before the call: a thread that hears nothing since this thread has heard of it finds both.
        entry.syncs.fetch_add(1, SeqCst);
        word.store(made | (u64::from(file.0) + 1), SeqCst);
        let _under_way = UnderWay { entry, word, made };
        sync()
    }

    /// Waits for the syncs of a file that others have under way now, unless they have died or are stopped, for [`PATIENCE`] at most.
    pub fn await_syncs(self, file: FileId) {
        // The dead stay in this count: a look at all slots for each sync of such a file.
        if self.arena.file_unchecked(file).syncs.load(SeqCst) == 0 {
            return;
        }
        let begun = Instant::now();
        for id in (1..self.arena.counts().threads).map(ThreadId) {
            let slot = self.arena.thread_unchecked(id);
            let seen = slot.syncing.load(SeqCst);
            if id == self.id || seen & (SYNC - 1) != u64::from(file.0) + 1 {
                continue;
            }
            let mut round = 0;
            while slot.syncing.load(Acquire) == seen && !is_dead(self.arena, id) {
                round += 1;
                if round % ASK_ROUNDS == 0 {
                    if begun.elapsed() > PATIENCE {
                        return;
                    }
                    if stops::does_not_run(slot) {
                        break;
                    }
                }
                self.wait(round);
            }
        }
    }
}
