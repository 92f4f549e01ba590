//! Eviction: clean headers give their memory back. In its simplest form, a clock over the header table; eviction by
//! stream takes its place behind the same function.
//!
//! Anyone may evict. A header is freed under its lock, inside an operation on its file, if it owes nothing and is not
//! superseded; a reader that is copying from it finds the version changed.

use crate::frame::header::State;
use crate::frame::slots;
use crate::ids::HeaderId;
use crate::memory::threads::Me;
use crate::scrap::absorb::free_header;
use crate::sync::Ordering;

/// Headers looked at in one call at most, beyond which a caller should do something else for a while.
const LOOK_MAX: u32 = 4096;

/// Evicts until `frames` frames more are free than before, looking at headers that have not been used for
/// `idle_ticks`. Returns how many headers were freed. The caller is in no operation.
pub fn evict(me: Me<'_>, frames: u32, idle_ticks: u32) -> u32 {
    let superblock = me.arena.superblock();
    let backed = superblock.headers_backed.load(Ordering::Acquire);
    if backed == 0 {
        return 0;
    }
    let goal = superblock
        .frames_free
        .load(Ordering::Relaxed)
        .saturating_add(frames);
    let mut freed = 0;
    for _ in 0..LOOK_MAX.min(backed.saturating_mul(2)) {
        let at = superblock.clock.fetch_add(1, Ordering::Relaxed) % backed;
        if try_evict(me, HeaderId(at), idle_ticks) {
            freed += 1;
            let free = superblock.frames_free.load(Ordering::Relaxed);
            if free >= goal && free <= u32::MAX / 2 {
                break;
            }
        }
    }
    freed
}

/// Evicts one header, if it is clean and has been idle.
pub fn try_evict(me: Me<'_>, id: HeaderId, idle_ticks: u32) -> bool {
    let Some(header) = me.arena.header(id) else {
        return false;
    };
    if header.state() != State::Linked || header.owed() != 0 {
        return false;
    }
    let tick = me.arena.superblock().tick.load(Ordering::Relaxed);
    if header.idle_ticks(tick) < idle_ticks {
        return false;
    }
    let Some(identity) = header.identity() else {
        return false;
    };
    let Some(file) = me.arena.file(identity.file) else {
        return false;
    };
    let Ok(_operation) = me.enter(identity.file) else {
        return false;
    };
    let Some(guard) = header.try_lock(me, id) else {
        return false;
    };
    let still = guard.is_for(identity) && guard.state() == State::Linked;
    if !still || guard.dirty() | guard.inflight() != 0 {
        return false;
    }
    free_header(guard, file, identity.file);
    true
}

/// Evicts everything clean of one file; for `evict`, for files changed by others, for closing down.
pub fn evict_file(me: Me<'_>, file: crate::ids::FileId) -> u32 {
    let mut at = 0;
    let mut freed = 0;
    loop {
        let Ok(operation) = me.enter(file) else {
            return freed;
        };
        let next = slots::next_linked(me.arena, me.arena.file_unchecked(file), at);
        drop(operation);
        let Some((block, header)) = next else {
            return freed;
        };
        freed += u32::from(try_evict(me, header, 0));
        at = u64::from(block.0) + 1;
    }
}
