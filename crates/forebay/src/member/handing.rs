//! Handing files to the keeper, as a process of the session does it: what is asked by its line (`member::handoff`), and when.

use std::os::fd::OwnedFd;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::device::DeviceFile;
use crate::ids::FileId;
use crate::member::handoff::{Handed, is_silent};
use crate::member::hurry;
use crate::member::presence::has_keeper;
use crate::member::shared::Shared;
use crate::sync::Ordering;
use crate::sync::time::Instant;

/// How long a keeper that could not be reached is left alone.
const HAND_OVER_PAUSE: Duration = Duration::from_millis(100);
/// In the place of a keeper's epoch: the file was to be handed over, and there was no keeper.
const NOBODY: u32 = u32::MAX;

impl Shared {
    /// Whether there may be a keeper in another process to which this one can say something.
    pub fn reaches_keepers(&self) -> bool {
        #[cfg(feature = "sim")]
        if self.letters().is_some() {
            return true;
        }
        self.arena_path.is_some()
    }

    /// Whether the keeper of today has a description's descriptors.
    #[inline]
    pub fn is_handed(&self, handed: &AtomicU32) -> bool {
        handed.load(Relaxed) == self.arena.superblock().keeper_epoch.load(Ordering::Relaxed)
    }

    /// Makes sure that the keeper has the file's descriptors. `handed` is the keeper that a description was handed to
    /// last. Best effort: without a keeper this process flushes by itself, and tries again now and then. `false`: there is a keeper, which
    /// cannot have them. Outsiders would see an old file then, so it is better the kernel's.
    #[inline]
    pub fn hand_over(&self, file: FileId, device: &dyn DeviceFile, handed: &AtomicU32) -> bool {
        let epoch = self.arena.superblock().keeper_epoch.load(Ordering::Relaxed);
        handed.load(Relaxed) == epoch || self.hand_over_to(file, device, handed, epoch)
    }

    #[cold]
    fn hand_over_to(
        &self,
        file: FileId,
        device: &dyn DeviceFile,
        handed: &AtomicU32,
        epoch: u32,
    ) -> bool {
        if self.keeps.load(Relaxed) || self.arena_path.is_none() {
            #[cfg(feature = "sim")]
            if let Some(neighbours) = self.neighbours.get() {
                neighbours.hand_over(file, device);
            }
            handed.store(epoch, Relaxed);
            return true;
        }
        let mut refused = self.handing.lock().unwrap_or_else(PoisonError::into_inner);
        if handed.load(Relaxed) == epoch {
            return true;
        }
        if refused.is_some_and(|at| at.elapsed() < HAND_OVER_PAUSE) {
            handed.store(NOBODY, Relaxed);
            return true;
        }
        let done = self.line.hand_over(self, file, device, epoch);
        if done == Handed::ToNobody {
            handed.store(NOBODY, Relaxed);
            *refused = Some(Instant::now());
        } else {
            handed.store(epoch, Relaxed);
            *refused = None;
        }
        done != Handed::InVain
    }

    /// Has the keeper take a file that was handed over, should it not have needed it so far. Waits for nobody.
    pub fn have_taken(&self, file: FileId) {
        if !self.keeps.load(Relaxed) && self.arena_path.is_some() {
            self.line.have_taken(self, file);
        }
    }

    /// Tells a keeper elsewhere that a description has been closed.
    pub fn released(&self, file: FileId, handed: &AtomicU32) {
        let epoch = handed.load(Relaxed);
        if epoch == 0 || self.keeps.load(Relaxed) || !self.reaches_keepers() {
            return;
        }
        let now = self.arena.superblock().keeper_epoch.load(Ordering::Relaxed);
        if epoch == now {
            self.line.release(self, file, epoch);
        } else if has_keeper(&self.arena) {
            // One that has come since may have opened it by its name.
            self.line.say_unused(self, file, now);
        }
    }

    /// As [`Shared::hand_over`], for a description that only reads: the keeper counts it, and gets no descriptors.
    pub fn announce_reader(&self, file: FileId, handed: &AtomicU32) {
        let epoch = self.arena.superblock().keeper_epoch.load(Ordering::Relaxed);
        if self.arena_path.is_some() && self.line.announce_reader(self, file, epoch) {
            handed.store(epoch, Relaxed);
        }
    }

    /// As [`Shared::released`], for a description that only reads.
    pub fn released_reader(&self, file: FileId, handed: &AtomicU32) {
        // One that has come since has not heard of it.
        if self.arena_path.is_some() && self.is_handed(handed) {
            self.line.release_reader(self, file, handed.load(Relaxed));
        }
    }

    /// Asks the keeper to write what a file owes. `false`: it cannot be reached, or could not write everything.
    pub fn ask_to_flush(&self, file: FileId) -> bool {
        if self.arena_path.is_none() {
            return false;
        }
        if !is_silent(self) {
            hurry::have_most_written(self, file);
        }
        self.line.ask_to_flush(self, file, false)
    }

    /// As [`Shared::ask_to_flush`], durably.
    pub fn ask_to_sync(&self, file: FileId) -> bool {
        self.arena_path.is_some() && self.line.ask_to_flush(self, file, true)
    }

    /// Puts a descriptor where this process keeps those of the session's.
    pub fn placed(&self, fd: OwnedFd) -> OwnedFd {
        self.line.placed(fd)
    }

    /// Has the keeper of this epoch make one description of the two that it has of a file.
    pub fn ask_to_unite(&self, file: FileId, epoch: u32) -> bool {
        self.line.ask_to_unite(self, file, epoch)
    }

    /// Tells the keeper of this epoch that a file is left to it under a lease.
    pub fn say_left(&self, file: FileId, epoch: u32) -> bool {
        self.line.say_left(self, file, epoch)
    }
}
