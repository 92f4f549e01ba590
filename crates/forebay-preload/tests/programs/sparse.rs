//! Files with holes: those that are written into and between them again and again are left to the kernel, those that are filled in order are not.

use std::path::Path;

use forebay::member::left::LeftFile;

use crate::scene::{Scene, said};
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
const WRITES: u64 = 300;
const LEN: usize = 4096;
/// Length of the file: mostly holes.
const FILE: i64 = 256 << 20;

/// Where the write of this number goes.
fn place(order: &str, write: u64) -> i64 {
    let page = match order {
        // No two of them in one block, and none after the one before.
        "scattered" => write * 37 % WRITES * 128,
        // Pages that have space, one of each two.
        "between" => write * 37 % WRITES * 2,
        _ => write,
    };
    (page * LEN as u64) as i64
}

fn bytes(write: u64) -> Vec<u8> {
    pattern((write % 251) as u8, LEN)
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    if role != "sparse" {
        return false;
    }
    let fd = open(&dir.join("a"), RDWR).expect("open");
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::ftruncate(fd, FILE) }, 0);
    if argument == "between" {
        for write in 0..WRITES {
            let at = place(argument, write);
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::fallocate(fd, 0, at, LEN as i64) }, 0);
        }
    }
    for write in 0..WRITES {
        let at = place(argument, write);
        assert_eq!(pwrite(fd, &bytes(write), at), Ok(LEN));
    }
    for write in 0..WRITES {
        assert_eq!(pread(fd, LEN, place(argument, write)), Ok(bytes(write)));
    }
    close(fd).expect("close");
    true
}

/// What was left to the kernel of a file that is written so.
fn left_after(order: &str, holes: &str) -> Vec<LeftFile> {
    let scene = Scene::new("sparse", 0);
    let mut role = scene.role("sparse", order);
    role.env("FOREBAY_KERNEL_AFTER_HOLES", holes);
    said(role.output().expect("a program"));
    let file = std::fs::read(scene.path("a")).expect("a file");
    let mut expected = vec![0; FILE as usize];
    for write in 0..WRITES {
        let at = place(order, write) as usize;
        expected[at..at + LEN].copy_from_slice(&bytes(write));
    }
    assert!(file == expected, "other bytes");
    let left = scene.session.as_ref().expect("a session").left_since(0);
    // What this program's tests have open is inherited by the programs that they start.
    let own = left.into_iter().filter(|file| file.path == scene.path("a"));
    own.collect()
}

#[test]
fn a_file_that_is_written_into_its_holes_is_left_to_the_kernel() {
    let left = left_after("scattered", "64");
    assert!(
        matches!(&left[..], [file] if file.reason.contains("kernel_after_holes")),
        "{left:?}"
    );
}

/// Each look at its extents costs more than the kernel's write does, and shows nothing for the next one.
#[test]
fn a_file_that_is_written_between_its_holes_is_left_to_the_kernel() {
    let left = left_after("between", "64");
    assert!(
        matches!(&left[..], [file] if file.reason.contains("kernel_after_holes")),
        "{left:?}"
    );
}

#[test]
fn it_stays_where_nobody_wants_that() {
    assert_eq!(left_after("scattered", "0"), []);
}

#[test]
fn holes_that_are_filled_in_order_stay() {
    assert_eq!(left_after("in order", "64"), []);
}
