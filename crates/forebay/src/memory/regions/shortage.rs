//! How short memory is, in one word that everybody looks at and the keeper sets (StreamCache 4.3).
//!
//! Memory that is free, or that the budget still allows, counts against the budget. Below a 32nd of it all threads that can evict do;
//! below a 128th stocks are halved as well, and no new ones made. A thread that finds no memory at all sets the word, too: there may
//! be no keeper.

use crate::memory::arena::Arena;
use crate::sync::Ordering;

/// Low: less than one part in so many (the paper's `threshold_low`).
pub const LOW_PARTS: u32 = 32;
/// Urgent: less than one part in so many (the paper's `threshold_urgent`).
pub const URGENT_PARTS: u32 = 128;

/// How short memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shortage {
    /// There is enough.
    None,
    /// All evict.
    Low,
    /// And stocks are halved.
    Urgent,
}

impl Shortage {
    /// From the word.
    pub const fn of(word: u32) -> Self {
        match word {
            0 => Shortage::None,
            1 => Shortage::Low,
            _ => Shortage::Urgent,
        }
    }

    fn judge(available: u32, budget: u32) -> Self {
        let is_below = |parts| u64::from(available) * u64::from(parts) < u64::from(budget);
        match () {
            () if is_below(URGENT_PARTS) => Shortage::Urgent,
            () if is_below(LOW_PARTS) => Shortage::Low,
            () => Shortage::None,
        }
    }
}

/// Looks how much there is, and says so to all.
pub fn look(arena: &Arena) -> Shortage {
    let superblock = arena.superblock();
    let budget = superblock.frames_max.load(Ordering::Relaxed);
    let backed = superblock.frames_backed.load(Ordering::Relaxed);
    let available = superblock
        .free_about()
        .saturating_add(budget.saturating_sub(backed));
    let found = Shortage::judge(available, budget);
    if superblock.shortage() != found {
        superblock.shortage.store(found as u32, Ordering::Relaxed);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_parts_of_the_budget() {
        let table = [
            (4096, Shortage::None),
            (128, Shortage::None),
            (127, Shortage::Low),
            (32, Shortage::Low),
            (31, Shortage::Urgent),
            (0, Shortage::Urgent),
        ];
        for (available, expected) in table {
            assert_eq!(Shortage::judge(available, 4096), expected, "{available}");
        }
        // Of eight frames one is enough.
        assert_eq!(Shortage::judge(1, 8), Shortage::None);
        assert_eq!(Shortage::judge(0, 8), Shortage::Urgent);
    }
}
