//! Eviction: clean headers give their memory back. In two passes: first what was used during one
//! visit only, as streams leave it behind; what was used again after it had been left goes when there is nothing else, or has
//! not been used for long. So a scan of any length takes its own memory, and not what is in use beside it.
//!
//! Source: StreamCache 4.2 evicts by streams, the coldest first: so does `streams`, where streams are tracked. Which blocks of a
//! stream may go is said by two bits beside the tick of the last use (`frame::header::Usage`), which cost one compare on the way of
//! a hit. A clock over the header table comes after it, for want of streams or where not enough was found.
//!
//! Anyone may evict. A header is freed under its lock, inside an operation on its file, if it owes nothing and is not
//! superseded; a reader that is copying from it finds the version changed.

mod streams;

use std::ops::Range;

use crate::frame::header::{Header, Identity, State, Usage};
use crate::frame::slots;
use crate::ids::{FileId, HeaderId};
use crate::memory::files::FileEntry;
use crate::memory::threads::Me;
use crate::scrap::absorb::free_header;
use crate::sync::{Ordering, planted};

/// Headers looked at in one sweep at most, beyond which a caller should do something else for a while.
const LOOK_MAX: u32 = 4096;
/// Ticks after which it does not count any more that something was used again.
const AGAIN_TICKS: u32 = 10_000;
/// Ticks for which what was read ahead is left alone: its reader is on its way.
const AHEAD_TICKS: u32 = 1000;

/// Evicts until `frames` frames more are free than before, looking at headers that have not been used for
/// `idle_ticks`; with 0, what was used again as well, after all else. Returns how many headers were freed. The caller is in
/// no operation.
pub fn evict(me: Me<'_>, frames: u32, idle_ticks: u32) -> u32 {
    let superblock = me.arena.superblock();
    let free = || superblock.frames_free.load(Ordering::Relaxed);
    let goal = free().saturating_add(frames);
    let is_reached = || (goal..=u32::MAX / 2).contains(&free());
    let tick = superblock.tick.load(Ordering::Relaxed);
    // What views hold keeps its memory.
    let gives = |header: &Header| !header.is_pinned(me.arena);
    let freed = pass(me, &is_reached, &|header| {
        is_passed_by(header, tick, idle_ticks) && gives(header)
    });
    if idle_ticks > 0 || is_reached() {
        return freed;
    }
    freed + pass(me, &is_reached, &gives)
}

/// By streams, then by the clock.
fn pass(me: Me<'_>, is_enough: &dyn Fn() -> bool, may_go: &dyn Fn(&Header) -> bool) -> u32 {
    let freed = streams::evict(me, is_enough, may_go);
    if freed > 0 && is_enough() {
        return freed;
    }
    freed + sweep(me, is_enough, may_go)
}

/// Whether a block was visited once and left, or is as good as forgotten.
fn is_passed_by(header: &Header, tick: u32, idle_ticks: u32) -> bool {
    let least = match header.usage() {
        Usage::Once | Usage::Fresh => idle_ticks,
        Usage::Again if planted!(EvictInUse) => idle_ticks,
        Usage::Again => AGAIN_TICKS.max(idle_ticks),
        Usage::Ahead => AHEAD_TICKS.max(idle_ticks),
    };
    header.idle_ticks(tick) >= least
}

/// Goes once over the headers, or a good part of them, and evicts those that may go, until it is enough.
fn sweep(me: Me<'_>, is_enough: &dyn Fn() -> bool, may_go: impl Fn(&Header) -> bool) -> u32 {
    let superblock = me.arena.superblock();
    let backed = superblock.headers_backed.load(Ordering::Acquire);
    let mut freed = 0;
    for _ in 0..LOOK_MAX.min(backed.saturating_mul(2)) {
        let id = HeaderId(superblock.clock.fetch_add(1, Ordering::Relaxed) % backed);
        let goes = me.arena.header(id).is_some_and(&may_go);
        if goes && try_evict(me, id) {
            freed += 1;
            if is_enough() {
                break;
            }
        }
    }
    freed
}

/// Evicts one header, if it is clean.
pub fn try_evict(me: Me<'_>, id: HeaderId) -> bool {
    let Some(header) = me.arena.header(id) else {
        return false;
    };
    if header.state() != State::Linked || header.owed() != 0 {
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
    free_if_clean(me, id, header, identity, file)
}

/// In an operation on the file.
fn free_if_clean(
    me: Me<'_>,
    id: HeaderId,
    header: &Header,
    identity: Identity,
    file: &FileEntry,
) -> bool {
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

/// Evicts everything clean of one file, and takes its stock; for `evict`, for files changed by others, for closing down.
pub fn evict_file(me: Me<'_>, file: FileId) -> u32 {
    let freed = evict_blocks(me, file, 0..u64::MAX);
    give_stock_back(me, file);
    // The next reader is the first.
    let entry = me.arena.file_unchecked(file);
    entry.read_past.store(0, Ordering::Relaxed);
    freed
}

/// Nobody writes the file any more, or reads it.
pub fn give_stock_back(me: Me<'_>, file: FileId) {
    if let Ok(_operation) = me.enter(file) {
        me.arena.file_unchecked(file).stock.shrink(me, |_| 0);
    }
}

/// Evicts what is clean of a file's blocks.
pub fn evict_blocks(me: Me<'_>, file: FileId, blocks: Range<u64>) -> u32 {
    let mut at = blocks.start;
    let mut freed = 0;
    loop {
        let Ok(operation) = me.enter(file) else {
            return freed;
        };
        let next = slots::next_linked(me.arena, me.arena.file_unchecked(file), at);
        drop(operation);
        let Some((block, header)) = next.filter(|(block, _)| u64::from(block.0) < blocks.end)
        else {
            return freed;
        };
        freed += u32::from(try_evict(me, header));
        at = u64::from(block.0) + 1;
    }
}
