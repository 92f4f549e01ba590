//! Threads of mounts that follow whoever asks: of which mounts, and that the scheduler is told what it has to know for that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use forebay::sys::liveness::words_of_stat;
use forebay::sys::scheduling;
use rustix::fs::statvfs;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::here::skipped;
use crate::scene::{Kind, Scene, wait_until};

/// `SCHED_OTHER` and `SCHED_IDLE` in `/proc`.
const ORDINARY: u8 = 0;
const IDLE: u8 = 5;

/// How all threads of a process are scheduled.
fn policies(process: u32) -> BTreeSet<u8> {
    let policy = |thread: &Path| {
        let stat = fs::read(thread.join("stat")).ok()?;
        words_of_stat(&stat).nth(38)?.parse().ok()
    };
    threads(process)
        .filter_map(|thread| policy(&thread))
        .collect()
}

/// Where a thread may run.
fn place(thread: &Path) -> Option<String> {
    let status = fs::read_to_string(thread.join("status")).ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

/// Where those of a process's threads may run that answer requests.
fn places(process: u32) -> BTreeSet<String> {
    let answers = |thread: &PathBuf| {
        let name = fs::read_to_string(thread.join("comm"));
        name.is_ok_and(|name| name.trim() == "forebay-mount")
    };
    let all = threads(process).filter(answers);
    all.filter_map(|thread| place(&thread)).collect()
}

fn threads(process: u32) -> impl Iterator<Item = PathBuf> {
    let all = fs::read_dir(format!("/proc/{process}/task")).expect("threads");
    all.filter_map(|thread| Some(thread.ok()?.path()))
}

/// Asks many times from one processor.
fn ask_from(processor: usize, point: &Path) {
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only).expect("a processor of this machine");
    for _ in 0..2000 {
        statvfs(point).expect("a room");
    }
}

#[test]
fn threads_of_a_store_whose_process_is_alone_in_its_session_follow() {
    if !scheduling::has_session_groups() {
        skipped("no session is a group of the scheduler's here");
        return;
    }
    let all = sched_getaffinity(None).expect("processors");
    let mine = (0..CpuSet::MAX_CPU).filter(|number| all.is_set(*number));
    let (first, last) = { mine.clone().min().zip(mine.max()) }.expect("a processor");
    for kind in [Kind::Store, Kind::Directory] {
        for is_alone in [true, false] {
            let scene = match kind {
                Kind::Store => Scene::begin_store("follow", "32MiB", &["--ring", "never"]),
                Kind::Directory => Scene::begin("follow", &["--ring", "never"]),
            };
            let Some(mut scene) = scene else {
                return;
            };
            if is_alone {
                scene.umount();
                scene.await_end(0);
                scene.mount(&["--ring", "never", "--background"]);
            }
            let process = scene.process.as_mut().expect("mounted").id();
            let follows = is_alone && kind == Kind::Store;
            let main = PathBuf::from(format!("/proc/{process}"));
            let everywhere = BTreeSet::from([place(&main).expect("a process")]);
            for processor in [first, last, first] {
                ask_from(processor, &scene.point);
                if follows {
                    let here = BTreeSet::from([processor.to_string()]);
                    wait_until("all threads are there", || {
                        ask_from(processor, &scene.point);
                        places(process) == here
                    });
                } else {
                    assert_eq!(places(process), everywhere, "{kind:?}");
                }
            }
            let policy = if follows { IDLE } else { ORDINARY };
            assert_eq!(policies(process), BTreeSet::from([policy]), "{kind:?}");
            sched_setaffinity(None, &all).expect("as before");
            scene.end();
        }
    }
}
