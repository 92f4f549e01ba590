//! Which way free memory is found.

use serde::{Deserialize, Serialize};

/// How free memory is found: StreamCache's two layers, or the first one alone, for comparisons. The maker of the session decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocator {
    /// A region of free frames for each core.
    Regions,
    /// And a stock of small frames for each file.
    #[default]
    #[serde(rename = "regions+stock")]
    RegionsStock,
}

impl Allocator {
    /// From the arena's word.
    pub(crate) fn of(word: u32) -> Self {
        match word {
            0 => Allocator::Regions,
            _ => Allocator::RegionsStock,
        }
    }
}
