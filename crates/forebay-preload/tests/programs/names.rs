//! Files whose names change, or go, while they are open; and their times.

use std::path::Path;

use crate::scene::Scene;
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
const BLOCK: usize = 100_000;

/// Parts of a large file.
const LARGE: usize = 40;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "unlink" => unlink(dir),
        "unlink-large" => unlink_large(dir, argument),
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
        assert_eq!(modified(&a), 1_000_000_000);
        // By a descriptor in the place of a path; one that only names the file will do.
        for flags in [libc::O_RDWR, libc::O_PATH] {
            let fd = open(&a, libc::O_RDWR).expect("open");
            let named = open(&a, flags).expect("open");
            write(fd, &pattern(3, BLOCK)).expect("write");
            let (times, empty) = ([time, time], c"".as_ptr());
            let set = libc::utimensat(named, empty, times.as_ptr(), libc::AT_EMPTY_PATH);
            assert_eq!(set, 0);
            close(named).expect("close");
            close(fd).expect("close");
            assert_eq!(modified(&a), 1_000_000_000, "by {flags:o}");
        }
    }
}

/// Unlinks a large file before it closes it. `argument`: whether somebody has it open, another name leads to it, or it stays open until the
/// next line.
fn unlink_large(dir: &Path, argument: &str) {
    let fd = open(&dir.join("a"), RDWR).expect("open");
    for part in 0..LARGE {
        write(fd, &pattern(part as u8, BLOCK)).expect("write");
    }
    if argument == "linked" {
        std::fs::hard_link(dir.join("a"), dir.join("b")).expect("link");
    }
    println!("@");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("input");
    std::fs::remove_file(dir.join("a")).expect("unlink");
    if argument == "stays" {
        println!("@{fd}");
        std::io::stdin().read_line(&mut line).expect("input");
    }
    close(fd).expect("close");
}

fn large() -> Vec<u8> {
    let parts = (0..LARGE).map(|part| pattern(part as u8, BLOCK));
    parts.collect::<Vec<_>>().concat()
}

/// A program that has written a large file, and unlinks it with the next line.
struct Unlinks {
    program: std::process::Child,
    input: Option<std::process::ChildStdin>,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Unlinks {
    fn start(scene: &Scene, how: &str) -> Self {
        use std::io::BufRead;
        use std::process::Stdio;
        let mut role = scene.role("unlink-large", how);
        role.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = role.spawn().expect("a program");
        let output = std::io::BufReader::new(program.stdout.take().expect("output"));
        let mut unlinks = Unlinks {
            input: program.stdin.take(),
            program,
            lines: output.lines(),
        };
        unlinks.says();
        unlinks
    }

    fn go_on(&mut self) {
        use std::io::Write;
        writeln!(self.input.as_mut().expect("input")).expect("it reads");
    }

    /// What it says next.
    fn says(&mut self) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let told = lines.find_map(|line| Some(line.split_once('@')?.1.to_owned()));
        told.expect("it says something")
    }

    fn ends(mut self) {
        drop(self.input.take());
        // So that nothing that it says ends it.
        self.lines.by_ref().for_each(drop);
        assert!(self.program.wait().expect("an end").success());
    }
}

/// What nobody can read any more is not written to the device; what somebody can read is there: by an open descriptor, by another name, or
/// by a descriptor that only names the file.
#[test]
fn bytes_of_unlinked_files() {
    // A process that another test has just forked has descriptors of this one's keeper: then the file is somebody's for a moment.
    let tries = (0..10).map(|_| unlinks_large("alone"));
    let written: Vec<_> = tries.take_while(|written| *written != (0, 0)).collect();
    assert!(written.len() < 10, "{written:?}");
    for how in ["linked", "open", "named"] {
        unlinks_large(how);
    }
}

/// A program of a session of its own unlinks a large file that somebody may still read. Bytes that are with the device then, and that are owed.
fn unlinks_large(how: &str) -> (u64, u64) {
    use std::io::{BufRead, BufReader, Read, Seek};
    use std::process::Stdio;
    let scene = Scene::new("unlink-large", 0);
    let mut role = scene.role("unlink-large", how);
    role.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = role.spawn().expect("a program");
    let lines = BufReader::new(program.stdout.take().expect("output")).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with('@')), "written");
    let outsider = std::fs::File::open(scene.path("a")).expect("a file");
    let outsider = (how == "open").then_some(outsider);
    let named = open(&scene.path("a"), libc::O_PATH | libc::O_CLOEXEC).expect("a file");
    if how != "named" {
        close(named).expect("close");
    }
    drop(program.stdin.take());
    assert!(program.wait().expect("an end").success());
    let mut bytes = Vec::new();
    if let Some(mut file) = outsider {
        file.rewind().expect("a seek");
        file.read_to_end(&mut bytes).expect("readable");
    } else if how == "named" {
        bytes = std::fs::read(format!("/proc/self/fd/{named}")).expect("a file");
        close(named).expect("close");
    } else if how == "linked" {
        bytes = std::fs::read(scene.path("b")).expect("a file");
    }
    let stats = scene.session.as_ref().expect("a session").stats();
    assert!(how == "alone" || bytes == large(), "{how}");
    (stats.device_write_bytes, stats.owed_bytes)
}

#[test]
fn bytes_of_an_unlinked_file_by_the_process_that_has_it() {
    let scene = Scene::new("unlink-process", 0);
    let mut program = Unlinks::start(&scene, "stays");
    program.go_on();
    let fd = program.says();
    let path = format!("/proc/{}/fd/{fd}", program.program.id());
    let read = scene.command("cat").arg(&path).output().expect("cat");
    assert!(read.status.success(), "{read:?}");
    assert!(read.stdout == large(), "a program of the session");
    // What another one writes there the first one's file has.
    let script = format!("printf more >> {path}");
    let mut shell = scene.command("/bin/sh");
    let wrote = shell.arg("-c").arg(script).status().expect("a shell");
    assert!(wrote.success());
    let read = scene.command("cat").arg(&path).output().expect("cat");
    assert!(read.stdout == [large(), b"more".to_vec()].concat(), "more");
    let kept = std::fs::File::open(&path).expect("it leads there");
    program.ends();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut { kept }, &mut bytes).expect("readable");
    assert!(bytes == [large(), b"more".to_vec()].concat(), "an outsider");
}

#[test]
fn bytes_of_an_unlinked_file_that_is_mounted() {
    let scene = Scene::new("unlink-mounted", 0);
    let place = scene.path("mounted");
    std::fs::write(&place, "").expect("a file");
    let mut program = Unlinks::start(&scene, "mounted");
    // The mount is this thread's alone, which sees other mounts than the rest from here on.
    let seen = std::thread::scope(|threads| {
        let mounted = threads.spawn(|| {
            if !mount_here(&scene.path("a"), &place) {
                return None;
            }
            program.go_on();
            program.ends();
            Some(std::fs::read(&place).expect("a file"))
        });
        mounted.join().expect("an end")
    });
    match seen {
        Some(bytes) => assert!(bytes == large()),
        None => crate::here::skipped("nothing can be mounted"),
    }
}

/// Mounts a file in the place of another one, for the calling thread alone. Whether it may.
fn mount_here(from: &Path, to: &Path) -> bool {
    let (from, to, none) = (c(from), c(to), std::ptr::null());
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: strings of ours.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
            && libc::mount(from.as_ptr(), to.as_ptr(), none, libc::MS_BIND, none.cast()) == 0
    }
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
