//! Bitmaps of things that are probably free, and how that of the frames is shared out among regions.

use crate::ids::FrameId;
use crate::limits::{HUGE_FRAMES, REGIONS_MAX};
use crate::sync::{AtomicU64, Ordering};

/// A bitmap of things that are probably free.
pub struct Hints<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Hints<'a> {
    /// Over the arena's words.
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Hints { words }
    }

    /// The part of the map that has the first `count` things, in whole words: where only these have memory, to look further is in vain.
    pub fn first(&self, count: u32) -> Hints<'a> {
        let words = (count as usize).div_ceil(64).min(self.words.len());
        Hints::new(&self.words[..words])
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

/// Bits of a word.
const WORD_BITS: u32 = u64::BITS;
// A huge page has a byte of its word.
const _: () = assert!(HUGE_FRAMES == u8::BITS);
/// Words of a cache line: regions share none.
const LINE_WORDS: u32 = 8;

/// Which region a frame is of, and where its bit lies. Huge pages take turns, so that each region has its part of whatever
/// memory there is; the words of a huge page's carved frames are a cache line of their own.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    regions: u32,
    /// Words that a region has of each map.
    words: u32,
}

impl Shares {
    /// Of `frames` frames among `regions` regions, a power of two.
    pub fn new(frames: u32, regions: u32) -> Self {
        let regions = regions.clamp(1, REGIONS_MAX).next_power_of_two();
        let huge = frames.div_ceil(HUGE_FRAMES).div_ceil(regions);
        let words = huge.div_ceil(WORD_BITS / HUGE_FRAMES);
        Shares {
            regions,
            words: words.next_multiple_of(LINE_WORDS),
        }
    }

    /// Words that a map of `frames` frames has at most, however many regions there are.
    pub const fn words_max(frames: usize) -> usize {
        frames.div_ceil(WORD_BITS as usize) + (LINE_WORDS as usize + 2) * REGIONS_MAX as usize
    }

    /// How many regions there are.
    pub fn regions(self) -> u32 {
        self.regions
    }

    /// The region of a frame.
    pub fn region_of(self, frame: FrameId) -> u32 {
        (frame.0 / HUGE_FRAMES) & (self.regions - 1)
    }

    /// The bit of a frame.
    fn place_of(self, frame: FrameId) -> u32 {
        let within = (frame.0 / HUGE_FRAMES) >> self.regions.trailing_zeros();
        let first = self.region_of(frame) * self.words * WORD_BITS;
        first + within * HUGE_FRAMES + frame.0 % HUGE_FRAMES
    }

    /// The frame of a bit of a region.
    fn frame_at(self, region: u32, bit: u32) -> FrameId {
        let huge = ((bit / HUGE_FRAMES) << self.regions.trailing_zeros()) | region;
        FrameId(huge * HUGE_FRAMES + bit % HUGE_FRAMES)
    }
}

/// A bitmap of frames, each region's part by itself.
pub struct FrameHints<'a> {
    hints: Hints<'a>,
    shares: Shares,
}

impl<'a> FrameHints<'a> {
    /// Over the arena's words.
    pub fn new(words: &'a [AtomicU64], shares: Shares) -> Self {
        let hints = Hints::new(words);
        FrameHints { hints, shares }
    }

    /// Says that a frame is one of these.
    pub fn set(&self, frame: FrameId) {
        self.hints.set(self.shares.place_of(frame));
    }

    /// Says that it is not.
    pub fn clear(&self, frame: FrameId) {
        self.hints.clear(self.shares.place_of(frame));
    }

    /// Whether it is said to be one.
    pub fn is_set(&self, frame: FrameId) -> bool {
        self.hints.is_set(self.shares.place_of(frame))
    }

    /// As [`Hints::count_about`].
    pub fn count_about(&self, enough: usize) -> usize {
        self.hints.count_about(enough)
    }

    /// As [`Hints::clear_all`].
    pub fn clear_all(&self) {
        self.hints.clear_all();
    }

    /// Takes a frame of a region out of the map, the lowest that `claim` accepts: so the upper end of the arena is free first,
    /// and its memory can go back.
    pub fn take(&self, region: u32, mut claim: impl FnMut(FrameId) -> bool) -> Option<FrameId> {
        let (first, count) = (region * self.shares.words, self.shares.words);
        let words = self
            .hints
            .words
            .get(first as usize..(first + count) as usize);
        let part = Hints::new(words?);
        let bit = part.take(0, |bit| claim(self.shares.frame_at(region, bit)))?;
        Some(self.shares.frame_at(region, bit))
    }

    /// The first frame of a huge page of a region that the map shows whole, the lowest that `claim` accepts. The map stays as it is.
    pub fn take_huge(
        &self,
        region: u32,
        mut claim: impl FnMut(FrameId) -> bool,
    ) -> Option<FrameId> {
        let (first, count) = (region * self.shares.words, self.shares.words);
        let words = self.hints.words.get(first as usize..)?;
        let huge = (0u32..).step_by(WORD_BITS as usize).zip(words);
        huge.take(count as usize).find_map(|(at, word)| {
            let seen = word.load(Ordering::Relaxed).to_le_bytes();
            let whole = (0u32..).zip(seen).filter(|&(_, bits)| bits == u8::MAX);
            whole
                .map(|(place, _)| self.shares.frame_at(region, at + place * HUGE_FRAMES))
                .find(|&frame| claim(frame))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_frame_has_a_bit_of_its_own_in_its_region() {
        for (frames, regions) in [(8, 1), (32, 4), (96, 2), (1024, 8), (1056, 64)] {
            let shares = Shares::new(frames, regions);
            let mut seen = HashSet::new();
            for frame in (0..frames).map(FrameId) {
                let (place, region) = (shares.place_of(frame), shares.region_of(frame));
                let first = region * shares.words * WORD_BITS;
                assert!((first..first + shares.words * WORD_BITS).contains(&place));
                assert!(seen.insert(place), "{frame:?} shares a bit");
                assert_eq!(shares.frame_at(region, place - first), frame);
                assert!((place / WORD_BITS) < Shares::words_max(frames as usize) as u32);
            }
        }
    }

    #[test]
    fn a_part_of_a_map_ends_where_the_rest_begins() {
        let words: Vec<_> = (0..4).map(|_| AtomicU64::new(0)).collect();
        let hints = Hints::new(&words);
        [5, 70, 130].into_iter().for_each(|index| hints.set(index));
        for start in 0..4 {
            assert_eq!(hints.first(0).take(start, |_| true), None);
            assert_eq!(hints.first(64).take(start, |index| index > 5), None);
            hints.set(5);
        }
        assert_eq!(hints.first(65).take(1, |_| true), Some(70));
        assert_eq!(hints.first(1000).take(2, |_| true), Some(130));
        assert!(hints.is_set(5));
    }

    #[test]
    fn all_frames_are_found_and_none_twice() {
        let shares = Shares::new(96, 4);
        let words: Vec<_> = (0..Shares::words_max(96))
            .map(|_| AtomicU64::new(0))
            .collect();
        let hints = FrameHints::new(&words, shares);
        (0..96).for_each(|frame| hints.set(FrameId(frame)));
        let mut taken = HashSet::new();
        for region in 0..shares.regions() {
            while let Some(frame) = hints.take(region, |_| true) {
                assert_eq!(shares.region_of(frame), region);
                assert!(taken.insert(frame.0));
            }
        }
        assert_eq!(taken.len(), 96);
    }

    #[test]
    fn huge_pages_are_found_that_are_free_as_a_whole() {
        let shares = Shares::new(96, 4);
        let words: Vec<_> = (0..Shares::words_max(96))
            .map(|_| AtomicU64::new(0))
            .collect();
        let hints = FrameHints::new(&words, shares);
        (0..96).for_each(|frame| hints.set(FrameId(frame)));
        hints.clear(FrameId(3));
        hints.clear(FrameId(95));
        let found = |region| {
            let mut seen = Vec::new();
            let none = hints.take_huge(region, |first| {
                seen.push(first.0);
                false
            });
            assert_eq!(none, None);
            seen
        };
        let all: Vec<_> = (0..4).map(found).collect();
        assert_eq!(
            all,
            [
                vec![32, 64],
                vec![8, 40, 72],
                vec![16, 48, 80],
                vec![24, 56]
            ]
        );
        assert_eq!(hints.take_huge(1, |first| first.0 > 8), Some(FrameId(40)));
    }
}
