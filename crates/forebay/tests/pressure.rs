//! A session gives memory back before a cgroup's limit is reached, and takes it again afterwards.
//!
//! The keeper is a worker in a cgroup; others in that cgroup take memory until little is left.
#![cfg(feature = "sim")]

mod common;
mod disks;
mod here;
mod workers;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use disks::Group;
use forebay::Session;
use forebay::limits::BLOCK_BYTES;
use forebay::sim::Bug;
use forebay::sync::Ordering;
use forebay_model::Op;
use workers::{Spec, Work, Worker, arena_path, config, is_found, session_name};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 192 * MIB;
const BUDGET: u64 = 128 * MIB;
/// What the session holds before others come.
const HELD: u64 = 80 * MIB;
/// Longer than a keeper needs that looks twice a second, and takes back an eighth each time.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same of one that is known to do nothing.
const SHORT_PATIENCE: Duration = Duration::from_secs(10);

/// Memory that others hold: a file of a tmpfs, written from within the group.
struct Ballast {
    path: PathBuf,
}

impl Ballast {
    /// Takes memory bit by bit, until little enough is left for the session to notice, and more than nothing.
    fn new(group: &Group) -> Ballast {
        let path = Path::new("/dev/shm").join(disks::unique("ballast"));
        let more = format!(
            "echo 0 > {} && head -c 2M /dev/zero >> {}",
            group.door().display(),
            path.display()
        );
        let ballast = Ballast { path };
        while group.memory_used() < LIMIT / 100 * 93 {
            let status = Command::new("sh").args(["-c", &more]).status();
            assert!(status.is_ok_and(|status| status.success()), "{more}");
            // What the processes themselves held is given back a moment later.
            std::thread::sleep(Duration::from_millis(20));
        }
        ballast
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What a session may have, and has: frames, frames, and bytes behind the arena's file.
fn memory(session: &Session, arena: &Path) -> (u32, u32, u64) {
    let superblock = session.shared().arena.superblock();
    (
        superblock.frames_max.load(Ordering::Relaxed),
        superblock.frames_backed.load(Ordering::Relaxed),
        std::fs::metadata(arena).expect("an arena").blocks() * 512,
    )
}

/// The same once the keeper has made ready what it wants to have at hand.
fn at_rest(session: &Session, arena: &Path) -> (u32, u32, u64) {
    let mut last = memory(session, arena);
    wait_for("at rest", || {
        std::thread::sleep(Duration::from_millis(300));
        let now = memory(session, arena);
        let rests = now == last;
        last = now;
        rests.then_some(()).ok_or_else(|| format!("{now:?}"))
    });
    last
}

fn wait_for(what: &str, is_so: impl FnMut() -> Result<(), String>) {
    wait_within(PATIENCE, what, is_so);
}

fn wait_within(most: Duration, what: &str, mut is_so: impl FnMut() -> Result<(), String>) {
    let begun = Instant::now();
    while let Err(why) = is_so() {
        assert!(begun.elapsed() < most, "not {what}: {why}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn shrinks_and_grows(group: &Group, patience: Duration) {
    let dir = here::directory();
    let name = session_name("pressure");
    let mut spec = Spec::new(&name, dir.path(), true, Work::Commands { files: 1 });
    spec.memory = Some(BUDGET);
    let mut worker = Worker::start_with(&spec, |command| group.enter(command));
    worker.await_ready();
    for index in 0..HELD / MIB {
        let op = Op::Write {
            file: 0,
            handle: 0,
            offset: index * MIB,
            len: MIB as u32,
            seed: 1,
        };
        assert_eq!(worker.run(&op), format!("{MIB} bytes written"));
    }
    assert_eq!(worker.run(&Op::SyncAll { file: 0, handle: 0 }), "done");

    let arena = arena_path(&config(&name));
    let session = Session::join(config(&name)).expect("the worker's session");
    let before = at_rest(&session, &arena);
    let ballast = Ballast::new(group);
    // The least that was seen of each: where the pressure has gone, more is taken again.
    let mut least = before;
    wait_within(patience, "smaller", || {
        let now = memory(&session, &arena);
        least = (least.0.min(now.0), least.1.min(now.1), least.2.min(now.2));
        let fell = least.0 < before.0 && least.1 < before.1 && least.2 + 2 * MIB <= before.2;
        fell.then_some(())
            .ok_or_else(|| format!("{before:?} before, {least:?} since"))
    });
    assert_eq!(
        group.times_at_limit(),
        0,
        "the kernel had to take memory first"
    );
    drop(ballast);
    wait_for("as large as before", || {
        let now = memory(&session, &arena).0;
        (now == before.0)
            .then_some(())
            .ok_or_else(|| format!("{now} frames allowed of {}", before.0))
    });
    drop(session);
    worker.finish();
}

#[test]
fn memory_is_given_back_before_the_limit_is_reached() {
    match Group::little_memory(LIMIT) {
        Ok(group) => shrinks_and_grows(&group, PATIENCE),
        Err(reason) => here::skipped(reason),
    }
}

/// A limit that is lowered takes its share of the budget, before anything is short, and gives it back when it is raised.
fn follows(group: &Group) {
    let dir = here::directory();
    let name = session_name("follows");
    let mut spec = Spec::new(&name, dir.path(), true, Work::Commands { files: 1 });
    spec.memory = Some(BUDGET);
    let mut worker = Worker::start_with(&spec, |command| group.enter(command));
    worker.await_ready();
    let arena = arena_path(&config(&name));
    let session = Session::join(config(&name)).expect("the worker's session");
    let before = at_rest(&session, &arena).0;
    let becomes = |what: &str, range: std::ops::RangeInclusive<u32>| {
        wait_for(what, || {
            let now = memory(&session, &arena).0;
            let so = range.contains(&now);
            so.then_some(())
                .ok_or_else(|| format!("{now} frames allowed of {before}, not {range:?}"))
        });
    };
    group.set_memory(LIMIT / 4 * 3).expect("a lower limit");
    // A quarter of the budget less; tables, which count as well, are as large as before.
    let less = before - (BUDGET / 4 / BLOCK_BYTES as u64) as u32;
    becomes("smaller", less - 8..=less);
    assert_eq!(group.times_at_limit(), 0, "the kernel was first");
    group.set_memory(LIMIT).expect("the old limit");
    becomes("as large as before", before..=before);
    drop(session);
    worker.finish();
}

#[test]
fn the_budget_follows_the_limit() {
    match Group::little_memory(LIMIT) {
        Ok(group) => follows(&group),
        Err(reason) => here::skipped(reason),
    }
}

#[test]
fn a_keeper_that_heeds_no_pressure_is_found() {
    match Group::little_memory(LIMIT) {
        Ok(group) => {
            let test = || shrinks_and_grows(&group, SHORT_PATIENCE);
            assert!(is_found(Bug::DeafPressure, test));
        }
        Err(reason) => return here::skipped(reason),
    }
    // What the failed round has left in memory.
    let ours = format!("test-pressure-{}-", std::process::id());
    for left in forebay::memory::place::find_arenas(config("none").arena_dir.as_deref()) {
        if left.session.starts_with(&ours) && fs_lock_is_free(&left.path) {
            let _ = std::fs::remove_file(left.path.with_extension("sock"));
            let _ = std::fs::remove_file(&left.path);
        }
    }
}

/// Whether nobody is in the session any more: the other test of this program may be.
fn fs_lock_is_free(arena: &std::path::Path) -> bool {
    std::fs::File::open(arena).is_ok_and(|file| file.try_lock().is_ok())
}
