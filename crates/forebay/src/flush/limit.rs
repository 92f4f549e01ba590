//! The two limits on what a session owes, seen from both sides: writers tell the keeper when the lower one has been passed, and
//! sleep at the upper one until flushes have made room.
//!
//! All words are hints. A wake-up that is lost, by a death or because two words are looked at in turn, costs a sleeper no more than
//! [`NAP`]; whether there is room is said by `owed_pages` alone.

use std::time::Duration;

use crate::limits::PAGE_BYTES;
use crate::memory::superblock::Superblock;
use crate::sync::Ordering;
use crate::sys::futex;

/// Longest sleep of a thread that waits for room.
pub const NAP: Duration = Duration::from_millis(4);
/// Sleepers are woken when this part of the limit is free: each wake-up is worth some requests, and the device does not run dry
/// meanwhile.
const ROOM_PARTS: u64 = 64;

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// A part of the session's limit.
    Session = 1,
    /// Anything: the limit of one file, which a flusher does not look at.
    Any = 2,
}

/// Says from how many bytes on the keeper writes back.
pub fn set_background(superblock: &Superblock, bytes: u64) {
    let word = &superblock.owed_pages_background;
    word.store((bytes / PAGE_BYTES as u64).max(1), Ordering::Relaxed);
}

/// Whether so much is owed that a keeper writes it back now.
#[inline]
pub fn is_above_background(superblock: &Superblock) -> bool {
    let background = superblock.owed_pages_background.load(Ordering::Relaxed);
    background != 0 && superblock.owed_about() > background
}

/// A writer is about to add to what is owed: wakes the keeper once, when the lower limit has been passed.
#[inline]
pub fn look(superblock: &Superblock) {
    if is_above_background(superblock) && superblock.background_told.load(Ordering::Relaxed) == 0 {
        tell(superblock);
    }
}

#[cold]
fn tell(superblock: &Superblock) {
    if superblock.background_told.swap(1, Ordering::AcqRel) == 0 {
        superblock.wake_keeper();
    }
}

/// The keeper has seen that little is owed: it wants to hear of more.
pub fn listen(superblock: &Superblock) {
    if superblock.background_told.load(Ordering::Relaxed) != 0 {
        superblock.background_told.store(0, Ordering::Release);
    }
}

/// Sleeps until room has been made, or for a moment, unless `is_there` says that there is some.
pub fn await_room(superblock: &Superblock, room: Room, is_there: impl FnOnce() -> bool) {
    let seen = superblock.room.load(Ordering::Acquire);
    superblock
        .room_wanted
        .fetch_max(room as u32, Ordering::SeqCst);
    if !is_there() {
        futex::wait(&superblock.room, seen, NAP);
    }
}

/// A request has been carried out; `by_keeper`, by a flusher of the keeper's.
pub fn make_room(superblock: &Superblock, by_keeper: bool) {
    if by_keeper {
        superblock.kept.fetch_add(1, Ordering::Relaxed);
    }
    let wanted = superblock.room_wanted.load(Ordering::SeqCst);
    let is_enough = || {
        let max = superblock.owed_pages_max.load(Ordering::Relaxed);
        superblock.owed_about() <= max - max / ROOM_PARTS
    };
    if wanted == Room::Any as u32 || wanted != 0 && is_enough() {
        superblock.room_wanted.store(0, Ordering::SeqCst);
        superblock.room.fetch_add(1, Ordering::AcqRel);
        futex::wake(&superblock.room);
    }
}
