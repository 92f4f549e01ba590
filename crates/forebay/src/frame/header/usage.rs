//! How a block has been used, for eviction: when last, and whether it was used again after it had been left.
//!
//! The stamp has the session's tick of the last use, and in its two highest bits what is known beyond that. Readers without
//! a lock write it; what two of them write at once is one of the two.
//!
//! Source: StreamCache 4.2 evicts by streams, in the order of their last visits. Ours keeps a word a block and asks only
//! whether a block was visited again; what streams leave behind was not.

use super::Header;
use crate::limits::PAGE_BYTES;
use crate::memory::threads::Me;
use crate::stats::Counter;
use crate::sync::Ordering;

/// What eviction knows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Used during one visit.
    Once,
    /// Read ahead, and not used yet.
    Ahead,
    /// Used again after it had been left.
    Again,
    /// Nothing yet.
    Fresh,
}

const KIND_AT: u32 = 30;
const TICK_MASK: u32 = (1 << KIND_AT) - 1;
const ONCE: u32 = 0;
const AHEAD: u32 = 1 << KIND_AT;
const AGAIN: u32 = 2 << KIND_AT;
const FRESH: u32 = 3 << KIND_AT;
/// Ticks after which the next use is another visit: a stream's pause within a block is shorter.
const VISIT_TICKS: u32 = 64;
/// Ticks by which a stamp may be later than the tick that somebody has looked at before, and goes on with.
const LATER_MAX: u32 = 4096;

/// Ticks from a stamp, of which a mask of lower bits is kept, to one that was looked at, perhaps before the stamp was made: then none have
/// passed.
pub(super) fn between(stamp: u32, tick: u32, mask: u32) -> u32 {
    let ticks = tick.wrapping_sub(stamp) & mask;
    if ticks > mask - LATER_MAX { 0 } else { ticks }
}

impl Usage {
    fn of(stamp: u32) -> Self {
        match stamp & !TICK_MASK {
            ONCE => Usage::Once,
            AHEAD => Usage::Ahead,
            AGAIN => Usage::Again,
            _ => Usage::Fresh,
        }
    }
}

impl Header {
    /// Notes a use that follows the one before, or is about the only one; writes only when the tick has changed. `true`: it is
    /// the first of what was read ahead.
    #[inline]
    pub fn touch(&self, tick: u32) -> bool {
        self.touch_after(tick, VISIT_TICKS)
    }

    /// Notes a use that does not follow the one before: it is a visit of its own.
    #[inline]
    pub fn visit(&self, tick: u32) -> bool {
        self.touch_after(tick, 1)
    }

    /// Notes a use by a reader that says that nobody will use it again: it makes of a block no more than one used once. As
    /// for [`Header::touch`].
    #[inline]
    pub fn pass(&self, tick: u32) -> bool {
        let usage = self.usage();
        let first = usage == Usage::Ahead;
        if first || usage == Usage::Fresh {
            self.stamp.store(ONCE | tick & TICK_MASK, Ordering::Relaxed);
        }
        first
    }

    #[inline(always)]
    fn touch_after(&self, tick: u32, pause: u32) -> bool {
        let seen = self.stamp.load(Ordering::Relaxed);
        // Once or again, at this tick.
        seen & !AGAIN != tick & TICK_MASK && self.touch_anew(seen, tick & TICK_MASK, pause)
    }

    #[cold]
    fn touch_anew(&self, seen: u32, tick: u32, pause: u32) -> bool {
        let usage = Usage::of(seen);
        let left_for = between(seen, tick, TICK_MASK);
        let kind = match usage {
            Usage::Again => AGAIN,
            Usage::Once if left_for >= pause => AGAIN,
            _ => ONCE,
        };
        self.stamp.store(kind | tick, Ordering::Relaxed);
        usage == Usage::Ahead
    }

    /// How the block has been used.
    pub fn usage(&self) -> Usage {
        Usage::of(self.stamp.load(Ordering::Relaxed))
    }

    /// Ticks since the last use, or since it was read ahead.
    pub fn idle_ticks(&self, tick: u32) -> u32 {
        between(self.stamp.load(Ordering::Relaxed), tick, TICK_MASK)
    }

    /// Counts what has become of the bytes that were read ahead into this block.
    #[cold]
    pub fn count_ahead(&self, me: Me<'_>, counter: Counter) {
        let pages = self.valid.load(Ordering::Relaxed).count_ones() as usize;
        me.count(counter as usize, (pages * PAGE_BYTES) as u64);
    }

    /// The block has been read ahead. Under the lock.
    pub(super) fn set_ahead(&self, tick: u32) {
        self.stamp
            .store(AHEAD | tick & TICK_MASK, Ordering::Relaxed);
    }

    /// Somebody is about to bring bytes of a block that nobody has used yet. Under the lock.
    pub(super) fn await_bytes(&self, tick: u32) {
        if self.usage() == Usage::Fresh {
            self.stamp
                .store(FRESH | tick & TICK_MASK, Ordering::Relaxed);
        }
    }

    /// The header is about to describe another block.
    pub(super) fn forget_usage(&self) {
        let seen = self.stamp.load(Ordering::Relaxed);
        self.stamp
            .store(FRESH | seen & TICK_MASK, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
