//! Disks that are full, or nearly: what programs have been promised they have, and what they have removed is free.

use std::path::Path;

use crate::deaths::keeper_process;
use crate::disks::{self, Disk};
use crate::here;
use crate::scene::{Scene, Teller, said, tell};
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
const MIB: usize = 1 << 20;
/// What a program reserves, MiB.
const RESERVED: usize = 8;
/// How often a file takes the place of the last one, and how long it is, MiB: longer than half of a disk, and than memory.
const ROUNDS: usize = 15;
const LONG: usize = 180;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "full-reserves" => reserves(&dir.join("a"), argument),
        "full-again" => again(dir, argument),
        _ => return false,
    }
    true
}

/// Writes into space that it has reserved, once the disk is full.
fn reserves(path: &Path, mode: &str) {
    let fd = open(path, RDWR).expect("open");
    write(fd, &pattern(1, MIB)).expect("write");
    let mode = if mode == "keep" {
        libc::FALLOC_FL_KEEP_SIZE
    } else {
        0
    };
    allocate(fd, mode, 0, (RESERVED * MIB) as i64).expect("space");
    tell(format_args!("reserved"));
    let page = pattern(2, 4096);
    for at in (0..RESERVED * MIB).step_by(page.len()) {
        assert_eq!(pwrite(fd, &page, at as i64), Ok(page.len()), "at {at}");
    }
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::fsync(fd) }, 0);
    close(fd).expect("close");
}

/// Writes, closes and removes a file, or gives it the name of the last one, and writes the next.
fn again(dir: &Path, how: &str) {
    let (path, place) = (dir.join("new"), dir.join("big"));
    let bytes = pattern(1, MIB);
    for round in 0..ROUNDS {
        let fd = open(&path, RDWR | libc::O_TRUNC).expect("open");
        let len = if how == "removed" { LONG } else { LONG / 2 };
        for at in 0..len {
            assert_eq!(write(fd, &bytes), Ok(MIB), "round {round}, {at} MiB");
        }
        close(fd).expect("close");
        match how {
            "removed" => std::fs::remove_file(&path).expect("removed"),
            _ => std::fs::rename(&path, &place).expect("renamed"),
        }
    }
}

#[test]
fn space_that_a_program_has_reserved_is_its_own_on_a_full_disk() {
    for kind in ["xfs", "ext4"] {
        for mode in ["size", "keep"] {
            let disk = match Disk::new(kind, 64, "") {
                Ok(disk) => disk,
                Err(reason) => return here::skipped(&reason),
            };
            let mut scene = Scene::new("full-reserves", 0);
            scene.dir = tempfile::tempdir_in(disk.dir()).expect("a directory");
            let mut program = Teller::start(scene.role("full-reserves", mode));
            program.next(|_| Some(())).expect("it has reserved");
            disks::fill_up(&disk, "ballast");
            program.go_on();
            let ended = program.program.wait().expect("an end");
            assert!(ended.success(), "{kind}, {mode}");
            assert!(scene.bytes_to_memory() > 0);
        }
    }
}

/// The keeper has the file open that was left to it, and with it its space.
#[test]
fn what_was_removed_leaves_its_space_to_the_next_file() {
    for kind in ["xfs", "ext4"] {
        for how in ["removed", "replaced"] {
            let disk = match Disk::new(kind, 320, "") {
                Ok(disk) => disk,
                Err(reason) => return here::skipped(&reason),
            };
            let mut scene = Scene::new("full-again", 0);
            scene.dir = tempfile::tempdir_in(disk.dir()).expect("a directory");
            // By itself: what other tests fork here would have its descriptors, and so the space, until it executes a program.
            drop(scene.session.take());
            let mut keeper = keeper_process(&scene.name);
            scene.play("full-again", how);
            // With the size at which files are managed by default: the kernel has the first bytes.
            scene.small_file_bytes = 64 << 10;
            let mut program = scene.role("full-again", how);
            program.env_remove("FOREBAY_LARGE_FILE_BYTES");
            said(program.output().expect("a program"));
            keeper.kill().expect("a kill");
            keeper.wait().expect("an end");
        }
    }
}
