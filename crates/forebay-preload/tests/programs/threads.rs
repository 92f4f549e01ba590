//! Programs with many threads, and with very many short ones.

use std::path::Path;

use crate::scene::{Scene, outside, said};
use crate::sys::*;

const BLOCK: usize = 3000;

/// Files of the test of a change in the middle of a write, and the parts of each.
const ROUNDS: usize = 30;
const PARTS: usize = 8;
const PART: usize = 1 << 20;

pub fn play(role: &str, _argument: &str, dir: &Path) -> bool {
    match role {
        "by-kernel" => by_kernel(dir),
        "by-engine" => by_engine(dir),
        "short-threads" => short_threads(dir),
        "parallel-growth" => parallel_growth(dir),
        "shared-offset" => shared_offset(dir),
        "lives" => lives(dir),
        _ => return false,
    }
    true
}

/// Makes files longer by large writes, which are the kernel's until somebody else manages the file.
fn by_kernel(dir: &Path) {
    let parts: Vec<_> = (0..PARTS).map(|part| pattern(part as u8, PART)).collect();
    for round in 0..ROUNDS {
        let path = dir.join(round.to_string());
        let fd = open(&path, libc::O_RDWR | libc::O_CREAT).expect("open");
        for (number, part) in parts.iter().enumerate() {
            assert_eq!(pwrite(fd, part, (number * PART) as i64), Ok(PART));
        }
        // Whoever manages the file, it has all that has been written to it.
        assert_eq!(size_of(fd), (PARTS * PART) as i64, "round {round}");
        close(fd).expect("close");
        let begun = std::time::Instant::now();
        while !dir.join(format!("done-{round}")).exists() {
            assert!(begun.elapsed().as_secs() < 60, "the other one has ended");
        }
    }
}

/// Manages each of the files while it grows.
fn by_engine(dir: &Path) {
    for round in 0..ROUNDS {
        let path = dir.join(round.to_string());
        let begun = std::time::Instant::now();
        while !path.exists() {
            assert!(begun.elapsed().as_secs() < 60, "the other one has ended");
        }
        std::thread::sleep(std::time::Duration::from_micros(200 * round as u64));
        let fd = open(&path, libc::O_RDWR).expect("open");
        pwrite(fd, b"other", 5).expect("write");
        close(fd).expect("close");
        std::fs::write(dir.join(format!("done-{round}")), "").expect("a mark");
    }
}

fn short_threads(dir: &Path) {
    let fd = open(&dir.join("a"), libc::O_RDWR | libc::O_CREAT).expect("open");
    write(fd, &[1; 200_000]).expect("write");
    for wave in 0..500u32 {
        let threads: Vec<_> = (0..20u32)
            .map(|one| {
                let number = wave * 20 + one;
                std::thread::spawn(move || {
                    let at = i64::from(number % 60) * BLOCK as i64;
                    assert_eq!(pwrite(fd, &[number as u8; BLOCK], at), Ok(BLOCK));
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("a thread");
        }
    }
    close(fd).expect("close");
}

fn parallel_growth(dir: &Path) {
    // Threads with descriptors of their own write parts of a new file: it becomes managed in the middle.
    let path = dir.join("a");
    let threads: Vec<_> = (0..8usize)
        .map(|me| {
            let path = path.clone();
            std::thread::spawn(move || {
                let fd = open(&path, libc::O_RDWR | libc::O_CREAT).expect("open");
                for turn in 0..100usize {
                    let at = (turn * 8 + me) * BLOCK;
                    assert_eq!(pwrite(fd, &pattern(me as u8, BLOCK), at as i64), Ok(BLOCK));
                }
                close(fd).expect("close");
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a thread");
    }
    let fd = open(&path, libc::O_RDONLY).expect("open");
    for part in 0..800 {
        let at = (part * BLOCK) as i64;
        assert_eq!(
            pread(fd, BLOCK, at),
            Ok(pattern((part % 8) as u8, BLOCK)),
            "part {part}"
        );
    }
}

fn shared_offset(dir: &Path) {
    // Threads write through one descriptor: each record has a place of its own.
    let fd = open(&dir.join("a"), libc::O_RDWR | libc::O_CREAT).expect("open");
    let threads: Vec<_> = (0..4u8)
        .map(|me| {
            std::thread::spawn(move || {
                for _ in 0..200 {
                    assert_eq!(write(fd, &[me + 1; BLOCK]), Ok(BLOCK));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a thread");
    }
    assert_eq!(size_of(fd), (800 * BLOCK) as i64);
    let mut counts = [0; 5];
    for part in 0..800 {
        let bytes = pread(fd, BLOCK, (part * BLOCK) as i64).expect("read");
        assert!(bytes.iter().all(|&b| b == bytes[0]), "part {part} is torn");
        counts[usize::from(bytes[0])] += 1;
    }
    assert_eq!(counts, [0, 200, 200, 200, 200]);
}

/// Threads that make, write, read and remove files, each its own and in turn with another one's.
const LIVING: usize = 6;
const LIVES: usize = 60;

fn lives(dir: &Path) {
    let live = |me: usize| {
        for turn in 0..LIVES {
            // Each second file is two threads', which come to it at once.
            let name = if turn % 2 == 0 { me } else { LIVING + me / 2 };
            let path = dir.join(format!("{name}-{turn}"));
            let fd = open(&path, libc::O_RDWR | libc::O_CREAT).expect("open");
            let seed = (name + turn) as u8;
            let all = pattern(seed, 8 * BLOCK);
            for part in all.chunks(BLOCK) {
                assert_eq!(write(fd, part), Ok(BLOCK));
            }
            close(fd).expect("close");
            let fd = open(&path, libc::O_RDONLY).expect("open");
            assert!(pread(fd, all.len(), 0) == Ok(all), "{path:?}");
            close(fd).expect("close");
            if turn % 2 == 0 {
                std::fs::remove_file(&path).expect("removed");
            }
        }
    };
    std::thread::scope(|scope| {
        for me in 0..LIVING {
            scope.spawn(move || live(me));
        }
    });
}

#[test]
fn files_that_threads_begin_and_end_at_once() {
    let scene = Scene::new("lives", 0);
    scene.play("lives", "");
    // Of two that end and begin the same file at once, one may leave it to the kernel.
    assert!(scene.bytes_to_memory() >= (LIVING * LIVES * 4 * BLOCK) as u64);
    for name in LIVING..LIVING + LIVING / 2 {
        for turn in (1..LIVES).step_by(2) {
            let bytes = outside(&scene.path(&format!("{name}-{turn}")));
            assert!(bytes == pattern((name + turn) as u8, 8 * BLOCK));
        }
    }
}

#[test]
fn ten_thousand_short_threads() {
    let scene = Scene::new("short", 0);
    scene.play("short-threads", "");
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn a_file_that_grows_in_parallel() {
    for turn in 0..10 {
        let scene = Scene::new(
            "parallel",
            if turn % 2 == 0 { 16 * 1024 } else { 64 * 1024 },
        );
        scene.play("parallel-growth", "");
        assert!(scene.bytes_to_memory() > 0);
        let bytes = outside(&scene.path("a"));
        for (part, seen) in bytes.chunks(BLOCK).enumerate() {
            assert!(seen == pattern((part % 8) as u8, BLOCK), "part {part}");
        }
        assert_eq!(bytes.len(), 800 * BLOCK);
    }
}

#[test]
fn an_offset_shared_by_threads() {
    for small in [0, 64 * 1024] {
        let scene = Scene::new("threads", small);
        scene.play("shared-offset", "");
        assert!(scene.bytes_to_memory() > 0);
    }
}

#[test]
fn a_write_of_the_kernels_while_a_file_becomes_managed() {
    let scene = Scene::new("becoming", 0);
    let mut kernel = scene.role("by-kernel", "");
    kernel.env("FOREBAY_SMALL_FILE_BYTES", "1GiB");
    let kernel = kernel
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("a program");
    let engine = scene.start("by-engine", "");
    said(kernel.wait_with_output().expect("an end"));
    said(engine.wait_with_output().expect("an end"));
    for round in 0..ROUNDS {
        let bytes = std::fs::read(scene.path(&round.to_string())).expect("a file");
        assert_eq!(bytes.len(), PARTS * PART);
        for (number, seen) in bytes.chunks(PART).enumerate() {
            let mut expected = pattern(number as u8, PART);
            if number == 0 {
                // Whichever was last.
                expected[5..10].copy_from_slice(&seen[5..10]);
            }
            assert!(seen == expected, "round {round}, part {number}");
        }
    }
}
