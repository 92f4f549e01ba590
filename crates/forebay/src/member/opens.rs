//! Which process has which file open.
//!
//! A process counts its own descriptions. For the others it shares the lock of a byte of the arena's file while it has any: each entry has
//! two, one for descriptions that only read and one for those that the file could be written by. The kernel takes the lock away when the
//! process ends, however it does, so nobody who is gone has anything open, and there is nothing to repair. An arena on the heap is one process's.
//!
//! The locks are those of an open description of their own. The arena's own one has mappings, which a forked child keeps for good: what its
//! parent had open would be open until that child ends. (A child that keeps the descriptor shares what its parent had.)
//!
//! An entry's own counts (`FileEntry::openers`, one for each kind) are for those who cannot afford a system call. They may count the dead, and
//! never too few: nobody takes from them what somebody else has counted, and [`table::recount`](crate::member::table::recount) sets one to
//! zero once its own lock is not held.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::{Error, Result};
use crate::ids::FileId;
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::sys::{self, lock};

/// One process's open descriptions, by file: those that only read, and those that the file could be written by.
#[derive(Default)]
pub struct Opens {
    counts: Mutex<HashMap<FileId, [u32; 2]>>,
    /// The description that has the locks; `None`: it cannot be had, and the arena's own has them. Made before the first lock is taken.
    locks: OnceLock<Option<OwnedFd>>,
}

/// The byte that says who has descriptions of the one or the other kind. The two of a file lie side by side.
fn byte_of(file: FileId, writes: bool) -> u64 {
    u64::from(file.0) * 2 + u64::from(writes)
}

impl Opens {
    /// Its holder waits for nobody, and looks at nothing shared.
    fn counts(&self) -> MutexGuard<'_, HashMap<FileId, [u32; 2]>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has the locks of this process. `None`: the arena is on the heap.
    fn locks<'a>(&'a self, arena: &'a Arena) -> Option<BorrowedFd<'a>> {
        let arena_file = arena.mapping().file()?.as_fd();
        let own = self.locks.get().and_then(Option::as_ref);
        Some(own.map_or(arena_file, |own| own.as_fd()))
    }

    /// Counts one more. `place` puts a descriptor where this process keeps those of the session's.
    ///
    /// # Errors
    /// The system's, when it has no lock to give.
    pub fn add(
        &self,
        arena: &Arena,
        (file, writes): (FileId, bool),
        place: impl FnOnce(OwnedFd) -> OwnedFd,
    ) -> io::Result<()> {
        let mut counts = self.counts();
        let count = &mut counts.entry(file).or_default()[usize::from(writes)];
        if let (0, Some(arena_file)) = (*count, arena.mapping().file()) {
            self.locks.get_or_init(|| {
                let own = sys::file::open_again(arena_file.as_fd(), false, true);
                own.ok().map(place)
            });
            if let Some(locks) = self.locks(arena) {
                lock::share(locks, byte_of(file, writes))?;
            }
        }
        *count += 1;
        Ok(())
    }

    /// Counts one less.
    pub fn take(&self, arena: &Arena, file: FileId, writes: bool) {
        let mut counts = self.counts();
        let Some(kinds) = counts.get_mut(&file) else {
            return;
        };
        let count = &mut kinds[usize::from(writes)];
        *count = count.saturating_sub(1);
        if let (0, Some(locks)) = (*count, self.locks(arena)) {
            // The lock of what is open cannot fail to be given back.
            let _ = lock::let_go(locks, byte_of(file, writes));
        }
        if *kinds == [0, 0] {
            counts.remove(&file);
        }
    }

    /// Descriptions of this process.
    pub fn here(&self, file: FileId) -> u32 {
        self.counts()
            .get(&file)
            .map_or(0, |kinds| kinds.iter().sum())
    }

    /// Those of them that the file could be written by, or that only read.
    fn here_by(&self, file: FileId, writes: bool) -> u32 {
        let counts = self.counts();
        counts
            .get(&file)
            .map_or(0, |kinds| kinds[usize::from(writes)])
    }
}

/// Whether somebody who has the locks by another description has a file open. What cannot be told counts as open.
fn is_open_elsewhere(locks: Option<BorrowedFd<'_>>, file: FileId) -> bool {
    locks.is_some_and(|locks| {
        lock::is_any_held_elsewhere(locks, byte_of(file, false), 2).unwrap_or(true)
    })
}

/// Whether anybody has a file open, as who has mapped the arena and is no member sees it.
pub fn is_anywhere_open(arena: &Arena, file: FileId) -> bool {
    is_open_elsewhere(arena.mapping().file().map(AsFd::as_fd), file)
}

/// As [`is_open_elsewhere`], by a description of one kind.
fn is_open_elsewhere_by(locks: Option<BorrowedFd<'_>>, file: FileId, writes: bool) -> bool {
    locks.is_some_and(|locks| lock::is_held_elsewhere(locks, byte_of(file, writes)).unwrap_or(true))
}

impl Shared {
    /// Notes that this process has one more description of a file.
    pub fn add_open(&self, file: FileId, writes: bool) -> Result<()> {
        let place = |fd| self.placed(fd);
        let added = self.opens.add(&self.arena, (file, writes), place);
        added.map_err(|e| Error::device("note that a file is open", &e))
    }

    /// One description of this process has been closed, and taken from the entry's counts.
    pub fn take_open(&self, file: FileId, writes: bool) {
        self.opens.take(&self.arena, file, writes);
    }

    /// Whether any process has the file open by a description of one kind, whatever the entry counts. Costs a system call.
    pub fn is_open_by(&self, file: FileId, writes: bool) -> bool {
        self.opens.here_by(file, writes) > 0
            || is_open_elsewhere_by(self.opens.locks(&self.arena), file, writes)
    }

    /// Whether any process has the file open. Costs a system call where the entry's count says so, which may count the dead.
    pub fn is_open(&self, file: FileId) -> bool {
        self.arena.file_unchecked(file).opens() != 0
            && (self.opens.here(file) > 0 || is_open_elsewhere(self.opens.locks(&self.arena), file))
    }

    /// Whether the file has been opened once, here, and nowhere else.
    pub fn is_open_once(&self, file: FileId) -> bool {
        self.opens.here(file) == 1
            && (self.arena.file_unchecked(file).opens() == 1
                || !is_open_elsewhere(self.opens.locks(&self.arena), file))
    }
}
