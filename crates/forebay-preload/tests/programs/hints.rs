//! What is read ahead of programs that only read, and what they say about it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::scene::Scene;
use crate::sys::*;

const LEN: usize = 24 << 20;
const STEP: usize = 4096;

fn advise(fd: i32, at: usize, len: usize, advice: i32) {
    // SAFETY: takes no memory.
    let told = unsafe { libc::posix_fadvise(fd, at as i64, len as i64, advice) };
    assert_eq!(told, 0);
}

fn read_in_steps(fd: i32, bytes: &[u8], from: usize, len: usize) {
    for at in (from..from + len).step_by(STEP) {
        assert!(pread(fd, STEP, at as i64).as_deref() == Ok(&bytes[at..at + STEP]));
    }
}

/// Has the file open until the test has seen what it wanted to see.
fn rest() {
    println!("@read");
    std::io::Write::flush(&mut std::io::stdout()).expect("output");
    let _ = std::io::stdin().read_line(&mut String::new());
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    let path = dir.join("a");
    match role {
        "hints-write" => {
            let fd = open(&path, libc::O_RDWR | libc::O_CREAT).expect("open");
            for part in pattern(3, LEN).chunks(1 << 20) {
                assert_eq!(write(fd, part), Ok(part.len()));
            }
            // It stays in memory, and with it what the session knows of the file: what is closed and has nothing there is forgotten.
            assert_eq!(pwrite(fd, &pattern(3, LEN)[100..200], 100), Ok(100));
            close(fd).expect("close");
        }
        "hints-forget" => {
            let fd = open(&path, libc::O_RDONLY).expect("open");
            advise(fd, 1 << 20, 0, libc::POSIX_FADV_DONTNEED);
        }
        "hints-read" => read_as(&path, argument),
        "hints-wrong" => wrong(&path),
        _ => return false,
    }
    true
}

fn read_as(path: &Path, how: &str) {
    let bytes = pattern(3, LEN);
    let fd = open(path, libc::O_RDONLY).expect("open");
    let from = 8 << 20;
    match how {
        "one after the other" => read_in_steps(fd, &bytes, from, 8 << 20),
        "anywhere, it says" => {
            advise(fd, 0, 0, libc::POSIX_FADV_RANDOM);
            read_in_steps(fd, &bytes, from, 8 << 20);
        }
        "one" => read_in_steps(fd, &bytes, from, STEP),
        "one, and says that others follow" => {
            advise(fd, 0, 0, libc::POSIX_FADV_SEQUENTIAL);
            read_in_steps(fd, &bytes, from, STEP);
        }
        "large ones" => {
            for at in (from..from + (8 << 20)).step_by(1 << 20) {
                assert!(pread(fd, 1 << 20, at as i64).as_deref() == Ok(&bytes[at..at + (1 << 20)]));
            }
        }
        "none, but will" => advise(fd, from, 4 << 20, libc::POSIX_FADV_WILLNEED),
        "none, but asks" => {
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::readahead(fd, from as i64, 4 << 20) }, 0);
        }
        _ => panic!("{how}"),
    }
    rest();
    close(fd).expect("close");
}

fn wrong(path: &Path) {
    let writer = open(path, libc::O_RDWR).expect("open");
    let reader = open(path, libc::O_RDONLY).expect("open");
    assert_eq!(pwrite(writer, b"x", 0), Ok(1));
    let advise = |fd, len, advice| {
        // SAFETY: takes no memory.
        unsafe { libc::posix_fadvise(fd, 0, len, advice) }
    };
    assert_eq!(advise(reader, -1, libc::POSIX_FADV_NORMAL), libc::EINVAL);
    assert_eq!(advise(reader, 1, 77), libc::EINVAL);
    assert_eq!(advise(i32::MAX, 1, libc::POSIX_FADV_NORMAL), libc::EBADF);
    assert_eq!(advise(reader, 1, libc::POSIX_FADV_NOREUSE), 0);
    let only_writes = open(path, libc::O_WRONLY).expect("open");
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::readahead(only_writes, 0, 1) }, -1);
    let error = std::io::Error::last_os_error();
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
}

/// A session that has the beginning of a file in memory, and nobody who writes it.
fn scene() -> Scene {
    let scene = Scene::new("hints", 0);
    scene.play("hints-write", "");
    // The close did not wait.
    assert!(
        comes(|| keepers(&scene) == 0),
        "the keeper does not finish with the file"
    );
    scene
}

/// Descriptors that the keeper has of the file.
fn keepers(scene: &Scene) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("readable");
    let names = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    names.filter(|name| *name == scene.path("a")).count()
}

/// A role that reads, once it has read.
fn reader(scene: &Scene, how: &str) -> Child {
    let mut role = scene.role("hints-read", how);
    role.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reader = role.spawn().expect("a program");
    let mut said = BufReader::new(reader.stdout.as_mut().expect("output")).lines();
    assert!(said.any(|line| line.expect("text").ends_with("@read")));
    reader
}

/// Waits for what comes by itself. Whether it has come.
fn comes(seen: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !seen() && begun.elapsed().as_secs() < 60 {
        std::thread::sleep(Duration::from_millis(10));
    }
    seen()
}

/// Bytes that are read from the device while a role reads, and those of them that are read ahead, once there are as many of these as
/// `least`, or for a moment where there are to be none.
fn reads(scene: &Scene, how: &str, least: u64) -> (u64, u64) {
    let stats = || scene.session.as_ref().expect("a session").stats();
    scene.play("hints-forget", "");
    let before = stats();
    let mut reader = reader(scene, how);
    match least {
        0 => std::thread::sleep(Duration::from_millis(300)),
        _ => assert!(
            comes(|| stats().ahead_bytes - before.ahead_bytes >= least),
            "{how}"
        ),
    }
    drop(reader.stdin.take());
    assert!(reader.wait().expect("an end").success());
    let after = stats();
    (
        after.device_read_bytes - before.device_read_bytes,
        after.ahead_bytes - before.ahead_bytes,
    )
}

#[test]
fn programs_that_only_read_are_read_ahead_of() {
    let scene = scene();
    let (read, ahead) = reads(&scene, "one after the other", 1);
    assert!(
        read >= 8 << 20 && read >= ahead,
        "{ahead} of {read} read ahead"
    );
}

#[test]
fn hints_are_heeded() {
    let scene = scene();
    for (how, most) in [("anywhere, it says", 0), ("one", 0)] {
        let (read, ahead) = reads(&scene, how, 0);
        assert!(read > 0 && ahead <= most, "{how}: {read}, {ahead}");
    }
    for how in [
        "one, and says that others follow",
        "none, but will",
        "none, but asks",
    ] {
        let (read, ahead) = reads(&scene, how, 2 << 20);
        assert!(read >= ahead, "{how}: {read}, {ahead}");
    }
}

#[test]
fn wrong_hints_are_errors() {
    // Once without the library.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    std::fs::write(dir.path().join("a"), b"some").expect("a file");
    wrong(&dir.path().join("a"));
    scene().play("hints-wrong", "");
}

#[test]
fn large_reads_of_readers_go_past_memory() {
    let scene = scene();
    let memory = || {
        scene
            .session
            .as_ref()
            .expect("a session")
            .stats()
            .scrap_bytes
    };
    let before = memory();
    let (read, ahead) = reads(&scene, "large ones", 0);
    assert_eq!((read, ahead, memory() - before), (8 << 20, 0, 0));
}

/// The keeper has nothing open of a file that nobody reads any more.
#[test]
fn what_was_lent_is_given_back() {
    let scene = scene();
    reads(&scene, "none, but will", 1);
    assert_eq!(keepers(&scene), 0);
}

#[test]
fn what_a_killed_reader_has_lent_is_given_back() {
    let scene = scene();
    scene.play("hints-forget", "");
    let mut reader = reader(&scene, "one, and says that others follow");
    assert!(comes(|| keepers(&scene) == 2), "while it reads");
    reader.kill().expect("a child");
    reader.wait().expect("a child");
    assert!(
        comes(|| keepers(&scene) == 0),
        "the keeper has it open for nobody"
    );
}
