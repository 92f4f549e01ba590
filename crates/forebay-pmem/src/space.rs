//! Which blocks and inodes are free, in DRAM.
//!
//! The bitmaps in the medium say what the committed files have. These bits say more: what was freed and may
//! not be used again yet is still set here. Blocks are handed out in runs, near a goal, so that a file's
//! pages lie at consecutive addresses as far as can be had.

/// Consecutive blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// First block.
    pub start: u64,
    /// How many.
    pub length: u64,
}

impl Run {
    /// A run of one.
    pub fn one(start: u64) -> Self {
        Self { start, length: 1 }
    }
}

/// The words that have a run's bits, and which bits of each.
pub fn words_of(run: Run) -> impl Iterator<Item = (usize, u64)> {
    let end = run.start + run.length;
    (run.start / 64..end.div_ceil(64)).map(move |word| {
        let low = run.start.saturating_sub(word * 64);
        let high = (end - word * 64).min(64);
        let mask = (u64::MAX >> (64 - (high - low))) << low;
        (word as usize, mask)
    })
}

/// Words that a search looks at before it takes the best that it has seen: 4 Mi blocks.
const SEARCH_WORDS_MAX: u64 = 65_536;

/// Bits of numbers below a limit; a set bit is in use.
#[derive(Clone, Debug)]
pub struct Space {
    words: Vec<u64>,
    limit: u64,
    free: u64,
    /// Where the next search without a goal begins.
    next: u64,
}

impl Space {
    /// All in use; what is free is told by [`Space::release`].
    pub fn full(limit: u64) -> Self {
        let words = vec![u64::MAX; limit.div_ceil(64) as usize];
        Self {
            words,
            limit,
            free: 0,
            next: 0,
        }
    }

    /// Numbers that are free.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Whether this one is in use.
    pub fn is_taken(&self, number: u64) -> bool {
        number >= self.limit || self.words[(number / 64) as usize] & (1 << (number % 64)) != 0
    }

    /// Takes a number that is free.
    pub fn take(&mut self, number: u64) {
        self.take_all(Run::one(number));
    }

    /// Takes numbers that are free.
    fn take_all(&mut self, run: Run) {
        for (word, mask) in words_of(run) {
            assert!(self.words[word] & mask == 0, "{run:?} is in use");
            self.words[word] |= mask;
        }
        self.free -= run.length;
    }

    /// Gives a number back.
    pub fn release(&mut self, number: u64) {
        self.release_all(Run::one(number));
    }

    /// Gives numbers back.
    pub fn release_all(&mut self, run: Run) {
        let end = run.start + run.length;
        assert!(end <= self.limit, "{run:?} is beyond the end");
        words_of(run).for_each(|(word, mask)| self.release_word(word, mask));
    }

    /// Gives back the numbers of a word that have these bits.
    pub fn release_word(&mut self, word: usize, bits: u64) {
        let has = self.words[word];
        assert!(has & bits == bits, "{bits:#x} of word {word} are free");
        self.words[word] &= !bits;
        self.free += u64::from(bits.count_ones());
    }

    /// The first free number at or after `from`, or else before it.
    pub fn first_free(&self, from: u64) -> Option<u64> {
        let words = self.words.len() as u64;
        let from = if from < self.limit { from } else { 0 };
        (0..=words).find_map(|step| {
            let word = (from / 64 + step) % words;
            let mut free = !self.words[word as usize];
            if step == 0 {
                free &= u64::MAX << (from % 64);
            }
            (free != 0).then(|| word * 64 + u64::from(free.trailing_zeros()))
        })
    }

    /// Takes up to `wanted` consecutive numbers, from `goal` on if that is free; where none are so many, the
    /// longest run that a bounded search finds. `None` if nothing is free.
    pub fn take_run(&mut self, goal: Option<u64>, wanted: u64) -> Option<Run> {
        assert!(wanted > 0, "a run of nothing");
        let goal = goal.filter(|goal| !self.is_taken(*goal));
        let run = match goal {
            Some(start) => Run {
                start,
                length: self.run_length(start, wanted),
            },
            None => self.find_run(wanted)?,
        };
        self.take_all(run);
        self.next = run.start + run.length;
        Some(run)
    }

    /// Takes the first free number at or after `from`, or else before it. The next run begins where it would have begun without that.
    pub fn take_one(&mut self, from: u64) -> Option<u64> {
        let number = self.first_free(from)?;
        self.take(number);
        Some(number)
    }

    fn find_run(&self, wanted: u64) -> Option<Run> {
        let mut best: Option<Run> = None;
        let mut from = self.next;
        let mut seen = 0;
        // Twice at most: the first run that is found may be the tail of one that begins before.
        while seen <= self.limit + 64 {
            let start = self.first_free(from)?;
            let skipped = if start >= from {
                start - from
            } else {
                self.limit - from + start
            };
            let length = self.run_length(start, wanted);
            if best.is_none_or(|best| best.length < length) {
                best = Some(Run { start, length });
            }
            seen += skipped + length;
            if length == wanted || seen > SEARCH_WORDS_MAX * 64 {
                break;
            }
            from = start + length;
            if from >= self.limit {
                from = 0;
            }
        }
        best
    }

    /// Free numbers from `start` on, up to `wanted`.
    fn run_length(&self, start: u64, wanted: u64) -> u64 {
        let mut length = 0;
        while length < wanted && !self.is_taken(start + length) {
            let at = start + length;
            // The first bit of these is clear.
            let bits = self.words[(at / 64) as usize] >> (at % 64);
            length += u64::from(bits.trailing_zeros()).min(64 - at % 64);
        }
        length.min(wanted)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Run, Space, words_of};

    proptest! {
        #[test]
        fn words_of_a_run_have_its_bits_and_no_others(start in 0_u64..300, length in 1_u64..300) {
            let (mut bits, mut words) = (Vec::new(), Vec::new());
            for (word, mask) in words_of(Run { start, length }) {
                bits.extend((0..64).filter(|bit| mask & (1 << bit) != 0).map(|bit| word as u64 * 64 + bit));
                words.push(word);
            }
            prop_assert_eq!(bits, (start..start + length).collect::<Vec<_>>());
            // Each word once.
            prop_assert!(words.is_sorted_by(|one, next| one < next), "{:?}", words);
        }
    }

    fn all_free(limit: u64) -> Space {
        let mut space = Space::full(limit);
        (0..limit).for_each(|number| space.release(number));
        space
    }

    #[test]
    fn runs_follow_their_goal_and_are_as_long_as_can_be() {
        let mut space = all_free(200);
        assert_eq!(
            space.take_run(None, 10),
            Some(Run {
                start: 0,
                length: 10
            })
        );
        assert_eq!(
            space.take_run(Some(10), 150),
            Some(Run {
                start: 10,
                length: 150
            })
        );
        space.release(70);
        space.release(71);
        assert_eq!(
            space.take_run(None, 64),
            Some(Run {
                start: 160,
                length: 40
            })
        );
        assert_eq!(
            space.take_run(Some(5), 3),
            Some(Run {
                start: 70,
                length: 2
            })
        );
        assert_eq!((space.take_run(None, 1), space.free()), (None, 0));
    }

    #[test]
    fn limits_that_are_no_multiple_of_64_are_kept() {
        let mut space = all_free(70);
        assert_eq!(
            space.take_run(Some(64), 100),
            Some(Run {
                start: 64,
                length: 6
            })
        );
        assert_eq!(space.first_free(69), Some(0));
        assert!(space.is_taken(70) && space.is_taken(1 << 40));
    }

    #[test]
    fn a_search_ends_where_runs_are_short() {
        let mut space = Space::full(1000);
        (0..1000)
            .step_by(2)
            .for_each(|number| space.release(number));
        let mut taken = 0;
        while let Some(run) = space.take_run(None, 3) {
            assert_eq!(run.length, 1);
            taken += 1;
        }
        assert_eq!(taken, 500);
    }
}
