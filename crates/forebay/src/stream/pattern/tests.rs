//! Streams as they are recognised, and what is read ahead of them, against a naive reader.

use super::*;
use crate::random::Random;
use std::collections::BTreeSet;

const PAGE: u64 = PAGE_BYTES as u64;

fn bounds(blocks: u64, window_max: u32) -> Bounds {
    Bounds {
        window_max,
        size: blocks * BLOCK,
        advice: Advice::Normal,
    }
}

fn pages_of(run: &Run) -> Vec<u64> {
    let mut pages = Vec::new();
    run.for_each(|ask| {
        let first = u64::from(ask.block.0) * 64;
        pages.extend((u64::from(ask.first)..=u64::from(ask.last)).map(|page| first + page));
    });
    pages
}

/// A description whose reads find in memory what was asked for or read before, as with a keeper that is quick.
struct Reader {
    tracker: Tracker,
    bounds: Bounds,
    memory: BTreeSet<u64>,
    mark: Option<u32>,
    block: u64,
    /// Reads that found something missing.
    misses: u64,
    asked: u64,
    furthest: u64,
}

impl Reader {
    fn new(bounds: Bounds) -> Self {
        Reader {
            tracker: Tracker::default(),
            bounds,
            memory: BTreeSet::new(),
            mark: None,
            block: u64::MAX,
            misses: 0,
            asked: 0,
            furthest: 0,
        }
    }

    fn read(&mut self, offset: u64, len: u64) {
        let pages = offset / PAGE..(offset + len).div_ceil(PAGE);
        let missing = pages.clone().any(|page| !self.memory.contains(&page));
        let block = offset / BLOCK;
        let marked = block != self.block && self.mark == Some(block as u32);
        self.block = block;
        // What is in more than one block is always read the slow way.
        let long = offset % BLOCK + len > BLOCK;
        if !missing && !marked && !long {
            return;
        }
        self.misses += u64::from(missing);
        let plan = self.tracker.note(offset, len, &self.bounds);
        if plan.mark.is_some() {
            self.mark = plan.mark;
        }
        if plan.recognised {
            let blocks = block..(offset + len).div_ceil(BLOCK);
            self.memory.extend(blocks.start * 64..blocks.end * 64);
        }
        self.memory.extend(pages);
        let ahead = pages_of(&plan.run);
        for &page in &ahead {
            assert!(page * PAGE < self.bounds.size, "beyond the end");
            self.furthest = self.furthest.max(page);
        }
        self.asked += ahead.len() as u64;
        self.memory.extend(ahead);
    }
}

#[test]
fn an_ascending_stream_misses_a_few_times_only() {
    for (len, gap) in [
        (PAGE, 0),
        (64 * 1024, 0),
        (3000, 0),
        (PAGE, PAGE),
        (1 << 20, 0),
    ] {
        let mut reader = Reader::new(bounds(256, 32));
        let mut at = 0;
        while at + len <= 256 * BLOCK {
            reader.read(at, len);
            at += len + gap;
        }
        assert!(reader.misses <= 4, "{len} {gap}: {} misses", reader.misses);
        assert!(reader.asked <= 256 * 64, "nothing is asked for twice");
    }
}

#[test]
fn a_descending_stream_is_read_ahead_downwards() {
    let mut reader = Reader::new(bounds(200, 16));
    for page in (0..200 * 64).rev() {
        reader.read(page * PAGE, PAGE);
    }
    assert!(reader.misses <= 4, "{} misses", reader.misses);
    assert!(reader.asked <= 200 * 64);
}

#[test]
fn equal_distances_are_read_ahead_part_by_part() {
    for stride in [3 * BLOCK, 100 * 1024, 300_000] {
        for down in [false, true] {
            let size = 2000 * BLOCK;
            let mut reader = Reader::new(bounds(2000, 32));
            let count = (size / stride).min(200);
            for index in 0..count {
                let index = if down { count - 1 - index } else { index };
                reader.read(index * stride, PAGE);
            }
            assert!(reader.misses <= 6, "{stride}: {} misses", reader.misses);
            assert!(reader.asked <= 2 * count + 32, "no more than the parts");
        }
    }
}

#[test]
fn dense_equal_distances_are_a_stream() {
    let mut reader = Reader::new(bounds(100, 32));
    for index in 0..100 * BLOCK / 16384 {
        reader.read(index * 16384, 100);
    }
    assert!(reader.misses <= 6, "{} misses", reader.misses);
}

#[test]
fn several_streams_are_told_apart() {
    let mut reader = Reader::new(bounds(800, 16));
    for step in 0..100 * 64 {
        for stream in 0..6 {
            reader.mark = None;
            reader.read((stream * 120) * BLOCK + step * PAGE, PAGE);
        }
    }
    let blocks = 6 * 100;
    assert!(reader.misses < blocks / 4, "{} misses", reader.misses);
}

#[test]
fn reads_anywhere_ask_for_next_to_nothing() {
    let mut random = Random::new(42);
    let mut reader = Reader::new(bounds(100_000, 32));
    let reads = 20_000;
    for _ in 0..reads {
        let page = random.below(100_000 * 64) as u64;
        reader.read(page * PAGE, PAGE);
    }
    assert!(
        reader.asked < reads / 20,
        "{} pages asked for",
        reader.asked
    );
}

#[test]
fn the_window_begins_small_doubles_and_has_a_limit() {
    let mut tracker = Tracker::default();
    let bounds = bounds(1000, 16);
    let mut windows = Vec::new();
    let mut frontier = 0;
    for block in 0..400 {
        let plan = tracker.note(block * BLOCK, BLOCK, &bounds);
        if let Run::Blocks { first, count, .. } = plan.run {
            assert!(u64::from(first) > block, "what is read now is not ahead");
            frontier = u64::from(first + count);
            windows.push(frontier - block - 1);
        }
        assert!(frontier <= block + 17);
    }
    assert_eq!(windows[..4], [2, 4, 8, 16]);
    assert!(windows[4..].iter().all(|&window| window == 16));
}

#[test]
fn advice_is_heard() {
    let mut tracker = Tracker::default();
    let told = Bounds {
        advice: Advice::Sequential,
        ..bounds(100, 8)
    };
    let plan = tracker.note(50 * BLOCK, PAGE, &told);
    assert_eq!(plan.run, blocks(51, 8, false));
    assert!(plan.recognised);
    let told = Bounds {
        advice: Advice::Random,
        ..told
    };
    for page in 0..100 {
        assert_eq!(tracker.note(page * PAGE, PAGE, &told), Plan::default());
    }
}

#[test]
fn a_stream_that_was_given_up_is_named() {
    let mut tracker = Tracker::default();
    let bounds = bounds(10_000, 8);
    for block in 0..4 {
        tracker.note(block * BLOCK, BLOCK, &bounds);
    }
    let mut named = 0..0;
    for jump in 1..=STREAMS as u64 {
        let plan = tracker.note((jump * jump * 77) * BLOCK, PAGE, &bounds);
        if plan.given_up != (0..0) {
            named = plan.given_up;
        }
    }
    assert!(named.start <= 4 && named.end > 4, "{named:?}");
}

#[test]
fn nothing_is_asked_beyond_the_ends_whatever_is_read() {
    let mut random = Random::new(7);
    for _ in 0..200 {
        let size = 1 + random.below(40) as u64 * BLOCK + random.below(5000) as u64;
        let bounds = Bounds {
            size,
            ..bounds(1, 1 + random.below(32) as u32)
        };
        let mut tracker = Tracker::default();
        let (mut at, mut len) = (0u64, PAGE);
        for _ in 0..300 {
            match random.below(8) {
                0 => at = random.below(size as usize) as u64,
                1 => at = at.saturating_sub(3 * len),
                2 => len = 1 + random.below(200_000) as u64,
                3 => at = at.saturating_sub(len),
                _ => at += len,
            }
            if at >= size {
                at = 0;
            }
            let plan = tracker.note(at, len.min(size - at), &bounds);
            plan.run.for_each(|ask| {
                let first = ask.block.start() + u64::from(ask.first) * PAGE;
                assert!(first < size && ask.first <= ask.last, "{ask:?} of {size}");
            });
        }
    }
}
