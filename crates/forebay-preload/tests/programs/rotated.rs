//! Logs that are rotated below their writers: another file takes the place of a descriptor (`dup2`) that threads write to.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::scene::{Scene, said};
use crate::sys::*;

/// Bytes of a record: its writer, and its number.
const RECORD: usize = 64;
const FILES: u32 = 40;
const WRITERS: usize = 2;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "rotate" | "rotate-inherited" => {
            let flags = argument.parse().expect("flags");
            let log = match role {
                "rotate" => next_log(dir, 0, flags),
                _ => 0,
            };
            rotate(dir, flags, log);
        }
        "rotate-back" => onto_itself_and_back(dir),
        "switch-dup" => duplicates(dir, argument),
        "switch" => switch(dir, argument.parse().expect("flags")),
        _ => return false,
    }
    true
}

fn record(writer: usize, number: u32) -> Vec<u8> {
    let mut text = format!("{writer} {number:010}").into_bytes();
    text.resize(RECORD - 1, b'.');
    text.push(b'\n');
    text
}

fn next_log(dir: &Path, number: u32, flags: i32) -> i32 {
    let flags = libc::O_RDWR | libc::O_CREAT | flags;
    let fd = open(&dir.join(number.to_string()), flags).expect("a log");
    // More than after which a file is managed.
    for _ in 0..20 {
        write(fd, &[b'#'; 64 * RECORD]).expect("a head");
    }
    fd
}

/// Two threads write records while the file changes; each record must be in one file, once, behind those that were written before.
fn rotate(dir: &Path, flags: i32, log: i32) {
    let written = [const { AtomicU32::new(0) }; WRITERS];
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (writer, written) in written.iter().enumerate() {
            let ends = &ends;
            scope.spawn(move || {
                while !ends.load(Relaxed) {
                    let number = written.load(Relaxed);
                    assert_eq!(write(log, &record(writer, number)), Ok(RECORD));
                    written.store(number + 1, Relaxed);
                }
            });
        }
        for number in 1..FILES {
            std::thread::sleep(Duration::from_millis(3));
            let next = next_log(dir, number, flags);
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::dup2(next, log) }, log);
            close(next).expect("close");
        }
        ends.store(true, Relaxed);
    });
    close(log).expect("close");
    let mut seen = [0u32; WRITERS];
    for number in 0..FILES {
        let bytes = std::fs::read(dir.join(number.to_string())).expect("a log");
        let (head, records) = bytes.split_at(20 * 64 * RECORD);
        assert!(
            head.iter().all(|&byte| byte == b'#'),
            "the head of {number}"
        );
        for one in records.chunks(RECORD) {
            let writer = usize::from(one[0].wrapping_sub(b'0')).min(WRITERS - 1);
            let wanted = record(writer, seen[writer]);
            assert_eq!(
                String::from_utf8_lossy(one),
                String::from_utf8_lossy(&wanted),
                "log {number}"
            );
            seen[writer] += 1;
        }
    }
    let written = written.map(AtomicU32::into_inner);
    assert_eq!(seen, written, "records that are in no log");
}

/// A descriptor onto one that is of the same file, onto one that is none, and a call that fails: all stay what they are.
fn onto_itself_and_back(dir: &Path) {
    let log = next_log(dir, 0, 0);
    // SAFETY: takes no memory, in each of these.
    let (other, free, gone) = unsafe { (libc::dup(log), libc::dup(log), libc::dup(log)) };
    close(free).expect("close");
    close(gone).expect("close");
    // SAFETY: see above.
    unsafe {
        assert_eq!(libc::dup2(log, other), other);
        assert_eq!(libc::dup2(log, free), free);
        assert_eq!(libc::dup2(log, i32::MAX), -1);
        assert_eq!(libc::dup2(gone, log), -1);
        assert_eq!(libc::dup3(other, log, 0x40), -1);
    }
    for fd in [log, other, free] {
        assert_eq!(write(fd, &record(0, fd as u32)), Ok(RECORD));
    }
    let end = (20 * 64 * RECORD) as i64;
    assert_eq!(size_of(log), end + 3 * RECORD as i64);
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: see above.
    assert_eq!(unsafe { libc::dup2(pipe[1], other) }, other);
    assert_eq!(write(other, b"through the pipe"), Ok(16));
    assert_eq!(read(pipe[0], 16), Ok(b"through the pipe".to_vec()));
    // SAFETY: see above.
    assert_eq!(unsafe { libc::dup2(log, other) }, other);
    assert_eq!(write(other, &record(0, 7)), Ok(RECORD));
    close(log).expect("close");
    assert_eq!(pread(other, RECORD, end), Ok(record(0, log as u32)));
    close(other).expect("close");
    close(free).expect("close");
    let bytes = std::fs::read(dir.join("0")).expect("a log");
    assert_eq!(bytes.len() as i64, end + 4 * RECORD as i64);
    assert_eq!(&bytes[bytes.len() - RECORD..], record(0, 7));
}

/// Where records of the thread lie that gives offsets.
const FAR: i64 = 64 << 20;
/// Records of a thread at most, and for how long it writes.
const RECORDS: u32 = 100_000;
const WRITES_FOR: Duration = Duration::from_secs(1);

/// How many records of a writer a file has from an offset on, none twice: each is noted.
fn note_records(fd: i32, from: i64, writer: usize, seen: &mut [bool]) {
    let mut at = from;
    loop {
        let bytes = pread(fd, 1 << 20, at).expect("records");
        for one in bytes
            .chunks(RECORD)
            .filter(|one| one[0] == b'0' + writer as u8)
        {
            let text = String::from_utf8_lossy(&one[2..12]);
            let number: u32 = text.parse().expect("a number");
            assert!(one == record(writer, number), "record {number} of {writer}");
            let seen = &mut seen[number as usize];
            assert!(!std::mem::replace(seen, true), "{number} of {writer} twice");
        }
        match bytes.len() {
            0 => return,
            len => at += len as i64,
        }
    }
}

/// A descriptor is switched from one file to another and back while two threads write to it, one at its own offset. What was acknowledged is in
/// one of the two; and they are what they were afterwards, whatever is opened then.
fn switch(dir: &Path, flags: i32) {
    let (first, second) = (next_log(dir, 0, 0), next_log(dir, 1, flags));
    // SAFETY: takes no memory.
    let log = unsafe { libc::dup(first) };
    let (begun, ends) = (Instant::now(), AtomicBool::new(false));
    let write_all = |writer: usize| {
        let mut number = 0;
        while number < RECORDS && begun.elapsed() < WRITES_FOR {
            let (bytes, at) = (record(writer, number), FAR + i64::from(number) * 64);
            let written = match writer {
                0 => write(log, &bytes),
                _ => pwrite(log, &bytes, at),
            };
            assert_eq!(written, Ok(RECORD), "{number} of {writer}");
            number += 1;
        }
        number
    };
    let written = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Relaxed) {
                for file in [second, first] {
                    // SAFETY: takes no memory.
                    assert_eq!(unsafe { libc::dup2(file, log) }, log);
                }
            }
        });
        let writers = [0, 1].map(|writer| scope.spawn(move || write_all(writer)));
        let written = writers.map(|writer| writer.join());
        ends.store(true, Relaxed);
        written.map(|written| written.expect("a writer"))
    });
    close(log).expect("close");
    for (writer, from) in [(0, 0), (1, FAR)] {
        let mut seen = vec![false; written[writer] as usize];
        for file in [first, second] {
            note_records(file, from, writer, &mut seen);
        }
        let lost = seen.iter().filter(|&&seen| !seen).count();
        assert_eq!(lost, 0, "of {} by {writer}", seen.len());
    }
    let third = open(&dir.join("third"), libc::O_RDWR | libc::O_CREAT).expect("open");
    for _ in 0..200 {
        write(third, &[b'z'; 4096]).expect("write");
    }
    for fd in [first, second] {
        assert_eq!(pread(fd, 6, 640), Ok(b"######".to_vec()));
        assert_eq!(pwrite(fd, b"here", 0), Ok(4));
        assert_eq!(pread(third, 6, 0), Ok(b"zzzzzz".to_vec()));
        close(fd).expect("close");
    }
    close(third).expect("close");
    for name in ["0", "1"] {
        assert!(
            std::fs::read(dir.join(name))
                .expect("a log")
                .starts_with(b"here##")
        );
    }
}

/// The number of a descriptor's inode, as the kernel has it.
fn inode(fd: i32) -> u64 {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the target is ours, filled where the call succeeds.
    unsafe {
        assert_eq!(libc::fstat(fd, stat.as_mut_ptr()), 0);
        stat.assume_init().st_ino
    }
}

/// A descriptor is duplicated while another thread switches it between two files, or a file and a device: what is written to the new descriptor
/// is in the file that the kernel says it is of.
fn duplicates(dir: &Path, other: &str) {
    let first = next_log(dir, 0, 0);
    let second = match other {
        "log" => next_log(dir, 1, 0),
        path => open(Path::new(path), libc::O_RDWR).expect("a device"),
    };
    // SAFETY: takes no memory.
    let log = unsafe { libc::dup(first) };
    let (begun, ends) = (Instant::now(), AtomicBool::new(false));
    let mut written = [0; 2];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Relaxed) {
                for file in [second, first] {
                    // SAFETY: takes no memory.
                    assert_eq!(unsafe { libc::dup2(file, log) }, log);
                }
            }
        });
        let of_first = inode(first);
        while begun.elapsed() < WRITES_FOR {
            // SAFETY: takes no memory, in both.
            let fd = unsafe {
                match written[0] % 2 {
                    0 => libc::dup(log),
                    _ => libc::fcntl(log, libc::F_DUPFD_CLOEXEC, 0),
                }
            };
            let to = usize::from(inode(fd) != of_first);
            assert_eq!(write(fd, &record(to, written[to])), Ok(RECORD));
            written[to] += 1;
            close(fd).expect("close");
        }
        ends.store(true, Relaxed);
    });
    close(log).expect("close");
    let files = if other == "log" { 2 } else { 1 };
    for (to, fd) in [first, second].into_iter().enumerate().take(files) {
        let mut seen = vec![false; written[to] as usize];
        note_records(fd, 0, to, &mut seen);
        let lost = seen.iter().filter(|&&seen| !seen).count();
        assert_eq!(lost, 0, "of {} in file {to}", seen.len());
    }
}

#[test]
fn a_log_that_is_rotated_loses_no_record() {
    for flags in [0, libc::O_APPEND] {
        for small in [0, 64 * 1024] {
            let scene = Scene::new("rotate", small);
            scene.play("rotate", &flags.to_string());
            assert!(scene.bytes_to_memory() > 0);
        }
    }
}

/// The first log was open before the library came, and is never managed.
#[test]
fn a_log_that_was_inherited_and_is_rotated_loses_no_record() {
    for flags in [0, libc::O_APPEND].repeat(2) {
        let scene = Scene::new("rotate-inherited", 0);
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true);
        options.append(flags != 0);
        let mut log = options.open(scene.path("0")).expect("a log");
        log.write_all(&[b'#'; 20 * 64 * RECORD]).expect("a head");
        let mut program = scene.role("rotate-inherited", &flags.to_string());
        said(program.stdin(log).output().expect("a program"));
        assert!(scene.bytes_to_memory() > 0);
    }
}

#[test]
fn a_descriptor_takes_the_place_of_any_other() {
    for small in [0, 64 * 1024] {
        Scene::new("rotate-back", small).play("rotate-back", "");
    }
}

/// Two that are the engine's, and one that stays with the kernel.
#[test]
fn a_descriptor_that_is_switched_there_and_back_loses_no_record() {
    for flags in [0, libc::O_SYNC].repeat(3) {
        let scene = Scene::new("switch", 1);
        scene.play("switch", &flags.to_string());
        assert!(scene.bytes_to_memory() > 0);
    }
}

#[test]
fn a_duplicate_of_a_descriptor_that_is_switched_is_of_one_file() {
    for other in ["log", "/dev/null"] {
        let scene = Scene::new("switch-dup", 1);
        scene.play("switch-dup", other);
        assert!(scene.bytes_to_memory() > 0);
    }
}
