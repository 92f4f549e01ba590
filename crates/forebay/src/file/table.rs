//! The file table: finding the entry of an inode, or making it.
//!
//! Entries are found by (device, inode, birth time). Adding and removing happen under the table lock; everything else on
//! an entry is by its own words. An entry outlives its last close, so that the next open finds what is in memory; if the
//! device file has changed meanwhile, that is dropped.

use std::sync::Arc;

use crate::device::{DeviceFile, DeviceStat};
use crate::error::{Error, Result};
use crate::evict;
use crate::flush::errors;
use crate::ids::{FileId, ThreadId};
use crate::memory::arena::Arena;
use crate::memory::files::{ABSENT, ENTERING, FileEntry, GONE, HOLEY, LIVE, STABLE};
use crate::memory::threads::{self, Me, stop_file};
use crate::session::shared::Shared;
use crate::sync::Ordering;

/// Finds or makes the entry of a device file and counts an open description.
pub fn open(
    shared: &Arc<Shared>,
    me: Me<'_>,
    device: &Arc<dyn DeviceFile>,
    path: &[u8],
) -> Result<FileId> {
    let stat = device.stat().map_err(|e| Error::device("stat", &e))?;
    let mut round = 0;
    loop {
        if lock(me) {
            let found = find_or_enter(me, device, &stat, path);
            unlock(me);
            match found {
                Some(id) => {
                    freshen(me, id, &stat);
                    return Ok(id);
                }
                None if round < 64 => {
                    reclaim(shared, me);
                }
                None => {
                    return Err(Error::Session(format!(
                        "all {} entries of the file table are in use; close some files",
                        me.arena.counts().files
                    )));
                }
            }
        }
        round += 1;
        me.wait(round);
    }
}

fn lock(me: Me<'_>) -> bool {
    let word = &me.arena.superblock().table_lock;
    match word.compare_exchange(0, me.id.0, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => true,
        Err(holder) => {
            if threads::is_gone(me.arena, ThreadId(holder)) {
                // What it was entering is dropped by the repair that its death calls for, which opens the lock.
                me.arena.rescue(me);
            }
            false
        }
    }
}

fn unlock(me: Me<'_>) {
    me.arena.superblock().table_lock.store(0, Ordering::Release);
}

/// Under the table lock.
fn find_or_enter(
    me: Me<'_>,
    device: &Arc<dyn DeviceFile>,
    stat: &DeviceStat,
    path: &[u8],
) -> Option<FileId> {
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
                entry.opens.fetch_add(1, Ordering::AcqRel);
                return Some(id);
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
    let id = vacant?;
    enter(me, id, device.as_ref(), stat, path);
    Some(id)
}

/// Whether the entry is this device file's.
pub fn is_same(entry: &FileEntry, device: &dyn DeviceFile) -> bool {
    let caps = device.caps();
    entry.device.load(Ordering::Relaxed) == caps.device
        && entry.inode.load(Ordering::Relaxed) == caps.inode
        && entry.birth_ns.load(Ordering::Relaxed) == caps.birth_ns
}

fn enter(me: Me<'_>, id: FileId, device: &dyn DeviceFile, stat: &DeviceStat, path: &[u8]) {
    let entry = me.arena.file_unchecked(id);
    entry
        .state
        .store(ENTERING | (me.id.0 << 3), Ordering::Release);
    let caps = device.caps();
    entry.device.store(caps.device, Ordering::Relaxed);
    entry.inode.store(caps.inode, Ordering::Relaxed);
    entry.birth_ns.store(caps.birth_ns, Ordering::Relaxed);
    entry.set_path(path);
    entry.forget_intents(me.arena.counts().threads);
    for word in [
        &entry.kernel_reason,
        &entry.gate,
        &entry.append_lock,
        &entry.readers,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [
        &entry.root,
        &entry.owed_pages,
        &entry.error,
        &entry.truncating,
        &entry.reserve_step,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    entry.failures.store(0, Ordering::Relaxed);
    entry.handed_epoch.store(0, Ordering::Relaxed);
    entry.flags.store(
        if caps.stable_writes { STABLE } else { 0 },
        Ordering::Relaxed,
    );
    take_sizes(entry, stat);
    witness(entry, stat, entry.changes.load(Ordering::Acquire));
    entry.opens.store(1, Ordering::Relaxed);
    entry.state.store(LIVE, Ordering::Release);
}

/// Sizes as the device has them, for a file of which nothing is in memory.
fn take_sizes(entry: &FileEntry, stat: &DeviceStat) {
    entry.size.store(stat.len, Ordering::Release);
    entry.disk_end.store(stat.len, Ordering::Release);
    entry.reserved_end.store(stat.len, Ordering::Release);
    if stat.allocated < stat.len {
        entry.flags.fetch_or(HOLEY, Ordering::AcqRel);
    }
}

/// Remembers what the device file looks like after our own last change, the one that `changes` counts.
pub fn witness(entry: &FileEntry, stat: &DeviceStat, changes: u32) {
    entry
        .witnessed
        .store(changes.wrapping_sub(1), Ordering::Release);
    let values = [stat.len, stat.mtime_ns, stat.ctime_ns];
    for (word, value) in entry.witness.iter().zip(values) {
        word.store(value, Ordering::Release);
    }
    entry.witnessed.store(changes, Ordering::Release);
}

/// Whether the device file is as [`witness`] last saw it.
pub fn is_as_witnessed(entry: &FileEntry, stat: &DeviceStat) -> bool {
    let values = [stat.len, stat.mtime_ns, stat.ctime_ns];
    entry
        .witness
        .iter()
        .zip(values)
        .all(|(word, value)| word.load(Ordering::Acquire) == value)
}

/// If somebody outside has changed an idle file, what is in memory of it is out of date.
fn freshen(me: Me<'_>, id: FileId, stat: &DeviceStat) {
    let entry = me.arena.file_unchecked(id);
    let idle = entry.opens.load(Ordering::Acquire) == 1
        && entry.owed_pages.load(Ordering::Acquire) == 0
        && !entry.is_unwitnessed(me.arena.counts().threads);
    if !idle || is_as_witnessed(entry, stat) {
        return;
    }
    evict::evict_file(me, id);
    take_sizes(entry, stat);
    witness(entry, stat, entry.changes.load(Ordering::Acquire));
}

/// Takes one open description away. Returns how many are left.
pub fn close(me: Me<'_>, id: FileId) -> u32 {
    let entry = me.arena.file_unchecked(id);
    entry.opens.fetch_sub(1, Ordering::AcqRel).saturating_sub(1)
}

/// The entry of an inode, for those who have nothing open of it: by numbers alone, without its birth time. What is known of
/// it may be out of date by the time it is looked at.
#[inline]
pub fn find(arena: &Arena, device: u64, inode: u64) -> Option<FileId> {
    let count = arena.counts().files;
    let start = place_of(inode, count);
    for step in 0..count {
        let id = FileId((start + step) % count);
        let entry = arena.file_unchecked(id);
        match entry.state.load(Ordering::Acquire) & 7 {
            ABSENT => return None,
            LIVE if entry.inode.load(Ordering::Relaxed) == inode
                && entry.device.load(Ordering::Relaxed) == device =>
            {
                return Some(id);
            }
            _ => {}
        }
    }
    None
}

/// Where a search for an inode begins.
#[inline]
fn place_of(inode: u64, count: u32) -> u32 {
    (inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % count
}

/// The error sequence for a description that is opened now.
pub fn error_sequence(me: Me<'_>, id: FileId) -> u32 {
    errors::sequence(me.arena.file_unchecked(id))
}

/// Drops entries that are idle and owe nothing. The caller is in no operation.
fn reclaim(shared: &Arc<Shared>, me: Me<'_>) {
    for id in (0..me.arena.counts().files).map(FileId) {
        let entry = me.arena.file_unchecked(id);
        let is_idle = || {
            entry.state.load(Ordering::Acquire) == LIVE
                && entry.opens.load(Ordering::Acquire) == 0
                && entry.owed_pages.load(Ordering::Acquire) == 0
        };
        if !is_idle() || !lock(me) {
            continue;
        }
        evict::evict_file(me, id);
        // In an operation, so that no rebuild is under way: it makes trees anew.
        if let Some(_stop) = stop_file(me, id)
            && let Ok(_operation) = me.enter_stopped(id)
            && is_idle()
            && crate::frame::slots::next_linked(me.arena, entry, 0).is_none()
        {
            crate::frame::slots::drop_tree(me.arena, entry);
            shared.drop_device(id);
            entry.state.store(GONE, Ordering::Release);
        }
        unlock(me);
    }
}
