//! Blocks that views show: they are not written in place, and not used again, while they are shown.
//!
//! Views come and go under the store's lock for reading; whoever changes the store has it alone, and asks without another lock.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::space::Run;

/// How many views show each block.
pub(crate) struct Pins(Mutex<Inside>);

struct Inside {
    /// By block. Memory that was never touched costs nothing.
    counts: Vec<u32>,
    /// Blocks that became free while they were shown.
    kept: HashSet<u64>,
}

impl Pins {
    pub(super) fn new(blocks: u64) -> Self {
        Self(Mutex::new(Inside {
            counts: vec![0; blocks as usize],
            kept: HashSet::new(),
        }))
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more view shows these.
    pub(crate) fn pin(&self, runs: &[Run]) {
        let mut inside = self.inside();
        for run in runs {
            inside.counts[range(run)]
                .iter_mut()
                .for_each(|count| *count += 1);
        }
    }

    /// A view less. Answers the blocks that are free now.
    pub(crate) fn unpin(&self, runs: &[Run]) -> Vec<u64> {
        let mut inside = self.inside();
        for run in runs {
            inside.counts[range(run)]
                .iter_mut()
                .for_each(|count| *count -= 1);
        }
        if inside.kept.is_empty() {
            return Vec::new();
        }
        let blocks = runs
            .iter()
            .flat_map(|run| run.start..run.start + run.length);
        let free = blocks.filter(|block| inside.counts[*block as usize] == 0);
        let free: Vec<u64> = free.collect();
        free.into_iter()
            .filter(|block| inside.kept.remove(block))
            .collect()
    }

    /// Whether a view shows this block.
    pub(super) fn is_pinned(&mut self, block: u64) -> bool {
        let inside = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        inside.counts[block as usize] != 0
    }

    /// Whether views show none of these.
    pub(super) fn are_free(&mut self, run: Run) -> bool {
        let inside = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        inside.counts[range(&run)].iter().all(|count| *count == 0)
    }

    /// A block becomes free. Whether a view shows it: then it is free when the last one goes.
    pub(super) fn keeps(&mut self, block: u64) -> bool {
        let is_pinned = self.is_pinned(block);
        let inside = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        is_pinned && inside.kept.insert(block)
    }
}

fn range(run: &Run) -> std::ops::Range<usize> {
    run.start as usize..(run.start + run.length) as usize
}
