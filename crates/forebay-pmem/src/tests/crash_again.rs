//! Crashes while a store recovers: it is opened in what a first crash has left, and memory may hold any state between two fences of that.
//!
//! The first crash may also be a kill, or an error of the medium, which leaves in the kernel's page cache what memory does not hold.
//!
//! Recovery decides nothing that the first crash has not decided. So each state of the second one has the tree that the first recovery had.
//!
//! Canaries: with one kind of flush or sync left out of the recovery, a loss must be found.

use std::sync::Arc;

use forebay_model::fresh_seed;

use super::crash::{judge, record, rounds};
use super::drive::{open, operations, small_store, tree};
use super::model::{Op, Tree};
use super::sim::{Call, Course, Event, Random, Simulated};
use crate::medium::{Durability, For};

/// States of each moment of the first crash, and of the second.
const LIMITS: (usize, usize) = (2, 4);

/// Whether two crashes leave what one does, for a workload; how many second ones there were.
pub fn explore(
    durability: Durability,
    omitted: Option<(Call, For)>,
    ops: &[Op],
    seed: u64,
) -> (usize, Option<String>) {
    let recorded = record(small_store(), durability, None, ops);
    let mut course = Course::new(recorded.start.bytes.clone(), durability);
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
    let course = Course::new(bytes, durability);
    let allows = |tree: &Tree| *tree == first;
    cut_everywhere(&events, course, random, count, allows, &first)
}

/// What is wrong with what memory may hold in the course of an opening, if anything: it has something that is allowed at each cut, and what was
/// opened once all is done.
fn cut_everywhere(
    events: &[Event],
    mut course: Course,
    random: &mut Random,
    count: &mut usize,
    allows: impl Fn(&Tree) -> bool,
    opened: &Tree,
) -> Option<String> {
    let mut wrong = None;
    for (number, event) in events.iter().enumerate() {
        if matches!(event, Event::Fence { .. } | Event::Sync) {
            course.states(LIMITS.1, random, |bytes| {
                *count += 1;
                if wrong.is_none() {
                    let found = judge(bytes, &allows);
                    wrong = found.map(|wrong| format!("event {number} of the opening: {wrong}"));
                }
            });
        }
        course.event(event);
    }
    // What its last words have left, which no fence follows.
    course.states(LIMITS.1, random, |bytes| {
        *count += 1;
        if wrong.is_none() {
            wrong = judge(bytes, |tree| tree == opened);
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

/// What is needed in a recovery from what a crash has left.
pub const NEEDED: [(Durability, Call, For); 3] = [
    (Durability::Dax, Call::Flush, For::Home),
    (Durability::Dax, Call::Fence, For::Home),
    (Durability::Fdatasync, Call::Sync, For::Home),
];

/// What is needed besides where a process was killed, or its sync has failed.
pub const NEEDED_AFTER_A_PROCESS: (Call, For) = (Call::Sync, For::Log);

#[test]
fn what_is_missing_in_a_recovery_is_found() {
    for (durability, call, purpose) in NEEDED {
        let found = (0..6).any(|seed| {
            explore(durability, Some((call, purpose)), &rounds(), seed)
                .1
                .is_some()
        });
        assert!(found, "{durability:?}: {call:?} for {purpose:?}");
    }
}

/// What ends the first process, which is not the power.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// It is killed: all that it has stored is there for the next one, and comes to memory sooner or later.
    Killed,
    /// A sync fails, and it is closed: what it has stored is there for the next one, and the kernel takes it for written.
    Failed,
}

/// Ends the first process at one of `stride` of its steps, by chance, opens the store again, and cuts the power at any moment of that; how many cuts there
/// were, and what is wrong.
fn open_again(
    (durability, end, stride): (Durability, End, usize),
    omitted: Option<(Call, For)>,
    ops: &[Op],
    seed: u64,
) -> (usize, Option<String>) {
    let recorded = record(small_store(), durability, None, ops);
    let mut course = Course::new(recorded.start.bytes.clone(), durability);
    let mut seen = recorded.start.bytes.clone();
    let mut random = Random::new(seed);
    let (mut called, mut durable, mut count) = (0, 0, 0);
    for (number, event) in recorded.events.iter().enumerate() {
        let mut courses = Vec::new();
        match end {
            _ if random.below(stride) > 0 => {}
            End::Killed if !matches!(event, Event::Mark { .. }) => {
                let mut killed = course.clone();
                killed.killed();
                courses.push(killed);
            }
            End::Failed if matches!(event, Event::Sync) => {
                let limit = LIMITS.0;
                course.states(limit, &mut random, |held| {
                    courses.push(Course::new(held, durability));
                });
            }
            _ => {}
        }
        for course in courses {
            let medium = Simulated::recording(seen.clone(), durability, omitted);
            let allows = |tree: &Tree| recorded.allows(tree, durable, called);
            let wrong = power_after(&medium, course, allows, &mut random, &mut count);
            if let Some(wrong) = wrong {
                return (count, Some(format!("event {number}: {wrong}")));
            }
        }
        course.event(event);
        match event {
            Event::Store { at, bytes, .. } => seen[*at..*at + bytes.len()].copy_from_slice(bytes),
            Event::Mark {
                called: now,
                durable: promised,
            } => (called, durable) = (*now, *promised),
            _ => {}
        }
    }
    (count, None)
}

/// What is wrong with what memory may hold in the course of an opening, if anything. When that is done, it has what was opened.
fn power_after(
    medium: &Arc<Simulated>,
    course: Course,
    allows: impl Fn(&Tree) -> bool,
    random: &mut Random,
    count: &mut usize,
) -> Option<String> {
    let store = match open(medium) {
        Ok(store) => store,
        Err(error) => return Some(error.to_string()),
    };
    let events = medium.events();
    let opened = match tree(&store) {
        Ok(tree) => tree,
        Err(error) => return Some(error.to_string()),
    };
    if !allows(&opened) {
        return Some("opened as it never was, or too old".to_string());
    }
    drop(store);
    cut_everywhere(&events, course, random, count, allows, &opened)
}

const ENDS: [(Durability, End); 3] = [
    (Durability::Dax, End::Killed),
    (Durability::Fdatasync, End::Killed),
    (Durability::Fdatasync, End::Failed),
];

#[test]
fn what_is_opened_after_a_kill_or_an_error_outlives_the_power() {
    for (durability, end) in ENDS {
        let every = (durability, end, 1);
        let (count, wrong) = open_again(every, None, &rounds()[..18], 5);
        assert_eq!(wrong, None, "{durability:?}, {end:?}");
        assert!(count > 100, "{durability:?}, {end:?}: {count} cuts");
        for seed in (1..3).chain(fresh_seed()..fresh_seed() + 1) {
            let stride = match end {
                End::Killed => 24,
                End::Failed => 1,
            };
            let some = (durability, end, stride);
            let (_, wrong) = open_again(some, None, &operations(seed, 20, 30_000), seed);
            assert_eq!(wrong, None, "seed {seed}, {durability:?}, {end:?}");
        }
    }
}

#[test]
fn a_log_that_is_not_made_durable_at_the_opening_is_found() {
    for (durability, end) in ENDS {
        let found = (0..6).any(|seed| {
            let omitted = Some(NEEDED_AFTER_A_PROCESS);
            open_again((durability, end, 1), omitted, &rounds()[..18], seed)
                .1
                .is_some()
        });
        assert!(found, "{durability:?}, {end:?}");
    }
}
