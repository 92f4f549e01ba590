//! Small frames: parts of carved frames, taken one at a time or as many as a stock wants, and frames made whole again.

use super::frames::{claim, free_frame, regions_from_own, take_frame};
use super::{Allocator, Owner, Stock};
use crate::ids::{FrameId, HeaderId, SmallId};
use crate::limits::BLOCK_PAGES;
use crate::memory::threads::Me;
use crate::sync::{Ordering, planted};

/// Parts of one half of a carved frame, a bit each.
pub(super) struct Parts {
    pub(super) frame: FrameId,
    /// 0 or 1.
    pub(super) half: u32,
    pub(super) parts: u32,
}

/// Of which nothing can be taken.
pub(super) const NO_FRAME: FrameId = FrameId(u32::MAX);
/// Parts of a half.
pub(super) const HALF: u32 = BLOCK_PAGES as u32 / 2;

/// Takes a free small frame for a file with this stock, carving a frame when none is left.
pub fn take_small(me: Me<'_>, stock: Option<&Stock>) -> Option<SmallId> {
    if me.arena.allocator() == Allocator::RegionsStock
        && let Some(stock) = stock
    {
        return stock.take(me);
    }
    let hint = &me.slot().small_hint;
    let last = FrameId(hint.load(Ordering::Relaxed));
    let found = take_parts(me, last, 1)?;
    hint.store(found.frame.0, Ordering::Relaxed);
    found.claim_first(me)
}

/// Takes up to `batch` free parts of one carved frame: of `last`, or another of this core's region, or one of the others', or
/// one that is carved now. A thread that dies with them in hand is in an operation, so that a rebuild finds them.
pub(super) fn take_parts(me: Me<'_>, last: FrameId, batch: u32) -> Option<Parts> {
    if let Some(parts) = parts_of(me, last, batch) {
        return Some(parts);
    }
    // Carved frames with free parts are kept in a second map.
    let arena = me.arena;
    for region in regions_from_own(me) {
        let mut found = None;
        arena.carve_hints().take(region, |frame| {
            found = parts_of(me, frame, batch);
            found.is_some()
        });
        if let Some(parts) = found {
            arena.carve_hints().set(parts.frame);
            return Some(parts);
        }
    }
    let frame = take_frame(me)?;
    carve(me, frame);
    parts_of(me, frame, batch)
}

/// Makes a held frame a carved one: the owner word first, then the parts, then the hints. A thread that comes by an old hint may have seen the owner word of
/// an earlier life of the frame: could it take parts before the word is this one's, it might give them back and free the frame, which would be carved
/// afterwards.
fn carve(me: Me<'_>, frame: FrameId) {
    let arena = me.arena;
    for part in 0..BLOCK_PAGES as u32 {
        if let Some(owner) = arena.small_owner(small_of(frame, part)) {
            owner.store(Owner::Free.pack(), Ordering::Relaxed);
        }
    }
    if let (Some(free), Some(owner)) = (arena.carve(frame), arena.frame_owner(frame)) {
        owner.store(Owner::Carved.pack(), Ordering::Release);
        // Release: a thread that takes parts must see them free, and the owner word.
        free.store(u64::MAX, Ordering::Release);
    }
    arena.carve_hints().set(frame);
}

/// The small frame that is part `part` of `frame`.
#[inline]
pub fn small_of(frame: FrameId, part: u32) -> SmallId {
    SmallId(frame.0 * BLOCK_PAGES as u32 + part)
}

/// Takes up to `batch` free parts of a carved frame, of the half that has more.
fn parts_of(me: Me<'_>, frame: FrameId, batch: u32) -> Option<Parts> {
    let arena = me.arena;
    let owner = arena.frame_owner(frame)?;
    let free = arena.carve(frame)?;
    loop {
        let seen = free.load(Ordering::Acquire);
        if seen == 0 || owner.load(Ordering::Acquire) != Owner::Carved.pack() {
            return None;
        }
        let halves = [seen as u32, (seen >> HALF) as u32];
        let half = u32::from(halves[1].count_ones() > halves[0].count_ones());
        let wanted = u64::from(lowest(halves[half as usize], batch)) << (half * HALF);
        let got = free.fetch_and(!wanted, Ordering::AcqRel) & wanted;
        if got != 0 {
            let parts = (got >> (half * HALF)) as u32;
            return Some(Parts { frame, half, parts });
        }
    }
}

/// The lowest `count` bits of those set.
pub(super) fn lowest(bits: u32, count: u32) -> u32 {
    let mut rest = bits;
    for _ in 0..count.min(bits.count_ones()) {
        rest &= rest - 1;
    }
    bits & !rest
}

impl Parts {
    /// The first part, claimed; the others stay in the caller's hands.
    pub(super) fn claim_first(&self, me: Me<'_>) -> Option<SmallId> {
        let part = self.half * HALF + self.parts.trailing_zeros();
        let small = small_of(self.frame, part);
        claim(me.arena.small_owner(small)?, me.id).then_some(small)
    }

    /// Gives them back; their owner words say that they are free.
    pub(super) fn give_back(&self, me: Me<'_>) {
        give_parts(me, self.frame, u64::from(self.parts) << (self.half * HALF));
    }
}

/// Says that a small frame now belongs to a header.
#[inline]
pub fn link_small(arena: &crate::memory::arena::Arena, small: SmallId, header: HeaderId) {
    if let Some(owner) = arena.small_owner(small) {
        owner.store(Owner::Linked(header).pack(), Ordering::Release);
    }
}

/// Gives a small frame back, to the stock of the file whose it was if that is where it comes from; the last free part makes its
/// frame whole again. In an operation.
pub fn free_small(me: Me<'_>, stock: Option<&Stock>, small: SmallId) {
    let Some(owner) = me.arena.small_owner(small) else {
        return;
    };
    owner.store(Owner::Free.pack(), Ordering::Release);
    let frame = FrameId(small.0 / BLOCK_PAGES as u32);
    let part = small.0 % BLOCK_PAGES as u32;
    let kept = me.arena.allocator() == Allocator::RegionsStock
        && stock.is_some_and(|stock| stock.keep(me, frame, part));
    if !kept {
        give_parts(me, frame, 1 << part);
    }
}

fn give_parts(me: Me<'_>, frame: FrameId, parts: u64) {
    let Some(free) = me.arena.carve(frame) else {
        return;
    };
    let before = free.fetch_or(parts, Ordering::AcqRel);
    if before | parts == u64::MAX {
        uncarve(me, frame);
    } else if before == 0 {
        me.arena.carve_hints().set(frame);
    }
}

/// Makes a carved frame free again if all its parts are free: the thread that takes all 64 bits owns the frame.
fn uncarve(me: Me<'_>, frame: FrameId) {
    let arena = me.arena;
    let (Some(free), Some(owner)) = (arena.carve(frame), arena.frame_owner(frame)) else {
        return;
    };
    if planted!(LooseUncarve) {
        free.store(0, Ordering::Release);
    } else if free
        .compare_exchange(u64::MAX, 0, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    arena.carve_hints().clear(frame);
    owner.store(Owner::Held(me.id).pack(), Ordering::Release);
    free_frame(me, frame);
}
