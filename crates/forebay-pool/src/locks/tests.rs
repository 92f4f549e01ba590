//! Locks against a model that knows every block by itself; the depth of the tree; who waits for whom.

use std::collections::{BTreeMap, BTreeSet};

use super::{Locks, Queue, Request, Tree};
use crate::random::Random;
use crate::range::{Range, Right};

const BLOCKS: u64 = 40;

/// What each holder may do with each block, and by which stamp.
#[derive(Default)]
struct Model(BTreeMap<(u8, u64), (Right, u64)>);

impl Model {
    fn is_free(&self, holder: u8, range: Range, right: Right) -> bool {
        !self.0.iter().any(|((other, block), (held, _))| {
            *other != holder && range.contains(Range::one(*block)) && held.conflicts(right)
        })
    }

    fn grant(&mut self, holder: u8, range: Range, right: Right, stamp: u64) {
        for block in range.start..range.end {
            let held = self.0.entry((holder, block)).or_insert((right, stamp));
            if held.0 <= right {
                *held = (right, stamp);
            }
        }
    }

    fn release(&mut self, holder: u8, range: Range, keep: bool) {
        for block in range.start..range.end {
            if keep {
                if let Some(held) = self.0.get_mut(&(holder, block)) {
                    held.0 = Right::Shared;
                }
            } else {
                self.0.remove(&(holder, block));
            }
        }
    }
}

fn range(random: &mut Random, blocks: u64) -> Range {
    let start = random.below(blocks);
    Range {
        start,
        end: start + 1 + random.below((blocks - start).min(12)),
    }
}

fn right(random: &mut Random) -> Right {
    if random.chance(500) {
        Right::Shared
    } else {
        Right::Exclusive
    }
}

fn agree(locks: &Locks<u8>, model: &Model, at: &str) {
    let mut found = BTreeMap::new();
    for holder in 0..5 {
        let mut last = None;
        for piece in locks.held(holder) {
            assert_ne!(
                last,
                Some((piece.range.start, piece.right)),
                "{at}: not joined"
            );
            last = Some((piece.range.end, piece.right));
            for block in piece.range.start..piece.range.end {
                let twice = found.insert((holder, block), piece.right);
                assert_eq!(twice, None, "{at}: block {block} of {holder} twice");
            }
        }
    }
    let expected: BTreeMap<_, _> = model.0.iter().map(|(key, held)| (*key, held.0)).collect();
    assert_eq!(found, expected, "{at}");
    assert_eq!(locks.tree.len(), locks.own.len(), "{at}");
}

#[test]
fn locks_are_what_the_model_says() {
    for seed in 1..60 {
        let mut random = Random::new(seed);
        let (mut locks, mut model) = (Locks::<u8>::default(), Model::default());
        for stamp in 1..300 {
            let at = format!("seed {seed}, step {stamp}");
            let (holder, range, right) = (
                random.below(5) as u8,
                range(&mut random, BLOCKS),
                right(&mut random),
            );
            let free = locks.is_free(holder, range, right);
            assert_eq!(free, model.is_free(holder, range, right), "{at}");
            let mut lacking = (range.start..range.end).filter(|block| {
                model
                    .0
                    .get(&(holder, *block))
                    .is_none_or(|held| held.0 < right)
            });
            let missing = locks.missing(holder, range, right);
            assert_eq!(missing.map(|range| range.start), lacking.next(), "{at}");
            if free && random.chance(700) {
                locks.grant(holder, range, right, stamp);
                model.grant(holder, range, right, stamp);
            } else if random.chance(800) {
                let keep = random.chance(300);
                locks.release(holder, range, stamp, keep);
                model.release(holder, range, keep);
            } else if random.chance(100) {
                locks.release_all(holder);
                model.0.retain(|(other, _), _| *other != holder);
            }
            agree(&locks, &model, &at);
        }
    }
}

#[test]
fn conflicts_are_all_found() {
    for seed in 1..40 {
        let mut random = Random::new(seed);
        let mut tree = Tree::default();
        let mut model = BTreeSet::new();
        for step in 0..300_u64 {
            let (holder, range, right) = (
                random.below(20),
                range(&mut random, BLOCKS),
                right(&mut random),
            );
            let same = model
                .iter()
                .find(|(other, held, _): &&(u64, Range, Right)| {
                    *other == holder && held.start == range.start
                });
            match same.copied() {
                Some(old) => {
                    model.remove(&old);
                    assert!(tree.remove(holder, range.start));
                    assert!(!tree.remove(holder, range.start));
                }
                None => {
                    model.insert((holder, range, right));
                    tree.insert(holder, range, right);
                }
            }
            let mut found = BTreeSet::new();
            tree.conflicting(range, right, &mut |holder, range, right| {
                found.insert((holder, range, right))
            });
            let expected: BTreeSet<_> = model
                .iter()
                .filter(|(_, held, as_right)| held.overlaps(range) && as_right.conflicts(right))
                .copied()
                .collect();
            assert_eq!(found, expected, "seed {seed}, step {step}");
        }
    }
}

#[test]
fn a_file_of_a_million_blocks_with_a_thousand_holders_is_shallow() {
    let mut locks = Locks::<u32>::default();
    let mut random = Random::new(7);
    // One block in two, so that no interval joins another: half a million of them.
    for block in (0..1_000_000).step_by(2) {
        locks.grant(
            random.below(1000) as u32,
            Range::one(block),
            Right::Exclusive,
            block,
        );
    }
    assert_eq!(locks.len(), 500_000);
    // Expected: about 2 ln n = 26 at an average node; the deepest stays below a few times log2 n = 19.
    let depth = locks.tree.depth();
    assert!(depth < 100, "{depth} levels for 500,000 intervals");
    assert!(!locks.is_free(
        1000,
        Range {
            start: 0,
            end: 1_000_000
        },
        Right::Shared
    ));
    assert!(locks.is_free(1000, Range::one(1), Right::Exclusive));
}

fn request(holder: u8, start: u64, end: u64, right: Right) -> Request<u8> {
    let need = Range { start, end };
    Request {
        holder,
        number: start * 100 + end,
        need,
        wish: need,
        right,
        urgent: false,
    }
}

#[test]
fn a_writer_is_not_starved_by_readers() {
    let (mut queue, mut stamp) = (Queue::default(), 0);
    let read = |holder| request(holder, 0, 4, Right::Shared);
    assert_eq!(queue.ask(read(1), 0, &mut stamp).granted.len(), 1);
    let write = queue.ask(request(2, 2, 3, Right::Exclusive), 1, &mut stamp);
    assert_eq!((write.granted.len(), write.recalls.len()), (0, 1));
    // A reader that comes later waits for the writer, though it could read beside the reader.
    assert!(queue.ask(read(3), 2, &mut stamp).granted.is_empty());
    let free = queue.release((1, Range::one(2)), (stamp, false), 3, &mut stamp);
    assert_eq!(
        free.granted
            .iter()
            .map(|granted| granted.holder)
            .collect::<Vec<_>>(),
        [2]
    );
    // And the writer is asked to let it in, keeping its right to read.
    assert_eq!(
        free.recalls
            .iter()
            .map(|recall| (recall.holder, recall.keep))
            .collect::<Vec<_>>(),
        [(2, true)]
    );
    let free = queue.release((2, Range::one(2)), (stamp, true), 4, &mut stamp);
    assert_eq!(
        free.granted
            .iter()
            .map(|granted| granted.holder)
            .collect::<Vec<_>>(),
        [3]
    );
}

#[test]
fn of_many_who_wait_for_the_same_one_has_it_recalled() {
    let (mut queue, mut stamp) = (Queue::default(), 0);
    let write = |holder| request(holder, 3, 4, Right::Exclusive);
    queue.ask(write(0), 0, &mut stamp);
    let asked: usize = (1..100)
        .map(|holder| queue.ask(write(holder), 0, &mut stamp).recalls.len())
        .sum();
    assert_eq!(asked, 1);
    for holder in 0..98 {
        let next = queue.release((holder, Range::one(3)), (stamp, false), 0, &mut stamp);
        assert_eq!((next.granted.len(), next.recalls.len()), (1, 1), "{holder}");
        // Who has lost its connection is told again.
        assert!(!queue.recalls_of(holder + 1).is_empty());
        // Its words were under way when it was granted this: it is asked for it again.
        let early = queue.release(
            (holder + 1, Range::one(3)),
            (stamp - 1, false),
            0,
            &mut stamp,
        );
        assert_eq!(
            (early.granted.len(), early.recalls.len()),
            (0, 1),
            "{holder}"
        );
    }
}

#[test]
fn who_keeps_what_a_waiter_wants_does_not_wait_behind_it() {
    let (mut queue, mut stamp) = (Queue::default(), 0);
    queue.ask(request(1, 0, 1, Right::Exclusive), 0, &mut stamp);
    queue.ask(request(2, 0, 9, Right::Exclusive), 0, &mut stamp);
    let more = request(1, 8, 9, Right::Exclusive);
    assert!(queue.ask(more, 0, &mut stamp).granted.is_empty());
    let more = Request {
        urgent: true,
        number: 7,
        ..more
    };
    assert_eq!(queue.ask(more, 0, &mut stamp).granted.len(), 1);
}

#[test]
fn who_waits_for_another_is_not_late_for_its_sake() {
    let (mut queue, mut stamp, patience) = (Queue::default(), 0, 800);
    let all = &mut stamp;
    for (holder, at) in [(1, 1), (2, 9)] {
        let asked = request(holder, at, at + 1, Right::Exclusive);
        assert_eq!(queue.ask(asked, 0, all).granted.len(), 1);
    }
    // The first one keeps what is recalled, and waits for the second one, of whom it has it recalled later.
    queue.ask(request(3, 1, 2, Right::Exclusive), 100, all);
    let urgent = Request {
        urgent: true,
        ..request(1, 9, 10, Right::Exclusive)
    };
    queue.ask(
        Request {
            number: 7,
            ..urgent
        },
        150,
        all,
    );
    assert_eq!(queue.late(950, patience), BTreeSet::new());
    assert_eq!(queue.late(951, patience), BTreeSet::from([2]));
    // What it takes after that counts, with what it took before.
    let block = Range::one(9);
    let outcome = queue.release((2, block), (*all, false), 950, all);
    assert_eq!(outcome.granted.len(), 1);
    let ends = 950 + patience - 50 - 800 / 16;
    assert_eq!(queue.late(ends, patience), BTreeSet::new());
    assert_eq!(queue.late(ends + 1, patience), BTreeSet::from([1]));
}

#[test]
fn those_who_wait_for_one_another_are_late_in_the_end() {
    let (mut queue, mut stamp) = (Queue::default(), 0);
    for (number, urgent) in [(0, false), (1, true)] {
        for holder in [1, 2] {
            let at = u64::from(holder) + number;
            let asked = request(holder, at % 2, at % 2 + 1, Right::Exclusive);
            let asked = Request {
                number,
                urgent,
                ..asked
            };
            queue.ask(asked, 0, &mut stamp);
        }
    }
    assert_eq!(queue.late(15 * 800, 800), BTreeSet::new());
    assert_eq!(queue.late(17 * 800, 800), BTreeSet::from([1, 2]));
}

#[test]
fn a_release_ends_no_grant_that_its_sender_has_not_seen() {
    let (mut queue, mut stamp) = (Queue::default(), 0);
    queue.ask(request(1, 0, 4, Right::Exclusive), 0, &mut stamp);
    let seen = stamp;
    queue.ask(request(1, 6, 8, Right::Exclusive), 0, &mut stamp);
    queue.release(
        (1, Range { start: 0, end: 8 }),
        (seen, false),
        0,
        &mut stamp,
    );
    assert!(
        queue
            .locks()
            .holds(1, Range { start: 6, end: 8 }, Right::Exclusive)
    );
    assert!(
        queue
            .locks()
            .is_free(2, Range { start: 0, end: 4 }, Right::Exclusive)
    );
}

#[test]
fn a_release_ends_nothing_that_was_granted_again() {
    let mut locks = Locks::default();
    locks.grant(1, Range { start: 4, end: 8 }, Right::Exclusive, 1);
    locks.grant(1, Range { start: 2, end: 6 }, Right::Shared, 2);
    locks.release(1, Range { start: 4, end: 8 }, 1, false);
    assert!(locks.holds(1, Range { start: 2, end: 6 }, Right::Shared));
}

#[test]
fn a_wish_is_granted_where_nobody_is_in_the_way() {
    let (mut queue, mut stamp) = (Queue::default(), 0);
    let wish = Range { start: 0, end: 64 };
    let asked = Request {
        wish,
        ..request(1, 5, 6, Right::Exclusive)
    };
    assert_eq!(queue.ask(asked, 0, &mut stamp).granted[0].range, wish);
    let other = Request {
        wish,
        ..request(2, 7, 8, Right::Exclusive)
    };
    assert!(queue.ask(other, 0, &mut stamp).granted.is_empty());
    let free = queue.release((1, Range::one(7)), (stamp, false), 0, &mut stamp);
    assert_eq!(free.granted[0].range, Range::one(7));
}

/// Whatever is asked and given back: never two that conflict, and whoever waits gets its turn when all give back what they are asked for.
#[test]
fn nobody_waits_for_ever_and_nobody_gets_what_another_has() {
    for seed in 1..80 {
        let mut random = Random::new(seed);
        let (mut queue, mut stamp) = (Queue::<u8>::default(), 0);
        let mut asked = BTreeSet::new();
        let mut owed = Vec::new();
        for step in 0..400_u64 {
            let outcome = if step < 200 && random.chance(600) {
                let (holder, need) = (random.below(6) as u8, range(&mut random, BLOCKS));
                let right = right(&mut random);
                asked.insert((holder, step));
                queue.ask(
                    Request {
                        holder,
                        number: step,
                        need,
                        wish: need,
                        right,
                        urgent: false,
                    },
                    step,
                    &mut stamp,
                )
            } else if owed.is_empty() {
                continue;
            } else {
                let recall: super::Recall<u8> =
                    owed.swap_remove(random.below(owed.len() as u64) as usize);
                queue.release(
                    (recall.holder, recall.range),
                    (stamp, recall.keep),
                    step,
                    &mut stamp,
                )
            };
            for granted in &outcome.granted {
                assert!(
                    asked.remove(&(granted.holder, granted.number)),
                    "seed {seed}, step {step}: twice"
                );
                assert!(
                    queue
                        .locks()
                        .is_free(granted.holder, granted.range, Right::Shared),
                    "seed {seed}, step {step}"
                );
            }
            owed.extend(outcome.recalls);
            for holder in 0..6 {
                for piece in queue.locks().held(holder) {
                    assert!(
                        queue.locks().is_free(holder, piece.range, piece.right),
                        "seed {seed}, step {step}"
                    );
                }
            }
        }
        while let Some(recall) = owed.pop() {
            let freed = queue.release(
                (recall.holder, recall.range),
                (stamp, recall.keep),
                999,
                &mut stamp,
            );
            for granted in &freed.granted {
                assert!(
                    asked.remove(&(granted.holder, granted.number)),
                    "seed {seed}: twice"
                );
            }
            owed.extend(freed.recalls);
        }
        assert_eq!(
            (asked.len(), queue.waiting()),
            (0, 0),
            "seed {seed}: left waiting"
        );
    }
}
