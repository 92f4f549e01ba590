//! Giving memory to the arena, and taking it back.
//!
//! Frames, headers and nodes get memory in batches, backed and touched before anyone may use them, so that nobody takes
//! SIGBUS because the file system was small (architecture 4.1). One thread at a time does it, named in
//! `provision_lock`. The keeper does it ahead of need; whoever is out of memory may do it too.
//!
//! Memory goes back by huge pages whose frames are all free: they are taken like any frame, then the session is stopped for a
//! moment, because a reader without a lock may still be copying from them, and then the hole is punched.

use crate::frame::header::Header;
use crate::frame::slots::Node;
use crate::ids::{FrameId, ThreadId};
use crate::keeper::budget::frames_within;
use crate::limits::{BATCH_BYTES, BLOCK_BYTES, HUGE_BYTES, HUGE_FRAMES};
use crate::memory::arena::Arena;
use crate::memory::cgroup::{self, System};
use crate::memory::regions::{self, Owner};
use crate::memory::superblock::Superblock;
use crate::memory::threads::{self, Me};
use crate::session::shared::Shared;
use crate::sync::time::Instant;
use crate::sync::{AtomicU32, Ordering, relax};

/// Below this many free headers or nodes, more get memory.
const TABLE_LOW: usize = 64;
/// What a MiB of frames takes where nothing is known of it, and what is believed of it at least and at most, nanoseconds.
const NS_PER_MIB: u64 = 250_000;
const NS_PER_MIB_BOUNDS: (u64, u64) = (1_000, 100_000_000);
/// Weight of one observation: an eighth.
const WEIGHT_DIVISOR: u64 = 8;

/// Gives the arena more of whatever it is short of, within its budget. `true` if anything was given.
pub fn more(shared: &Shared, me: Me<'_>) -> bool {
    let arena = me.arena;
    let superblock = arena.superblock();
    let lock = &superblock.provision_lock;
    if let Err(holder) = lock.compare_exchange(0, me.id.0, Ordering::AcqRel, Ordering::Acquire) {
        if threads::is_gone(arena, ThreadId(holder)) {
            // What it had begun to give is found by the rebuild that its death calls for, which opens the lock.
            arena.rescue(me);
        }
        return false;
    }
    let mut given = false;
    if superblock.free_about() == 0 {
        given |= more_frames(shared, me, BATCH_BYTES);
    }
    given |= more_of_tables(shared, arena);
    lock.store(0, Ordering::Release);
    given
}

/// Whether somebody else is giving memory to the arena, and more is allowed.
pub fn is_under_way(me: Me<'_>) -> bool {
    let superblock = me.arena.superblock();
    let holder = superblock.provision_lock.load(Ordering::Relaxed);
    let backed = superblock.frames_backed.load(Ordering::Relaxed);
    holder != 0
        && holder != me.id.0
        && backed < superblock.frames_max.load(Ordering::Relaxed)
        && !threads::is_gone(me.arena, ThreadId(holder))
}

/// What giving memory to `bytes` more is expected to take, nanoseconds. Nothing where as much is free beyond what is left for
/// those who cannot do without (taking that wakes the keeper, which gives more beside the writers, for a core), or where the budget
/// is used up, so that others give way.
pub fn expected_ns(superblock: &Superblock, bytes: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    let left = superblock.frames_ready.load(Ordering::Relaxed) / 2;
    let free = superblock.free_about().saturating_sub(left);
    let room = superblock
        .frames_max
        .load(Ordering::Relaxed)
        .saturating_sub(superblock.frames_backed.load(Ordering::Relaxed));
    let missing = bytes
        .saturating_sub(u64::from(free) * block)
        .min(u64::from(room) * block);
    let ns = u128::from(missing) * u128::from(ns_per_mib(superblock)) / (1 << 20);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The running average, as much of it as can be believed.
fn ns_per_mib(superblock: &Superblock) -> u64 {
    let (least, most) = NS_PER_MIB_BOUNDS;
    match superblock.provide_ns_per_mib.load(Ordering::Relaxed) {
        0 => NS_PER_MIB,
        ns => u64::from(ns).clamp(least, most),
    }
}

/// Notes how long it took to give memory to `bytes`. One that was held up counts as four times the average at most.
fn observe(superblock: &Superblock, bytes: usize, ns: u64) {
    let average = ns_per_mib(superblock);
    let seen = (ns.saturating_mul(1 << 20) / bytes as u64).min(average * 4);
    let next = average - average / WEIGHT_DIVISOR + seen / WEIGHT_DIVISOR;
    let (least, most) = NS_PER_MIB_BOUNDS;
    let word = &superblock.provide_ns_per_mib;
    word.store(next.clamp(least, most) as u32, Ordering::Relaxed);
}

/// The right to give memory to the arena, for a rebuild: meanwhile nobody else does. Waits; who has it waits for nothing.
pub fn hold(me: Me<'_>) -> Hold<'_> {
    let lock = &me.arena.superblock().provision_lock;
    let mut round = 0;
    while let Err(holder) = lock.compare_exchange(0, me.id.0, Ordering::AcqRel, Ordering::Acquire) {
        if threads::is_gone(me.arena, ThreadId(holder)) {
            let _ = lock.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        round += 1;
        relax(round);
    }
    Hold { me }
}

/// See [`hold`].
pub struct Hold<'a> {
    me: Me<'a>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.me
            .arena
            .superblock()
            .provision_lock
            .store(0, Ordering::Release);
    }
}

/// Backs frames until `bytes` of them are free or the budget is reached: ahead of need.
pub fn ahead(shared: &Shared, me: Me<'_>, bytes: u64) {
    let frames = (bytes / BLOCK_BYTES as u64) as u32;
    let superblock = me.arena.superblock();
    let lock = &superblock.provision_lock;
    let mut round = 0;
    loop {
        while lock
            .compare_exchange(0, me.id.0, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            round += 1;
            me.wait(round);
        }
        let wanted = frames.saturating_sub(superblock.free_about()) as usize * BLOCK_BYTES;
        // Somebody who finds none waits for the whole of it.
        let most = if superblock.free_about() == 0 {
            HUGE_BYTES
        } else {
            BATCH_BYTES
        };
        let wanted = wanted.next_multiple_of(HUGE_BYTES).min(most);
        let more = wanted != 0 && more_frames(shared, me, wanted);
        if !more {
            more_of_tables(shared, me.arena);
        }
        // After each batch: this thread may have a nice value, and whoever has run out would wait for all of it.
        lock.store(0, Ordering::Release);
        if !more {
            return;
        }
    }
}

/// Backs up to `bytes` of frames. Under the provision lock.
fn more_frames(shared: &Shared, me: Me<'_>, bytes: usize) -> bool {
    let arena = me.arena;
    let superblock = arena.superblock();
    let room = superblock
        .frames_max
        .load(Ordering::Relaxed)
        .saturating_sub(superblock.frames_backed.load(Ordering::Relaxed));
    let mut wanted = room.min((bytes / BLOCK_BYTES) as u32);
    // Where the budget is used up, and writers and readers come here for each few frames, nobody asks the files that say so.
    if wanted == 0 {
        return false;
    }
    if !shared.config.heap_backed
        && let Some(headroom) = cgroup::headroom()
    {
        // A cgroup at its limit kills; stay a batch away from it, and leave what would be given back at once (`limits`).
        let spare = System::here().spare().unwrap_or(u64::MAX);
        let frames = headroom.saturating_sub(BATCH_BYTES as u64).min(spare) / BLOCK_BYTES as u64;
        wanted = wanted.min(u32::try_from(frames).unwrap_or(u32::MAX));
    }
    let mut given = false;
    while wanted >= HUGE_FRAMES.min(room.max(1)) && wanted > 0 {
        let Some((first, run)) = unbacked_run(arena, (wanted / HUGE_FRAMES).max(1)) else {
            break;
        };
        // On the heap, in tests, no decision shall hang on the clock.
        let begun = (!shared.config.heap_backed).then(Instant::now);
        // Of a run that cannot be had, one piece perhaps.
        let Some(pieces) = [run, 1]
            .into_iter()
            .find(|&pieces| back(arena, first, pieces))
        else {
            // The file system is smaller than the budget: what there is, is the budget.
            let backed = superblock.frames_backed.load(Ordering::Relaxed);
            superblock
                .frames_max
                .store(backed.max(1), Ordering::Relaxed);
            break;
        };
        let count = (pieces * HUGE_FRAMES).min(wanted);
        if let Some(begun) = begun {
            let ns = begun.elapsed().as_nanos() as u64;
            observe(superblock, pieces as usize * HUGE_BYTES, ns);
        }
        superblock.frames_backed.fetch_add(count, Ordering::Relaxed);
        for index in 0..count {
            regions::free_frame(me, FrameId(first.0 + index));
        }
        wanted -= count;
        given = true;
    }
    given
}

/// Backs huge pages in a row, all or none.
fn back(arena: &Arena, first: FrameId, pieces: u32) -> bool {
    let (offset, bytes) = (arena.frame_offset(first), pieces as usize * HUGE_BYTES);
    let backed = arena.mapping().back(offset, bytes).is_ok();
    if !backed {
        let _ = arena.mapping().release(offset, bytes);
    }
    backed
}

/// The first huge pages in a row whose frames have no memory, at most `pieces_max`: the first frame, and how many.
fn unbacked_run(arena: &Arena, pieces_max: u32) -> Option<(FrameId, u32)> {
    let is_unbacked = |id: u32| {
        arena
            .frame_owner(FrameId(id))
            .is_some_and(|owner| Owner::unpack(owner.load(Ordering::Acquire)) == Owner::Unbacked)
    };
    let is_free = |first: &u32| (*first..first + HUGE_FRAMES).all(is_unbacked);
    let mut pieces = (0..arena.counts().frames).step_by(HUGE_FRAMES as usize);
    let first = pieces.find(is_free)?;
    let more = pieces.take(pieces_max as usize - 1).take_while(is_free);
    Some((FrameId(first), 1 + more.count() as u32))
}

/// More headers and nodes, if there are few; the memory that they take is no frames'.
fn more_of_tables(shared: &Shared, arena: &Arena) -> bool {
    let given = more_headers(arena) | more_nodes(arena);
    let frames_max = &arena.superblock().frames_max;
    let most = frames_within(arena, &shared.config, 1.0);
    if given && frames_max.load(Ordering::Relaxed) > most {
        frames_max.store(most, Ordering::Relaxed);
    }
    given
}

fn more_headers(arena: &Arena) -> bool {
    let superblock = arena.superblock();
    more_of(
        arena,
        &superblock.headers_backed,
        arena.counts().headers,
        arena.layout().headers_offset(),
        size_of::<Header>(),
        arena.header_hints().count_about(TABLE_LOW),
        |id| arena.header_hints().set(id),
    )
}

fn more_nodes(arena: &Arena) -> bool {
    let superblock = arena.superblock();
    more_of(
        arena,
        &superblock.nodes_backed,
        arena.counts().nodes,
        arena.layout().nodes_offset(),
        size_of::<Node>(),
        arena.node_hints().count_about(TABLE_LOW),
        |id| arena.node_hints().set(id),
    )
}

/// Backs the next huge page's worth of a table if few of its entries are free. Zeroed memory is free entries.
fn more_of(
    arena: &Arena,
    backed: &AtomicU32,
    count: u32,
    offset: usize,
    entry_bytes: usize,
    free: usize,
    set_free: impl Fn(u32),
) -> bool {
    let from = backed.load(Ordering::Acquire);
    if free >= TABLE_LOW || from >= count {
        return false;
    }
    // Whole huge pages; the entry that straddles the end of one waits for the next.
    let held = (from as usize * entry_bytes).next_multiple_of(HUGE_BYTES);
    if arena.mapping().back(offset + held, HUGE_BYTES).is_err() {
        return false;
    }
    let until = (((held + HUGE_BYTES) / entry_bytes) as u32).min(count);
    // They are zeros already, unless the count of those with memory has been damaged.
    let (first, end) = (from as usize * entry_bytes, until as usize * entry_bytes);
    arena.blank(offset + first..offset + end);
    backed.store(until, Ordering::Release);
    (from..until).for_each(set_free);
    until > from
}

/// Gives free memory back until at most `frames` frames are backed. Returns the bytes given back. The caller is in no
/// operation.
pub fn give_back(me: Me<'_>, frames: u32) -> u64 {
    let arena = me.arena;
    let superblock = arena.superblock();
    let lock = &superblock.provision_lock;
    if lock
        .compare_exchange(0, me.id.0, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        return 0;
    }
    let mut runs = Vec::new();
    let mut first = arena.counts().frames / HUGE_FRAMES * HUGE_FRAMES;
    while first >= HUGE_FRAMES {
        first -= HUGE_FRAMES;
        let backed = superblock.frames_backed.load(Ordering::Relaxed);
        if backed.saturating_sub(runs.len() as u32 * HUGE_FRAMES) <= frames {
            break;
        }
        if take_run(me, FrameId(first)) {
            runs.push(FrameId(first));
        }
    }
    let given = punch_runs(me, &runs);
    lock.store(0, Ordering::Release);
    given
}

/// Takes all frames of a huge page, or none.
fn take_run(me: Me<'_>, first: FrameId) -> bool {
    let held = Owner::Held(me.id).pack();
    let free = Owner::Free.pack();
    for index in 0..HUGE_FRAMES {
        let Some(owner) = me.arena.frame_owner(FrameId(first.0 + index)) else {
            return false;
        };
        if owner
            .compare_exchange(free, held, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            for taken in 0..index {
                let frame = FrameId(first.0 + taken);
                if let Some(owner) = me.arena.frame_owner(frame) {
                    owner.store(free, Ordering::Release);
                    me.arena.frame_hints().set(frame);
                }
            }
            return false;
        }
    }
    true
}

fn punch_runs(me: Me<'_>, runs: &[FrameId]) -> u64 {
    if runs.is_empty() {
        return 0;
    }
    // Readers that copied from these frames before we took them have left their operations when this returns.
    let stopped = threads::stop_session(me).is_some();
    let superblock = me.arena.superblock();
    let mut given = 0;
    for &first in runs {
        let offset = me.arena.frame_offset(first);
        // Before the memory goes: should this thread die, no frame without memory is taken for a free one.
        set_owners(
            me.arena,
            first,
            if stopped {
                Owner::Unbacked
            } else {
                Owner::Free
            },
        );
        let punched = stopped && me.arena.mapping().release(offset, HUGE_BYTES).is_ok();
        if stopped && !punched {
            set_owners(me.arena, first, Owner::Free);
        }
        if punched {
            superblock
                .frames_backed
                .fetch_sub(HUGE_FRAMES, Ordering::Relaxed);
            let region = me.arena.shares().region_of(first);
            superblock
                .frames_free
                .of(region)
                .fetch_sub(HUGE_FRAMES, Ordering::Relaxed);
            given += HUGE_BYTES as u64;
        }
    }
    given
}

/// Says of the frames of a huge page, which the caller holds, that they are free, or have no memory.
fn set_owners(arena: &Arena, first: FrameId, word: Owner) {
    for frame in (first.0..first.0 + HUGE_FRAMES).map(FrameId) {
        arena.frame_hints().clear(frame);
        if let Some(owner) = arena.frame_owner(frame) {
            owner.store(word.pack(), Ordering::Release);
        }
        if word == Owner::Free {
            arena.frame_hints().set(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::layout::{Counts, Layout};
    use crate::memory::mapping::Mapping;

    fn arena() -> Arena {
        let counts = Counts {
            threads: 1,
            files: 1,
            nodes: 1,
            headers: 1,
            frames: 64,
        };
        let mapping = Mapping::heap(Layout::new(counts).len);
        let allotting = (crate::config::Allocator::default(), 2);
        Arena::create(mapping, counts, 0, true, allotting).expect("an arena")
    }

    #[test]
    fn only_what_finds_no_free_frame_takes_time() {
        let arena = arena();
        let superblock = arena.superblock();
        superblock.frames_max.store(64, Ordering::Relaxed);
        let mib = 1 << 20;
        assert_eq!(expected_ns(superblock, mib), NS_PER_MIB);
        superblock.frames_free.of(0).store(2, Ordering::Relaxed);
        assert_eq!(expected_ns(superblock, mib), NS_PER_MIB / 2);
        assert_eq!(expected_ns(superblock, mib / 2), 0);
        // Half of what the keeper has ready is others'.
        superblock.frames_ready.store(4, Ordering::Relaxed);
        assert_eq!(expected_ns(superblock, mib / 2), NS_PER_MIB / 2);
        // Where no more may have memory, what is clean gives way, or what is owed is waited for: that is pressure.
        superblock.frames_backed.store(64, Ordering::Relaxed);
        assert_eq!(expected_ns(superblock, mib), 0);
    }

    #[test]
    fn what_memory_takes_is_learnt_and_one_stall_is_not_all() {
        let arena = arena();
        let superblock = arena.superblock();
        observe(superblock, HUGE_BYTES, 1_000_000_000);
        let once = ns_per_mib(superblock);
        assert!(once > NS_PER_MIB && once < 2 * NS_PER_MIB, "{once}");
        (0..100).for_each(|_| observe(superblock, HUGE_BYTES, 200_000));
        let usual = ns_per_mib(superblock);
        assert!((99_000..102_000).contains(&usual), "{usual}");
        superblock
            .provide_ns_per_mib
            .store(u32::MAX, Ordering::Relaxed);
        assert_eq!(ns_per_mib(superblock), NS_PER_MIB_BOUNDS.1);
    }
}
