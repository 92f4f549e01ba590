//! Files whose names change, or go, while they are open; and their times.

use std::path::Path;

use crate::scene::Scene;
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
const BLOCK: usize = 100_000;

pub fn play(role: &str, _argument: &str, dir: &Path) -> bool {
    match role {
        "unlink" => unlink(dir),
        "rename" => rename(dir),
        "replace" => replace(dir),
        "times" => times(dir),
        _ => return false,
    }
    true
}

fn unlink(dir: &Path) {
    let a = dir.join("a");
    let fd = open(&a, RDWR).expect("open");
    write(fd, &pattern(1, BLOCK)).expect("write");
    std::fs::remove_file(&a).expect("unlink");
    write(fd, &pattern(2, BLOCK)).expect("write");
    assert_eq!(pread(fd, BLOCK, 0), Ok(pattern(1, BLOCK)));
    assert_eq!(size_of(fd), 2 * BLOCK as i64);
    // Another file of that name.
    let second = open(&a, RDWR).expect("open");
    assert_eq!(size_of(second), 0);
    write(second, &pattern(3, BLOCK)).expect("write");
    assert_eq!(pread(fd, BLOCK, BLOCK as i64), Ok(pattern(2, BLOCK)));
    assert_eq!(pread(second, BLOCK, 0), Ok(pattern(3, BLOCK)));
    close(fd).expect("close");
    close(second).expect("close");
}

fn rename(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    let fd = open(&a, RDWR).expect("open");
    write(fd, &pattern(1, BLOCK)).expect("write");
    std::fs::rename(&a, &b).expect("rename");
    write(fd, &pattern(2, BLOCK)).expect("write");
    assert_eq!(size_at(&b), 2 * BLOCK as i64);
    let other = open(&b, libc::O_RDWR).expect("open");
    assert_eq!(pread(other, BLOCK, BLOCK as i64), Ok(pattern(2, BLOCK)));
    std::fs::hard_link(&b, dir.join("c")).expect("link");
    assert_eq!(size_at(&dir.join("c")), 2 * BLOCK as i64);
    pwrite(other, b"other", 0).expect("write");
    assert_eq!(pread(fd, 5, 0), Ok(b"other".to_vec()));
    close(fd).expect("close");
    close(other).expect("close");
}

fn replace(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    // How editors and package managers save.
    for turn in 0..20 {
        let fd = open(&b, RDWR | libc::O_TRUNC).expect("open");
        write(fd, &pattern(turn, BLOCK)).expect("write");
        close(fd).expect("close");
        std::fs::rename(&b, &a).expect("rename");
        let fd = open(&a, libc::O_RDONLY).expect("open");
        assert_eq!(read(fd, BLOCK + 1), Ok(pattern(turn, BLOCK)));
        close(fd).expect("close");
    }
}

fn times(dir: &Path) {
    let a = dir.join("a");
    let fd = open(&a, RDWR).expect("open");
    write(fd, &pattern(1, BLOCK)).expect("write");
    let time = libc::timespec {
        tv_sec: 1_000_000_000,
        tv_nsec: 5,
    };
    let path = c(&a);
    // SAFETY: times and strings of ours.
    unsafe {
        assert_eq!(libc::futimens(fd, [time, time].as_ptr()), 0);
        close(fd).expect("close");
        assert_eq!(modified(&a), 1_000_000_000);
        let fd = open(&a, libc::O_RDWR).expect("open");
        write(fd, &pattern(2, BLOCK)).expect("write");
        assert_eq!(
            libc::utimensat(libc::AT_FDCWD, path.as_ptr(), [time, time].as_ptr(), 0),
            0
        );
        close(fd).expect("close");
    }
    assert_eq!(modified(&a), 1_000_000_000);
}

fn modified(path: &Path) -> i64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).expect("a file").mtime()
}

#[test]
fn unlinked_while_open() {
    let scene = Scene::new("unlink", 0);
    scene.play("unlink", "");
    assert!(scene.bytes_to_memory() > 0);
    assert!(std::fs::read(scene.path("a")).expect("a file") == pattern(3, BLOCK));
    // The first file is gone for good: no byte of it is owed any more.
    let stats = scene.session.as_ref().expect("a session").stats();
    assert_eq!(stats.owed_bytes, 0);
}

#[test]
fn renamed_while_open() {
    let scene = Scene::new("rename", 0);
    scene.play("rename", "");
    let bytes = std::fs::read(scene.path("c")).expect("a file");
    assert!(bytes.starts_with(b"other") && bytes[BLOCK..] == pattern(2, BLOCK));
}

#[test]
fn replaced_by_renaming() {
    for small in [0, 64 * 1024] {
        let scene = Scene::new("replace", small);
        scene.play("replace", "");
        assert!(std::fs::read(scene.path("a")).expect("a file") == pattern(19, BLOCK));
    }
}

#[test]
fn times_that_are_set_stay() {
    let scene = Scene::new("times", 0);
    scene.play("times", "");
    assert_eq!(modified(&scene.path("a")), 1_000_000_000);
}
