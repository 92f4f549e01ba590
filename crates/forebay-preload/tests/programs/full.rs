//! Disks that are full: what programs have been promised they have.

use std::path::Path;

use crate::disks::{self, Disk};
use crate::here;
use crate::scene::{Scene, Teller, tell};
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
const MIB: usize = 1 << 20;
/// What a program reserves, MiB.
const RESERVED: usize = 8;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "full-reserves" => reserves(&dir.join("a"), argument),
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
