//! Free frames: a region for each core, others' regions when it is empty.

use super::{Owner, Shares};
use crate::ids::{FrameId, HeaderId, ThreadId};
use crate::limits::{HUGE_FRAMES, REGIONS_MAX};
use crate::memory::arena::Arena;
use crate::memory::threads::Me;
use crate::sync::{AtomicU32, Ordering};

/// A count on a cache line of its own.
#[repr(C, align(64))]
struct Count(AtomicU32);

/// Free frames, about, counted by region. A count is never below the frames that its region's map shows.
#[repr(C, align(64))]
pub struct FreeFrames {
    /// How many regions there are, a power of two. Never changes.
    pub(crate) regions: AtomicU32,
    free: [Count; REGIONS_MAX as usize],
}

impl FreeFrames {
    /// All regions together. Threads count late, so that it may be below zero for a moment.
    pub fn load(&self, order: Ordering) -> u32 {
        let regions = self.regions.load(Ordering::Relaxed).min(REGIONS_MAX);
        self.free[..regions as usize]
            .iter()
            .fold(0, |sum, count| sum.wrapping_add(count.0.load(order)))
    }

    /// The count of one region.
    pub(crate) fn of(&self, region: u32) -> &AtomicU32 {
        &self.free[(region % REGIONS_MAX) as usize].0
    }
}

/// How many regions an arena of `frames` frames has on a machine with `cores` cores.
pub fn regions_for(frames: u32, cores: usize) -> u32 {
    let most = (frames / HUGE_FRAMES).clamp(1, REGIONS_MAX);
    // Each has a huge page at least.
    let most = 1 << most.ilog2();
    let cores = cores.clamp(1, REGIONS_MAX as usize) as u32;
    cores.next_power_of_two().min(most)
}

/// The regions, the calling thread's own first.
pub(super) fn regions_from_own(me: Me<'_>) -> impl Iterator<Item = u32> {
    let regions = me.arena.shares().regions();
    let own = if regions == 1 { 0 } else { core_of(me) };
    (0..regions).map(move |step| (own + step) & (regions - 1))
}

/// The core that the thread runs on; in simulations, where the same has to happen again, a number that is the thread's own.
fn core_of(me: Me<'_>) -> u32 {
    if cfg!(feature = "sim") {
        me.id.0
    } else {
        crate::sys::cpu::current()
    }
}

/// Tries to make a free thing mine.
pub(super) fn claim(owner: &AtomicU32, by: ThreadId) -> bool {
    let held = Owner::Held(by).pack();
    let free = Owner::Free.pack();
    owner
        .compare_exchange(free, held, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// Takes a free frame. `None`: room must be made (evict, flush, back more).
pub fn take_frame(me: Me<'_>) -> Option<FrameId> {
    let arena = me.arena;
    let (counts, hints) = (&arena.superblock().frames_free, arena.frame_hints());
    for region in regions_from_own(me) {
        let count = counts.of(region);
        if count.load(Ordering::Relaxed) as i32 <= 0 {
            continue;
        }
        let taken = hints.take(region, |frame| {
            arena
                .frame_owner(frame)
                .is_some_and(|owner| claim(owner, me.id))
        });
        if taken.is_some() {
            let free = count.fetch_sub(1, Ordering::Relaxed);
            wake_at_half(arena, free, 1);
            return taken;
        }
    }
    None
}

/// Takes eight free frames side by side on a huge page of their own: the first of them. `None`: there are none, though single ones may be.
pub fn take_run(me: Me<'_>) -> Option<FrameId> {
    let arena = me.arena;
    regions_from_own(me).find_map(|region| {
        let count = arena.superblock().frames_free.of(region);
        if (count.load(Ordering::Relaxed) as i32) < HUGE_FRAMES as i32 {
            return None;
        }
        arena
            .frame_hints()
            .take_huge(region, |first| take_run_at(me, first))
    })
}

/// Takes one particular frame, if it is free. In an operation.
pub fn take_frame_at(me: Me<'_>, frame: FrameId) -> bool {
    let arena = me.arena;
    let taken = arena
        .frame_owner(frame)
        .is_some_and(|owner| claim(owner, me.id));
    if taken {
        arena.frame_hints().clear(frame);
        let region = arena.shares().region_of(frame);
        let free = arena.superblock().frames_free.of(region);
        wake_at_half(arena, free.fetch_sub(1, Ordering::Relaxed), 1);
    }
    taken
}

/// Takes the first frame of a huge page all of whose frames are free, that at `wanted` before any other: the rest is for what follows, if
/// nobody else needs it first. In an operation.
pub fn take_first_of_run(me: Me<'_>, wanted: FrameId) -> Option<FrameId> {
    let arena = me.arena;
    let is_free = |first: FrameId| {
        let frames = first.0..first.0.saturating_add(HUGE_FRAMES);
        frames.map(FrameId).all(|frame| {
            let owner = arena.frame_owner(frame);
            owner.is_some_and(|owner| owner.load(Ordering::Relaxed) == Owner::Free.pack())
        })
    };
    let take = |first| is_free(first) && take_frame_at(me, first);
    if wanted.0.is_multiple_of(HUGE_FRAMES) && take(wanted) {
        return Some(wanted);
    }
    regions_from_own(me).find_map(|region| arena.frame_hints().take_huge(region, take))
}

/// Takes all frames of a huge page, or none; there may be none at `first`. In an operation.
pub fn take_run_at(me: Me<'_>, first: FrameId) -> bool {
    let arena = me.arena;
    if first.0.saturating_add(HUGE_FRAMES) > arena.counts().frames {
        return false;
    }
    let frames = (first.0..first.0 + HUGE_FRAMES).map(FrameId);
    let take = |frame: &FrameId| {
        let owner = arena.frame_owner(*frame);
        owner.is_some_and(|owner| claim(owner, me.id))
    };
    let taken: Vec<FrameId> = frames.clone().take_while(take).collect();
    if taken.len() < HUGE_FRAMES as usize {
        for frame in taken {
            if let Some(owner) = arena.frame_owner(frame) {
                owner.store(Owner::Free.pack(), Ordering::Release);
            }
            arena.frame_hints().set(frame);
        }
        return false;
    }
    frames.for_each(|frame| arena.frame_hints().clear(frame));
    let count = arena
        .superblock()
        .frames_free
        .of(arena.shares().region_of(first));
    let free = count.fetch_sub(HUGE_FRAMES, Ordering::Relaxed);
    wake_at_half(arena, free, HUGE_FRAMES);
    true
}

/// Whether some frame is shown to be free. Not what is counted: a thread that takes one, or gives one back, does so and counts it in two steps,
/// and may be stopped in between.
pub fn shows_free(arena: &Arena) -> bool {
    arena.superblock().free_about() != 0 && arena.frame_hints().count_about(1) != 0
}

/// Wakes the thread that gives memory ahead of need, if half of a region's share of what is kept ready has gone with the last `taken` frames of `free`.
fn wake_at_half(arena: &Arena, free: u32, taken: u32) {
    let superblock = arena.superblock();
    let ready = superblock.frames_ready.load(Ordering::Relaxed);
    let half = (ready / 2 / arena.shares().regions()).max(1);
    if ready != 0 && free >= half && free - half < taken {
        superblock.wake_ready();
    }
}

/// Gives a frame back. The caller holds it, or has just unlinked it under the header's lock.
pub fn free_frame(me: Me<'_>, frame: FrameId) {
    let arena = me.arena;
    let Some(owner) = arena.frame_owner(frame) else {
        return;
    };
    owner.store(Owner::Free.pack(), Ordering::Release);
    count_free(arena, frame);
    arena.frame_hints().set(frame);
}

/// Counts a frame as free.
fn count_free(arena: &Arena, frame: FrameId) {
    let region = arena.shares().region_of(frame);
    let count = arena.superblock().frames_free.of(region);
    count.fetch_add(1, Ordering::Relaxed);
}

/// Says that a frame now belongs to a header.
#[inline]
pub fn link_frame(arena: &Arena, frame: FrameId, header: HeaderId) {
    if let Some(owner) = arena.frame_owner(frame) {
        owner.store(Owner::Linked(header).pack(), Ordering::Release);
    }
}

impl Shares {
    /// Of an arena, as its superblock has it.
    pub(crate) fn of(frames: u32, free: &FreeFrames) -> Self {
        Shares::new(frames, free.regions.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_for_each_core_and_a_huge_page_for_each_region() {
        assert_eq!(regions_for(1024, 2), 2);
        assert_eq!(regions_for(1024, 6), 8);
        assert_eq!(regions_for(1 << 20, 500), REGIONS_MAX);
        assert_eq!(regions_for(8, 6), 1);
        assert_eq!(regions_for(24, 6), 2);
        assert_eq!(regions_for(0, 0), 1);
    }
}
