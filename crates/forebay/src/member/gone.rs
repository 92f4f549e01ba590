//! Files that are gone while bytes of them are owed: nobody can read these again, so they are dropped, not written.
//!
//! That a file is gone is certain in two cases. Its inode number has another birth ([`is_another`]): the file system gives a
//! number again once no name, descriptor or request of the old file is left. Or the keeper has seen, under its lease, that no name
//! leads to it while nobody has it open: then the kernel gets the bytes ([`put_into_cache`](crate::file::vanished::put_into_cache)). Should the keeper die before that, it has
//! noted so ([`VANISHED`]) for its successor, which cannot look any more, and drops them.
//! Where neither is known, as for a file that may only have been moved, the bytes stay.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::device::file::since_1970;
use crate::evict;
use crate::frame::slots;
use crate::ids::FileId;
use crate::member::closed::end_lease;
use crate::member::presence::has_keeper;
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::memory::files::{CLOSING, EXCEEDING, FileEntry, LEASED, LIVE, TRUNCATING, VANISHED};
use crate::memory::threads::{Me, Operation, stop_file};
use crate::scrap::cut;
use crate::stats::Counter;
use crate::sync::Ordering;
use crate::sys::{handle, stat};

/// Where a file can be asked which one it is.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    dir: RawFd,
    path: &'a CStr,
    follow: bool,
}

impl<'a> Place<'a> {
    /// By a path; `follow`: where a symbolic link leads.
    pub fn at(dir: RawFd, path: &'a CStr, follow: bool) -> Self {
        Place { dir, path, follow }
    }

    /// By a descriptor.
    pub fn of(fd: BorrowedFd<'a>) -> Self {
        Place::at(fd.as_raw_fd(), c"", true)
    }
}

/// Whether the file at a place has the numbers of an entry and is certainly another. What cannot be asked is not certain.
pub fn is_another(entry: &FileEntry, place: Place<'_>) -> bool {
    let Ok(found) = stat::seen_at(place.dir, place.path, place.follow) else {
        return false;
    };
    if (found.device, found.inode) != entry.numbers() {
        return false;
    }
    let generation = match handle::hash_at(place.dir, place.path, place.follow) {
        Ok(hash) => hash,
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => 0,
        Err(_) => return false,
    };
    let born = since_1970(found.birth_ns.unwrap_or(0));
    let known = entry.birth.load(Ordering::Relaxed);
    // Without a handle: the process that made the entry may not have been allowed to ask for it.
    known != born ^ generation && known != born
}

/// Whether it is worth while to ask which file has an entry's number: neither an opener nor a keeper's lease says that its file is there.
/// Openers may be counted that have died; while a keeper lives, it has their files open.
#[inline]
pub fn may_be_gone(arena: &Arena, entry: &FileEntry) -> bool {
    if entry.opens() != 0 {
        return !has_keeper(arena);
    }
    entry.owed_pages.load(Ordering::Acquire) != 0
        && (entry.flags.load(Ordering::Acquire) & LEASED == 0 || !has_keeper(arena))
}

/// An entry that has been found by numbers, if it may be the file's at the place.
#[inline]
pub fn unless_gone(arena: &Arena, id: FileId, place: Place<'_>) -> Option<FileId> {
    let entry = arena.file_unchecked(id);
    (!may_be_gone(arena, entry) || !is_another(entry, place)).then_some(id)
}

/// Drops what is owed to a file that is gone, if it is one. Best effort: what is in somebody's hands is tried again.
pub fn forget(shared: &Shared, me: Me<'_>, id: FileId) {
    let entry = shared.arena.file_unchecked(id);
    let is_gone = || {
        let known = entry.inode.load(Ordering::Acquire) == 0
            || entry.flags.load(Ordering::Acquire) & VANISHED != 0;
        known
            && entry.state.load(Ordering::Acquire) == LIVE
            && !shared.is_open(id)
            && shared.device(id).is_none()
    };
    if !is_gone() {
        return;
    }
    let Some(stop) = stop_file(me, id) else {
        return;
    };
    let Ok(operation) = me.enter_stopped(id) else {
        return;
    };
    if !is_gone() || is_in_flight(&operation, entry) {
        return;
    }
    cut::drop_beyond(id, &operation, 0);
    entry.inode.store(0, Ordering::Release);
    // Before the words that it speaks of: a truncation that is left over needs its length.
    let done = CLOSING | TRUNCATING | EXCEEDING | VANISHED;
    entry.flags.fetch_and(!done, Ordering::AcqRel);
    for word in [
        &entry.size,
        &entry.disk_end,
        &entry.reserved_end,
        &entry.reserve_step,
        &entry.truncating,
        &entry.closed_ns,
    ] {
        word.store(0, Ordering::Release);
    }
    entry.assert_entry();
    drop(operation);
    drop(stop);
    end_lease(&shared.arena, id);
    evict::give_stock_back(me, id);
    me.count(Counter::FilesVanished as usize, 1);
}

/// What a dead process had begun to write is let go by the repair after its death.
fn is_in_flight(operation: &Operation<'_>, entry: &FileEntry) -> bool {
    let arena = operation.me.arena;
    let mut at = 0;
    while let Some((block, id)) = slots::next_linked(arena, entry, at) {
        if arena
            .header(id)
            .is_some_and(|header| header.inflight() != 0)
        {
            return true;
        }
        at = u64::from(block.0) + 1;
    }
    false
}
