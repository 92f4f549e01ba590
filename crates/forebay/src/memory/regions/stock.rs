//! A file's stock of small frames: one word in its entry, so that most pages of a random load cost one access to a word that is
//! the file's own, and the words that all files share are touched once for many (StreamCache 4.3, per-file caches).
//!
//! ```text
//! | parts (32 bits) | frame + 1 (25) | half (1) | step (6) |
//! ```
//!
//! The word names parts of one half of a carved frame. Their owner words say *free*; what keeps others from them is that the
//! carved frame's word does not show them. Each change of the word is one compare-and-swap by a thread in an operation: a
//! death between the two words leaves parts that nobody shows, and calls for the rebuild that finds them. A rebuild empties all
//! stocks.
//!
//! Filled with 1 part, then 2, 4, 8, at most [`STOCK_LOW`] at once, so that a file of few pages holds few; and capped at
//! [`STOCK_HIGH`] by the word's width. What is freed comes back to the stock if it is of the same half of the same frame.

use super::Shortage;
use super::frames::claim;
use super::small::{HALF, NO_FRAME, Parts, lowest, small_of, take_parts};
use crate::ids::{FileId, FrameId, SmallId};
use crate::memory::files::LIVE;
use crate::memory::threads::Me;
use crate::sync::{AtomicU64, Ordering, planted};

/// Small frames that a stock is filled with at once (the paper's `low_mark`, 50 there).
pub const STOCK_LOW: u32 = 16;
/// Small frames that it holds at most (the paper's `high_mark`, twice the other there as well).
pub const STOCK_HIGH: u32 = HALF;
const _: () = assert!(STOCK_HIGH == 2 * STOCK_LOW);

const STEP_MAX: u32 = STOCK_LOW.ilog2();
const FRAME_AT: u32 = 32;
const FRAME_MASK: u64 = (1 << 25) - 1;
const HALF_AT: u32 = 57;
const STEP_AT: u32 = 58;

/// The word in a file's entry.
#[repr(transparent)]
pub struct Stock(AtomicU64);

/// What the word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The frame that the parts are of, or were.
    pub frame: Option<FrameId>,
    /// 0 or 1.
    pub half: u32,
    /// A bit each.
    pub parts: u32,
    /// How often it has been filled, up to a bound.
    step: u32,
}

impl Held {
    fn pack(self) -> u64 {
        let frame = self.frame.map_or(0, |frame| u64::from(frame.0) + 1);
        u64::from(self.parts)
            | (frame & FRAME_MASK) << FRAME_AT
            | u64::from(self.half) << HALF_AT
            | u64::from(self.step) << STEP_AT
    }

    fn unpack(word: u64) -> Self {
        let frame = ((word >> FRAME_AT) & FRAME_MASK) as u32;
        Held {
            frame: frame.checked_sub(1).map(FrameId),
            half: (word >> HALF_AT) as u32 & 1,
            parts: word as u32,
            step: ((word >> STEP_AT) as u32).min(STEP_MAX),
        }
    }

    /// The small frames, as bits of the frame.
    pub fn mask(&self) -> u64 {
        u64::from(self.parts) << (self.half * HALF)
    }
}

impl Stock {
    /// What it holds.
    pub fn held(&self) -> Held {
        Held::unpack(self.0.load(Ordering::Acquire))
    }

    /// Nothing: the entry is being made, or everything is being made anew.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Release);
    }

    fn change(&self, from: Held, to: Held) -> bool {
        self.0
            .compare_exchange(from.pack(), to.pack(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes a small frame, filling the stock if it is empty.
    pub(super) fn take(&self, me: Me<'_>) -> Option<SmallId> {
        loop {
            let seen = self.held();
            let Some(frame) = seen.frame.filter(|_| seen.parts != 0) else {
                return self.fill(me, seen);
            };
            let part = seen.half * HALF + seen.parts.trailing_zeros();
            let parts = seen.parts & (seen.parts - 1);
            if self.change(seen, Held { parts, ..seen }) || planted!(LooseStock) {
                let small = small_of(frame, part);
                let owner = me.arena.small_owner(small)?;
                // A part whose owner word disagrees is left to a rebuild.
                if claim(owner, me.id) || planted!(LooseStock) {
                    return Some(small);
                }
            }
        }
    }

    /// Fetches parts: one for the caller, the others for the stock.
    fn fill(&self, me: Me<'_>, seen: Held) -> Option<SmallId> {
        let batch = match me.arena.superblock().shortage() {
            Shortage::Urgent => 1,
            _ => 1 << seen.step,
        };
        let last = seen.frame.unwrap_or(NO_FRAME);
        let got = take_parts(me, last, batch)?;
        let small = got.claim_first(me);
        let rest = Parts {
            parts: got.parts & (got.parts - 1),
            ..got
        };
        let stocked = Held {
            frame: Some(rest.frame),
            half: rest.half,
            parts: rest.parts,
            step: (seen.step + 1).min(STEP_MAX),
        };
        // Somebody else has filled it meanwhile, or emptied it.
        if !self.change(seen, stocked) && rest.parts != 0 {
            rest.give_back(me);
        }
        small
    }

    /// Keeps a free part, if it is of the half of a frame that the stock is of, and memory is not short.
    pub(super) fn keep(&self, me: Me<'_>, frame: FrameId, part: u32) -> bool {
        if me.arena.superblock().shortage() != Shortage::None {
            return false;
        }
        loop {
            let seen = self.held();
            if seen.frame != Some(frame) || seen.half != part / HALF {
                return false;
            }
            let parts = seen.parts | 1 << (part % HALF);
            if self.change(seen, Held { parts, ..seen }) {
                return true;
            }
        }
    }

    /// Gives back all but `keep` small frames, as few as are there. In an operation.
    pub fn shrink(&self, me: Me<'_>, keep: impl Fn(u32) -> u32) {
        loop {
            let seen = self.held();
            let kept = lowest(seen.parts, keep(seen.parts.count_ones()));
            let out = seen.parts & !kept;
            let Some(frame) = seen.frame.filter(|_| out != 0) else {
                return;
            };
            // From the beginning: a file whose stock was taken away is not in a hurry.
            let left = Held {
                parts: kept,
                step: 0,
                ..seen
            };
            if self.change(seen, left) {
                let (half, parts) = (seen.half, out);
                return Parts { frame, half, parts }.give_back(me);
            }
        }
    }
}

/// Halves the stock of every file: memory is urgently short. The caller is in no operation.
pub fn halve_all(me: Me<'_>) {
    shrink_all(me, |count| count / 2);
}

/// Takes the stock of every file. The caller is in no operation.
pub fn give_all_back(me: Me<'_>) {
    shrink_all(me, |_| 0);
}

fn shrink_all(me: Me<'_>, keep: impl Fn(u32) -> u32) {
    for id in (0..me.arena.counts().files).map(FileId) {
        let entry = me.arena.file_unchecked(id);
        if entry.stock.held().parts == 0 || entry.state.load(Ordering::Acquire) != LIVE {
            continue;
        }
        // A file that is stopped keeps its own.
        if let Ok(_operation) = me.enter(id) {
            entry.stock.shrink(me, &keep);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_put_into_it() {
        for frame in [None, Some(FrameId(0)), Some(FrameId((1 << 24) - 1))] {
            for (half, parts, step) in [(0, 0, 0), (1, u32::MAX, STEP_MAX), (1, 1, 1)] {
                let held = Held {
                    frame,
                    half,
                    parts,
                    step,
                };
                assert_eq!(Held::unpack(held.pack()), held);
            }
        }
        assert_eq!(Held::unpack(0).parts, 0);
    }

    #[test]
    fn the_lowest_bits() {
        assert_eq!(lowest(0b1011_0100, 2), 0b0001_0100);
        assert_eq!(lowest(u32::MAX, 40), u32::MAX);
        assert_eq!(lowest(7, 0), 0);
    }
}
