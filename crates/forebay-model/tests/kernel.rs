//! The model agrees with Linux: thousands of lists against plain files of the build directory's
//! file system. A disagreement here is a mistake of the model.

use forebay_model::{Op, Profile, StdFiles, drive, from_lines, generate, ops, replay, to_lines};
use proptest::prelude::*;

/// Drives plain files through a list, in a directory of its own.
fn drive_plain_files(ops: &[Op]) {
    let directory = temporary_directory();
    let (files, handles) = Op::extent(ops);
    let mut target = StdFiles::new(directory.path(), files, handles).expect("files");
    if let Err(mismatch) = drive(ops, &mut target) {
        panic!("the kernel and the model disagree: {mismatch}");
    }
}

/// Beside the build's output: on a disk, where the usual place may be memory.
fn temporary_directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory")
}

#[test]
fn tiny_files() {
    // Most of the time goes into waiting for fsync, which several threads can do together.
    std::thread::scope(|scope| {
        for first in 0..4 {
            let seeds = (first..1700).step_by(4);
            scope.spawn(|| {
                seeds.for_each(|seed| drive_plain_files(&generate(seed, &Profile::TINY, 40)));
            });
        }
    });
}

#[test]
fn large_writes() {
    for seed in 0..60 {
        drive_plain_files(&generate(seed, &Profile::LARGE, 20));
    }
}

#[test]
fn sparse_files() {
    for seed in 0..240 {
        drive_plain_files(&generate(seed, &Profile::SPARSE, 40));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..Default::default() })]

    #[test]
    fn lists_from_proptest(ops in ops(Profile::TINY, 1..60)) {
        drive_plain_files(&ops);
    }
}

#[test]
fn a_list_survives_being_written_down() {
    let ops = generate(5, &Profile::TINY, 300);
    let lines = format!("# found by hand\n\n{}", to_lines(&ops));
    assert_eq!(from_lines(&lines).expect("readable"), ops);
    let directory = temporary_directory();
    let mut target = StdFiles::new(directory.path(), 2, 2).expect("files");
    replay(&lines, &mut target).expect("plain files are right");
    let error = from_lines("\n{\"op\":\"fly\"}").expect_err("there is no such operation");
    assert_eq!(error.line, 2);
}

#[test]
fn every_kind_of_operation_and_every_refusal_is_generated() {
    let ops: Vec<Op> = (0..50)
        .flat_map(|seed| generate(seed, &Profile::TINY, 100))
        .collect();
    for kind in [
        "write\"",
        "write_vectored",
        "append\"",
        "read\"",
        "set_len",
        "punch",
        "sync_data",
        "sync_all",
        "len\"",
        "reopen",
        "close_all",
        "evict",
        "keeper_step",
        "read_only",
        "write_only",
        "\"truncate\":true",
        "\"access\":\"append\"",
    ] {
        assert!(to_lines(&ops).contains(kind), "{kind} never comes up");
    }
}
