//! Memory for frames: claimed by huge pages, given, published; and taken back.
//!
//! ```text
//! unbacked --(claim)--> giving --(has memory; publish)--> free
//!     ^                    |                               | (all of the huge page taken, nobody copies from it any more)
//!     `---(none to be had)-'<------------------------------'
//! ```
//!
//! The word of a huge page's first frame says whose claim it is; its other frames are unbacked meanwhile. So nobody else is at this
//! memory, however long the claim lasts, and a thread that needs memory claims another huge page. Claims are made, published and given up in
//! an operation, which a rebuild waits for; the calls that give memory and take it are made outside. A claim of the
//! dead is undone by a rebuild, which takes back whatever memory there is.
//!
//! A huge page counts against the budget from before it is claimed until after its memory is gone (`frames_claimed`), so that what has
//! memory never exceeds the budget. A thread that is stopped with a claim in hand keeps that part of it from the others: half of what was
//! left at most.

use crate::ids::FrameId;
use crate::limits::{BATCH_BYTES, BLOCK_BYTES, HUGE_BYTES, HUGE_FRAMES};
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::memory::cgroup::{self, System};
use crate::memory::regions::{self, Owner};
use crate::memory::superblock::Superblock;
use crate::memory::threads::{self, Me, Settling};
use crate::sync::time::Instant;
use crate::sync::{Ordering, planted};

/// Huge pages in a row that are this thread's to give memory to. The budget counts them.
struct Claim<'a> {
    me: Me<'a>,
    first: FrameId,
    pieces: u32,
    /// The dead have made no claims that nobody hears of.
    _settling: Settling<'a>,
}

/// Backs up to `bytes` of frames; how many.
pub(super) fn more_frames(shared: &Shared, me: Me<'_>, bytes: usize) -> u32 {
    let superblock = me.arena.superblock();
    let room = room_left(superblock);
    let mut wanted = room.min((bytes / BLOCK_BYTES) as u32);
    // Where the budget is used up, and writers and readers come here for each few frames, nobody asks the files that say so.
    if wanted == 0 {
        return 0;
    }
    if !shared.config.heap_backed
        && let Some(headroom) = cgroup::headroom()
    {
        // A cgroup at its limit kills; stay a batch away from it, and leave what would be given back at once (`limits`).
        let spare = System::here().spare().unwrap_or(u64::MAX);
        let frames = headroom.saturating_sub(BATCH_BYTES as u64).min(spare) / BLOCK_BYTES as u64;
        wanted = wanted.min(u32::try_from(frames).unwrap_or(u32::MAX));
    }
    let mut given = 0;
    while wanted >= HUGE_FRAMES.min(room.max(1)) && wanted > 0 {
        // Half of what is left at most: a thread that is stopped with it in hand leaves some to others.
        let most = wanted.min(room_left(superblock) / 2);
        let Some(mut claim) = Claim::take(me, (most / HUGE_FRAMES).max(1)) else {
            break;
        };
        // On the heap, in tests, no decision shall hang on the clock.
        let begun = (!shared.config.heap_backed).then(Instant::now);
        if !claim.back() {
            claim.shrink(0);
            // The file system is smaller than the budget: what there is, is the budget.
            let backed = superblock.frames_backed.load(Ordering::Relaxed);
            superblock
                .frames_max
                .store(backed.max(1), Ordering::Relaxed);
            break;
        }
        if let Some(begun) = begun {
            let ns = begun.elapsed().as_nanos() as u64;
            super::observe(superblock, claim.pieces as usize * HUGE_BYTES, ns);
        }
        let count = claim.publish(wanted);
        if count == 0 {
            break;
        }
        wanted -= count;
        given += count;
    }
    given
}

impl<'a> Claim<'a> {
    /// The first huge pages in a row whose frames have no memory, at most `pieces_max`, and what the budget has room for.
    fn take(me: Me<'a>, pieces_max: u32) -> Option<Self> {
        loop {
            let (first, pieces) = unbacked_run(me.arena, pieces_max)?;
            let mut claim = Claim {
                me,
                first,
                pieces: 0,
                _settling: me.settling(),
            };
            let _alone = me.enter_arena();
            let pieces = reserve(me.arena.superblock(), pieces);
            if pieces == 0 {
                return None;
            }
            while claim.pieces < pieces && claim.add() {
                claim.pieces += 1;
            }
            unreserve(me.arena.superblock(), pieces - claim.pieces);
            // Else somebody else was faster: there may be others.
            if claim.pieces > 0 {
                return Some(claim);
            }
        }
    }

    /// Claims the huge page that follows.
    fn add(&self) -> bool {
        let arena = self.me.arena;
        let first = self.piece(self.pieces);
        let claimed = Owner::Giving(self.me.id).pack();
        let unbacked = Owner::Unbacked.pack();
        let Some(owner) = arena.frame_owner(first) else {
            return false;
        };
        if planted!(LooseClaim) {
            owner.store(claimed, Ordering::Release);
        } else if owner
            .compare_exchange(unbacked, claimed, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        // Given in part meanwhile, where the budget ends.
        let alone = (first.0 + 1..first.0 + HUGE_FRAMES).all(|id| is_unbacked(arena, id));
        if !alone {
            owner.store(unbacked, Ordering::Release);
        }
        alone
    }

    fn piece(&self, index: u32) -> FrameId {
        FrameId(self.first.0 + index * HUGE_FRAMES)
    }

    /// Gives it memory: all of it, or else the first huge page alone, or nothing.
    fn back(&mut self) -> bool {
        let mapping = self.me.arena.mapping();
        let offset = self.me.arena.frame_offset(self.first);
        let bytes = self.pieces as usize * HUGE_BYTES;
        if mapping.back(offset, bytes).is_ok() {
            return true;
        }
        self.shrink(1);
        mapping.back(offset, HUGE_BYTES).is_ok()
    }

    /// Lets any thread have frames of it, at most `most` and what the budget allows. Returns how many.
    fn publish(mut self, most: u32) -> u32 {
        let superblock = self.me.arena.superblock();
        let count = {
            let _alone = self.me.enter_arena();
            let count = allow(superblock, (self.pieces * HUGE_FRAMES).min(most));
            // The first of a huge page last: it says whose the others are.
            for index in (0..count).rev() {
                regions::free_frame(self.me, FrameId(self.first.0 + index));
            }
            count
        };
        self.shrink(count.div_ceil(HUGE_FRAMES));
        count
    }

    /// Takes the memory of all but the first huge pages back, and lets any thread claim those.
    fn shrink(&mut self, pieces: u32) {
        for index in pieces..self.pieces {
            let first = self.piece(index);
            let offset = self.me.arena.frame_offset(first);
            let _ = self.me.arena.mapping().release(offset, HUGE_BYTES);
            let _alone = self.me.enter_arena();
            set_owner(self.me.arena, first, Owner::Unbacked);
            unreserve(self.me.arena.superblock(), 1);
        }
        self.pieces = self.pieces.min(pieces);
    }
}

/// Frames that may have memory, and whose huge pages nobody has claimed.
fn room_left(superblock: &Superblock) -> u32 {
    let claimed = superblock.frames_claimed.load(Ordering::Relaxed);
    let max = superblock.frames_max.load(Ordering::Relaxed);
    max.saturating_sub(claimed)
}

/// Counts huge pages against the budget, `pieces` of them at most, and the last one also where there is room for a part of it.
/// Returns how many.
fn reserve(superblock: &Superblock, pieces: u32) -> u32 {
    let word = &superblock.frames_claimed;
    let mut claimed = word.load(Ordering::Relaxed);
    loop {
        let max = superblock.frames_max.load(Ordering::Relaxed);
        let room = max.saturating_sub(claimed).div_ceil(HUGE_FRAMES);
        let count = pieces.min(room);
        let next = claimed.saturating_add(count * HUGE_FRAMES);
        match word.compare_exchange(claimed, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return count,
            Err(seen) => claimed = seen,
        }
    }
}

/// Their memory is gone, or was never given.
fn unreserve(superblock: &Superblock, pieces: u32) {
    let frames = pieces * HUGE_FRAMES;
    superblock
        .frames_claimed
        .fetch_sub(frames, Ordering::AcqRel);
}

/// Counts frames as having memory, as many as the budget allows. Returns how many.
fn allow(superblock: &Superblock, frames: u32) -> u32 {
    let word = &superblock.frames_backed;
    let mut backed = word.load(Ordering::Relaxed);
    loop {
        let room = superblock
            .frames_max
            .load(Ordering::Relaxed)
            .saturating_sub(backed);
        let count = frames.min(room);
        match word.compare_exchange(backed, backed + count, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return count,
            Err(seen) => backed = seen,
        }
    }
}

fn is_unbacked(arena: &Arena, id: u32) -> bool {
    arena
        .frame_owner(FrameId(id))
        .is_some_and(|owner| Owner::unpack(owner.load(Ordering::Acquire)) == Owner::Unbacked)
}

fn set_owner(arena: &Arena, frame: FrameId, word: Owner) {
    if let Some(owner) = arena.frame_owner(frame) {
        owner.store(word.pack(), Ordering::Release);
    }
}

/// The first huge pages in a row whose frames have no memory, at most `pieces_max`: the first frame, and how many.
fn unbacked_run(arena: &Arena, pieces_max: u32) -> Option<(FrameId, u32)> {
    let is_free = |first: &u32| (*first..first + HUGE_FRAMES).all(|id| is_unbacked(arena, id));
    let mut pieces = (0..arena.counts().frames).step_by(HUGE_FRAMES as usize);
    let first = pieces.find(is_free)?;
    let more = pieces.take(pieces_max as usize - 1).take_while(is_free);
    Some((FrameId(first), 1 + more.count() as u32))
}

/// Gives free memory back until at most `frames` frames are backed. Returns the bytes given back. The caller is in no
/// operation.
pub fn give_back(me: Me<'_>, frames: u32) -> u64 {
    // What views hold cannot go: as much as that is left to all others.
    let pinned = me.arena.superblock().frames_pinned.load(Ordering::Relaxed);
    let frames = frames.max(pinned.saturating_mul(2));
    let _settling = me.settling();
    let mut given = 0;
    let mut end = me.arena.counts().frames / HUGE_FRAMES * HUGE_FRAMES;
    loop {
        let taken = take_free(me, frames, &mut end);
        if taken.is_empty() {
            return given;
        }
        // Readers that copied from these frames before we took them have left their operations, or look anew.
        let mut goes_on = threads::await_operations(me);
        for first in taken {
            goes_on = goes_on && take_memory(me, first);
            if goes_on {
                given += HUGE_BYTES as u64;
                continue;
            }
            let _alone = me.enter_arena();
            for index in (0..HUGE_FRAMES).rev() {
                regions::free_frame(me, FrameId(first.0 + index));
            }
        }
        if !goes_on {
            return given;
        }
    }
}

/// Takes huge pages all of whose frames are free, from `end` down, as long as more than `frames` have memory: half of what is free at
/// most, since a thread that is stopped with it in hand leaves the rest to others.
fn take_free(me: Me<'_>, frames: u32, end: &mut u32) -> Vec<FrameId> {
    let superblock = me.arena.superblock();
    let most = (superblock.free_about() / HUGE_FRAMES / 2).max(1) as usize;
    let mut taken = Vec::new();
    while *end >= HUGE_FRAMES && taken.len() < most {
        let backed = superblock.frames_backed.load(Ordering::Relaxed);
        if backed.saturating_sub(taken.len() as u32 * HUGE_FRAMES) <= frames {
            break;
        }
        *end -= HUGE_FRAMES;
        if take_piece(me, FrameId(*end)) {
            taken.push(FrameId(*end));
        }
    }
    taken
}

/// Takes all frames of a huge page, or none.
fn take_piece(me: Me<'_>, first: FrameId) -> bool {
    let _alone = me.enter_arena();
    regions::take_run_at(me, first)
}

/// Takes the memory of a huge page that this thread has taken, from whose frames nobody copies any more. `false`: it cannot be taken, and
/// is this thread's still.
fn take_memory(me: Me<'_>, first: FrameId) -> bool {
    let arena = me.arena;
    let superblock = arena.superblock();
    {
        let _alone = me.enter_arena();
        // Before the memory goes: should this thread die, no frame without memory is taken for a free one. The claim first, so
        // that no thread makes one of its own.
        set_owner(arena, first, Owner::Giving(me.id));
        for id in first.0 + 1..first.0 + HUGE_FRAMES {
            set_owner(arena, FrameId(id), Owner::Unbacked);
        }
        let backed = &superblock.frames_backed;
        backed.fetch_sub(HUGE_FRAMES, Ordering::Relaxed);
    }
    let offset = arena.frame_offset(first);
    let is_taken = arena.mapping().release(offset, HUGE_BYTES).is_ok();
    let _alone = me.enter_arena();
    if is_taken {
        set_owner(arena, first, Owner::Unbacked);
        unreserve(superblock, 1);
    } else {
        let backed = &superblock.frames_backed;
        backed.fetch_add(HUGE_FRAMES, Ordering::Relaxed);
        for id in first.0..first.0 + HUGE_FRAMES {
            set_owner(arena, FrameId(id), Owner::Held(me.id));
        }
    }
    is_taken
}
