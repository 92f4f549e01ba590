//! Files that are synced again and again: with little to write each time the kernel does it better.

use std::path::Path;

use forebay::member::left::LeftFile;

use crate::scene::{Scene, said};
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
const ROUNDS: usize = 40;
const LEN: usize = 300_000;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    if role != "synced" {
        return false;
    }
    let fd = open(&dir.join("a"), RDWR).expect("open");
    write(fd, &pattern(1, LEN)).expect("write");
    let len: usize = argument.parse().expect("a length");
    for round in 0..ROUNDS {
        let at = (round * 4000) as i64;
        pwrite(fd, &pattern(round as u8, len), at).expect("write");
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::fdatasync(fd) }, 0);
        assert_eq!(pread(fd, len, at), Ok(pattern(round as u8, len)));
    }
    close(fd).expect("close");
    true
}

/// Syncs with `len` bytes before each, and what was left to the kernel then.
fn left_after(len: usize, syncs: &str) -> Vec<LeftFile> {
    let scene = Scene::new("synced", 0);
    let mut role = scene.role("synced", &len.to_string());
    role.env("FOREBAY_KERNEL_AFTER_SYNCS", syncs);
    said(role.output().expect("a program"));
    let mut expected = pattern(1, LEN);
    for round in 0..ROUNDS {
        let end = round * 4000 + len;
        expected.resize(expected.len().max(end), 0);
        expected[round * 4000..end].copy_from_slice(&pattern(round as u8, len));
    }
    assert!(std::fs::read(scene.path("a")).expect("a file") == expected);
    let left = scene.session.as_ref().expect("a session").left_since(0);
    // What this program's tests have open is inherited by the programs that they start.
    let own = left.into_iter().filter(|file| file.path == scene.path("a"));
    own.collect()
}

#[test]
fn a_log_that_is_synced_is_left_to_the_kernel() {
    let left = left_after(100, "16");
    assert!(
        matches!(&left[..], [file] if file.reason.contains("kernel_after_syncs")),
        "{left:?}"
    );
}

#[test]
fn it_is_not_where_nobody_wants_that() {
    assert_eq!(left_after(100, "0"), []);
    assert_eq!(left_after(100, "41"), []);
}

#[test]
fn large_writes_with_syncs_stay() {
    assert_eq!(left_after(200_000, "16"), []);
}
