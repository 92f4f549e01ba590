//! Files that the session has in memory and nobody uses: who reads little of one reads the device file, and hears of whoever begins to write it.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::keepers::Keeper;
use crate::marks::is_marked;
use crate::outsiders::{Member, reads, strict};
use crate::scene::{Scene, said};
use crate::sys::*;

const MIB: usize = 1024 * 1024;
const PART: usize = 1000;
const PARTS: usize = 3000;
const OPENS: usize = 100;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "idle-make" => write_parts(&dir.join("a"), 0),
        "idle-read" => read_little(&dir.join("a")),
        "idle-while" => read_for_a_while(&dir.join("a")),
        "idle-changed" => read_changed(&dir.join("a")),
        "idle-long" => read_much(&dir.join("a"), argument.parse().expect("a length")),
        "idle-beside" => read_beside_a_writer(&dir.join("a")),
        _ => return false,
    }
    true
}

fn part(of: usize, seed: u8) -> Vec<u8> {
    pattern((of % 251) as u8 ^ seed, PART)
}

/// Writes the file by small pieces, durably.
fn write_parts(path: &Path, seed: u8) {
    let fd = open(path, libc::O_RDWR | libc::O_CREAT).expect("open");
    for of in 0..PARTS {
        assert_eq!(pwrite(fd, &part(of, seed), (of * PART) as i64), Ok(PART));
    }
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::fdatasync(fd) }, 0);
    close(fd).expect("close");
}

/// The process comes into the session: it writes a file of its own by many small writes.
fn join(path: &Path) {
    write_parts(&path.with_extension("own"), 1);
}

/// Opens the file again and again, for writing too, and reads a piece of it each time.
fn read_little(path: &Path) {
    join(path);
    for of in 0..OPENS {
        let fd = open(path, libc::O_RDWR).expect("open");
        assert!(pread(fd, PART, (of * PART) as i64) == Ok(part(of, 0)));
        assert_eq!(
            seek(fd, (of * PART) as i64, libc::SEEK_SET),
            Ok((of * PART) as i64)
        );
        assert!(read(fd, PART) == Ok(part(of, 0)));
        close(fd).expect("close");
    }
}

/// How long the file is opened again and again: for longer than the guard waits before it lets go of the file.
const WHILE: Duration = Duration::from_millis(300);

fn read_for_a_while(path: &Path) {
    join(path);
    let begun = Instant::now();
    while begun.elapsed() < WHILE {
        let fd = open(path, libc::O_RDONLY).expect("open");
        assert!(pread(fd, PART, 0) == Ok(part(0, 0)));
        close(fd).expect("close");
    }
}

/// The part that an outsider changes.
const CHANGED: usize = 5;

/// Reads enough to manage the file, part of which an outsider has changed.
fn read_changed(path: &Path) {
    join(path);
    let fd = open(path, libc::O_RDWR).expect("open");
    for of in 0..PARTS {
        let seed = if of == CHANGED { 9 } else { 0 };
        assert!(
            pread(fd, PART, (of * PART) as i64) == Ok(part(of, seed)),
            "part {of} is old"
        );
    }
    close(fd).expect("close");
}

/// Reads all of it, by requests of a length.
fn read_much(path: &Path, len: usize) {
    join(path);
    let all: Vec<u8> = (0..PARTS).flat_map(|of| part(of, 0)).collect();
    let fd = open(path, libc::O_RDWR).expect("open");
    for (index, expected) in all.chunks(len).enumerate() {
        assert!(pread(fd, len, (index * len) as i64).as_deref() == Ok(expected));
    }
    close(fd).expect("close");
}

/// Another process writes the file while this one has it open, which has read a little of it: each of its reads shows what has been
/// written, durable or not.
fn read_beside_a_writer(path: &Path) {
    join(path);
    let fd = open(path, libc::O_RDONLY).expect("open");
    assert!(pread(fd, PART, 0) == Ok(part(0, 0)));
    let (mut done, mut go_on) = ([0; 2], [0; 2]);
    // SAFETY: room for two numbers each; the child makes calls and ends.
    let child = unsafe {
        assert_eq!(libc::pipe(done.as_mut_ptr()), 0);
        assert_eq!(libc::pipe(go_on.as_mut_ptr()), 0);
        libc::fork()
    };
    if child == 0 {
        // Should the reader end, nobody answers.
        assert_eq!(close(go_on[1]), Ok(()));
        let own = open(path, libc::O_RDWR).expect("open");
        for of in 0..PARTS {
            assert_eq!(pwrite(own, &part(of, 77), (of * PART) as i64), Ok(PART));
            assert_eq!(write(done[1], b"x"), Ok(1));
            if read(go_on[0], 1) != Ok(b"x".to_vec()) {
                break;
            }
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    for of in 0..PARTS {
        assert_eq!(read(done[0], 1), Ok(b"x".to_vec()));
        assert!(
            pread(fd, PART, (of * PART) as i64) == Ok(part(of, 77)),
            "part {of} is old"
        );
        assert_eq!(write(go_on[1], b"x"), Ok(1));
    }
    // SAFETY: takes no memory.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert!(pread(fd, PART, 0) == Ok(part(0, 77)));
    close(fd).expect("close");
}

/// A file that the session has in memory, by default.
fn scene(name: &str) -> Scene {
    let scene = Scene::new(name, MIB as u64);
    scene.play("idle-make", "");
    assert!(scene.bytes_to_memory() > MIB as u64);
    scene
}

fn managed(scene: &Scene) -> u64 {
    scene
        .session
        .as_ref()
        .expect("a session")
        .stats()
        .files_managed
}

/// To manage a file takes as long as many small reads.
#[test]
fn whoever_reads_little_of_a_file_does_not_manage_it() {
    let scene = scene("idle-read");
    let before = managed(&scene);
    scene.play("idle-read", "");
    // Its own file alone.
    assert_eq!(managed(&scene), before + 1);
}

#[test]
fn whoever_reads_much_of_a_file_manages_it() {
    for len in [500, 100_000] {
        let scene = scene("idle-long");
        let before = managed(&scene);
        scene.play("idle-long", &len.to_string());
        assert_eq!(managed(&scene), before + 2, "by {len}");
    }
}

#[test]
fn a_reader_of_an_idle_file_sees_what_a_writer_has_written() {
    for _ in 0..3 {
        let scene = scene("idle-beside");
        said(scene.role("idle-beside", "").output().expect("a program"));
    }
}

/// The guard holds up whoever opens a file that it watches: members too, who are let in at once, but only when it has looked. A file that
/// nobody uses is not watched for long. Who changes it meanwhile is found out by whoever manages it next, and from then on it is watched.
#[test]
fn whoever_opens_an_idle_file_again_and_again_waits_for_no_guard() {
    if strict("idle-guarded").is_none() {
        return;
    }
    let mut scene = Scene::new("idle-marks", MIB as u64);
    let keeper = Keeper::of(&mut scene);
    scene.play("idle-make", "");
    let path = scene.path("a");
    assert!(is_marked(&keeper, &path), "it has been managed");
    scene.play("idle-while", "");
    assert!(!is_marked(&keeper, &path), "nobody uses it");
    let outsider = std::fs::OpenOptions::new().write(true).open(&path);
    let changed =
        outsider.and_then(|file| file.write_all_at(&part(CHANGED, 9), (CHANGED * PART) as u64));
    changed.expect("changed");
    scene.play("idle-changed", "");
    let mut member = Member::of(&scene);
    member.does("open own");
    member.does(&format!("write 1 {}", 2 * MIB));
    member.does("open a");
    member.does(&format!("write 3 {PART}"));
    assert!(is_marked(&keeper, &path), "it is managed");
    assert!(reads(&scene, "a").0[..PART] == pattern(3, PART));
    member.ends();
}
