//! Finding a file's entry by its numbers: once for each call of a program's on a file that is not managed.

use crate::ids::FileId;
use crate::memory::arena::Arena;
use crate::memory::files::{ABSENT, LIVE};
use crate::sync::Ordering;

/// An entry is about to be complete. Under the table lock.
pub(super) fn entered(arena: &Arena) {
    arena.superblock().entries.fetch_add(1, Ordering::SeqCst);
}

/// A complete entry has been dropped. Under the table lock.
pub(super) fn dropped(arena: &Arena) {
    arena.superblock().entries.fetch_sub(1, Ordering::SeqCst);
}

/// Whether anything may be known of any file: one load.
#[inline]
pub fn is_any(arena: &Arena) -> bool {
    arena.superblock().entries.load(Ordering::SeqCst) != 0
}

/// Beside the count of entries: the arena's file has been removed, and no process is in the session any more.
const ENDED: u32 = 1 << 31;

/// The arena's file has just been removed by the last process that had it: one that only looks at it learns that there may be
/// another one.
pub fn end(arena: &Arena) {
    let entries = &arena.superblock().entries;
    entries.fetch_or(ENDED, Ordering::SeqCst);
}

/// Whether it has.
#[inline]
pub fn has_ended(arena: &Arena) -> bool {
    arena.superblock().entries.load(Ordering::SeqCst) & ENDED != 0
}

/// The entry of an inode, for those that have nothing open of it: by numbers alone, without its birth time. What is known of
/// it may be out of date by the time it is looked at.
#[inline]
pub fn find(arena: &Arena, device: u64, inode: u64) -> Option<FileId> {
    if !is_any(arena) {
        return None;
    }
    let count = arena.counts().files;
    let mut at = place_of(inode, count);
    for _ in 0..count {
        let id = FileId(at);
        let entry = arena.file_unchecked(id);
        match entry.state.load(Ordering::Acquire) & 7 {
            ABSENT => return None,
            LIVE if entry.inode.load(Ordering::Relaxed) == inode
                && entry.device.load(Ordering::Relaxed) == device
                && !entry.is_outlived() =>
            {
                return Some(id);
            }
            _ => {}
        }
        at += 1;
        if at == count {
            at = 0;
        }
    }
    None
}

/// Where a search for an inode begins.
#[inline]
pub(super) fn place_of(inode: u64, count: u32) -> u32 {
    let hash = inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    // The hash as a fraction of all hashes: a division would be most of what a search costs.
    ((hash * u64::from(count)) >> 32) as u32
}
