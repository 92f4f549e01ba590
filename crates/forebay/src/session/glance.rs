//! A session's arena, looked at by a process that is not in it: what is known of a file, and calls of the kernel's on files that
//! somebody may begin to manage.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Session;
use super::standing::{self, Call, Place as Standing};
use crate::file::{closing, times};
use crate::flush::errors;
use crate::ids::FileId;
use crate::keeper::outsiders;
use crate::limits::PAGE_BYTES;
use crate::member::closed;
use crate::member::gone::{Place, is_another, may_be_gone};
use crate::member::guard;
use crate::member::presence::has_keeper;
use crate::member::table;
use crate::member::{left, reached};
use crate::memory::arena::Arena;
use crate::memory::files::{CLOSING, FileEntry, HOLEY, LEASED, LIVE};
use crate::memory::mapping::Mapping;
use crate::sync::Ordering;
use crate::sys::file::path_of;
use crate::sys::stat;

/// A session's arena, looked at by a process that is not in it: whether a file is known there.
pub struct Glance {
    arena: Arena,
}

/// A keeper, as a thread sees it that waits for it to close a file.
#[derive(Clone, Copy, Debug)]
pub struct WithKeeper {
    /// It has the file open, or is stopped: descriptors may be on their way to it.
    pub may_have: bool,
    /// Another number than before: it has gone on with its rounds, in each of which it takes what has been sent to it.
    pub round: u32,
}

/// What a session knows of an inode.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its entry.
    pub id: FileId,
    /// The size that the session's programs see.
    pub size: u64,
    /// Whether anybody has it open, or bytes of it are owed.
    pub in_use: bool,
    /// Whether the keeper is at it, to which a close has left it.
    pub is_left: bool,
    /// The error sequence that a description begins with which is opened now.
    pub error_sequence: u32,
    /// Bytes that are owed, where the file may have holes.
    owed_beside_holes: Option<u64>,
    /// What is known of its times, once it has been closed without waiting.
    closed: Option<Closed>,
}

#[derive(Clone, Copy, Debug)]
struct Closed {
    ns: u64,
    written: Written,
}

/// How far the keeper has come with what a close has left to it.
#[derive(Clone, Copy, Debug)]
enum Written {
    /// It has not, or the device file has not got its time yet.
    No,
    /// All of it, but somebody of the session is at the device file, or was just now, and how that has left it is not noted yet.
    Unseen,
    /// All of it; our last change of the device file has left this change time.
    Seen(u64),
}

impl Closed {
    /// Whether it is by the keeper's writing that a device file has these times.
    fn has_left(&self, mtime_ns: u64, ctime_ns: u64) -> bool {
        match self.written {
            Written::No => true,
            Written::Unseen => mtime_ns == self.ns,
            Written::Seen(written_ns) => (mtime_ns, ctime_ns) == (self.ns, written_ns),
        }
    }
}

/// Bytes of a sector, in which `stat` counts space.
const SECTOR: u64 = 512;

impl Known {
    /// The sectors of a file for which the kernel counts so many. Programs take a file with fewer sectors than bytes for one with holes; of one
    /// that has some, what is owed is added, wherever it lies.
    pub fn sectors(&self, of_kernel: u64) -> u64 {
        let full = of_kernel.max(self.size.div_ceil(SECTOR));
        match self.owed_beside_holes {
            Some(owed) => full.min(of_kernel + owed / SECTOR),
            None => full,
        }
    }

    /// The time of the last change that a program of the session has made, for a file whose device file has these: writing
    /// it later is no change. `None`: they are right.
    pub fn changed_ns(&self, mtime_ns: u64, ctime_ns: u64) -> Option<u64> {
        let closed = self.closed?;
        closed.has_left(mtime_ns, ctime_ns).then_some(closed.ns)
    }

    /// Whether the device file has all of it, and nobody has it open or is at it: the kernel reads what memory has.
    pub fn is_idle(&self) -> bool {
        let is_settled = |closed: Closed| matches!(closed.written, Written::Seen(_));
        !self.in_use && self.closed.is_none_or(is_settled)
    }

    /// Whether the keeper has written, or is writing, what a close left to it: times that were asked for before this was known may be
    /// from the middle of that.
    pub fn was_closed_behind(&self) -> bool {
        self.closed.is_some()
    }
}

impl Session {
    /// What this process's session knows of the file behind a descriptor, which may be one that only names it (`O_PATH`); its numbers are
    /// the device's and the inode's.
    pub fn known_of(&self, (device, inode): (u64, u64), fd: BorrowedFd<'_>) -> Option<Known> {
        let arena = &self.shared.arena;
        let id = table::find(arena, device, inode)?;
        let entry = arena.file_unchecked(id);
        let known = known_entry(arena, id)?;
        let other = may_be_gone(arena, entry) && is_another(entry, Place::of(fd));
        (!other).then_some(known)
    }
}

impl Glance {
    /// Maps the arena at `path`, and says what inode it has. The process counts as nobody's: what dies with it concerns no one.
    pub fn at(path: &Path) -> Option<(Self, u64)> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .ok()?;
        let (mapping, inode) = Mapping::look(&file).ok()?;
        let arena = Arena::open(mapping).ok()?;
        Some((Glance { arena }, inode))
    }

    /// Gives the mapping up, for good; a thread that still looks sees a session that knows nothing.
    ///
    /// # Errors
    /// As for `mmap`.
    pub fn give_up(&self) -> std::io::Result<()> {
        self.arena.give_up(|| standing::give_up(&self.arena))
    }

    /// Whether the arena has been removed by the last process that had it: what is said of files here says nothing any more, and there may be
    /// another.
    #[inline]
    pub fn has_ended(&self) -> bool {
        table::has_ended(&self.arena)
    }

    /// Whether the arena is that of a session.
    pub fn is_of(&self, session: &Session) -> bool {
        let of = |arena: &Arena| arena.superblock().session.load(Ordering::Acquire);
        of(&self.arena) == of(&session.shared.arena)
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Bytes of memory that the session may have.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.arena.counts().frames) * crate::limits::BLOCK_BYTES as u64
    }

    /// Whether it may know anything of any file: one load.
    #[inline]
    pub fn knows_any(&self) -> bool {
        table::is_any(&self.arena)
    }

    /// What the session knows of an inode, if it manages it or has bytes of it in memory.
    pub fn known(&self, device: u64, inode: u64) -> Option<Known> {
        let id = table::find(&self.arena, device, inode)?;
        known_entry(&self.arena, id)
    }

    /// Whether it knows of an inode what [`Glance::known`] says.
    #[inline]
    pub fn is_known(&self, device: u64, inode: u64) -> bool {
        self.knows_any() && self.known(device, inode).is_some()
    }

    /// Whether it knows more of an inode than the device file has, or somebody has it open ([`Known::is_idle`]).
    #[inline]
    pub fn is_used(&self, device: u64, inode: u64) -> bool {
        let is_used = |known: Known| !known.is_idle();
        self.knows_any() && self.known(device, inode).is_some_and(is_used)
    }

    /// Whether the close of an inode would give it other times than it has now, and they can be made final before (`Inode::finish_times`).
    pub fn are_times_due(&self, device: u64, inode: u64) -> bool {
        let id = table::find(&self.arena, device, inode);
        id.is_some_and(|id| times::are_due(&self.arena, self.arena.file_unchecked(id)))
    }

    /// As [`Glance::known`], for the file at a place: what is known of an earlier file of its number is not known of it.
    #[inline]
    pub fn known_at<'a>(
        &self,
        (device, inode): (u64, u64),
        place: impl FnOnce() -> Place<'a>,
    ) -> Option<Known> {
        let known = self.known(device, inode)?;
        let entry = self.arena.file_unchecked(known.id);
        let other = may_be_gone(&self.arena, entry) && is_another(entry, place());
        (!other).then_some(known)
    }

    /// As [`Known::changed_ns`], of a file that is with the kernel: a program that has opened it there has changed nothing by that.
    pub fn changed_with_kernel(
        &self,
        (device, inode): (u64, u64),
        (mtime_ns, ctime_ns): (u64, u64),
    ) -> Option<u64> {
        let id = table::find(&self.arena, device, inode)?;
        let entry = self.arena.file_unchecked(id);
        if entry.kernel_reason.load(Ordering::Acquire) == 0 {
            return None;
        }
        let closed = closed_of(entry, self.arena.counts().threads)?;
        let written = !matches!(closed.written, Written::No);
        (written && closed.has_left(mtime_ns, ctime_ns)).then_some(closed.ns)
    }

    /// As [`Glance::known`], for a file that has just been opened. What is left in memory of an earlier file of its number is
    /// found out here, and noted for all that look after this.
    pub fn known_of(&self, (device, inode): (u64, u64), fd: BorrowedFd<'_>) -> Option<Known> {
        let known = self.known(device, inode)?;
        let entry = self.arena.file_unchecked(known.id);
        let birth = entry.birth.load(Ordering::Acquire);
        // Also of one that is in use: those that have it open may have died, and nobody has seen to that yet.
        if is_another(entry, Place::of(fd)) {
            // Should the entry be another file's by now, it has another birth.
            entry.outlived.store(birth, Ordering::Release);
            return None;
        }
        Some(known)
    }

    /// A call of the kernel's on a file that is not known begins, and ends when the result is dropped. Whether the file is known is
    /// to be looked at again. The place is the calling thread's own.
    #[inline]
    pub fn stand_by(&'static self, place: &Standing, device: u64, inode: u64) -> Call<'static> {
        standing::begin(&self.arena, place, (device, inode))
    }

    /// Somebody is about to reach a file past the engine. Whether it is known is to be looked at afterwards.
    pub fn begin_reach(&self, hash: u64) {
        reached::begin(self.arena.superblock(), hash);
    }

    /// That has ended.
    pub fn end_reach(&self, hash: u64) {
        reached::end(self.arena.superblock(), hash);
    }

    /// Notes for reports that the file behind a descriptor, which has these numbers, is left to the kernel, for a reason of a front end's.
    pub fn note_left(&self, fd: BorrowedFd<'_>, inode: (u64, u64), reason: u32) {
        if left::note_again(&self.arena, inode, reason) {
            return;
        }
        let path = path_of(fd);
        // Not files in earnest.
        if ["/proc", "/sys", "/dev"]
            .iter()
            .any(|dir| path.starts_with(dir))
        {
            return;
        }
        left::note(&self.arena, inode, reason, path.as_os_str().as_bytes());
    }

    /// Whether outsiders that open a file wait for a guard of the keeper's.
    pub fn is_guarded(&self) -> bool {
        self.arena.superblock().guard.load(Ordering::Acquire) == guard::HOLDS
    }

    /// Whether a file that nobody of the session has open is open in the keeper: it is stopped, or late. For a caller that cannot wait to be
    /// told. `None`: no keeper lives, or somebody has it open.
    pub fn with_keeper(&self, (device, inode): (u64, u64)) -> Option<WithKeeper> {
        let round = self.arena.superblock().tick.load(Ordering::Acquire);
        let is_open = table::find(&self.arena, device, inode)
            .is_some_and(|id| self.arena.file_unchecked(id).opens() != 0);
        (!is_open && has_keeper(&self.arena)).then(|| WithKeeper {
            may_have: outsiders::keeper_may_have(&self.arena, (device, inode)),
            round,
        })
    }

    /// Whether the keeper is at any file whose close did not wait.
    #[inline]
    pub fn has_leases(&self) -> bool {
        self.arena.superblock().leased.load(Ordering::Acquire) != 0
    }

    /// Waits until the keeper has finished with an inode whose close did not wait, for as long as it gets on with it. Whether
    /// there was anything to wait for.
    pub fn await_closed(&self, device: u64, inode: u64) -> bool {
        let Some(id) = table::find(&self.arena, device, inode) else {
            return false;
        };
        closing::await_end(&self.arena, id)
    }

    /// What a close has left to the keeper, behind a descriptor that may only name it, has lost its last name: the keeper lets go of it before it writes
    /// any other. Where the disk has less space beside than all that is with the keeper may have, if each has as much as this, it is waited for: its
    /// space shall be free when its name is.
    pub fn free_removed(&self, fd: BorrowedFd<'_>) {
        let (Ok(found), Ok(free)) = (stat::stat(fd), stat::free_bytes(fd)) else {
            return;
        };
        let Some(id) = table::find(&self.arena, found.device, found.inode) else {
            return;
        };
        if found.links != 0 {
            return;
        }
        let leased = u64::from(self.arena.superblock().leased.load(Ordering::Acquire));
        if free < found.allocated.saturating_mul(leased + 1) {
            closing::await_end(&self.arena, id);
        } else {
            closing::hurry(&self.arena, id);
        }
    }

    /// As [`Glance::await_closed`], for a caller that will only read the file: what memory has of it need not be written first.
    pub fn take_back(&self, device: u64, inode: u64) -> bool {
        let Some(id) = table::find(&self.arena, device, inode) else {
            return false;
        };
        closing::take_back(&self.arena, id)
    }

    /// As [`Glance::await_closed`], of all inodes.
    pub fn await_all_closed(&self) {
        for id in (0..self.arena.counts().files).map(FileId) {
            if !self.has_leases() {
                return;
            }
            closing::await_end(&self.arena, id);
        }
    }
}

pub(super) fn known_entry(arena: &Arena, id: FileId) -> Option<Known> {
    let (entry, threads) = (arena.file_unchecked(id), arena.counts().threads);
    if entry.kernel_reason.load(Ordering::Acquire) != 0 {
        return None;
    }
    // First: an error that comes after this is news.
    let error_sequence = errors::sequence_to_begin_with(entry);
    let in_use = entry.opens() != 0 || entry.owes();
    if entry.is_outlived() || !in_use && entry.root.load(Ordering::Acquire) == 0 {
        return None;
    }
    let size = entry.size.load(Ordering::Acquire);
    let closed = closed_of(entry, threads);
    let flags = entry.flags.load(Ordering::Acquire);
    let holey = flags & HOLEY != 0;
    let owed = entry.owed_pages.load(Ordering::Acquire) * PAGE_BYTES as u64;
    // The entry may have become another's between these looks.
    (entry.state.load(Ordering::Acquire) == LIVE).then_some(Known {
        id,
        size,
        in_use,
        is_left: flags & LEASED != 0,
        error_sequence,
        owed_beside_holes: holey.then_some(owed),
        closed,
    })
}

fn closed_of(entry: &FileEntry, threads: u32) -> Option<Closed> {
    let ns = closed::time(entry)?;
    let written = if entry.flags.load(Ordering::Acquire) & CLOSING != 0 {
        Written::No
    } else {
        let known = entry.witness(threads);
        known.map_or(Written::Unseen, |[_, _, changed_ns]| {
            Written::Seen(changed_ns)
        })
    };
    Some(Closed { ns, written })
}
