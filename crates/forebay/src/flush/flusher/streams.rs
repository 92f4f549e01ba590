//! Two more ways to flush: blocks as a writer names them, and passes in the background.

use std::sync::Arc;

use super::{Flusher, Outcome, Scope, Work};
use crate::device::DeviceFile;
use crate::frame::slots;
use crate::ids::{BlockIndex, FileId, HeaderId};
use crate::memory::threads::Me;

/// For large requests as they come in.
impl Flusher {
    /// Flushes the blocks that `next` names, keeping several requests under way, until it names none while nothing is.
    pub fn flush_stream(
        &mut self,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        mut next: impl FnMut() -> Option<BlockIndex>,
    ) -> Outcome {
        self.run(me, file, device, |flusher, work| {
            loop {
                while let Some(block) = next() {
                    if let Some(id) = flusher.find(work, block) {
                        flusher.visit(work, &Scope::some(u64::MAX), block, id);
                    }
                    flusher.reap(work, false);
                }
                flusher.submit_batch(work);
                if flusher.queue.in_flight() == 0 {
                    return;
                }
                flusher.reap(work, true);
            }
        })
    }

    fn find(&self, work: &Work<'_, '_>, block: BlockIndex) -> Option<HeaderId> {
        let _operation = work.me.enter(work.file).ok()?;
        slots::lookup(
            work.me.arena,
            work.me.arena.file_unchecked(work.file),
            block,
        )
    }
}

/// For background flushes: fills of this pass are written before it ends.
impl Flusher {
    /// As [`Flusher::flush`], then once more over what has been filled meanwhile.
    pub fn flush_and_write_fills(
        &mut self,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        scope: Scope,
    ) -> Outcome {
        let first = self.flush(me, file, device, scope);
        if first.bytes_read == 0 || first.errno.is_some() {
            return first;
        }
        let second = self.flush(me, file, device, scope);
        Outcome {
            pages_written: first.pages_written + second.pages_written,
            bytes_read: first.bytes_read + second.bytes_read,
            errno: second.errno,
        }
    }
}
