//! The power goes while a store in a real file or device is worked on: an endless workload, and who judges what it has left.
//!
//! One test, in three parts. By itself it starts the workload as a process of its own, kills it, and judges. In an emulated machine (`scripts/test-vm.sh`)
//! `TEST_POWER=work` is the workload alone, until the machine is killed; `TEST_POWER=judge` is what the next start of the machine begins with.
//!
//! The workload says what it does, a line each, which ends in a dot: a line that was cut short says nothing.
//!
//! | line | from now on |
//! |---|---|
//! | `MAKING STORE SEED .` | there is the store that was there before, none, or a new one |
//! | `SYNCED STORE SEED COUNT .` | the store holds so many operations of this seed, or more |

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forebay_model::fresh_seed;

use super::crash::parts_of;
use super::drive::{Outcome, Pair, open, operations, replay, tree};
use super::model::{Model, Op};
use super::sim::Random;
use crate::check::check;
use crate::errno::OpenError;
use crate::medium::Mapped;
use crate::store::create_with;
use crate::types::CreateOptions;

/// Operations in each store; then it is made anew.
const OPERATIONS: usize = 300;
/// Bytes of a store in a file: never full.
const SIZE: u64 = 16 << 20;

/// The operations of a seed. All of a file's attributes find room in its block: what the model says does not depend on the store then.
fn workload(seed: u64) -> Vec<Op> {
    let mut ops = operations(seed, OPERATIONS, 60_000);
    for op in &mut ops {
        if let Op::SetAttribute { length, .. } = op {
            *length %= 400;
        }
    }
    ops
}

/// Makes stores and works on them until somebody ends the process, or something is wrong.
fn work(path: &Path, first_seed: u64) {
    let store = path.display();
    // The line that the test's name stands in ends here.
    println!();
    for seed in first_seed.. {
        println!("MAKING {store} {seed} .");
        if path.is_file() {
            // A new one has no blocks yet: who gives it some is to be durable too.
            std::fs::remove_file(path).expect("removed");
        }
        let options = CreateOptions {
            size: Some(SIZE),
            sparse: true,
            force: true,
            ..CreateOptions::default()
        };
        create_with(path, &options).expect("made");
        let medium = Mapped::open(path, true).expect("mapped");
        let mut pair = Pair::new(Arc::new(medium));
        println!("SYNCED {store} {seed} 0 .");
        for (number, op) in workload(seed).iter().enumerate() {
            let done = pair.step(op);
            assert_eq!(done, Ok(Outcome::Done), "seed {seed}, operation {number}");
            if matches!(op, Op::Sync | Op::Reopen) {
                println!("SYNCED {store} {seed} {} .", number + 1);
            }
        }
    }
}

/// What is wrong with what is left, if anything. `synced`: operations that must be there; `None` while the store was made.
fn judge(path: &Path, seed: u64, synced: Option<usize>) -> Result<(), String> {
    let in_order = || match check(path) {
        Ok(report) if report.is_clean() => Ok(()),
        Ok(report) => Err(format!("{:?}", report.findings)),
        Err(error) => Err(error.to_string()),
    };
    let Some(synced) = synced else {
        return match check(path) {
            Err(OpenError::NotAStore(_)) => Ok(()),
            _ if !path.exists() => Ok(()),
            _ => in_order(),
        };
    };
    in_order()?;
    let medium = Mapped::open(path, true).map_err(|error| error.to_string())?;
    let store = open(&Arc::new(medium)).map_err(|error| error.to_string())?;
    let found = tree(&store).map_err(|error| format!("the tree: {error}"))?;
    drop(store);
    in_order()?;
    let mut model = Model::new();
    for (number, op) in workload(seed).iter().enumerate() {
        if number >= synced {
            let parts = match op {
                Op::Window { .. } => parts_of(&model, op),
                _ => Vec::new(),
            };
            if model.tree() == found || parts.contains(&found) {
                return Ok(());
            }
        }
        replay(&mut model, op);
    }
    if synced <= OPERATIONS && model.tree() == found {
        return Ok(());
    }
    Err(format!(
        "a tree that never was after operation {synced}, or too old: {:?}",
        found
            .iter()
            .map(|(path, node)| (path, node.0, node.1, node.2.len()))
            .collect::<Vec<_>>()
    ))
}

/// Seed and count of a line of the workload's, if it is whole; no count while a store is made.
fn said(line: &str) -> Option<(u64, Option<usize>)> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["MAKING", _, seed, "."] => Some((seed.parse().ok()?, None)),
        ["SYNCED", _, seed, count, "."] => Some((seed.parse().ok()?, Some(count.parse().ok()?))),
        _ => None,
    }
}

fn given(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[test]
fn what_was_synced_is_there_after_the_end() {
    let path = given("TEST_STORE").unwrap_or_default();
    let seed = given("TEST_SEED").and_then(|seed| seed.parse().ok());
    match (given("TEST_POWER").as_deref(), seed) {
        (Some("work"), Some(seed)) => work(Path::new(&path), seed),
        (Some("judge"), Some(seed)) => {
            let synced = given("TEST_SYNCED").and_then(|count| count.parse().ok());
            assert_eq!(judge(Path::new(&path), seed, synced), Ok(()));
        }
        (Some(other), _) => panic!("TEST_POWER={other} without a seed, or nothing that there is"),
        (None, _) => {
            for seed in fresh_seed()..fresh_seed() + 6 {
                killed(seed);
            }
        }
    }
}

/// Kills the workload somewhere, and judges what it has left.
fn killed(seed: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    let mut random = Random::new(seed);
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "--nocapture"])
        .arg("tests::power::what_was_synced_is_there_after_the_end")
        .env("TEST_POWER", "work")
        .env("TEST_STORE", &path)
        .env("TEST_SEED", seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut until = random.below(60) + 1;
    let mut last = None;
    for line in lines.by_ref() {
        let Some(done) = said(&line.expect("a line")) else {
            continue;
        };
        last = Some(done);
        until -= 1;
        if until == 0 {
            // In the middle of something, not always at the end of a sync.
            std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
            child.kill().expect("killed");
            break;
        }
    }
    let status = child.wait().expect("ended");
    // What it had said meanwhile.
    for line in lines {
        last = said(&line.expect("a line")).or(last);
    }
    assert_eq!(status.code(), None, "seed {seed}: the workload has failed");
    let (store_seed, synced) = last.expect("at least a line");
    assert_eq!(judge(&path, store_seed, synced), Ok(()), "seed {seed}");
}

#[test]
fn who_judges_sees_what_is_too_old_and_what_never_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, old) = (folder.path().join("store"), folder.path().join("old"));
    let options = CreateOptions {
        size: Some(SIZE),
        ..CreateOptions::default()
    };
    create_with(&path, &options).expect("made");
    let mut pair = Pair::new(Arc::new(Mapped::open(&path, true).expect("mapped")));
    let ops = workload(1);
    let step = |pair: &mut Pair<Mapped>, number: usize| {
        assert_eq!(pair.step(&ops[number]), Ok(Outcome::Done), "{number}");
    };
    for number in 0..150 {
        step(&mut pair, number);
    }
    let before = pair.model.tree();
    assert_eq!(pair.step(&Op::Reopen), Ok(Outcome::Done));
    std::fs::copy(&path, &old).expect("copied");
    let mut count = 150;
    while count < 200 || pair.model.tree() == before {
        step(&mut pair, count);
        count += 1;
    }
    let file = pair.file().expect("a file");
    assert_eq!(pair.step(&Op::Reopen), Ok(Outcome::Done));
    drop(pair);
    assert_eq!(judge(&path, 1, Some(count)), Ok(()));
    assert_eq!(judge(&path, 1, Some(100)), Ok(()));
    assert_eq!(judge(&old, 1, Some(150)), Ok(()));
    assert!(judge(&old, 1, Some(count)).is_err(), "too old");
    let medium = Arc::new(Mapped::open(&path, true).expect("mapped"));
    let store = open(&medium).expect("opens");
    store.write(file, 3, b"x").expect("written");
    store.close().expect("closed");
    drop(medium);
    assert!(judge(&path, 1, Some(count)).is_err(), "it never was");
    assert!(judge(&path, 2, Some(0)).is_err(), "of another seed");
}
