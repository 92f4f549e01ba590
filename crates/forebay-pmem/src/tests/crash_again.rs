//! Crashes while a store recovers: it is opened in what a first crash has left, and memory may hold any state between two fences of that.
//!
//! Recovery decides nothing that the first crash has not decided. So each state of the second one has the tree that the first recovery had.
//!
//! Canaries: with one kind of flush or sync left out of the recovery, a loss must be found.

use forebay_model::fresh_seed;

use super::crash::{judge, record, rounds};
use super::drive::{open, operations, small_store, tree};
use super::model::{Op, Tree};
use super::sim::{Call, Course, Event, Random, Simulated};
use crate::medium::{Durability, For};

/// States of each moment of the first crash, and of the second.
const LIMITS: (usize, usize) = (2, 4);

/// Whether two crashes leave what one does, for a workload; how many second ones there were.
fn explore(
    durability: Durability,
    omitted: Option<(Call, For)>,
    ops: &[Op],
    seed: u64,
) -> (usize, Option<String>) {
    let recorded = record(small_store(), durability, None, ops);
    let mut course = Course::new(recorded.start.clone(), durability);
    let mut random = Random::new(seed);
    let (mut count, mut wrong) = (0, None);
    for (number, event) in recorded.events.iter().enumerate() {
        if matches!(event, Event::Fence { .. } | Event::Sync) {
            let mut again = Random::new(seed + number as u64);
            course.states(LIMITS.0, &mut random, |bytes| {
                if wrong.is_none() {
                    let found = crash_again(bytes, durability, omitted, &mut again, &mut count);
                    wrong = found.map(|wrong| format!("event {number}: {wrong}"));
                }
            });
        }
        course.event(event);
    }
    (count, wrong)
}

fn crash_again(
    bytes: Vec<u8>,
    durability: Durability,
    omitted: Option<(Call, For)>,
    random: &mut Random,
    count: &mut usize,
) -> Option<String> {
    let medium = Simulated::recording(bytes.clone(), durability, omitted);
    let store = match open(&medium) {
        Ok(store) => store,
        Err(error) => return Some(error.to_string()),
    };
    let first: Tree = match tree(&store) {
        Ok(tree) => tree,
        Err(error) => return Some(error.to_string()),
    };
    // Before it closes: a crash, not an end.
    let events = medium.events();
    drop(store);
    let mut course = Course::new(bytes, durability);
    let mut wrong = None;
    for (number, event) in events.iter().enumerate() {
        if matches!(event, Event::Fence { .. } | Event::Sync) {
            course.states(LIMITS.1, random, |bytes| {
                *count += 1;
                if wrong.is_none() {
                    let found = judge(bytes, |tree| *tree == first);
                    wrong = found.map(|wrong| format!("event {number} of the recovery: {wrong}"));
                }
            });
        }
        course.event(event);
    }
    // What the last words of the recovery have left, which no fence follows.
    course.states(LIMITS.1, random, |bytes| {
        *count += 1;
        if wrong.is_none() {
            wrong = judge(bytes, |tree| *tree == first);
        }
    });
    wrong
}

#[test]
fn a_second_crash_leaves_what_the_first_has_left() {
    for durability in [Durability::Dax, Durability::Fdatasync] {
        let (count, wrong) = explore(durability, None, &rounds(), 5);
        assert_eq!(wrong, None, "{durability:?}");
        assert!(count > 100, "{durability:?}: {count} second crashes");
        for seed in (1..3).chain(fresh_seed()..fresh_seed() + 1) {
            let (_, wrong) = explore(durability, None, &operations(seed, 40, 30_000), seed);
            assert_eq!(wrong, None, "seed {seed}, {durability:?}");
        }
    }
}

#[test]
fn what_is_missing_in_a_recovery_is_found() {
    for (durability, call, purpose) in [
        (Durability::Dax, Call::Flush, For::Home),
        (Durability::Dax, Call::Fence, For::Home),
        (Durability::Fdatasync, Call::Sync, For::Home),
    ] {
        let found = (0..6).any(|seed| {
            explore(durability, Some((call, purpose)), &rounds(), seed)
                .1
                .is_some()
        });
        assert!(found, "{durability:?}: {call:?} for {purpose:?}");
    }
}
