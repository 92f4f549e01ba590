//! Files that are synced again and again: with little to write each time the kernel does it better. And those whose writes are durable at once.

use std::path::Path;

use forebay::member::left::LeftFile;

use crate::disks::Disk;
use crate::here;
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
    left(&scene, len)
}

/// What was left to the kernel of a file that is as it is to be.
fn left(scene: &Scene, len: usize) -> Vec<LeftFile> {
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

/// What is left to the kernel where `chattr +S` is said of these: the directory, the file, or nothing.
fn left_where_writes_are_durable(options: &str, flagged: Option<&str>) -> Option<Vec<LeftFile>> {
    let disk = match Disk::new("ext4", 64, options) {
        Ok(disk) => disk,
        Err(reason) => {
            here::skipped(&reason);
            return None;
        }
    };
    let mut scene = Scene::new("synced-at-once", 0);
    scene.dir = tempfile::tempdir_in(disk.dir()).expect("a directory");
    if let Some(name) = flagged {
        let path = scene.path(name);
        if name == "a" {
            std::fs::write(&path, b"").expect("a file");
        }
        let mut chattr = std::process::Command::new("chattr");
        let done = chattr.arg("+S").arg(path).status();
        assert!(done.expect("chattr runs").success());
    }
    let mut role = scene.role("synced", "200000");
    said(role.output().expect("a program"));
    Some(left(&scene, 200_000))
}

#[test]
fn a_file_whose_writes_are_durable_at_once_is_left_to_the_kernel() {
    for (options, flagged) in [("sync", None), ("", Some("a")), ("", Some("."))] {
        let Some(left) = left_where_writes_are_durable(options, flagged) else {
            return;
        };
        assert!(
            matches!(&left[..], [file] if file.reason.contains("durable when it returns")),
            "{options:?}, {flagged:?}: {left:?}"
        );
    }
    let elsewhere = left_where_writes_are_durable("", None);
    assert!(elsewhere.is_none_or(|left| left.is_empty()));
}
