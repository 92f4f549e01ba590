//! Crashes: a workload is recorded, and for each moment between two fences every state that memory may hold
//! (of many, a sample by seed) is opened, checked, and compared with the model.
//!
//! Each state must be the tree after some operation: at the least the last one that a sync has promised, at
//! the most the last one that was called. `check` must find nothing, before the store is opened and after.
//!
//! Canaries: with the flushes, fences or syncs of one kind left out, a loss must be found. A kind that could
//! be left out unnoticed would not be needed.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_model::fresh_seed;

use super::drive::{
    Outcome, Pair, content, faults, new_store, new_store_over, open, operations, small_options,
    small_store, tree,
};
use super::model::{Model, Op, Tree};
use super::sim::{Call, Course, Event, Explored, Image, Random, Simulated};
use crate::errno::OpenError;
use crate::layout::superblock::TAILS;
use crate::medium::{Durability, For, Medium};
use crate::store::make;
use crate::types::CreateOptions;

/// A workload, recorded: memory at its start, what happened to it, and the tree after each operation.
pub struct Recorded {
    pub start: Image,
    pub durability: Durability,
    pub events: Vec<Event>,
    pub trees: Vec<Tree>,
    /// Trees in the middle of an operation: of a write to a store that is nearly full, which is done in parts.
    pub parts: Vec<Vec<Tree>>,
    /// What was called to make something durable.
    pub calls: BTreeSet<(Call, For)>,
}

impl Recorded {
    /// Whether memory may hold this tree when so many operations are durable by promise, and so many called.
    pub fn allows(&self, tree: &Tree, durable: usize, called: usize) -> bool {
        let mut parts = self.parts[durable + 1..called.max(durable) + 1]
            .iter()
            .flatten();
        self.trees[durable..=called].contains(tree) || parts.any(|part| part == tree)
    }
}

/// What the model is when some of the pages of a write have been written.
pub fn parts_of(model: &Model, op: &Op) -> Vec<Tree> {
    let (file, start, length, fill) = match op {
        Op::Write {
            file,
            at,
            length,
            fill,
        }
        | Op::Window {
            file,
            at,
            length,
            fill,
        } => (model.file(*file), Some(*at as usize), *length, *fill),
        Op::Append { file, length, fill } => (model.file(*file), None, *length, *fill),
        _ => return Vec::new(),
    };
    let Some(file) = file else { return Vec::new() };
    let start = start.unwrap_or(model.nodes[&file].bytes.len());
    let bytes = content(fill, usize::from(length));
    let ends = (start / 4096 + 1..).map(|page| page * 4096 - start);
    let ends = ends.take_while(|end| *end < bytes.len());
    let part = |end: usize| {
        let mut model = model.clone();
        model.write(file, start, &bytes[..end]);
        model.tree()
    };
    ends.map(part).collect()
}

pub fn record(
    start: impl Into<Image>,
    durability: Durability,
    omitted: Option<(Call, For)>,
    ops: &[Op],
) -> Recorded {
    let start = start.into();
    let medium = Simulated::recording(start.clone(), durability, omitted);
    let mut pair = Pair::new(Arc::clone(&medium));
    let mut trees = vec![pair.model.tree()];
    let mut parts = vec![Vec::new()];
    let mut durable = 0;
    for (number, op) in ops.iter().enumerate() {
        let before = medium.events_count();
        medium.mark(number + 1, durable);
        // An operation of these workloads needs less.
        let nearly_full = pair.store().statfs().blocks_available < 16;
        parts.push(if nearly_full || matches!(op, Op::Window { .. }) {
            parts_of(&pair.model, op)
        } else {
            Vec::new()
        });
        let done = pair.step(op);
        assert!(done.is_ok(), "operation {number}: {done:?}");
        if done == Ok(Outcome::Full) {
            // What is written in part is not one of the model's states; the workload ends before it.
            let mut events = medium.events();
            events.truncate(before);
            return Recorded {
                start,
                durability,
                events,
                trees,
                parts,
                calls: medium.calls(),
            };
        }
        trees.push(pair.model.tree());
        if matches!(op, Op::Sync | Op::Reopen) {
            durable = number + 1;
        }
        medium.mark(number + 1, durable);
    }
    // A crash, not an end: what was not synced stays where it is.
    let events = medium.events();
    Recorded {
        start,
        durability,
        events,
        trees,
        parts,
        calls: medium.calls(),
    }
}

/// Opens everything that memory may hold between any two fences, or a sample where that is more than `limit` states; answers how many
/// there were, and the first that is wrong.
fn explore(recorded: &Recorded, limit: usize, seed: u64) -> (Explored, Option<String>) {
    explore_from(recorded, 0, limit, seed)
}

/// The same of the moments when so many operations have been called, or more.
pub fn explore_from(
    recorded: &Recorded,
    first: usize,
    limit: usize,
    seed: u64,
) -> (Explored, Option<String>) {
    let Image { bytes, gap } = recorded.start.clone();
    let mut course = Course::new(bytes, recorded.durability);
    let mut random = Random::new(seed);
    let (mut called, mut durable) = (0, 0);
    let (mut explored, mut wrong) = (Explored::default(), None);
    for (number, event) in recorded.events.iter().enumerate() {
        let last = number + 1 == recorded.events.len();
        let is_moment = matches!(event, Event::Fence { .. } | Event::Sync) || last;
        if is_moment && called >= first {
            explored += course.states(limit, &mut random, |bytes| {
                if wrong.is_none() {
                    let gap = gap.clone();
                    wrong = judge(Image { bytes, gap }, |tree| {
                        recorded.allows(tree, durable, called)
                    })
                    .map(|wrong| {
                        format!("event {number}, operations {durable} to {called}: {wrong}")
                    });
                }
            });
        }
        if wrong.is_some() {
            break;
        }
        course.event(event);
        if let Event::Mark {
            called: now,
            durable: promised,
        } = event
        {
            (called, durable) = (*now, *promised);
        }
    }
    (explored, wrong)
}

/// Puts everything that was stored over the bytes that were there: what a kill leaves.
pub fn store_all(seen: &mut [u8], events: &[Event]) {
    for event in events {
        if let Event::Store { at, bytes, .. } = event {
            seen[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// What is wrong with the store in these bytes, if anything.
pub fn judge(image: impl Into<Image>, allows: impl Fn(&Tree) -> bool) -> Option<String> {
    let medium = Simulated::new(image, Durability::Dax);
    let before = faults(&medium);
    if !before.is_empty() {
        return Some(format!("before it is opened: {before:?}"));
    }
    let store = match open(&medium) {
        Ok(store) => store,
        Err(error) => return Some(error.to_string()),
    };
    match tree(&store) {
        Err(error) => return Some(format!("the tree: {error}")),
        Ok(tree) if !allows(&tree) => {
            return Some("a tree that never was, or too old".to_string());
        }
        Ok(_) => {}
    }
    drop(store);
    let after = faults(&medium);
    (!after.is_empty()).then(|| format!("after it was opened: {after:?}"))
}

pub fn must_hold(
    start: impl Into<Image>,
    durability: Durability,
    ops: &[Op],
    limit: usize,
    seed: u64,
) -> Explored {
    let recorded = record(start, durability, None, ops);
    let (explored, wrong) = explore(&recorded, limit, seed);
    assert_eq!(wrong, None, "seed {seed}, {durability:?}");
    println!("{durability:?}: {explored:?}");
    explored
}

/// A file is made, written to, renamed and removed.
fn short_workload() -> Vec<Op> {
    vec![
        Op::Create { dir: 0, name: 0 },
        Op::Write {
            file: 0,
            at: 10,
            length: 30,
            fill: 1,
        },
        Op::Sync,
        Op::Write {
            file: 0,
            at: 0,
            length: 50,
            fill: 2,
        },
        Op::Sync,
        Op::Rename {
            dir: 0,
            name: 0,
            to: 0,
            new: 1,
            existing: 0,
        },
        Op::Sync,
        Op::Chmod {
            file: 0,
            mode: 0o600,
        },
        Op::Unlink { dir: 0, name: 1 },
        Op::Sync,
    ]
}

#[test]
fn a_short_workload_recovers_from_many_states() {
    for durability in [Durability::Dax, Durability::Fdatasync] {
        let explored = must_hold(small_store(), durability, &short_workload(), 1024, 1);
        assert!(explored.states > 1000, "{explored:?}");
    }
}

/// What comes before those changes that are explored whole: a file.
fn before_small_changes() -> Vec<Op> {
    vec![Op::Create { dir: 0, name: 0 }, Op::Reopen]
}

/// Changes of a few words, alone and two in one batch; the log begins anew between them.
fn small_changes() -> Vec<Op> {
    let mode = |mode| Op::Chmod { file: 0, mode };
    let owner = |uid| Op::Chown {
        file: 0,
        uid,
        gid: 7,
    };
    vec![
        mode(0o600),
        Op::Sync,
        mode(0o640),
        owner(5),
        Op::Sync,
        Op::Reopen,
        owner(6),
        Op::Sync,
        mode(0o600),
        Op::Reopen,
    ]
}

/// Enough for each moment of these changes.
const ALL: usize = 1 << 16;

#[test]
fn small_changes_recover_from_every_state() {
    // Words that are zeros there already are in fewer states.
    let start = new_store_over(0, 100, &small_options());
    let before = before_small_changes();
    let ops: Vec<Op> = before.iter().cloned().chain(small_changes()).collect();
    // Sectors are fewer than lines, and change as a whole.
    for (durability, least) in [(Durability::Dax, 5000), (Durability::Fdatasync, 20)] {
        let explored = |omitted| {
            let recorded = record(start.clone(), durability, omitted, &ops);
            explore_from(&recorded, before.len() + 1, ALL, 1)
        };
        let (all, wrong) = explored(None);
        assert_eq!(wrong, None, "{durability:?}");
        assert!(all.sampled == 0 && all.states > least, "{all:?}");
        println!("{durability:?}: {all:?}");
        let (_, wrong) = explored(Some((Call::Sync, For::Log)));
        assert!(wrong.is_some(), "{durability:?}: what is left out is found");
    }
}

#[test]
fn random_workloads_recover_from_states_by_chance() {
    for seed in (1..9).chain(fresh_seed()..fresh_seed() + 3) {
        for durability in [Durability::Dax, Durability::Fdatasync] {
            must_hold(
                small_store(),
                durability,
                &operations(seed, 60, 30_000),
                12,
                seed,
            );
        }
    }
}

#[test]
#[ignore = "long: many seeds"]
fn many_workloads_recover_from_states_by_chance() {
    for seed in fresh_seed()..fresh_seed() + 400 {
        for durability in [Durability::Dax, Durability::Fdatasync] {
            must_hold(
                small_store(),
                durability,
                &operations(seed, 120, 60_000),
                40,
                seed,
            );
        }
    }
}

/// A store whose log goes round several times, with bytes that are written over and directories that come and
/// go: a block that held metadata holds bytes soon after.
pub fn rounds() -> Vec<Op> {
    let round = |turn: u8| {
        [
            Op::Mkdir { dir: 0, name: 3 },
            Op::Create { dir: 1, name: turn },
            Op::Write {
                file: 0,
                at: u32::from(turn % 3) * 4096,
                length: 9000,
                fill: turn,
            },
            Op::Sync,
            Op::Write {
                file: 0,
                at: 100,
                length: 200,
                fill: turn.wrapping_add(9),
            },
            Op::Unlink { dir: 1, name: turn },
            Op::Rmdir { dir: 0, name: 3 },
            Op::Sync,
        ]
    };
    let first = [Op::Create { dir: 0, name: 5 }, Op::Sync];
    first.into_iter().chain((0..16).flat_map(round)).collect()
}

/// Windows over what is durable, over one another, across pages in part, beside views of what they replace.
fn windows() -> Vec<Op> {
    let round = |turn: u8| {
        let at = u32::from(turn % 5) * 1000;
        [
            Op::View {
                file: 0,
                at,
                length: 9000,
            },
            Op::Window {
                file: 0,
                at,
                length: 9000,
                fill: turn,
            },
            Op::Sync,
            Op::Window {
                file: 0,
                at: at + 500,
                length: 300,
                fill: turn.wrapping_add(9),
            },
            Op::Write {
                file: 0,
                at: 4000,
                length: 200,
                fill: turn.wrapping_add(20),
            },
            Op::Sync,
        ]
    };
    let first = [Op::Create { dir: 0, name: 5 }, Op::Sync];
    first.into_iter().chain((0..10).flat_map(round)).collect()
}

/// Records of two fifths of the log each: the next one begins where one is that the tail has just passed.
fn large_records() -> Vec<Op> {
    let making = (0..7).flat_map(|name| {
        [
            Op::Mkdir { dir: 0, name },
            Op::Create {
                dir: name + 1,
                name: 0,
            },
        ]
    });
    let below = [
        Op::Mkdir { dir: 1, name: 1 },
        Op::Create { dir: 8, name: 0 },
    ];
    let making: Vec<Op> = making.chain(below).collect();
    let removing = (1..9).map(|dir| Op::Unlink { dir, name: 0 });
    let removing = removing.chain([Op::Rmdir { dir: 1, name: 1 }]);
    let removing = removing.chain((0..7).map(|name| Op::Rmdir { dir: 0, name }));
    let again: Vec<Op> = removing.chain(making.clone()).chain([Op::Sync]).collect();
    let first = making.into_iter().chain([Op::Sync]);
    first.chain((0..5).flat_map(|_| again.clone())).collect()
}

#[test]
fn rounds_of_the_log_recover() {
    for durability in [Durability::Dax, Durability::Fdatasync] {
        must_hold(small_store(), durability, &rounds(), 8, 3);
        must_hold(small_store(), durability, &large_records(), 8, 3);
        must_hold(small_store(), durability, &windows(), 8, 3);
    }
}

/// Flushes, fences and syncs that are needed on each kind of medium.
pub const NEEDED: [(Durability, Call, For); 13] = [
    (Durability::Dax, Call::Fence, For::Data),
    (Durability::Dax, Call::Flush, For::Window),
    (Durability::Dax, Call::Sync, For::Data),
    (Durability::Dax, Call::Sync, For::Log),
    (Durability::Dax, Call::Flush, For::Home),
    (Durability::Dax, Call::Fence, For::Home),
    (Durability::Dax, Call::Flush, For::Tail),
    (Durability::Dax, Call::FlushOf(TAILS[0]), For::Tail),
    (Durability::Dax, Call::Sync, For::Tail),
    (Durability::Fdatasync, Call::Sync, For::Data),
    (Durability::Fdatasync, Call::Sync, For::Log),
    (Durability::Fdatasync, Call::Sync, For::Home),
    (Durability::Fdatasync, Call::Sync, For::Tail),
];

/// Whether a loss is found in one of these workloads, where a call is left out.
pub fn is_missed(durability: Durability, left_out: (Call, For), limit: usize, seed: u64) -> bool {
    workloads().iter().any(|ops| {
        let recorded = record(small_store(), durability, Some(left_out), ops);
        explore(&recorded, limit, seed).1.is_some()
    })
}

/// All that a store in use calls, these call.
pub fn workloads() -> [Vec<Op>; 3] {
    [rounds(), large_records(), windows()]
}

#[test]
fn a_missing_flush_fence_or_sync_is_found() {
    for (durability, call, purpose) in NEEDED {
        let found = (0..6).any(|seed| is_missed(durability, (call, purpose), 24, seed));
        assert!(found, "{durability:?}: {call:?} for {purpose:?}");
    }
}

/// Memory may hold no store, or a new one, while one is made; afterwards it holds one.
pub fn create_fault(
    durability: Durability,
    omitted: Option<(Call, For)>,
    seed: u64,
) -> Option<String> {
    // Over a store that was there, whose blocks would look right.
    let start = small_store();
    let old = start.clone();
    let medium = Simulated::recording(start.clone(), durability, omitted);
    let done = make(Arc::clone(&medium) as Arc<dyn Medium>, &small_options());
    assert!(done.is_ok(), "{done:?}");
    medium.mark(1, 1);
    medium.mark(1, 1);
    let new = medium.bytes();
    let is_marked = |bytes: &[u8]| {
        [0..4096, 4096..8192]
            .into_iter()
            .any(|copy| bytes[copy.clone()] == new[copy])
    };
    let mut course = Course::new(start, durability);
    let (mut made, mut wrong) = (false, None);
    for event in medium.events() {
        if matches!(event, Event::Fence { .. } | Event::Sync) || made {
            course.states(200, &mut Random::new(seed), |bytes| {
                let medium = Simulated::new(bytes, Durability::Dax);
                let opened = open(&medium);
                let none = matches!(opened, Err(OpenError::NotAStore(_) | OpenError::Damaged(_)));
                let untouched = medium.bytes() == old;
                // With its superblock it is a new store, and in order.
                if !made && (untouched || none && !is_marked(&medium.bytes())) {
                    return;
                }
                drop(opened);
                let mut faults = faults(&medium);
                // Between the two copies of the superblock.
                faults.retain(|fault| made || !fault.contains("superblock in block"));
                if !faults.is_empty() {
                    wrong.get_or_insert(format!("{faults:?}"));
                }
            });
        }
        made |= matches!(event, Event::Mark { .. });
        course.event(&event);
    }
    wrong
}

/// What is needed while a store is made.
pub const NEEDED_TO_MAKE: [(Durability, Call, For); 9] = [
    (Durability::Dax, Call::Sync, For::Unmark),
    (Durability::Dax, Call::Flush, For::Home),
    (Durability::Dax, Call::Fence, For::Home),
    (Durability::Dax, Call::Flush, For::Tail),
    (Durability::Dax, Call::Sync, For::Create),
    (Durability::Dax, Call::Sync, For::Mark),
    (Durability::Fdatasync, Call::Sync, For::Unmark),
    (Durability::Fdatasync, Call::Sync, For::Create),
    (Durability::Fdatasync, Call::Sync, For::Mark),
];

#[test]
fn a_crash_while_a_store_is_made_leaves_none_or_a_new_one() {
    for durability in [Durability::Dax, Durability::Fdatasync] {
        assert_eq!(create_fault(durability, None, 1), None);
    }
    for (durability, call, purpose) in NEEDED_TO_MAKE {
        let found =
            (0..8).any(|seed| create_fault(durability, Some((call, purpose)), seed).is_some());
        assert!(found, "{durability:?}: {call:?} for {purpose:?}");
    }
}

#[test]
fn a_larger_store_recovers() {
    let options = CreateOptions {
        log_blocks: Some(40),
        ..CreateOptions::default()
    };
    must_hold(
        new_store(600, &options),
        Durability::Dax,
        &operations(77, 120, 200_000),
        3,
        77,
    );
}

/// A batch that so many changes fill nearly; the last operation changes many lines of a block that the batch has already, and
/// may be one too many for it. No sync comes before it.
fn full_batch(changes: u8) -> Vec<Op> {
    let write = |at: u32, length: u16| Op::Write {
        file: 0,
        at,
        length,
        fill: 7,
    };
    let made = (0..6).map(|name| Op::Create { dir: 0, name });
    let long = (0..25).map(|part| write(part * 65_000, 65_000));
    let nearly = (0..7).flat_map(|name| {
        let dir = name + 2;
        [Op::Mkdir { dir: 1, name }, Op::Create { dir, name: 0 }]
    });
    let more = [
        Op::Mkdir { dir: 2, name: 1 },
        Op::Create { dir: 9, name: 0 },
        Op::Mkdir { dir: 2, name: 2 },
        Op::Create { dir: 10, name: 0 },
    ];
    let changed = (0..changes).map(|file| Op::Chmod { file, mode: 0o640 });
    let below = [Op::Mkdir { dir: 0, name: 6 }, Op::Sync];
    made.chain(long)
        .chain(below)
        .chain([write(1_600_000, 9)])
        .chain(nearly)
        .chain(more)
        .chain(changed)
        .chain([Op::Truncate {
            file: 0,
            size: 60_000,
        }])
        .collect()
}

#[test]
fn batches_that_fill_the_log_recover() {
    let options = CreateOptions {
        inodes: Some(200),
        log_blocks: Some(24),
        ..CreateOptions::default()
    };
    for durability in [Durability::Dax, Durability::Fdatasync] {
        for changes in 0..7 {
            must_hold(
                new_store(600, &options),
                durability,
                &full_batch(changes),
                8,
                5,
            );
        }
    }
}
