//! Changes of an inode that programs of the session make by way of the kernel: of its mode, its owner, its names, its times.
//!
//! They move the time by which a recovery tells whether somebody else has changed the file, so they are noted as the session's own
//! changes of the device file are ([`Shared::change`](crate::member::shared::Shared::change)), in the arena alone: the process that
//! makes them may be no member.

use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use super::Session;
use super::glance::{Glance, known_entry};
use crate::device::DeviceStat;
use crate::device::file::since_1970;
use crate::file::closing;
use crate::ids::FileId;
use crate::member::gone::{Place, is_another, may_be_gone};
use crate::member::{closed, given, table};
use crate::memory::arena::Arena;
use crate::memory::files::{CLOSING, FileEntry};
use crate::memory::threads::Me;
use crate::sync::Ordering;
use crate::sys::file::path_of;
use crate::sys::stat;

/// A change of an inode, from before it until it is dropped.
pub struct Mark<'a> {
    arena: &'a Arena,
    id: FileId,
    fd: BorrowedFd<'a>,
}

impl Glance {
    /// The caller is about to change the inode behind a descriptor, which may be one that only names it. `None`: nothing is to be
    /// noted, because nobody of the session uses the file, or because others have changed it already.
    pub fn mark<'a>(&'a self, fd: BorrowedFd<'a>) -> Option<Mark<'a>> {
        Mark::begin(self.arena(), fd)
    }

    /// Whether an inode is still to get the time of its close.
    pub fn is_to_get_time(&self, file: (u64, u64)) -> bool {
        is_to_get_time(self.arena(), file)
    }

    /// The program has given such an inode this modification time, which it keeps. `false`: it has got the other one meanwhile, and is to be
    /// given its own again.
    pub fn time_is_set(&self, file: (u64, u64), mtime_ns: i128) -> bool {
        time_is_set(self.arena(), file, mtime_ns)
    }
}

/// Whether the name that a recovery would look by leads to the file.
fn has_known_name(arena: &Arena, id: FileId, found: &stat::Stat) -> bool {
    let path = arena.file_unchecked(id).path();
    table::leads_to(&path, (found.device, found.inode))
}

impl Session {
    /// The file behind a descriptor, which may only name it, has got another name: where a recovery looks for it, should all die now. Of one that
    /// nobody of the session uses nothing is noted. It goes to the kernel where the name is too long to be noted.
    pub fn follow_renamed(&self, fd: BorrowedFd<'_>) {
        let (shared, Ok(found)) = (&self.shared, stat::stat(fd)) else {
            return;
        };
        if let Some(id) = table::find(&shared.arena, found.device, found.inode)
            // Another of its names may have been renamed.
            && !has_known_name(&shared.arena, id, &found)
            && let Ok(me) = shared.me()
        {
            self.note_name(me, id, fd);
        }
    }

    /// Notes the name by which a descriptor was opened, or gives the file to the kernel where that is too long: it may be its only one soon.
    fn note_name(&self, me: Me<'_>, id: FileId, fd: BorrowedFd<'_>) {
        let path = path_of(fd);
        if FileEntry::has_room_for(&path) {
            table::refresh_path(me, id, path.as_os_str().as_bytes());
        } else {
            let (device, inode) = self.shared.arena.file_unchecked(id).numbers();
            // Where it cannot be written it stays managed.
            let _ = self.give_to_kernel(device, inode, given::LONG_PATH);
        }
    }

    /// The file behind a descriptor has just got the name by which that was opened, beside others: where a recovery looks, since a file that is
    /// made public by a link loses the older ones. Of one that nobody of the session uses nothing is noted.
    pub fn follow_linked(&self, fd: BorrowedFd<'_>) {
        let (shared, Ok(found)) = (&self.shared, stat::stat(fd)) else {
            return;
        };
        if let Some(id) = table::find(&shared.arena, found.device, found.inode)
            && let Ok(me) = shared.me()
        {
            self.note_name(me, id, fd);
        }
    }

    /// The file behind a descriptor, which may only name it, has lost one of its names: should that have been where a recovery looks, it looks from now
    /// on where this process has opened it. A file that has a name, but none there either, goes to the kernel.
    pub fn follow_unlinked(&self, fd: BorrowedFd<'_>) {
        let (shared, Ok(found)) = (&self.shared, stat::stat(fd)) else {
            return;
        };
        if let Some(id) = table::find(&shared.arena, found.device, found.inode)
            && let Some(device) = shared.device(id)
            && let Ok(me) = shared.me()
        {
            table::follow_name(me, id, device.as_ref());
            if found.links > 0 && !has_known_name(&shared.arena, id, &found) {
                // Where it cannot be written it stays managed.
                let _ = self.give_to_kernel(found.device, found.inode, given::OTHER_NAMES);
            }
        }
    }

    /// As [`Glance::mark`].
    pub fn mark<'a>(&'a self, fd: BorrowedFd<'a>) -> Option<Mark<'a>> {
        Mark::begin(&self.shared.arena, fd)
    }

    /// As [`Glance::is_to_get_time`].
    pub fn is_to_get_time(&self, file: (u64, u64)) -> bool {
        is_to_get_time(&self.shared.arena, file)
    }

    /// As [`Glance::time_is_set`].
    pub fn time_is_set(&self, file: (u64, u64), mtime_ns: i128) -> bool {
        time_is_set(&self.shared.arena, file, mtime_ns)
    }

    /// The only name that a file had has been taken away, as far as the caller knows: a file that was given that name meanwhile loses what of it
    /// is clean in memory.
    pub fn forget_removed(&self, (device, inode): (u64, u64)) {
        let shared = &self.shared;
        if let Some(id) = table::find(&shared.arena, device, inode)
            && let Ok(me) = shared.me()
        {
            table::forget_removed(shared, me, id);
        }
    }
}

fn is_to_get_time(arena: &Arena, (device, inode): (u64, u64)) -> bool {
    table::find(arena, device, inode)
        .is_some_and(|id| arena.file_unchecked(id).flags.load(Ordering::SeqCst) & CLOSING != 0)
}

fn time_is_set(arena: &Arena, (device, inode): (u64, u64), mtime_ns: i128) -> bool {
    let Some(id) = table::find(arena, device, inode) else {
        return false;
    };
    let entry = arena.file_unchecked(id);
    let is_set = closed::set_time(entry, mtime_ns);
    if !is_set && entry.flags.load(Ordering::Acquire) & CLOSING != 0 {
        // A time that the entry cannot hold: what is still to be written would move it.
        closing::await_end(arena, id);
    }
    is_set
}

impl<'a> Mark<'a> {
    fn begin(arena: &'a Arena, fd: BorrowedFd<'a>) -> Option<Self> {
        let found = stat::stat(fd).ok()?;
        let id = table::find(arena, found.device, found.inode)?;
        let known = known_entry(arena, id)?;
        let entry = arena.file_unchecked(id);
        let is_other = || may_be_gone(arena, entry) && is_another(entry, Place::of(fd));
        let by_others = || table::is_changed(entry, &as_device(&found), arena.counts().threads);
        if !known.in_use || is_other() || by_others() {
            return None;
        }
        let mark = Mark { arena, id, fd };
        mark.note();
        Some(mark)
    }

    fn note(&self) {
        let entry = self.arena.file_unchecked(self.id);
        entry.show_change();
        entry.changes.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        // Once more: a flush that has ended meanwhile may have seen the file as it was before.
        self.note();
        let entry = self.arena.file_unchecked(self.id);
        if entry.flags.load(Ordering::Acquire) & CLOSING == 0 {
            // The times are not those of a close any more.
            entry.closed_ns.store(0, Ordering::Release);
        }
        table::witness_end(self.arena, self.id, |_| {
            let found = stat::stat(self.fd).ok()?;
            // The program may have closed the descriptor meanwhile, and have opened another file there.
            ((found.device, found.inode) == entry.numbers()).then(|| as_device(&found))
        });
    }
}

fn as_device(stat: &stat::Stat) -> DeviceStat {
    DeviceStat {
        len: stat.len,
        allocated: stat.allocated,
        mtime_ns: since_1970(stat.mtime_ns),
        ctime_ns: since_1970(stat.ctime_ns),
        links: stat.links,
    }
}
