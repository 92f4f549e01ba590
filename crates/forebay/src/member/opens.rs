//! Which process has which file open.
//!
//! A process counts its own descriptions. For the others it shares the lock of a byte of the arena's file while it has any: each entry has
//! two, one for descriptions that only read and one for those that the file could be written by. The kernel takes the lock away when the
//! process ends, however it does, so no process that is gone has anything open, and there is nothing to repair. An arena on the heap is one
//! process's.
//!
//! The kernel keeps the locks of a file in one list, which it walks for each call, and makes one of those of a holder that touch. So an
//! entry's byte is not its place in the table, which is anywhere: a process that makes entries takes their bytes in a row (`Opens::new_byte`), and bytes of
//! the two kinds lie far from one another. A program that opens thousands of files has some locks; it has many only where it has closed others in between
//! (`docs/decisions/0090-locks-in-short-lists.md`).
//!
//! The locks are those of an open description of their own. The arena's own one has mappings, which a forked child keeps for good: what its
//! parent had open would be open until that child ends. (A child that keeps the descriptor shares what its parent had.)
//!
//! An entry's own counts (`FileEntry::openers`, one for each kind) are for those that cannot afford a system call. They may count the dead, and
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

/// An entry, and the byte of its locks: while a close is under way the entry may become another file's, with another byte.
pub type Opened = (FileId, u64);

/// One process's open descriptions.
#[derive(Default)]
pub struct Opens {
    /// By file: those that only read, and those that the file could be written by.
    counts: Mutex<HashMap<Opened, [u32; 2]>>,
    /// The description that has the locks; `None`: it cannot be had, and the arena's own has them. Made before the first lock is taken.
    locks: OnceLock<Option<OwnedFd>>,
    /// Bytes that this process has taken for entries to come.
    bytes: Mutex<Range<u64>>,
}

/// The byte that says who has descriptions of the one or the other kind. Of what shared memory says, whatever is there.
fn byte_of(lock_byte: u64, writes: bool) -> u64 {
    lock_byte % OF_READERS + if writes { OF_WRITERS } else { OF_READERS }
}

/// What an entry says of who has its file open.
#[derive(Clone, Copy, PartialEq)]
struct Said {
    lock_byte: u64,
    openers: u64,
}

impl Said {
    fn by(entry: &FileEntry) -> Said {
        Said {
            lock_byte: entry.lock_byte.load(Ordering::Acquire),
            openers: entry.openers.load(Ordering::SeqCst),
        }
    }

    /// Whether it counts any of one kind. It never counts too few.
    fn has(self, writes: bool) -> bool {
        (self.openers >> if writes { 32 } else { 0 }) as u32 != 0
    }
}

/// Whether a file is open, by what its entry says. "No" holds only where the entry says the same afterwards: one kind is asked for after the other, and a
/// process that has opened by the one and closed by the other in between would be missed, as would one that has a file that has got the entry meanwhile.
fn is_open_by(entry: &FileEntry, is_open: impl Fn(Said) -> bool) -> bool {
    let mut said = Said::by(entry);
    loop {
        if is_open(said) {
            return true;
        }
        let now = Said::by(entry);
        if now == said {
            return false;
        }
        said = now;
    }
}

impl Opens {
    /// Its holder waits for nobody, and looks at nothing shared.
    fn counts(&self) -> MutexGuard<'_, HashMap<Opened, [u32; 2]>> {
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
        let lock_byte = Said::by(arena.file_unchecked(file)).lock_byte;
        let mut counts = self.counts();
        let here = counts.entry((file, lock_byte)).or_default();
        let count = &mut here[usize::from(writes)];
        if let (0, Some(arena_file)) = (*count, arena.mapping().file()) {
            self.locks.get_or_init(|| {
                let own = sys::file::open_again(arena_file.as_fd(), false, true);
                own.ok().map(place)
            });
            if let Some(locks) = self.locks(arena) {
                lock::share(locks, byte_of(lock_byte, writes))?;
            }
        }
        *count += 1;
        Ok(())
    }

    /// Counts one less. `opened`: as the entry was while it counted this one.
    pub fn take(&self, arena: &Arena, opened: Opened, writes: bool) {
        let (_, lock_byte) = opened;
        let mut counts = self.counts();
        let Some(here) = counts.get_mut(&opened) else {
            return;
        };
        let count = &mut here[usize::from(writes)];
        *count = count.saturating_sub(1);
        if let (0, Some(locks)) = (*count, self.locks(arena)) {
            // Where the kernel has no memory to part a lock with, the file counts as open for as long as the process lives.
            let _ = lock::let_go(locks, byte_of(lock_byte, writes));
        }
        if *here == [0, 0] {
            counts.remove(&opened);
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

    /// Descriptions of this process: those that only read, and those that the file could be written by.
    fn here(&self, opened: Opened) -> [u32; 2] {
        self.counts().get(&opened).copied().unwrap_or_default()
    }
}

/// Whether a process that has the locks by another description has a file open by a description of one kind. What cannot be told counts as open.
fn is_held(locks: Option<BorrowedFd<'_>>, said: Said, writes: bool) -> bool {
    let byte = byte_of(said.lock_byte, writes);
    locks.is_some_and(|locks| lock::is_held_elsewhere(locks, byte).unwrap_or(true))
}

/// As [`is_held`], of each kind that the entry counts.
fn is_any_held(locks: Option<BorrowedFd<'_>>, said: Said) -> bool {
    [true, false]
        .into_iter()
        .any(|writes| said.has(writes) && is_held(locks, said, writes))
}

/// Whether anybody has a file open, as a process that has mapped the arena and is no member sees it.
pub fn is_anywhere_open(arena: &Arena, file: FileId) -> bool {
    let locks = arena.mapping().file().map(AsFd::as_fd);
    is_open_by(arena.file_unchecked(file), |said| is_any_held(locks, said))
}

impl Shared {
    /// Notes that this process has one more description of a file.
    pub fn add_open(&self, file: FileId, writes: bool) -> Result<()> {
        let place = |fd| self.placed(fd);
        let added = self.opens.add(&self.arena, (file, writes), place);
        added.map_err(|e| Error::device("note that a file is open", &e))
    }

    /// An entry as it is. It stays so while it counts a description of this process.
    pub fn opened(&self, file: FileId) -> Opened {
        let entry = self.arena.file_unchecked(file);
        (file, entry.lock_byte.load(Ordering::Acquire))
    }

    /// One description of this process has been closed, and taken from the entry's counts.
    pub fn take_open(&self, opened: Opened, writes: bool) {
        self.opens.take(&self.arena, opened, writes);
    }

    /// Whether any process has the file open by a description of one kind, whatever the entry counts. Costs a system call.
    pub fn is_open_by(&self, file: FileId, writes: bool) -> bool {
        let locks = self.opens.locks(&self.arena);
        is_open_by(self.arena.file_unchecked(file), |said| {
            self.opens.here((file, said.lock_byte))[usize::from(writes)] > 0
                || is_held(locks, said, writes)
        })
    }

    /// Whether any process has the file open. Costs a system call for each kind that the entry counts, which may be the dead.
    pub fn is_open(&self, file: FileId) -> bool {
        let locks = self.opens.locks(&self.arena);
        is_open_by(self.arena.file_unchecked(file), |said| {
            said.openers != 0
                && (self.opens.here((file, said.lock_byte)) != [0, 0] || is_any_held(locks, said))
        })
    }

    /// Whether the file has been opened once, here, and nowhere else.
    pub fn is_open_once(&self, file: FileId) -> bool {
        let locks = self.opens.locks(&self.arena);
        let is_more = |said: Said| {
            let [reads, writes] = self.opens.here((file, said.lock_byte));
            let is_one = matches!(said.openers, 1 | 0x1_0000_0000);
            reads + writes != 1 || !is_one && is_any_held(locks, said)
        };
        !is_open_by(self.arena.file_unchecked(file), is_more)
    }

    /// A byte for the locks of an entry that is about to be made.
    pub fn new_lock_byte(&self) -> u64 {
        self.opens.new_byte(&self.arena)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::layout::{Counts, Layout};
    use crate::memory::mapping::Mapping;

    const FILE: FileId = FileId(0);

    fn arena() -> Arena {
        let counts = Counts {
            threads: 1,
            files: 1,
            nodes: 1,
            headers: 1,
            frames: 64,
        };
        let file = tempfile::tempfile_in("/dev/shm").expect("a file");
        let mapping = Mapping::create(file, Layout::new(counts).len).expect("a mapping");
        let allotting = (crate::config::Allocator::default(), 2);
        Arena::create(mapping, counts, 0, true, allotting).expect("an arena")
    }

    /// Between a close's two steps, off the entry's count and off the process's, the entry may become another file's.
    #[test]
    fn a_file_that_has_got_the_entry_of_one_that_is_being_closed_is_open() {
        let (arena, opens) = (arena(), Opens::default());
        let entry = arena.file_unchecked(FILE);
        let open = || {
            let byte = opens.new_byte(&arena);
            entry.lock_byte.store(byte, Ordering::Release);
            entry.openers.store(1 << 32, Ordering::Release);
            opens.add(&arena, (FILE, true), |fd| fd).expect("a lock");
            byte
        };
        let closed = open();
        assert!(is_anywhere_open(&arena, FILE));
        entry.openers.store(0, Ordering::Release);
        let opened = open();
        assert!(is_anywhere_open(&arena, FILE), "before the close goes on");
        opens.take(&arena, (FILE, closed), true);
        assert!(is_anywhere_open(&arena, FILE), "once it has gone on");
        opens.take(&arena, (FILE, opened), true);
        assert!(!is_anywhere_open(&arena, FILE));
    }
}
