//! Blocks that are kept, sums that go along, and what is undone.

use std::sync::Arc;

use super::{CLEAN_MAX, PageMap, Pages};
use crate::errno::Errno;
use crate::layout::{Kind, checksum, label, seal};
use crate::log::apply_pages;
use crate::medium::{Durability, Medium, changes};
use crate::tests::sim::Simulated;

/// Commits what is running; `meanwhile` is done when it has been collected.
fn commit(pages: &mut Pages, medium: &Simulated, meanwhile: impl FnOnce(&mut Pages)) {
    pages.keep();
    let mut batch = pages.collect();
    meanwhile(pages);
    apply_pages(medium, 1, &batch);
    pages.dropped(&mut batch);
}

/// Blocks from this one on that lie in the medium, and were read.
fn written(first: u64, count: u64) -> (Arc<Simulated>, Pages) {
    let medium = Simulated::new(vec![0; 200 * 4096], Durability::Dax);
    let mut pages = Pages::new(medium.clone(), 1, 200, PageMap::default());
    (first..first + count).for_each(|block| pages.make(block, Kind::Table));
    commit(&mut pages, &medium, |_| {});
    for block in first..first + count {
        assert_eq!(pages.read(block, Kind::Table, 0, &mut [0]), Ok(()));
    }
    (medium, pages)
}

#[test]
fn the_checksum_goes_along_with_what_is_kept_and_what_is_undone() {
    let (medium, mut pages) = written(50, 1);
    // Not every CPU has the instructions for it.
    let goes_along = changes::of(0, &[0], &[1]).is_some();
    let mut expected = [0; 4096];
    label(&mut expected, 50, Kind::Table);
    for turn in 0..6 {
        assert_eq!(pages.write(50, Kind::Table, 61, &[turn + 1; 9]), Ok(()));
        expected[61..70].fill(turn + 1);
        pages.keep();
        assert_eq!(pages.write(50, Kind::Table, 60, &[turn + 9; 90]), Ok(()));
        pages.undo();
        let sum = goes_along.then(|| checksum(1, &expected));
        assert_eq!(pages.running[&50].sum, sum, "turn {turn}");
        // The next turn changes what is running already, or what was kept.
        let (is_changed_meanwhile, at) = (turn % 3 < 2, 1000 + usize::from(turn));
        commit(&mut pages, &medium, |pages| {
            if is_changed_meanwhile {
                assert_eq!(pages.write(50, Kind::Table, at, &[turn + 1]), Ok(()));
                pages.keep();
            }
        });
        seal(1, &mut expected);
        let mut bytes = [0; 4096];
        medium.read(50 * 4096, &mut bytes);
        assert!(bytes == expected, "turn {turn}");
        if is_changed_meanwhile {
            expected[at] = turn + 1;
        }
    }
}

#[test]
fn a_block_that_rots_in_the_medium_is_seen_as_it_was_kept() {
    let (medium, mut pages) = written(50, 1);
    assert_eq!(pages.write(50, Kind::Table, 0, &[1]), Ok(()));
    commit(&mut pages, &medium, |_| {});
    medium.write(50 * 4096, &[7; 2]);
    let mut bytes = [0; 2];
    assert_eq!(pages.read(50, Kind::Table, 0, &mut bytes), Ok(()));
    assert_eq!(bytes, [1, 0]);
    let seen = pages.with(50, Kind::Table, |bytes| [bytes[0], bytes[1]]);
    assert_eq!(seen, Ok([1, 0]));
}

#[test]
fn a_block_that_is_freed_is_not_kept() {
    let (medium, mut pages) = written(50, 3);
    for block in 50..53 {
        assert_eq!(pages.write(block, Kind::Table, 0, &[1]), Ok(()));
    }
    commit(&mut pages, &medium, |pages| pages.forget(50));
    pages.forget(51);
    // All become something else.
    medium.write(50 * 4096, &[7; 3 * 4096]);
    let mut write = |block| pages.write(block, Kind::Table, 0, &[2]);
    assert_eq!(write(50), Err(Errno::EIO), "freed while it was committed");
    assert_eq!(write(51), Err(Errno::EIO), "freed when it was kept");
    assert_eq!(write(52), Ok(()), "it is kept");
}

#[test]
fn no_more_blocks_are_kept_than_may_be() {
    let count = 2 * CLEAN_MAX as u64;
    let (medium, mut pages) = written(50, count);
    for first in (50..48 + count).step_by(3) {
        for block in first..first + 3 {
            assert_eq!(pages.write(block, Kind::Table, 0, &[1]), Ok(()));
        }
        commit(&mut pages, &medium, |_| {});
        assert!(pages.below.clean.len() <= CLEAN_MAX);
    }
    assert_eq!(pages.below.clean.len(), CLEAN_MAX);
}

#[test]
fn blocks_that_change_again_are_kept_in_place_of_others() {
    let (medium, mut pages) = written(50, CLEAN_MAX as u64 + 3);
    let cold = 53..53 + CLEAN_MAX as u64;
    for block in cold {
        assert_eq!(pages.write(block, Kind::Table, 0, &[1]), Ok(()));
        commit(&mut pages, &medium, |_| {});
    }
    assert_eq!(pages.below.clean.len(), CLEAN_MAX);
    for turn in 0..2 {
        for block in 50..53 {
            assert_eq!(pages.write(block, Kind::Table, 0, &[turn + 1]), Ok(()));
        }
        commit(&mut pages, &medium, |_| {});
    }
    let clean = &pages.below.clean;
    assert!((50..53).all(|block| clean.contains_key(&block)));
    assert!(clean.len() <= CLEAN_MAX);
}

#[test]
fn what_is_undone_takes_no_room_in_a_record() {
    let medium = Simulated::new(vec![0; 100 * 4096], Durability::Dax);
    let mut pages = Pages::new(medium, 1, 100, PageMap::default());
    pages.make(50, Kind::Table);
    pages.keep();
    let mut batch = pages.collect();
    assert_eq!(pages.write(50, Kind::Table, 0, &[1; 64]), Ok(()));
    pages.keep();
    let lines = pages.record_lines();
    // Another line twice, the same line again, and a block that is new to the batch.
    assert_eq!(pages.write(50, Kind::Table, 200, &[2; 8]), Ok(()));
    assert_eq!(pages.write(50, Kind::Table, 200, &[3; 8]), Ok(()));
    assert_eq!(pages.write(50, Kind::Table, 8, &[4; 8]), Ok(()));
    pages.make(51, Kind::Table);
    assert_eq!(pages.write(51, Kind::Table, 8, &[5; 8]), Ok(()));
    assert!(pages.record_lines() > lines);
    pages.undo();
    assert_eq!(pages.record_lines(), lines);
    pages.dropped(&mut batch);
    let batch = pages.collect();
    let counted = batch
        .values()
        .map(|page| u64::from(page.lines.count_ones()));
    assert_eq!(1 + 1 + counted.sum::<u64>(), lines);
}
