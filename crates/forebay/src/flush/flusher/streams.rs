//! More ways to flush: blocks as a writer names them, passes in the background, and coming back to what was busy.

use std::sync::Arc;

use super::{Flusher, Outcome, Scope, Work};
use crate::device::DeviceFile;
use crate::error::errno_of;
use crate::frame::header::NOBODYS;
use crate::frame::slots;
use crate::ids::{BlockIndex, FileId, HeaderId};
use crate::memory::threads::Me;
use crate::stream::tracking;

/// Rounds of waiting after which it is looked whether a repair can be expected to end what is waited for.
const ORPHAN_ROUNDS: u32 = 64;

/// Asks the device to finish what the dead have under way, where a repair could not. A device that cannot say that it has will not say so to
/// the next repair either, and a program that syncs is told why instead of waiting for it.
fn await_orphans(work: &Work<'_, '_>) -> Result<(), i32> {
    let is_orphan = |&(_, id): &(BlockIndex, HeaderId)| {
        let header = work.me.arena.header(id);
        header.is_some_and(|header| header.inflight() != 0 && header.flusher() == NOBODYS)
    };
    if !work.later.iter().any(is_orphan) {
        return Ok(());
    }
    let waited = work
        .me
        .at_device(work.file, || work.device.wait_in_flight());
    waited.map_err(|error| errno_of(&error))
}

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

/// For syncs: stream by stream (StreamCache 4.2), each from its first dirty block on.
impl Flusher {
    pub(super) fn walk_streams(&mut self, work: &mut Work<'_, '_>, scope: &Scope) {
        let mut at = scope.from;
        while work.outcome.pages_written < scope.pages_max && !work.is_refused {
            let from = u32::try_from(at).unwrap_or(u32::MAX);
            let next = self.ask(work, |me, file| tracking::next_dirty(me, file, from));
            let Some(dirty) = next.filter(|dirty| u64::from(dirty.start) < scope.until) else {
                return;
            };
            let part = Scope {
                from: dirty.start.into(),
                until: u64::from(dirty.end).min(scope.until),
                ..*scope
            };
            self.walk(work, &part);
            at = dirty.end.into();
        }
    }

    /// Looks at something in an operation on the file, however long it takes to get into one.
    pub(super) fn ask<'a, T>(
        &mut self,
        work: &mut Work<'a, '_>,
        look: impl Fn(Me<'a>, FileId) -> T,
    ) -> T {
        let mut round = 0;
        loop {
            if let Ok(_operation) = work.me.enter(work.file) {
                return look(work.me, work.file);
            }
            // Stopped: what has been begun must end first, then wait.
            self.submit_batch(work);
            self.drain(work);
            round += 1;
            work.me.wait(round);
        }
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

    /// Goes back to headers that were busy or have been filled, until each has been written. In ascending order, so that
    /// neighbours become one request.
    pub(super) fn come_back(&mut self, work: &mut Work<'_, '_>, scope: &Scope) {
        let mut round = 0u32;
        while !work.later.is_empty() && !work.is_refused {
            let before = work.outcome;
            self.revisit(work, scope);
            if work.outcome == before && !work.later.is_empty() {
                round += 1;
                if round.is_multiple_of(ORPHAN_ROUNDS)
                    && let Err(errno) = await_orphans(work)
                {
                    work.outcome.errno.get_or_insert(errno);
                    work.is_refused = true;
                    return;
                }
                work.me.wait(round);
            }
        }
    }

    /// One more visit to each header that was put aside.
    fn revisit(&mut self, work: &mut Work<'_, '_>, scope: &Scope) {
        let mut later = std::mem::take(&mut work.later);
        later.sort_unstable_by_key(|(block, _)| block.0);
        later.dedup();
        for (block, header) in later {
            self.visit(work, scope, block, header);
            self.reap(work, false);
        }
        self.submit_batch(work);
        self.drain(work);
    }
}
