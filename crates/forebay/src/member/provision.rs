//! Giving memory to the arena, and taking it back.
//!
//! Frames, headers and nodes get memory in batches, backed and touched before anyone may use them, so that nobody takes
//! SIGBUS because the file system was small. The keeper does it ahead of need; a thread that is out of memory may do it
//! too.
//!
//! Nobody needs a lock for it, so a thread that is stopped or dies at it holds nobody up
//! ([decision 0028](../../../../docs/decisions/0028-memory-without-a-lock.md)). Frames are claimed, a word for each huge page
//! (`frames`); headers and nodes may be given by several at once, and one of them says so. What there is of order is a *turn*, so that
//! not all threads that need some give a batch each: it is waited for a few milliseconds and then taken over.
//!
//! Memory goes back by huge pages whose frames are all free: they are taken like any frame, then the session is stopped for a
//! moment, because a reader without a lock may still be copying from them, and then the hole is punched.

mod frames;

use std::sync::atomic::Ordering::Relaxed;

pub use frames::give_back;

use frames::more_frames;

use crate::config::Config;
use crate::frame::header::Header;
use crate::frame::slots::Node;
use crate::ids::ThreadId;
use crate::limits::HUGE_FRAMES;
use crate::limits::{BATCH_BYTES, BLOCK_BYTES, HUGE_BYTES};
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::memory::regions;
use crate::memory::superblock::Superblock;
use crate::memory::threads::{self, Me};
use crate::sync::{AtomicU32, Ordering, patience};

/// Below this many free headers or nodes, more get memory.
const TABLE_LOW: usize = 64;
/// Entries of a table that are given in one step.
const TABLE_STEP: u32 = 64;
/// Looks after which the keeper takes the turn from the thread that has it: some ten milliseconds.
const TURN_ROUNDS: u32 = 400;
/// What a MiB of frames takes where nothing is known of it, and what is believed of it at least and at most, nanoseconds.
const NS_PER_MIB: u64 = 250_000;
const NS_PER_MIB_BOUNDS: (u64, u64) = (1_000, 100_000_000);
/// Weight of one observation: an eighth.
const WEIGHT_DIVISOR: u64 = 8;

/// Whose turn it is to give memory. Nothing is safe by it: a thread that is late is overtaken, and gives what it has claimed all the same.
struct Turn<'a> {
    me: Me<'a>,
}

impl<'a> Turn<'a> {
    /// `None`: somebody else has it. A thread that has waited for it for long takes it all the same (`is_late`).
    fn take(me: Me<'a>, is_late: bool) -> Option<Self> {
        let word = &me.arena.superblock().giver;
        let exchange =
            |from| word.compare_exchange(from, me.id.0, Ordering::AcqRel, Ordering::Acquire);
        let taken = match exchange(0) {
            // Of an earlier life of this slot, perhaps.
            Err(holder)
                if is_late || holder == me.id.0 || threads::is_gone(me.arena, ThreadId(holder)) =>
            {
                exchange(holder).is_ok()
            }
            first => first.is_ok(),
        };
        taken.then_some(Turn { me })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        let word = &self.me.arena.superblock().giver;
        let _ = word.compare_exchange(self.me.id.0, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Gives the arena more of whatever it is short of, within its budget. `true` if anything was given. `is_late`: the caller has
/// waited for somebody else to do it, and waits no more.
pub fn more(shared: &Shared, me: Me<'_>, is_late: bool) -> bool {
    let Some(_turn) = Turn::take(me, is_late) else {
        return false;
    };
    let mut given = false;
    // What is counted as free may be in the hands of a thread that does not go on.
    if !regions::shows_free(me.arena) {
        let bytes = if is_late { HUGE_BYTES } else { BATCH_BYTES };
        given |= more_frames(shared, me, bytes) != 0;
    }
    given | more_of_tables(shared, me)
}

/// Gives the arena more memory though single frames may be free: the caller has found no huge page whose frames all are. As [`more`] in
/// all else.
pub fn more_runs(shared: &Shared, me: Me<'_>, is_late: bool) -> bool {
    Turn::take(me, is_late).is_some_and(|_turn| more_frames(shared, me, BATCH_BYTES) != 0)
}

/// Whether somebody else is giving memory to the arena, and more is allowed.
pub fn is_under_way(me: Me<'_>) -> bool {
    let superblock = me.arena.superblock();
    let giver = superblock.giver.load(Ordering::Relaxed);
    let backed = superblock.frames_backed.load(Ordering::Relaxed);
    giver != 0
        && giver != me.id.0
        && backed < superblock.frames_max.load(Ordering::Relaxed)
        && !threads::is_gone(me.arena, ThreadId(giver))
}

/// What giving memory to `bytes` more is expected to take, nanoseconds. Nothing where as much is free beyond what is left for those
/// that cannot do without (taking that wakes the keeper, which gives more beside the writers, for a core), or where the budget is
/// used up, so that others give way.
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

/// Backs frames until `bytes` of them are free, so many have been given, or the budget is reached: ahead of need. An idle keeper gives memory
/// back meanwhile, perhaps as fast.
pub fn ahead(shared: &Shared, me: Me<'_>, bytes: u64) {
    let frames = u32::try_from(bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX);
    let mut left = frames;
    let superblock = me.arena.superblock();
    loop {
        let mut round = 0;
        let turn = loop {
            match Turn::take(me, round >= patience(TURN_ROUNDS)) {
                Some(turn) => break turn,
                None => round += 1,
            }
            me.wait(round);
        };
        let missing = frames.saturating_sub(superblock.free_about()).min(left);
        let wanted = missing as usize * BLOCK_BYTES;
        // A thread that finds none waits for the whole of it.
        let most = if superblock.free_about() == 0 {
            HUGE_BYTES
        } else {
            BATCH_BYTES
        };
        let wanted = wanted.next_multiple_of(HUGE_BYTES).min(most);
        let given = match wanted {
            0 => 0,
            wanted => more_frames(shared, me, wanted),
        };
        left = left.saturating_sub(given);
        if given == 0 {
            more_of_tables(shared, me);
        }
        // After each batch: this thread may have a nice value, and a thread that has run out would wait for all of it.
        drop(turn);
        if given == 0 {
            return;
        }
    }
}

/// More headers and nodes, if there are few; the memory that they take is no frames'.
fn more_of_tables(shared: &Shared, me: Me<'_>) -> bool {
    let arena = me.arena;
    let given = more_headers(me) | more_nodes(me);
    // The budget is the keeper's: another process may have been told less. Where no keeper lives, it waits for the next one.
    if !given || !shared.keeps.load(Relaxed) {
        return given;
    }
    let frames_max = &arena.superblock().frames_max;
    let most = frames_within(arena, &shared.config, 1.0);
    if frames_max.load(Ordering::Relaxed) > most {
        frames_max.store(most, Ordering::Relaxed);
    }
    given
}

fn more_headers(me: Me<'_>) -> bool {
    let arena = me.arena;
    more_of(
        me,
        &arena.superblock().headers_backed,
        arena.counts().headers,
        arena.layout().headers_offset(),
        size_of::<Header>(),
        arena.header_hints().count_about(TABLE_LOW),
        |id| arena.header_hints().set(id),
    )
}

fn more_nodes(me: Me<'_>) -> bool {
    let arena = me.arena;
    more_of(
        me,
        &arena.superblock().nodes_backed,
        arena.counts().nodes,
        arena.layout().nodes_offset(),
        size_of::<Node>(),
        arena.node_hints().count_about(TABLE_LOW),
        |id| arena.node_hints().set(id),
    )
}

/// Backs the next huge page's worth of a table if few of its entries are free. Zeroed memory is free entries. Several may be at it:
/// what has memory keeps its bytes, and of a few entries at a time one of them says that they are there. So a thread that is stopped
/// leaves those few to nobody, and the others go on behind them.
fn more_of(
    me: Me<'_>,
    backed: &AtomicU32,
    count: u32,
    offset: usize,
    entry_bytes: usize,
    free: usize,
    set_free: impl Fn(u32),
) -> bool {
    let mapping = me.arena.mapping();
    let mut from = backed.load(Ordering::Acquire);
    if free >= TABLE_LOW || from >= count {
        return false;
    }
    // Whole huge pages; the entry that straddles the end of one waits for the next.
    let has_memory = |until: u32| (until as usize * entry_bytes).next_multiple_of(HUGE_BYTES);
    let entries = |bytes: usize| ((bytes / entry_bytes) as u32).min(count);
    let held = has_memory(from);
    let end = if entries(held) > from {
        held
    } else {
        held + HUGE_BYTES
    };
    if mapping.back(offset + end - HUGE_BYTES, HUGE_BYTES).is_err() {
        return false;
    }
    while from < entries(end) {
        let until = entries(end).min(from + TABLE_STEP);
        let _alone = me.enter_arena();
        match backed.compare_exchange(from, until, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // They are zeros already, unless the count of those with memory has been damaged.
                let bytes = from as usize * entry_bytes..until as usize * entry_bytes;
                me.arena.blank(offset + bytes.start..offset + bytes.end);
                (from..until).for_each(&set_free);
                from = until;
            }
            Err(now) => from = now.max(from + 1),
        }
    }
    true
}

/// Frames that there is memory for beside the arena's tables, in this share of the budget. Tables count up to a quarter of it, so
/// that the smallest sessions have frames at all; what they may have is noted.
pub fn frames_within(arena: &Arena, config: &Config, share: f64) -> u32 {
    let memory = (config.memory as f64 * share) as u64;
    let tables = if config.heap_backed {
        0
    } else {
        // They grow by huge pages, headers and nodes each, and frames give way a moment later.
        arena.tables_bytes() + 2 * HUGE_BYTES as u64
    };
    let bytes = memory.saturating_sub(tables).max(memory / 4 * 3);
    let frames = u32::try_from(bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX);
    let frames = whole(frames.clamp(1, arena.counts().frames));
    let room = u64::from(arena.counts().frames) * BLOCK_BYTES as u64;
    let rest = memory
        .min(room)
        .saturating_sub(u64::from(frames) * BLOCK_BYTES as u64);
    let noted = &arena.superblock().tables_bytes_max;
    noted.store(rest, Ordering::Relaxed);
    frames
}

/// A budget of whole huge pages: one that is given in part is never given the rest, and never taken back.
pub const fn whole(frames: u32) -> u32 {
    if frames < HUGE_FRAMES {
        frames
    } else {
        frames / HUGE_FRAMES * HUGE_FRAMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::arena::Arena;
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
