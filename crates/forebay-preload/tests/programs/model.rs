//! Lists of operations through libc's calls, against the model; and what outsiders see afterwards.

use std::path::Path;

use forebay_model::{PartitionPlan, Profile, StdFiles, Target, drive, generate};

use crate::scene::{Scene, said};
use crate::sys::seek;

/// Files and handles of the lists.
const FILES: usize = 3;
const HANDLES: usize = 2;
/// Workers of a shared list.
const WORKERS: usize = 3;
const WORKER_OPS: usize = 120;

fn profile(name: &str) -> Profile {
    match name {
        "tiny" => Profile::TINY,
        "large" => Profile::LARGE,
        _ => Profile::SPARSE,
    }
}

fn plan(seed: u64) -> PartitionPlan {
    PartitionPlan::new(seed, &Profile::PARTITION, WORKERS, WORKER_OPS)
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    let words: Vec<_> = argument.split(' ').collect();
    match role {
        "model" => {
            let (seed, count) = (
                words[1].parse().expect("a seed"),
                words[2].parse().expect("a count"),
            );
            let ops = generate(seed, &profile(words[0]), count);
            let mut files = StdFiles::new(dir, FILES, HANDLES).expect("files");
            if let Err(mismatch) = drive(&ops, &mut files) {
                panic!("{argument}: {mismatch}");
            }
        }
        "worker" => {
            let (seed, me) = (
                words[0].parse().expect("a seed"),
                words[1].parse().expect("a number"),
            );
            let mut files = StdFiles::join(dir, 2, 1).expect("files");
            if let Err(mismatch) = plan(seed).drive_worker(me, &mut files) {
                panic!("{argument}: {mismatch}");
            }
        }
        _ => return false,
    }
    true
}

/// Where two files differ, holes left out: they may be of any length.
fn difference(a: &Path, b: &Path) -> Option<u64> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    const PIECE: usize = 1 << 20;
    let open = |path| std::fs::File::open(path).expect("a file");
    let (a, b) = (open(a), open(b));
    let len = |file: &std::fs::File| file.metadata().expect("a length").len();
    if len(&a) != len(&b) {
        return Some(len(&a).min(len(&b)));
    }
    for file in [&a, &b] {
        let mut at = 0;
        while let Ok(data) = seek(file.as_raw_fd(), at, libc::SEEK_DATA) {
            let end = seek(file.as_raw_fd(), data, libc::SEEK_HOLE).expect("an end");
            for start in (data..end).step_by(PIECE) {
                let piece = |file: &std::fs::File| {
                    let mut bytes = vec![0; PIECE.min((end - start) as usize)];
                    file.read_exact_at(&mut bytes, start as u64).map(|()| bytes)
                };
                if piece(&a).expect("bytes") != piece(&b).expect("bytes") {
                    return Some(start as u64);
                }
            }
            at = end;
        }
    }
    None
}

/// The same operations without the library leave the same files.
fn check(name: &str, small: u64, seeds: std::ops::Range<u64>, count: usize) {
    let mut to_memory = 0;
    for seed in seeds {
        let scene = Scene::new("model", small);
        scene.play("model", &format!("{name} {seed} {count}"));
        to_memory += scene.bytes_to_memory();
        let other = tempfile::tempdir().expect("a directory");
        let ops = generate(seed, &profile(name), count);
        let mut files = StdFiles::new(other.path(), FILES, HANDLES).expect("files");
        drive(&ops, &mut files).expect("the kernel agrees with the model");
        for file in 0..FILES {
            let file = file.to_string();
            let (seen, expected) = (scene.path(&file), other.path().join(&file));
            if let Some(at) = difference(&seen, &expected) {
                panic!("{name} {seed}: file {file} differs outside, at {at}");
            }
        }
    }
    assert!(to_memory > 0, "the engine had nothing to do with it");
}

#[test]
fn small_operations() {
    check("tiny", 0, 0..6, 300);
}

#[test]
fn operations_on_files_that_become_managed_on_the_way() {
    check("tiny", 64 * 1024, 10..16, 300);
}

#[test]
fn large_operations() {
    check("large", 64 * 1024, 0..3, 40);
}

#[test]
fn sparse_operations() {
    check("sparse", 4096, 0..3, 120);
}

#[test]
fn several_programs_in_the_same_files() {
    for seed in 0..3 {
        let scene = Scene::new("workers", 4096);
        let plan = plan(seed);
        let mut outside = StdFiles::new(scene.dir.path(), 2, 1).expect("files");
        for op in &plan.prepare {
            outside.run(op);
        }
        let workers: Vec<_> = (0..WORKERS)
            .map(|me| scene.start("worker", &format!("{seed} {me}")))
            .collect();
        for worker in workers {
            said(worker.wait_with_output().expect("a worker"));
        }
        plan.finished()
            .finish(&mut outside)
            .expect("what all have written");
    }
}
