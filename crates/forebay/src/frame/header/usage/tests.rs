//! What uses make of a block.

use super::*;
use crate::frame::header::{AGE_MAX, CHARGE_BITS, Identity};
use crate::ids::{BlockIndex, FileId};

fn header() -> Box<Header> {
    // SAFETY: all zeros is a free header.
    let header: Box<Header> = unsafe { Box::new(std::mem::zeroed()) };
    let identity = Identity {
        file: FileId(0),
        block: BlockIndex(0),
    };
    header.prepare(identity);
    header
}

#[test]
fn a_scan_uses_a_block_once() {
    let header = header();
    assert_eq!(header.usage(), Usage::Fresh);
    for tick in 1000..1064 {
        assert!(!header.touch(tick));
    }
    assert_eq!(header.usage(), Usage::Once);
    assert_eq!(header.idle_ticks(1100), 37);
}

#[test]
fn coming_back_is_another_visit() {
    let header = header();
    header.touch(10);
    header.touch(10 + VISIT_TICKS);
    assert_eq!(header.usage(), Usage::Again);
    header.touch(11 + VISIT_TICKS);
    assert_eq!(header.usage(), Usage::Again);
}

#[test]
fn a_read_somewhere_is_a_visit_unless_it_is_at_the_same_tick() {
    let header = header();
    header.visit(10);
    header.visit(10);
    assert_eq!(header.usage(), Usage::Once);
    header.visit(11);
    assert_eq!(header.usage(), Usage::Again);
}

#[test]
fn the_first_use_of_what_was_read_ahead_is_told_once() {
    let header = header();
    header.set_ahead(50);
    assert_eq!(header.usage(), Usage::Ahead);
    assert!(header.touch(50), "even at the same tick");
    assert!(!header.touch(50));
    assert_eq!(header.usage(), Usage::Once);
}

/// A thread that uses a block, or evicts, may have looked at the clock before another one that used it since.
#[test]
fn a_use_at_a_later_tick_is_not_a_use_long_ago() {
    let header = header();
    header.touch(20);
    assert_eq!(header.idle_ticks(19), 0);
    header.visit(19);
    assert_eq!(header.usage(), Usage::Once);
}

#[test]
fn another_block_begins_anew_and_ticks_come_round() {
    let header = header();
    header.visit(10);
    header.visit(500);
    header.forget_usage();
    assert_eq!(header.usage(), Usage::Fresh);
    header.touch(u32::MAX);
    assert_eq!(header.usage(), Usage::Once);
    assert_eq!(header.idle_ticks(4), 5);
    header.touch(4);
    assert_eq!(header.usage(), Usage::Once);
}

#[test]
fn what_became_dirty_after_the_tick_that_was_looked_at_is_young() {
    let header = header();
    let dirty_since = |tick: u32| {
        header
            .charged
            .store(tick << CHARGE_BITS | 1, Ordering::Relaxed)
    };
    dirty_since(20);
    assert_eq!(header.dirty_ticks(19), 0);
    assert_eq!(header.dirty_ticks(25), 5);
    dirty_since(u32::MAX);
    assert_eq!(header.dirty_ticks(4), 5, "ticks come round");
    dirty_since(0);
    assert_eq!(header.dirty_ticks(AGE_MAX + 10), AGE_MAX, "and are many");
}
