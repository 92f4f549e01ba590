//! Blocks of the running batch: nothing that is committed knows of them.

use crate::space::{Run, words_of};

/// A bit for each block, and which may be set.
pub(super) struct Fresh {
    words: Vec<u64>,
    /// What was set since the last batch; some of it may be clear again.
    runs: Vec<Run>,
}

impl Fresh {
    pub(super) fn new(blocks: u64) -> Self {
        Self {
            words: vec![0; blocks.div_ceil(64) as usize],
            runs: Vec::new(),
        }
    }

    pub(super) fn has(&self, block: u64) -> bool {
        self.words[(block / 64) as usize] & (1 << (block % 64)) != 0
    }

    pub(super) fn set(&mut self, run: Run) {
        words_of(run).for_each(|(word, mask)| self.words[word] |= mask);
        match self.runs.last_mut() {
            Some(last) if last.start + last.length == run.start => last.length += run.length,
            _ => self.runs.push(run),
        }
    }

    pub(super) fn clear(&mut self, run: Run) {
        words_of(run).for_each(|(word, mask)| self.words[word] &= !mask);
    }

    /// None is.
    pub(super) fn clear_all(&mut self) {
        let mut runs = std::mem::take(&mut self.runs);
        runs.drain(..).for_each(|run| self.clear(run));
        runs.shrink_to(super::KEPT_MAX);
        self.runs = runs;
    }

    /// What was set since the last batch.
    #[cfg(test)]
    pub(super) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// How many of the first blocks of a run are as the first one is.
    pub(super) fn alike(&self, run: Run) -> u64 {
        let is_fresh = self.has(run.start);
        let other = words_of(run).find_map(|(word, mask)| {
            let bits = self.words[word];
            let others = mask & if is_fresh { !bits } else { bits };
            (others != 0).then(|| word as u64 * 64 + u64::from(others.trailing_zeros()))
        });
        other.map_or(run.length, |block| block - run.start)
    }
}

#[cfg(test)]
mod tests {
    use super::Fresh;
    use crate::space::Run;

    fn run(start: u64, length: u64) -> Run {
        Run { start, length }
    }

    #[test]
    fn runs_are_split_where_they_change() {
        let mut fresh = Fresh::new(300);
        fresh.set(run(60, 100));
        fresh.set(run(200, 1));
        fresh.clear(run(130, 2));
        let mut seen = Vec::new();
        let mut at = 0;
        while at < 300 {
            let length = fresh.alike(run(at, 300 - at));
            seen.push((fresh.has(at), length));
            at += length;
        }
        let expected = [
            (false, 60),
            (true, 70),
            (false, 2),
            (true, 28),
            (false, 40),
            (true, 1),
            (false, 99),
        ];
        assert_eq!(seen, expected);
        fresh.clear_all();
        assert_eq!(fresh.alike(run(0, 300)), 300);
        assert!(!fresh.has(0));
    }
}
