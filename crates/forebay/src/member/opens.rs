//! Which process has which file open.
//!
//! A process counts its own descriptions. For the others it shares the lock of a byte of the arena's file while it has any: each entry has
//! two, one for descriptions that only read and one for those that the file could be written by. The kernel takes the lock away when the
//! process ends, however it does, so nobody who is gone has anything open, and there is nothing to repair. An arena on the heap is one process's.
//!
//! The kernel keeps the locks of a file in one list, which it walks for each call, and makes one of those of a holder that touch. So an
//! entry's byte is not its place in the table, which is anywhere: whoever makes entries takes their bytes in a row ([`Opens::new_byte`]), and bytes of the two
//! kinds lie far from one another. A program that opens thousands of files has some locks; it has many only where it has closed others in between
//! (`docs/decisions/0090-locks-in-short-lists.md`).
//!
//! The locks are those of an open description of their own. The arena's own one has mappings, which a forked child keeps for good: what its
//! parent had open would be open until that child ends. (A child that keeps the descriptor shares what its parent had.)
//!
//! An entry's own counts (`FileEntry::openers`, one for each kind) are for those who cannot afford a system call. They may count the dead, and
//! never too few: nobody takes from them what somebody else has counted, and [`table::recount`](crate::member::table::recount) sets one to
//! zero once its own lock is not held.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::{Error, Result};
use crate::ids::FileId;
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::memory::files::FileEntry;
use crate::sync::Ordering;
use crate::sys::{self, lock};

/// Bytes that a process takes at once: those of several that make entries by turns would not touch.
const BYTES_AT_ONCE: u64 = 64;
/// Where the bytes of the two kinds begin, far beyond those of [`viewers`](crate::member::viewers). There are as many between them as there will
/// ever be.
const OF_READERS: u64 = 1 << 60;
const OF_WRITERS: u64 = 1 << 61;

/// One process's descriptions of a file, and the byte of its locks.
#[derive(Default)]
struct Here {
    /// Those that only read, and those that the file could be written by.
    counts: [u32; 2],
    lock_byte: u64,
}

/// One process's open descriptions, by file.
#[derive(Default)]
pub struct Opens {
    counts: Mutex<HashMap<FileId, Here>>,
    /// The description that has the locks; `None`: it cannot be had, and the arena's own has them. Made before the first lock is taken.
    locks: OnceLock<Option<OwnedFd>>,
    /// Bytes that this process has taken for entries to come.
    bytes: Mutex<Range<u64>>,
}

/// The byte that says who has descriptions of the one or the other kind. Of what shared memory says, whatever is there.
fn byte_of(lock_byte: u64, writes: bool) -> u64 {
    lock_byte % OF_READERS + if writes { OF_WRITERS } else { OF_READERS }
}

/// As [`byte_of`], of an entry as it is.
fn byte_in(entry: &FileEntry, writes: bool) -> u64 {
    byte_of(entry.lock_byte.load(Ordering::Acquire), writes)
}

impl Opens {
    /// Its holder waits for nobody, and looks at nothing shared.
    fn counts(&self) -> MutexGuard<'_, HashMap<FileId, Here>> {
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
        let entry = arena.file_unchecked(file);
        let lock_byte = entry.lock_byte.load(Ordering::Acquire);
        let mut counts = self.counts();
        let here = counts.entry(file).or_default();
        if here.counts == [0, 0] {
            here.lock_byte = lock_byte;
        }
        let count = &mut here.counts[usize::from(writes)];
        if let (0, Some(arena_file)) = (*count, arena.mapping().file()) {
            self.locks.get_or_init(|| {
                let own = sys::file::open_again(arena_file.as_fd(), false, true);
                own.ok().map(place)
            });
            if let Some(locks) = self.locks(arena) {
                lock::share(locks, byte_of(here.lock_byte, writes))?;
            }
        }
        *count += 1;
        Ok(())
    }

    /// Counts one less.
    pub fn take(&self, arena: &Arena, file: FileId, writes: bool) {
        let mut counts = self.counts();
        let Some(here) = counts.get_mut(&file) else {
            return;
        };
        let count = &mut here.counts[usize::from(writes)];
        *count = count.saturating_sub(1);
        if let (0, Some(locks)) = (*count, self.locks(arena)) {
            // Where the kernel has no memory to part a lock with, the file counts as open for as long as the process lives.
            let _ = lock::let_go(locks, byte_of(here.lock_byte, writes));
        }
        if here.counts == [0, 0] {
            counts.remove(&file);
        }
    }

    /// A byte for an entry that is about to be made.
    fn new_byte(&self, arena: &Arena) -> u64 {
        if arena.mapping().file().is_none() {
            return 0;
        }
        let bytes = || self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(byte) = bytes().next() {
            return byte;
        }
        // Without the lock. Should others do so as well just now, all but the last have taken theirs in vain.
        let taken = &arena.superblock().lock_bytes;
        let first = taken.fetch_add(BYTES_AT_ONCE, Ordering::AcqRel);
        *bytes() = first.wrapping_add(1)..first.wrapping_add(BYTES_AT_ONCE);
        first
    }

    /// Descriptions of this process.
    pub fn here(&self, file: FileId) -> u32 {
        self.counts()
            .get(&file)
            .map_or(0, |here| here.counts.iter().sum())
    }

    /// Those of them that the file could be written by, or that only read.
    fn here_by(&self, file: FileId, writes: bool) -> u32 {
        let counts = self.counts();
        counts
            .get(&file)
            .map_or(0, |here| here.counts[usize::from(writes)])
    }
}

/// Whether somebody who has the locks by another description has a file open by a description of one kind. What cannot be told counts as open.
fn is_open_elsewhere_by(locks: Option<BorrowedFd<'_>>, entry: &FileEntry, writes: bool) -> bool {
    locks
        .is_some_and(|locks| lock::is_held_elsewhere(locks, byte_in(entry, writes)).unwrap_or(true))
}

/// As [`is_open_elsewhere_by`], of either kind. An entry never counts too few of a kind, so one that counts none is not asked for.
fn is_open_elsewhere(locks: Option<BorrowedFd<'_>>, entry: &FileEntry) -> bool {
    let is_open = |writes| is_open_elsewhere_by(locks, entry, writes);
    (entry.writers() != 0 && is_open(true)) || (entry.readers() != 0 && is_open(false))
}

/// Whether anybody has a file open, as who has mapped the arena and is no member sees it.
pub fn is_anywhere_open(arena: &Arena, file: FileId) -> bool {
    let locks = arena.mapping().file().map(AsFd::as_fd);
    is_open_elsewhere(locks, arena.file_unchecked(file))
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
            || is_open_elsewhere_by(
                self.opens.locks(&self.arena),
                self.arena.file_unchecked(file),
                writes,
            )
    }

    /// Whether any process has the file open. Costs a system call for each kind that the entry counts, which may be the dead.
    pub fn is_open(&self, file: FileId) -> bool {
        let entry = self.arena.file_unchecked(file);
        entry.opens() != 0
            && (self.opens.here(file) > 0
                || is_open_elsewhere(self.opens.locks(&self.arena), entry))
    }

    /// Whether the file has been opened once, here, and nowhere else.
    pub fn is_open_once(&self, file: FileId) -> bool {
        let entry = self.arena.file_unchecked(file);
        self.opens.here(file) == 1
            && (entry.opens() == 1 || !is_open_elsewhere(self.opens.locks(&self.arena), entry))
    }

    /// A byte for the locks of an entry that is about to be made.
    pub fn new_lock_byte(&self) -> u64 {
        self.opens.new_byte(&self.arena)
    }
}
