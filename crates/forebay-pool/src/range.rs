//! Runs of blocks, and what somebody may do with them.

use serde::{Deserialize, Serialize};

use crate::ids::SIZE_BLOCK;

/// Blocks from `start` up to, and without, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u64, u64)", into = "(u64, u64)")]
pub struct Range {
    /// First block.
    pub start: u64,
    /// First block after the run.
    pub end: u64,
}

impl From<Range> for (u64, u64) {
    fn from(range: Range) -> Self {
        (range.start, range.end)
    }
}

/// A run from elsewhere that has no blocks, or goes past the last block there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no run of blocks: {0} to {1}")]
pub struct NoRange(u64, u64);

impl TryFrom<(u64, u64)> for Range {
    type Error = NoRange;

    fn try_from((start, end): (u64, u64)) -> Result<Self, NoRange> {
        let known = Range::new(start, end).filter(|range| range.end <= SIZE_BLOCK + 1);
        known.ok_or(NoRange(start, end))
    }
}

impl Range {
    /// The run from `start` to `end`; `None` if it would be empty.
    pub fn new(start: u64, end: u64) -> Option<Range> {
        (start < end).then_some(Range { start, end })
    }

    /// The run of one block.
    pub fn one(block: u64) -> Range {
        Range {
            start: block,
            end: block + 1,
        }
    }

    /// Whether both have a block in common.
    pub fn overlaps(self, other: Range) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether every block of `other` is in this run.
    pub fn contains(self, other: Range) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// What both have in common.
    pub fn common(self, other: Range) -> Option<Range> {
        Range::new(self.start.max(other.start), self.end.min(other.end))
    }
}

/// What a grant allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Right {
    /// To read, beside other readers.
    Shared,
    /// To read and write, alone.
    Exclusive,
}

impl Right {
    /// Whether two holders may not have these rights over one block.
    pub fn conflicts(self, other: Right) -> bool {
        self == Right::Exclusive || other == Right::Exclusive
    }
}
