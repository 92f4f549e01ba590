//! The file table: finding the entry of an inode, or making it.
//!
//! Entries are found by (device, inode, birth time). Adding and removing happen under the table lock; everything else on
//! an entry is by its own words. An entry outlives its last close, so that the next open finds what is in memory; if the
//! device file has changed meanwhile, that is dropped.

mod counts;
mod dropped;
mod lock;
mod search;
mod space;
mod witness;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

pub use self::counts::{close, recount};
use self::dropped::reclaim;
pub use self::dropped::{forget_closed, forget_removed};
pub use self::lock::under_lock;
use self::lock::{await_lock, is_in_vain, lock, unlock};
use self::search::place_of;
pub use self::search::{end, find, has_ended, is_any};
use self::space::{may_have_holes, note_clones};
pub use self::witness::{
    as_witness, changes_alone, is_as_witnessed, is_changed, witness, witness_end,
};
use crate::device::{DeviceFile, DeviceStat};
use crate::error::{Error, Result, SessionFault};
use crate::evict;
use crate::flush::errors;
use crate::ids::{FileId, ThreadId};
use crate::limits::PATH_BYTES_MAX;
use crate::member::lacks::is_known_here_alone;
use crate::member::shared::Shared;
use crate::member::{given, gone};
use crate::memory::arena::Arena;
use crate::memory::files::{
    ABSENT, ENTERING, EXCEEDING, FileEntry, GONE, HOLEY, LIVE, STABLE, TRUNCATING,
};
use crate::memory::threads::{self, Me, Waiting};
use crate::sync::{Ordering, planted};
use crate::sys::file::path_of;
use crate::sys::limits;

/// Looks after which a file is not taken out of memory, since somebody has some of it in hand and does not go on: a second or two.
const EMPTY_ROUNDS: u32 = 2000;
/// Entries that a search may pass without anybody's looking whether they are needed.
const FAR: u32 = 64;

/// Finds or makes the entry of a device file and counts an open description: under the table lock, so that no search for entries
/// that are not open misses it. Where the holder of that lock does not go on, it fails: the file can be the kernel's.
///
/// `has_come` is asked before anybody else can find the entry: whether somebody from outside may have come to the file since the caller has looked.
/// `None`: that is so, and nothing was done; the caller looks anew. On its last try it does not (`is_last`): nobody has held up those that came, so
/// what nobody else manages yet is the kernel's.
pub fn open(
    shared: &Arc<Shared>,
    me: Me<'_>,
    device: &Arc<dyn DeviceFile>,
    path: &[u8],
    has_come: &dyn Fn() -> bool,
    is_last: bool,
) -> Result<Option<FileId>> {
    limits::look_at_file_bytes();
    let (mut seen, writes) = (None, device.is_writable());
    let (mut round, mut waiting) = (0, Waiting::begin());
    loop {
        if lock(me) {
            if !is_last && has_come() {
                unlock(me);
                return Ok(None);
            }
            let mut gone = Vec::new();
            let found = find_or_enter(shared, me, device, seen.as_ref(), path, &mut gone);
            let (id, added) = match &found {
                // Calls that do not wait. What has just been entered is as its device file is.
                Ok(Found::Known(id)) => {
                    let added = shared.add_open(*id, writes);
                    let freshened = || freshen(shared, me, *id, device.as_ref());
                    (Some(*id), added.and_then(|()| freshened()))
                }
                Ok(Found::Entered(id)) => (Some(*id), shared.add_open(*id, writes)),
                _ => (None, Ok(())),
            };
            if let (Err(_), Some(id)) = (&added, id) {
                // What counts without a lock may be corrected as soon as the table's lock is free.
                close(shared, id, writes);
            }
            leave_to_kernel_if(shared, me, id.filter(|_| added.is_ok()), has_come);
            unlock(me);
            gone.iter().for_each(|&id| gone::forget(shared, me, id));
            added?;
            match found? {
                Found::Known(id) | Found::Entered(id) => {
                    counts::go_on(me.arena.file_unchecked(id), writes);
                    refresh_path(me, id, path);
                    if is_far(me.arena, id, device.as_ref()) {
                        reclaim(shared, me, true);
                    }
                    return Ok(Some(id));
                }
                Found::Unseen(stat) => {
                    let holey = may_have_holes(device.as_ref(), &stat);
                    seen = Some((stat, holey));
                    continue;
                }
                Found::Full if round < 64 => {
                    reclaim(shared, me, false);
                }
                Found::Full => {
                    return Err(SessionFault::Full.error(format!(
                        "all {} entries of the file table are in use; close some files",
                        me.arena.counts().files
                    )));
                }
            }
        } else if is_in_vain(me, &mut waiting) {
            return Err(SessionFault::InUse
                .error("a program that is stopped has the session's file table; let it go on"));
        }
        round += 1;
        me.wait(round);
    }
}

/// A file that this opener alone has open, and that owes nothing, is the kernel's if somebody `has_come`. Under the table lock.
fn leave_to_kernel_if(
    shared: &Shared,
    me: Me<'_>,
    id: Option<FileId>,
    has_come: &dyn Fn() -> bool,
) {
    let Some(id) = id else { return };
    // The entry is there: a program that comes from here on waits.
    fence(SeqCst);
    let entry = me.arena.file_unchecked(id);
    if has_come() && shared.is_open_once(id) && !entry.owes() {
        let _ = entry.kernel_reason.compare_exchange(
            0,
            given::REACHED,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        entry.assert_entry();
    }
}

/// A file may have got another name since its entry was made: the last one that led to it is where a recovery looks.
pub fn refresh_path(me: Me<'_>, id: FileId, path: &[u8]) {
    let entry = me.arena.file_unchecked(id);
    let known = entry.numbers();
    if path.len() > PATH_BYTES_MAX || entry.path() == path || !leads_to(path, known) {
        return;
    }
    if !await_lock(me) {
        return;
    }
    // The entry may have become another's meanwhile.
    if entry.numbers() == known {
        entry.set_path(path);
    }
    unlock(me);
}

/// Whether a name leads to an inode. The one under which a descriptor shows a file may be none: "... (deleted)".
pub fn leads_to(path: &[u8], inode: (u64, u64)) -> bool {
    let found = std::fs::metadata(OsStr::from_bytes(path));
    found.is_ok_and(|found| (found.dev(), found.ino()) == inode)
}

/// What a look through the table has come to.
enum Found {
    /// An entry that was there.
    Known(FileId),
    /// A new one.
    Entered(FileId),
    /// There is none, and what the file is like has to be asked without the table's lock first.
    Unseen(DeviceStat),
    /// There is none, and no room.
    Full,
}

/// Under the table lock. `seen`: what the file was like, and whether it may have holes.
fn find_or_enter(
    shared: &Shared,
    me: Me<'_>,
    device: &Arc<dyn DeviceFile>,
    seen: Option<&(DeviceStat, bool)>,
    path: &[u8],
    gone: &mut Vec<FileId>,
) -> Result<Found> {
    let caps = device.caps();
    let count = me.arena.counts().files;
    let start = place_of(caps.inode, count);
    let mut vacant = None;
    for step in 0..count {
        let id = FileId((start + step) % count);
        let entry = me.arena.file_unchecked(id);
        let state = entry.state.load(Ordering::Acquire);
        match state & 7 {
            LIVE if is_same(entry, device.as_ref()) => {
                counts::add(entry, device.is_writable());
                return Ok(Found::Known(id));
            }
            LIVE if is_gone(shared, id, entry, device.as_ref()) => {
                entry.inode.store(0, Ordering::Release);
                gone.push(id);
            }
            ABSENT => {
                vacant.get_or_insert(id);
                break;
            }
            GONE => {
                vacant.get_or_insert(id);
            }
            ENTERING if threads::is_gone(me.arena, ThreadId(state >> 3)) => {
                vacant.get_or_insert(id);
            }
            _ => {}
        }
    }
    let Some(id) = vacant else {
        return Ok(Found::Full);
    };
    let stat = device.stat().map_err(|e| Error::device("stat", &e))?;
    let holey = match seen {
        // Somebody may have had an entry, have written, and have gone since the caller looked.
        Some((seen, holey)) => *holey || stat != *seen,
        // Nothing that is there has to be written over.
        None if stat.len == 0 => false,
        None => return Ok(Found::Unseen(stat)),
    };
    let lock_byte = shared.new_lock_byte();
    enter(me, (id, lock_byte), device.as_ref(), (&stat, holey), path);
    Ok(Found::Entered(id))
}

/// Whether the entry's file had the numbers that this device file has.
fn has_numbers_of(entry: &FileEntry, device: &dyn DeviceFile) -> bool {
    let caps = device.caps();
    entry.device.load(Ordering::Relaxed) == caps.device
        && entry.inode.load(Ordering::Relaxed) == caps.inode
}

/// The file system has given the inode number to another file, so the entry's file is gone: a search for the number ([`find`])
/// shall not find this entry. Its memory is given back as that of any idle entry. Where it owes bytes, it has to be certain:
/// they are dropped.
fn is_gone(shared: &Shared, id: FileId, entry: &FileEntry, device: &dyn DeviceFile) -> bool {
    if !has_numbers_of(entry, device) {
        return false;
    }
    if is_elsewhere(entry, device) && is_known_here_alone(entry) {
        // Nobody can tell whether the file is gone.
        entry.set_aside();
        return false;
    }
    if entry.owed_pages.load(Ordering::Acquire) == 0 {
        return !shared.is_open(id);
    }
    let is_another = |(_, fd)| gone::is_another(entry, gone::Place::of(fd));
    // A simulated file's birth is certain.
    let is_simulated = cfg!(feature = "sim") && device.descriptors().is_none();
    is_unused(shared, id) && (is_simulated || device.descriptors().is_some_and(is_another))
}

/// Whether the entry's file is of another file system than a device file of its numbers: the kernel gives the device number of a mount that has ended
/// again. A file that is open anywhere keeps it from that.
pub fn is_elsewhere(entry: &FileEntry, device: &dyn DeviceFile) -> bool {
    entry.store.load(Ordering::Relaxed) != device.caps().store
}

/// Whether nobody of the session has the file open, and this process has no descriptor of it.
fn is_unused(shared: &Shared, id: FileId) -> bool {
    !shared.is_open(id) && shared.device(id).is_none()
}

/// Another file has been found to have the number of an entry, of a file that was born at `birth`: as for an opening.
pub fn retire(shared: &Shared, me: Me<'_>, id: FileId, birth: u64) {
    if !await_lock(me) {
        return;
    }
    let entry = me.arena.file_unchecked(id);
    // The entry may have become another's meanwhile.
    let same =
        entry.state.load(Ordering::Acquire) == LIVE && entry.birth.load(Ordering::Acquire) == birth;
    if same && is_unused(shared, id) {
        entry.inode.store(0, Ordering::Release);
    }
    unlock(me);
    gone::forget(shared, me, id);
}

/// Whether the entry is this device file's.
pub fn is_same(entry: &FileEntry, device: &dyn DeviceFile) -> bool {
    entry.is_of(device.caps())
}

fn enter(
    me: Me<'_>,
    (id, lock_byte): (FileId, u64),
    device: &dyn DeviceFile,
    (stat, holey): (&DeviceStat, bool),
    path: &[u8],
) {
    let entry = me.arena.file_unchecked(id);
    entry
        .state
        .store(ENTERING | (me.id.0 << 3), Ordering::Release);
    let caps = device.caps();
    entry.device.store(caps.device, Ordering::Relaxed);
    entry.inode.store(caps.inode, Ordering::Relaxed);
    entry.birth.store(caps.birth, Ordering::Relaxed);
    entry.store.store(caps.store, Ordering::Relaxed);
    entry.set_path(path);
    entry.forget_intents(me.arena.counts().threads);
    entry.asks.clear();
    entry.stock.forget();
    for word in [
        &entry.root,
        &entry.owed_pages,
        &entry.error,
        &entry.truncating,
        &entry.reserve_step,
        &entry.closed_ns,
        &entry.read_past,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [&entry.kernel_reason, &entry.append_lock] {
        word.store(0, Ordering::Relaxed);
    }
    entry.failures.store(0, Ordering::Relaxed);
    entry.sync_error.store(0, Ordering::Relaxed);
    entry.forget_syncs();
    entry.flags.store(
        if caps.stable_writes { STABLE } else { 0 },
        Ordering::Relaxed,
    );
    take_sizes(entry, stat, holey);
    witness(entry, stat, entry.changes.load(Ordering::Acquire));
    // Before it counts anybody: a thread that sees a count looks at the lock.
    entry.lock_byte.store(lock_byte, Ordering::Release);
    counts::begin(entry, device.is_writable());
    search::entered(me.arena);
    entry.state.store(LIVE, Ordering::Release);
    entry.assert_entry();
}

/// Sizes as the device has them, for a file of which nothing is in memory: a thread that has died changing it leaves no doubt any more.
fn take_sizes(entry: &FileEntry, stat: &DeviceStat, holey: bool) {
    entry.end_intent(ThreadId::NOBODY);
    entry.flags.fetch_and(!EXCEEDING, Ordering::AcqRel);
    entry.size.store(stat.len, Ordering::Release);
    entry.disk_end.store(stat.len, Ordering::Release);
    entry.solid.store(0, Ordering::Release);
    entry.vain_looks.store(0, Ordering::Relaxed);
    entry.reserved_end.store(stat.len, Ordering::Release);
    if holey {
        entry.flags.fetch_or(HOLEY, Ordering::AcqRel);
    }
}

/// If somebody outside has changed an idle file, what is in memory of it is out of date; for all that is known it is, too, where somebody has
/// died at a change, unless memory alone knows how long the file shall be. Under the table lock, and by how the file is now: nobody of the session opens it, writes to it and closes it between
/// the look and what follows.
fn freshen(shared: &Shared, me: Me<'_>, id: FileId, device: &dyn DeviceFile) -> Result<()> {
    let entry = me.arena.file_unchecked(id);
    note_clones(entry, device);
    let changes = entry.changes.load(Ordering::Acquire);
    let idle = shared.is_open_once(id) && entry.owed_pages.load(Ordering::Acquire) == 0;
    // Its closer, or a keeper, may still be finishing it.
    let lives = |thread| !threads::is_gone(me.arena, thread);
    if !idle || entry.is_changed_by(me.arena.counts().threads, lives) {
        return Ok(());
    }
    let known = entry.witness(me.arena.counts().threads);
    let Ok(stat) = device.stat() else {
        return Ok(());
    };
    let is_cut = || entry.flags.load(Ordering::Acquire) & TRUNCATING != 0;
    let is_shorter = || stat.len < entry.size.load(Ordering::Acquire);
    if planted!(StaleMemory)
        || known.is_none() && entry.lacks_length() && (is_cut() || is_shorter())
        || known == Some(as_witness(&stat))
        || entry.changes.load(Ordering::Acquire) != changes
    {
        return Ok(());
    }
    if !empty(me, id) {
        return Err(SessionFault::InUse.error(
            "another program has changed the file, and what is known of it cannot be dropped now; open it again",
        ));
    }
    take_sizes(entry, &stat, may_have_holes(device, &stat));
    witness(entry, &stat, changes);
    Ok(())
}

/// Takes a file that nobody uses out of memory. An eviction passes by what somebody is just looking at, a keeper that evicts or a reader
/// that has come late; this waits for it. `false`: for too long.
fn empty(me: Me<'_>, id: FileId) -> bool {
    for round in 0..EMPTY_ROUNDS {
        evict::evict_file(me, id);
        let entry = me.arena.file_unchecked(id);
        // In an operation, so that no rebuild is under way: it makes trees anew.
        if let Ok(_operation) = me.enter(id)
            && crate::frame::slots::next_linked(me.arena, entry, 0).is_none()
        {
            return true;
        }
        me.wait(round);
    }
    false
}

/// Manages a file again that was given to the kernel. The caller has the only description of it that there is, and no call on it
/// is under way. `has_come` as for [`open`].
pub fn take_back(
    shared: &Shared,
    me: Me<'_>,
    id: FileId,
    device: &dyn DeviceFile,
    has_come: &dyn Fn() -> bool,
) {
    let entry = me.arena.file_unchecked(id);
    if entry.kernel_reason.load(Ordering::Acquire) == 0 {
        return;
    }
    let Ok(stat) = device.stat() else { return };
    // It stays the kernel's, rather than with bytes of a time before it was.
    if !empty(me, id) {
        return;
    }
    take_sizes(entry, &stat, may_have_holes(device, &stat));
    witness(entry, &stat, entry.changes.load(Ordering::Acquire));
    if await_lock(me) {
        entry.kernel_reason.store(0, Ordering::Release);
        entry.assert_entry();
        leave_to_kernel_if(shared, me, Some(id), has_come);
        unlock(me);
    }
}

/// Whether an entry is far from where searches for its file begin.
fn is_far(arena: &Arena, id: FileId, device: &dyn DeviceFile) -> bool {
    let count = arena.counts().files;
    (id.0 + count - place_of(device.caps().inode, count)) % count > FAR
}

/// The error sequence for a description that is opened now.
pub fn error_sequence(me: Me<'_>, id: FileId) -> u32 {
    errors::sequence(me.arena.file_unchecked(id))
}

/// A file, or a directory above it, may have been renamed while it is open: a process that has it open asks the kernel for the name. Another name
/// that leads to it stays: it may be younger.
pub fn follow_name(me: Me<'_>, id: FileId, device: &dyn DeviceFile) {
    let Some((_, buffered)) = device.descriptors() else {
        return;
    };
    let (path, entry) = (path_of(buffered), me.arena.file_unchecked(id));
    let (path, known) = (path.as_os_str().as_bytes(), entry.path());
    if path != known && !leads_to(&known, entry.numbers()) {
        refresh_path(me, id, path);
    }
}
