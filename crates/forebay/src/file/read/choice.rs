//! Large reads of a stream: past memory, straight into the caller's, or through memory, read ahead by the keeper.
//!
//! Past memory nothing is copied twice, but the device has one request at a time, and none while the caller works. Which is faster is
//! the device's: one that copies by one thread gains nothing by more requests, a disk nearly doubles. So both are tried for a stretch of
//! a stream, and what was faster goes on: the time that callers spent in their reads is all that counts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::file::core::Core;
use crate::flush::busy;
use crate::memory::superblock::DeviceWords;

const MEBI: u64 = 1 << 20;
/// Bytes for which a stream goes one way.
pub const STRETCH_BYTES: u64 = 32 * MEBI;
/// Bytes of these that teach nothing: windows grow.
const START_BYTES: u64 = 8 * MEBI;
/// One stretch in so many goes the other way, where that was less than twice as slow.
const TRIAL_EVERY: u32 = 16;
/// Weight of one stretch: a quarter.
const WEIGHT_DIVISOR: u64 = 4;
/// Nanoseconds for 1 MiB that are believed: 1 TB/s to 0.1 MB/s.
const NS_PER_MIB: (u64, u64) = (1_000, 10_000_000_000);

/// A way for large reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Straight into the caller's memory.
    Past = 0,
    /// Into memory ahead of the reader.
    Through = 1,
}

impl Way {
    fn other(self) -> Self {
        match self {
            Way::Past => Way::Through,
            Way::Through => Way::Past,
        }
    }
}

/// What a description knows of its stretch. Hints: threads that share it may mix their figures.
#[derive(Debug, Default)]
pub struct Choice {
    way: AtomicU32,
    stretches: AtomicU32,
    /// Bytes of the stretch so far.
    bytes: AtomicU64,
    /// Nanoseconds of those that teach.
    ns: AtomicU64,
}

impl Choice {
    /// The way of a read that goes on where the one before has ended. Only one that `has_ahead` can go through memory.
    pub fn way(&self, core: &Core, has_ahead: bool) -> Way {
        if !has_ahead {
            return Way::Past;
        }
        let bytes = self.bytes.load(Relaxed);
        if (1..STRETCH_BYTES).contains(&bytes) {
            return self.current();
        }
        let words = busy::words(core.shared.arena.superblock(), core.device.caps().device);
        let known = words.map_or([0; 2], known);
        if bytes > 0 {
            self.bytes.store(0, Relaxed);
            self.ns.store(0, Relaxed);
        }
        let way = next(known, self.stretches.fetch_add(1, Relaxed));
        self.way.store(way as u32, Relaxed);
        way
    }

    fn current(&self) -> Way {
        if self.way.load(Relaxed) == Way::Through as u32 {
            Way::Through
        } else {
            Way::Past
        }
    }

    /// A read that this has chosen the way of has brought so many bytes in this time.
    pub fn learn(&self, core: &Core, bytes: u64, took: Duration) {
        let before = self.bytes.fetch_add(bytes, Relaxed);
        if before < START_BYTES {
            return;
        }
        let ns = self.ns.fetch_add(took.as_nanos() as u64, Relaxed) + took.as_nanos() as u64;
        let taught = before + bytes - START_BYTES;
        if before + bytes < STRETCH_BYTES || before >= STRETCH_BYTES {
            return;
        }
        let device = core.device.caps().device;
        if let Some(words) = busy::words(core.shared.arena.superblock(), device) {
            let word = &words.reads[self.current() as usize];
            let observed = (u128::from(ns) * u128::from(MEBI) / u128::from(taught)) as u64;
            word.store(moved(word.load(Relaxed), observed), Relaxed);
        }
    }
}

/// What is known, from memory that is not trusted: 0 where nothing is.
fn known(words: &DeviceWords) -> [u64; 2] {
    let bound = |ns: u64| {
        if ns == 0 {
            0
        } else {
            ns.clamp(NS_PER_MIB.0, NS_PER_MIB.1)
        }
    };
    [&words.reads[0], &words.reads[1]].map(|word| bound(word.load(Relaxed)))
}

/// The way of a stream's next stretch.
fn next(known: [u64; 2], stretches: u32) -> Way {
    let [past, through] = known;
    if past == 0 || through == 0 {
        return if past == 0 { Way::Past } else { Way::Through };
    }
    // What is about as fast past memory goes past it, where it costs less.
    let best = if through < past - past / 10 {
        Way::Through
    } else {
        Way::Past
    };
    let close = past.max(through) < 2 * past.min(through);
    if close && stretches % TRIAL_EVERY == TRIAL_EVERY - 1 {
        return best.other();
    }
    best
}

fn moved(estimate: u64, observed: u64) -> u64 {
    let observed = observed.clamp(NS_PER_MIB.0, NS_PER_MIB.1);
    if estimate == 0 {
        return observed;
    }
    estimate - estimate / WEIGHT_DIVISOR + observed / WEIGHT_DIVISOR
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_tried_and_the_faster_goes_on() {
        assert_eq!(next([0, 0], 0), Way::Past);
        assert_eq!(next([100, 0], 1), Way::Through);
        assert_eq!(next([100, 80], 2), Way::Through);
        assert_eq!(next([100, 95], 2), Way::Past, "about the same");
        assert_eq!(next([100, 110], 3), Way::Past);
        assert_eq!(next([100, 110], TRIAL_EVERY - 1), Way::Through, "a trial");
        assert_eq!(
            next([100, 300], TRIAL_EVERY - 1),
            Way::Past,
            "too slow to be tried"
        );
    }

    #[test]
    fn an_estimate_follows_what_is_observed() {
        let mut estimate = 0;
        estimate = moved(estimate, 40_000);
        assert_eq!(estimate, 40_000);
        (0..64).for_each(|_| estimate = moved(estimate, 400_000));
        assert!((390_000..=400_000).contains(&estimate), "{estimate}");
    }
}
