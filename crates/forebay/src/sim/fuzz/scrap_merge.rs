//! Writes into one page, in any order, against one `bool` a byte; and words that nobody made.
//!
//! Input: 8 bytes of a page's word as shared memory might hold it, then 5 bytes a step.

use crate::limits::PAGE_BYTES;
use crate::scrap::model::{LocalMap, MergeFn, Page, Step};
use crate::scrap::page::{PageWord, Ragged, clip, holes, merge, runs};

const STEP_BYTES: usize = 5;

/// Panics unless the page says after each step exactly which bytes are in memory, whatever the order
/// of the writes, and unless a word of any bits is decoded to something usable.
pub fn check(data: &[u8]) {
    let Some((word, steps)) = data.split_first_chunk::<8>() else {
        return;
    };
    check_word(PageWord(u64::from_le_bytes(*word)));
    if let Err(why) = check_steps(merge, &decode(steps)) {
        panic!("{why}");
    }
}

/// The steps hold for `merge`, and the order of writes does not matter.
fn check_steps(merge: MergeFn, steps: &[Step]) -> Result<(), String> {
    let covered = Page::run(merge, steps)?;
    if steps.iter().any(|step| matches!(step, Step::Truncate(_))) {
        return Ok(());
    }
    let reversed: Vec<Step> = steps.iter().rev().copied().collect();
    if Page::run(merge, &reversed)? != covered {
        return Err(format!("the order of {steps:?} matters"));
    }
    Ok(())
}

/// A word from memory that is not trusted: decoding, listing, clipping and merging stay in the page.
fn check_word(word: PageWord) {
    let ragged = word.ragged();
    let again = word.with_ragged(ragged);
    assert_eq!(again.ragged(), ragged);
    assert_eq!(again.small(), word.small());
    assert!(again.is_wellformed());
    assert_eq!(again == word, word.is_wellformed());
    assert_eq!(word.with_small(word.small()), word);

    let map = LocalMap::used();
    for map in [None, Some(&*map)] {
        let mut parts = Vec::new();
        runs(&ragged, map, |start, end| parts.push((start, end)));
        holes(&ragged, map, |start, end| parts.push((start, end)));
        parts.sort_unstable();
        let mut at = 0;
        for (start, end) in parts {
            assert!(start == at && start < end, "{start}..{end} after {at}");
            at = end;
        }
        assert_eq!(at, PAGE_BYTES);
    }
    let position = word.0 as usize % PAGE_BYTES;
    let _ = merge(ragged, position, PAGE_BYTES);
    if !matches!(ragged, Ragged::Map(_)) {
        runs(&clip(ragged, position), None, |start, end| {
            assert!(start < end && end <= position)
        });
    }
}

/// Steps of [`STEP_BYTES`] each: what to do, and two positions. Random ranges seldom touch, so a
/// write may also begin or end where the one before it did.
fn decode(data: &[u8]) -> Vec<Step> {
    let (mut last_start, mut last_end) = (0, PAGE_BYTES);
    let (steps, _) = data.as_chunks::<STEP_BYTES>();
    let decode = |&[what, a0, a1, b0, b1]: &[u8; STEP_BYTES]| {
        let mut start = u16::from_le_bytes([a0, a1]) as usize % PAGE_BYTES;
        let mut len = u16::from_le_bytes([b0, b1]) as usize;
        match what % 16 {
            0 => return Step::Truncate(start),
            1..4 => start = last_end % PAGE_BYTES,
            4..7 if last_start > 0 => {
                start %= last_start;
                len = last_start - start - 1;
            }
            7..12 => len %= 64,
            _ => {}
        }
        let end = start + 1 + len % (PAGE_BYTES - start);
        (last_start, last_end) = (start, end);
        Step::Write(start, end)
    };
    steps.iter().map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrap::model::PLANTED;
    use crate::sim::fuzz::seeded;
    use std::cell::Cell;

    #[test]
    fn seeded_inputs_hold() {
        seeded(4000, 8 + 24 * STEP_BYTES, check);
    }

    #[test]
    fn planted_merges_are_rejected() {
        for (mistake, wrong) in PLANTED {
            let rejected = Cell::new(0);
            seeded(500, 24 * STEP_BYTES, |data| {
                rejected.update(|n| n + u32::from(check_steps(wrong, &decode(data)).is_err()));
            });
            assert!(rejected.get() > 0, "nobody noticed: {mistake}");
        }
    }
}
