//! Flushing a file in the caller's own thread, with its change noted for a recovery.
//!
//! What a process may not write itself (`RLIMIT_FSIZE`, a descriptor that only reads) it leaves to the keeper.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::device::{DeviceFile, DeviceStat, Inline};
use crate::file::closing;
use crate::flush::{Flusher, Outcome, Scope};
use crate::frame::slots;
use crate::ids::FileId;
use crate::limits::BLOCK_BYTES;
use crate::member::shared::Shared;
use crate::memory::threads::Me;
use crate::sync::Ordering;
use crate::sys::limits;

impl Shared {
    /// A flusher for a caller's own thread: one request at a time, no threads, no io_uring.
    pub fn own_flusher(&self) -> Flusher {
        Flusher::new(Box::new(Inline::new()), 1)
    }

    /// Flushes in the caller's own thread, and notes for recovery that the changes to the device file are ours.
    pub fn flush(
        &self,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        scope: Scope,
    ) -> Outcome {
        self.flush_with(&mut self.own_flusher(), me, file, device, scope)
    }

    /// As [`Shared::flush`], with a flusher of the caller's. A device file that may not be written leaves it to the keeper.
    pub fn flush_with(
        &self,
        flusher: &mut Flusher,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        scope: Scope,
    ) -> Outcome {
        self.flush_seen(flusher, me, file, device, scope, || None)
    }

    /// As [`Shared::flush_with`]; `look` as for [`Shared::change_seen`]. Nor is it called where there was nothing to write.
    pub fn flush_seen(
        &self,
        flusher: &mut Flusher,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        scope: Scope,
        look: impl FnOnce() -> Option<(u32, DeviceStat)>,
    ) -> Outcome {
        if !device.is_writable() {
            self.ask_to_flush(file);
            return Outcome::default();
        }
        let owed = &self.arena.file_unchecked(file).owed_pages;
        if owed.load(Ordering::Acquire) == 0 {
            // No change of ours: at its end the file would be remembered as it is, whatever an outsider has made of it meanwhile.
            return Outcome::default();
        }
        let (scope, rest) = self.within_limit(file, scope);
        let flush = || flusher.flush_and_write_fills(me, file, device, scope);
        let mut outcome = self.change_seen(me, file, device, flush, look);
        if rest && outcome.errno.is_none() && !self.others_flush(me, file, scope.until) {
            outcome.errno = Some(libc::EFBIG);
        }
        closing::finish_taken_back(self, me, file, device);
        outcome
    }

    /// What of a flush this process may do (`RLIMIT_FSIZE`): the kernel would end it for more. And whether there is a rest,
    /// which others of the session, or a recovery, have to write.
    #[inline]
    fn within_limit(&self, file: FileId, scope: Scope) -> (Scope, bool) {
        let limit = limits::file_bytes();
        let size = self.arena.file_unchecked(file).size.load(Ordering::Acquire);
        if size <= limit {
            return (scope, false);
        }
        let until = scope.until.min(limit / BLOCK_BYTES as u64);
        (Scope { until, ..scope }, scope.all && until < scope.until)
    }

    /// Has the keeper write what a file owes from a block on, if anything.
    #[cold]
    fn others_flush(&self, me: Me<'_>, file: FileId, from: u64) -> bool {
        let entry = self.arena.file_unchecked(file);
        let mut round = 0;
        let owed = loop {
            if let Ok(_operation) = me.enter(file) {
                break slots::next_owed(&self.arena, entry, from).is_some();
            }
            round += 1;
            me.wait(round);
        };
        !owed || !self.keeps.load(Relaxed) && self.ask_to_flush(file)
    }
}
