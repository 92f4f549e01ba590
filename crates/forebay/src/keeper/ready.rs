//! Memory ahead of need: the first touch of the arena's memory is the keeper's work, in a thread of its own, and not the
//! writers'.
//!
//! A few megabytes are ready from the start. Taking a frame wakes this thread where half of them are gone; where it finds that
//! the writers have all but caught up with it, it keeps twice as much ready, up to what is in use, so that a session that
//! does little holds little, and to a part of the budget. A session that is idle forgets it.
//!
//! The thread is nice, so that it takes a core that nobody needs. It is not of the idle class: a writer that runs out may
//! have to wait for it, and would wait for as long as anything else runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::keeper::budget::keep_room;
use crate::limits::BLOCK_BYTES;
use crate::member::provision;
use crate::member::shared::Shared;
use crate::memory::superblock::Superblock;
use crate::sync::Ordering;
use crate::sys::{futex, priority};

/// Free memory that is kept ready at least, bytes.
pub(super) const READY_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// The same in frames.
const READY_MIN: u32 = (READY_BYTES_MIN / BLOCK_BYTES as u64) as u32;
/// At most this part of the budget is kept ready.
const BUDGET_PARTS: u32 = 4;
/// How often the thread looks although nobody has woken it: budgets change, and a wake-up may be lost.
const TICK: Duration = Duration::from_millis(100);

/// What the thread does until it is told to stop.
pub(super) fn keep_ready(shared: &Arc<Shared>, stop: &AtomicBool) {
    let Ok(me) = shared.me() else { return };
    priority::be_nice();
    let superblock = me.arena.superblock();
    while !stop.load(Relaxed) {
        let seen = superblock.ready_work.load(Ordering::Relaxed);
        let free = superblock.free_about();
        if shared.keeps.load(Relaxed) {
            let backed = superblock.frames_backed.load(Ordering::Relaxed);
            let max = superblock.frames_max.load(Ordering::Relaxed);
            let ready = superblock.frames_ready.load(Ordering::Relaxed);
            let ready = ready_after(ready, free, backed, max);
            superblock.frames_ready.store(ready, Ordering::Relaxed);
            if free < ready && backed < max {
                provision::ahead(shared, me, u64::from(ready) * BLOCK_BYTES as u64);
            }
            // All of a keeper's threads evict where memory is low.
            keep_room(me);
        }
        // Where frames were given or taken meanwhile, there is something to look at again.
        if superblock.free_about() == free {
            futex::wait(&superblock.ready_work, seen, TICK);
        }
    }
}

/// What was used will not be used so soon again.
pub(super) fn forget_demand(superblock: &Superblock) {
    superblock.frames_ready.store(READY_MIN, Ordering::Relaxed);
}

/// How many frames to keep ready from now on, where `free` are free of `backed` that have memory of `max` that may.
fn ready_after(ready: u32, free: u32, backed: u32, max: u32) -> u32 {
    let most = backed.saturating_sub(free).min(max / BUDGET_PARTS);
    let wanted = if free < ready / 4 {
        ready.saturating_mul(2)
    } else {
        ready
    };
    wanted.min(most).max(READY_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: u32 = 1 << 20;

    #[test]
    fn little_is_ready_for_who_uses_little() {
        assert_eq!(ready_after(0, 0, 0, PLENTY), READY_MIN);
        // All of it used at once, and no more than that.
        assert_eq!(ready_after(READY_MIN, 0, READY_MIN, PLENTY), READY_MIN);
    }

    #[test]
    fn it_doubles_when_writers_catch_up_and_stays_while_they_do_not() {
        let backed = 100 * READY_MIN;
        assert_eq!(ready_after(READY_MIN, 1, backed, PLENTY), 2 * READY_MIN);
        let half = READY_MIN / 2;
        assert_eq!(ready_after(READY_MIN, half, backed, PLENTY), READY_MIN);
        assert_eq!(
            ready_after(8 * READY_MIN, 0, backed, PLENTY),
            16 * READY_MIN
        );
    }

    #[test]
    fn it_stays_within_what_is_used_and_a_part_of_the_budget() {
        let backed = 10 * READY_MIN;
        assert_eq!(ready_after(8 * READY_MIN, 0, backed, PLENTY), backed);
        let budget = 20 * READY_MIN;
        assert_eq!(ready_after(8 * READY_MIN, 0, backed, budget), 5 * READY_MIN);
        // A budget that has shrunk.
        assert_eq!(
            ready_after(8 * READY_MIN, PLENTY, backed, 8 * READY_MIN),
            READY_MIN
        );
    }
}
