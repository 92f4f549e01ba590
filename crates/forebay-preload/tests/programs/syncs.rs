//! `sync` and `syncfs`, which are about everything that there is: what other programs of the session have written as well.

use std::path::Path;

use crate::outsiders::Member;
use crate::scene::Scene;
use crate::sys::*;

const LEN: usize = 300_000;
const SHORT: usize = 100_000;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    if role != "syncs" {
        return false;
    }
    let fd = open(dir, libc::O_RDONLY | libc::O_DIRECTORY).expect("open");
    // SAFETY: these take no memory.
    let result = unsafe {
        match argument {
            "sync" => {
                libc::sync();
                0
            }
            "syncfs" => libc::syncfs(fd).into(),
            "raw sync" => libc::syscall(libc::SYS_sync),
            "raw syncfs" => libc::syscall(libc::SYS_syncfs, fd),
            other => panic!("what is {other}?"),
        }
    };
    assert_eq!(result, 0);
    true
}

/// Written by one program, synced by another, which has nothing of its own.
#[test]
fn a_sync_is_of_the_whole_session() {
    let scene = Scene::new("syncs", 0);
    let mut member = Member::of(&scene);
    member.does("open a");
    for (turn, how) in ["sync", "syncfs", "raw sync", "raw syncfs"]
        .iter()
        .enumerate()
    {
        member.does(&format!("write {turn} {LEN}"));
        scene.play("syncs", how);
        let expected: Vec<u8> = (0..=turn)
            .flat_map(|turn| pattern(turn as u8, LEN))
            .collect();
        let on_the_device = std::fs::read(scene.path("a")).expect("a file");
        assert!(on_the_device == expected, "after {how}");
    }
    member.ends();
}

/// What is of another file system is none of its business.
#[test]
fn a_sync_of_another_file_system_writes_nothing() {
    let scene = Scene::new("syncs-elsewhere", 0);
    let mut member = Member::of(&scene);
    member.does("open a");
    // The keeper begins to write a block once it is whole.
    member.does(&format!("write 1 {SHORT}"));
    let mut other = scene.role("syncs", "syncfs");
    other.env(crate::role::DIR, "/dev/shm");
    crate::scene::said(other.output().expect("a program"));
    assert_eq!(size_at(&scene.path("a")), 0);
    member.ends();
    assert_eq!(size_at(&scene.path("a")), SHORT as i64);
}
