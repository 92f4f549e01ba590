//! Crashes while a batch is persisted and others go on: an operation comes before each of a commit's stores, flushes, fences and
//! syncs, for each in turn, and what memory may hold after a crash is judged as in `crash`.
//!
//! What is called in the middle of a commit belongs to the next batch: it may be there after a crash only as a whole, and
//! only where all before it is. The commit promises what was called before it, and the next sync the rest.
//!
//! Canaries: a block that the next batch writes in place while the batch that has it is persisted, and a freed block that is used again
//! before the record that frees it is durable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_model::fresh_seed;

use super::crash::{Recorded, explore_from, parts_of};
use super::drive::{Outcome, Pair, operations, small_store};
use super::model::{Op, Tree};
use super::sim::{Explored, Simulated};
use super::watched::Watched;
use crate::medium::Durability;

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    /// The next batch stores into blocks of the one that is persisted.
    InPlace,
    /// Blocks of bytes are free as soon as the batch is collected that frees them.
    Early,
}

/// What is done: before a commit, in the middle of it, and after it.
#[derive(Clone, Debug)]
struct Scene {
    before: Vec<Op>,
    during: Vec<Op>,
    after: Vec<Op>,
    /// Whether the commit empties the log as well.
    truncate: bool,
}

/// A store, its model, and what is recorded of both.
struct Recorder {
    simulated: Arc<Simulated>,
    pair: Pair<Watched>,
    trees: Vec<Tree>,
    parts: Vec<Vec<Tree>>,
    durable: usize,
}

impl Recorder {
    fn new(start: &[u8], durability: Durability) -> Self {
        let simulated = Simulated::recording(start.to_vec(), durability, None);
        let pair = Pair::new(Watched::new(Arc::clone(&simulated)));
        Self {
            trees: vec![pair.model.tree()],
            parts: vec![Vec::new()],
            simulated,
            pair,
            durable: 0,
        }
    }

    /// Operations that have been called.
    fn called(&self) -> usize {
        self.trees.len() - 1
    }

    /// Does an operation. Answers whether there was room for it.
    fn step(&mut self, op: &Op) -> bool {
        self.simulated.mark(self.called() + 1, self.durable);
        self.parts.push(match op {
            Op::Window { .. } => parts_of(&self.pair.model, op),
            _ => Vec::new(),
        });
        let done = self.pair.step(op);
        assert!(done.is_ok(), "{op:?}: {done:?}");
        self.trees.push(self.pair.model.tree());
        if matches!(op, Op::Sync | Op::Reopen) {
            self.promise(self.called());
        }
        done == Ok(Outcome::Done)
    }

    fn promise(&mut self, durable: usize) {
        self.durable = durable;
        self.simulated.mark(self.called(), durable);
    }

    /// Whether an operation in the middle of a commit needs no other commit, for which nobody could wait there.
    fn has_room(&self) -> bool {
        self.pair.store().statfs().blocks_available >= 16
    }
}

fn lock(recorder: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a scene in which the middle comes before this step of the commit. Answers what was recorded and how many operations came before
/// the commit, or nothing where the commit has fewer steps, or the store no room.
fn record(
    start: &[u8],
    durability: Durability,
    scene: &Scene,
    step: u64,
    planted: Option<Planted>,
) -> Option<(Recorded, usize)> {
    let recorder = Arc::new(Mutex::new(Recorder::new(start, durability)));
    for op in &scene.before {
        if !lock(&recorder).step(op) {
            return None;
        }
    }
    let (before, medium, commit, fresh) = {
        let recorder = lock(&recorder);
        let store = recorder.pair.store();
        if !recorder.has_room() {
            return None;
        }
        if planted == Some(Planted::Early) {
            store.with_state(|state| state.plant_early_bytes());
        }
        let fresh = store.with_state(|state| state.fresh_runs());
        let commit = store.committer(scene.truncate);
        let medium = Arc::clone(&recorder.pair.medium);
        (recorder.called(), medium, commit, fresh)
    };
    let (others, during) = (Arc::clone(&recorder), scene.during.clone());
    medium.before_step(
        step,
        Box::new(move || {
            let mut others = lock(&others);
            if planted == Some(Planted::InPlace) {
                let store = others.pair.store();
                store.with_state(|state| state.plant_fresh(&fresh));
            }
            for op in &during {
                assert!(others.step(op), "{op:?}: room in the middle of a commit");
            }
        }),
    );
    assert_eq!(commit(), Ok(()));
    if medium.take_work().is_some() {
        return None;
    }
    let mut recorder = lock(&recorder);
    recorder.promise(before);
    for op in &scene.after {
        if !recorder.step(op) {
            break;
        }
    }
    let recorded = Recorded {
        start: start.to_vec().into(),
        durability,
        events: recorder.simulated.events(),
        trees: std::mem::take(&mut recorder.trees),
        parts: std::mem::take(&mut recorder.parts),
        calls: recorder.simulated.calls(),
    };
    Some((recorded, before))
}

/// What was seen of a scene with its middle before each step of the commit in turn: steps, states, and the first that is wrong.
fn explore(
    durability: Durability,
    scene: &Scene,
    limit: usize,
    planted: Option<Planted>,
) -> (u64, Explored, Option<String>) {
    let start = small_store();
    let mut explored = Explored::default();
    for step in 0.. {
        let recorded = record(&start, durability, scene, step, planted);
        let Some((recorded, before)) = recorded else {
            return (step, explored, None);
        };
        // Until the middle comes, all is as it is without.
        let (states, wrong) = explore_from(&recorded, before + 1, limit, step);
        explored += states;
        if let Some(wrong) = wrong {
            let wrong = format!("{:?} before step {step}: {wrong}", scene.during);
            return (step, explored, Some(wrong));
        }
    }
    unreachable!("commits end")
}

fn window(file: u8, at: u32, length: u16, fill: u8) -> Op {
    Op::Window {
        file,
        at,
        length,
        fill,
    }
}

fn write(file: u8, at: u32, length: u16, fill: u8) -> Op {
    Op::Write {
        file,
        at,
        length,
        fill,
    }
}

/// Two files are durable; then the second is removed, a third one comes, the first gets a window, and a directory goes.
fn before() -> Vec<Op> {
    vec![
        Op::Create { dir: 0, name: 0 },
        write(0, 0, 4096, 1),
        Op::Create { dir: 0, name: 1 },
        write(1, 0, 8192, 2),
        Op::Mkdir { dir: 0, name: 2 },
        Op::Create { dir: 1, name: 0 },
        Op::Sync,
        Op::Unlink { dir: 1, name: 0 },
        Op::Rmdir { dir: 0, name: 2 },
        Op::Unlink { dir: 0, name: 1 },
        Op::Create { dir: 0, name: 3 },
        write(1, 10, 300, 3),
        window(0, 12_288, 500, 4),
    ]
}

/// Pages behind the first one of a file, whose neighbours are what the removed file had.
fn beside_the_freed() -> Vec<Op> {
    vec![write(0, 4096, 8192, 6)]
}

/// A page that the batch has, and something before it in the next one.
fn over_the_batch() -> Vec<Op> {
    vec![Op::Create { dir: 0, name: 4 }, write(1, 0, 300, 5)]
}

/// What others do in the middle of a commit.
fn middles() -> Vec<Vec<Op>> {
    let create = |name| Op::Create { dir: 0, name };
    let unlink = |name| Op::Unlink { dir: 0, name };
    vec![
        beside_the_freed(),
        over_the_batch(),
        vec![write(1, 0, 1000, 5)],
        // One that is durable.
        vec![write(0, 0, 4096, 5)],
        // A new file.
        vec![create(4), write(2, 0, 5000, 7)],
        // What the batch has just stored is freed, and something takes blocks.
        vec![unlink(3)],
        vec![unlink(3), create(4), write(1, 0, 9000, 8)],
        vec![
            Op::Truncate { file: 0, size: 100 },
            write(0, 12_000, 900, 9),
        ],
        vec![Op::Rename {
            dir: 0,
            name: 3,
            to: 0,
            new: 0,
            existing: 0,
        }],
        // Over the window, beside a view of it.
        vec![
            Op::View {
                file: 0,
                at: 12_288,
                length: 500,
            },
            window(0, 12_300, 400, 10),
        ],
        vec![
            Op::Mkdir { dir: 0, name: 2 },
            Op::Create { dir: 1, name: 6 },
        ],
    ]
}

fn scene(during: &[Op], truncate: bool) -> Scene {
    Scene {
        before: before(),
        during: during.to_vec(),
        after: vec![
            Op::Create { dir: 0, name: 6 },
            write(0, 0, 13_000, 11),
            Op::Sync,
        ],
        truncate,
    }
}

/// Every middle before every step, of commits that end with the log and of others in turn.
#[test]
fn what_others_do_in_the_middle_of_a_commit_recovers() {
    for durability in [Durability::Dax, Durability::Fdatasync] {
        let (mut steps, mut explored) = (0, Explored::default());
        for (number, during) in middles().iter().enumerate() {
            let scene = scene(during, number % 2 == 0);
            let (more, states, wrong) = explore(durability, &scene, 2, None);
            assert_eq!(wrong, None, "{durability:?}");
            steps += more;
            explored += states;
        }
        assert!(steps > 200, "{steps} steps");
        println!("{durability:?}: before each of {steps} steps: {explored:?}");
    }
}

#[test]
fn a_block_that_two_batches_have_is_found() {
    for (planted, during) in [
        (Planted::InPlace, over_the_batch()),
        (Planted::Early, beside_the_freed()),
    ] {
        for durability in [Durability::Dax, Durability::Fdatasync] {
            let (step, _, wrong) = explore(durability, &scene(&during, true), 8, Some(planted));
            let wrong = wrong.unwrap_or_default();
            let is_torn = wrong.contains("a tree that never was");
            assert!(is_torn, "{planted:?}, {durability:?}, step {step}: {wrong}");
        }
    }
}

#[test]
#[ignore = "long: more states, and many seeds"]
fn many_things_in_the_middle_of_a_commit_recover() {
    for durability in [Durability::Dax, Durability::Fdatasync] {
        for during in middles() {
            for truncate in [false, true] {
                let (_, _, wrong) = explore(durability, &scene(&during, truncate), 12, None);
                assert_eq!(wrong, None, "{durability:?}");
            }
        }
        let mut commits = 0;
        for seed in fresh_seed()..fresh_seed() + 40 {
            commits += usize::from(by_chance(durability, seed));
        }
        assert!(commits > 20, "{durability:?}: {commits} commits with room");
    }
}

/// Operations by chance, with a commit of which each step has some before it. Whether there was room for them.
fn by_chance(durability: Durability, seed: u64) -> bool {
    let mut ops = operations(seed, 50, 12_000);
    let mut during = ops.split_off(20);
    let after = during.split_off(4);
    during.retain(|op| !matches!(op, Op::Sync | Op::Reopen));
    let scene = Scene {
        before: ops,
        during,
        after,
        truncate: seed.is_multiple_of(2),
    };
    let (steps, _, wrong) = explore(durability, &scene, 4, None);
    assert_eq!(wrong, None, "seed {seed}, {durability:?}");
    steps > 0
}
