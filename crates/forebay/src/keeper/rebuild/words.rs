//! The part of a rebuild that sets single words right: counts without bounds, locks and marks of the dead.

use super::Rebuild;
use crate::ids::{FileId, ThreadId};
use crate::memory::files::EXCEEDING;
use crate::memory::threads;
use crate::sync::Ordering;

impl Rebuild<'_, '_> {
    /// Counts in the superblock that nothing could be made of.
    pub(super) fn bounds(&mut self) {
        let (superblock, counts) = (self.arena().superblock(), self.arena().counts());
        let limits = [
            (&superblock.headers_backed, 0, counts.headers),
            (&superblock.nodes_backed, 0, counts.nodes),
            (&superblock.frames_max, 1, counts.frames),
        ];
        let regions = &superblock.frames_free.regions;
        if regions.load(Ordering::Relaxed) != self.arena().shares().regions() {
            regions.store(self.arena().shares().regions(), Ordering::Relaxed);
            self.findings.corruptions += 1;
        }
        for (word, least, most) in limits {
            let value = word.load(Ordering::Acquire);
            if value.clamp(least, most) != value {
                word.store(value.clamp(least, most), Ordering::Release);
                self.findings.corruptions += 1;
            }
        }
    }

    /// Words that name a dead holder, and marks that the dead have left on files.
    pub(super) fn release_locks(&mut self) {
        let arena = self.arena();
        let superblock = arena.superblock();
        self.release(&superblock.table_lock);
        superblock
            .newcomers
            .iter()
            .for_each(|word| self.release(word));
        for id in (0..arena.counts().files).map(FileId) {
            let entry = arena.file_unchecked(id);
            // Before the gate opens: a thread that has died may have been making a hole, so that a look at the file's space counts for nothing.
            entry.solid.store(0, Ordering::Release);
            entry.holes.fetch_add(1, Ordering::AcqRel);
            let closer = entry.gate.closer();
            if closer != ThreadId::NOBODY && (self.dead.threads)(closer) {
                entry.gate.reopen(closer);
            }
            self.release(&entry.append_lock);
        }
        for thread in (1..arena.counts().threads)
            .map(ThreadId)
            .filter(|&t| (self.dead.threads)(t))
        {
            // Where the dead was at work on a file, it may have been writing past the end. In one that is the kernel's it has found that it
            // is, and written nothing.
            if let Some(entry) = threads::works_on(arena, thread)
                .and_then(|file| arena.file(file))
                .filter(|entry| entry.kernel_reason.load(Ordering::Acquire) == 0)
            {
                entry.flags.fetch_or(EXCEEDING, Ordering::AcqRel);
                // Or within the file, beyond what the device file was known to reach: nothing there is known to be zeros.
                let size = entry.size.load(Ordering::Acquire);
                entry.disk_end.fetch_max(size, Ordering::AcqRel);
            }
        }
    }

    fn release(&self, word: &crate::sync::AtomicU32) {
        let holder = word.load(Ordering::Acquire);
        if holder != 0 && (self.dead.threads)(ThreadId(holder)) {
            // Not a store: a thread that waits for such a word is in no operation and may open it, and take it, by itself.
            let _ = word.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}
