//! Who owns each frame, small frame, header and node, and how a free one is found.
//!
//! One owner word each is the truth; taking is one compare-and-swap of it. Bitmaps of free ones are hints
//! beside it: a bit that is wrong costs a look, never a frame, and every rebuild makes them anew. No lock, no list,
//! so a death anywhere leaves at most a thing that is *held* by the dead.
//!
//! Source: WSBuffer 3.2 (batch allocation of frames), StreamCache's regions in their simplest form: each
//! thread starts its search at a place of its own.

use crate::ids::{FrameId, HeaderId, SmallId, ThreadId};
use crate::limits::BLOCK_PAGES;
use crate::memory::arena::Arena;
use crate::memory::threads::Me;
use crate::sync::{AtomicU32, AtomicU64, Ordering, planted};
use crate::sys::futex;

/// What an owner word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No memory behind it.
    Unbacked,
    /// Anybody may take it.
    Free,
    /// In a thread's hands.
    Held(ThreadId),
    /// Holds bytes of a header's block.
    Linked(HeaderId),
    /// A frame whose 64 parts have owners of their own.
    Carved,
}

const KIND_BITS: u32 = 3;
const KIND_MASK: u32 = (1 << KIND_BITS) - 1;

impl Owner {
    /// As it is stored. Zeroed memory is unbacked.
    pub const fn pack(self) -> u32 {
        match self {
            Owner::Unbacked => 0,
            Owner::Free => 1,
            Owner::Held(thread) => 2 | (thread.0 << KIND_BITS),
            Owner::Linked(header) => 3 | (header.0 << KIND_BITS),
            Owner::Carved => 4,
        }
    }

    /// From what is stored; an unknown word reads as unbacked, which no one may take.
    pub const fn unpack(word: u32) -> Self {
        let id = word >> KIND_BITS;
        match word & KIND_MASK {
            1 => Owner::Free,
            2 => Owner::Held(ThreadId(id)),
            3 => Owner::Linked(HeaderId(id)),
            4 => Owner::Carved,
            _ => Owner::Unbacked,
        }
    }
}

/// A bitmap of things that are probably free.
pub struct Hints<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Hints<'a> {
    /// Over the arena's words.
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Hints { words }
    }

    /// Says that `index` is free.
    pub fn set(&self, index: u32) {
        if let Some(word) = self.words.get(index as usize / 64) {
            word.fetch_or(1 << (index % 64), Ordering::Release);
        }
    }

    /// Says that `index` is not free.
    pub fn clear(&self, index: u32) {
        if let Some(word) = self.words.get(index as usize / 64) {
            word.fetch_and(!(1 << (index % 64)), Ordering::Relaxed);
        }
    }

    /// Whether `index` is said to be free.
    pub fn is_set(&self, index: u32) -> bool {
        let word = self.words.get(index as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) & (1 << (index % 64)) != 0)
    }

    /// How many are set, counting no further than about `enough`.
    pub fn count_about(&self, enough: usize) -> usize {
        let mut count = 0;
        for word in self.words {
            count += word.load(Ordering::Relaxed).count_ones() as usize;
            if count >= enough {
                break;
            }
        }
        count
    }

    /// Clears the whole map.
    pub fn clear_all(&self) {
        self.words
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Takes free ones out of the map, beginning about `start`, until `claim` accepts one.
    pub fn take(&self, start: usize, mut claim: impl FnMut(u32) -> bool) -> Option<u32> {
        let count = self.words.len();
        for step in 0..count {
            let at = (start + step) % count;
            let word = &self.words[at];
            let mut seen = word.load(Ordering::Relaxed);
            while seen != 0 {
                let bit = seen.trailing_zeros();
                seen &= seen - 1;
                let index = at as u32 * 64 + bit;
                if word.fetch_and(!(1 << bit), Ordering::Acquire) & (1 << bit) != 0 && claim(index)
                {
                    return Some(index);
                }
            }
        }
        None
    }
}

/// Tries to make a free thing mine.
fn claim(owner: &AtomicU32, by: ThreadId) -> bool {
    let held = Owner::Held(by).pack();
    let free = Owner::Free.pack();
    owner
        .compare_exchange(free, held, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// Takes a free frame. `None`: room must be made (evict, flush, back more).
pub fn take_frame(me: Me<'_>) -> Option<FrameId> {
    let arena = me.arena;
    let start = me.id.index() * 7;
    let taken = arena.frame_hints().take(start, |i| {
        arena
            .frame_owner(FrameId(i))
            .is_some_and(|owner| claim(owner, me.id))
    })?;
    let superblock = arena.superblock();
    let free = superblock.frames_free.fetch_sub(1, Ordering::Relaxed);
    let ready = superblock.frames_ready.load(Ordering::Relaxed);
    if ready != 0 && free == ready / 2 {
        futex::wake(&superblock.frames_free);
    }
    Some(FrameId(taken))
}

/// Gives a frame back. The caller holds it, or has just unlinked it under the header's lock.
pub fn free_frame(arena: &Arena, frame: FrameId) {
    let Some(owner) = arena.frame_owner(frame) else {
        return;
    };
    owner.store(Owner::Free.pack(), Ordering::Release);
    arena
        .superblock()
        .frames_free
        .fetch_add(1, Ordering::Relaxed);
    arena.frame_hints().set(frame.0);
}

/// Says that a frame now belongs to a header.
#[inline]
pub fn link_frame(arena: &Arena, frame: FrameId, header: HeaderId) {
    if let Some(owner) = arena.frame_owner(frame) {
        owner.store(Owner::Linked(header).pack(), Ordering::Release);
    }
}

/// Takes a free small frame, carving a frame when none is left.
pub fn take_small(me: Me<'_>) -> Option<SmallId> {
    let hint = &me.slot().small_hint;
    let last = FrameId(hint.load(Ordering::Relaxed));
    if let Some(small) = take_part(me, last) {
        return Some(small);
    }
    // Another carved frame with room; bits of carved frames with free parts are kept in a second map.
    let arena = me.arena;
    let mut found = None;
    arena.carve_hints().take(me.id.index(), |i| {
        found = take_part(me, FrameId(i));
        found.is_some()
    });
    if let Some(small) = found {
        let frame = FrameId(small.0 / BLOCK_PAGES as u32);
        arena.carve_hints().set(frame.0);
        hint.store(frame.0, Ordering::Relaxed);
        return Some(small);
    }
    let frame = take_frame(me)?;
    carve(me, frame);
    hint.store(frame.0, Ordering::Relaxed);
    take_part(me, frame)
}

/// Makes a held frame a carved one: parts first, then the owner word, then the hints.
fn carve(me: Me<'_>, frame: FrameId) {
    let arena = me.arena;
    for part in 0..BLOCK_PAGES as u32 {
        if let Some(owner) = arena.small_owner(small_of(frame, part)) {
            owner.store(Owner::Free.pack(), Ordering::Relaxed);
        }
    }
    if let (Some(free), Some(owner)) = (arena.carve(frame), arena.frame_owner(frame)) {
        // Release: who comes by an old hint sees the parts on offer before the owner word, and must see them free.
        free.store(u64::MAX, Ordering::Release);
        owner.store(Owner::Carved.pack(), Ordering::Release);
    }
    arena.carve_hints().set(frame.0);
}

/// The small frame that is part `part` of `frame`.
#[inline]
pub fn small_of(frame: FrameId, part: u32) -> SmallId {
    SmallId(frame.0 * BLOCK_PAGES as u32 + part)
}

/// Takes a free part of a carved frame.
fn take_part(me: Me<'_>, frame: FrameId) -> Option<SmallId> {
    let arena = me.arena;
    let owner = arena.frame_owner(frame)?;
    let free = arena.carve(frame)?;
    loop {
        let seen = free.load(Ordering::Acquire);
        if seen == 0 || owner.load(Ordering::Acquire) != Owner::Carved.pack() {
            return None;
        }
        let part = seen.trailing_zeros();
        if free.fetch_and(!(1 << part), Ordering::AcqRel) & (1 << part) == 0 {
            continue;
        }
        let small = small_of(frame, part);
        if claim(arena.small_owner(small)?, me.id) {
            return Some(small);
        }
    }
}

/// Says that a small frame now belongs to a header.
#[inline]
pub fn link_small(arena: &Arena, small: SmallId, header: HeaderId) {
    if let Some(owner) = arena.small_owner(small) {
        owner.store(Owner::Linked(header).pack(), Ordering::Release);
    }
}

/// Gives a small frame back; the last free part makes its frame whole again.
pub fn free_small(me: Me<'_>, small: SmallId) {
    let arena = me.arena;
    let frame = FrameId(small.0 / BLOCK_PAGES as u32);
    let part = small.0 % BLOCK_PAGES as u32;
    let (Some(owner), Some(free)) = (arena.small_owner(small), arena.carve(frame)) else {
        return;
    };
    owner.store(Owner::Free.pack(), Ordering::Release);
    let before = free.fetch_or(1 << part, Ordering::AcqRel);
    if before | (1 << part) == u64::MAX {
        uncarve(me, frame);
    } else if before == 0 {
        arena.carve_hints().set(frame.0);
    }
}

/// Makes a carved frame free again if all its parts are free: whoever takes all 64 bits owns the frame.
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
    arena.carve_hints().clear(frame.0);
    owner.store(Owner::Held(me.id).pack(), Ordering::Release);
    free_frame(arena, frame);
}
