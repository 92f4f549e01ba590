//! More threads than a session has slots for.

use std::path::Path;
use std::process::{Child, Output};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::scene::{Scene, said};
use crate::sys::*;

/// A session has 1,024 slots.
const THREADS: usize = 1100;
const BLOCK: usize = 512;
/// Blocks that another program writes while all of the threads live.
const OTHERS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(180);

pub fn play(role: &str, _argument: &str, dir: &Path) -> bool {
    match role {
        "many-threads" => many_threads(dir),
        "beside-many-threads" => beside_many_threads(dir),
        _ => return false,
    }
    true
}

fn block(number: usize, turn: usize) -> Vec<u8> {
    pattern((number % 200 + turn) as u8, BLOCK)
}

fn await_file(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(
            begun.elapsed() < PATIENCE,
            "{} is not there",
            path.display()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn many_threads(dir: &Path) {
    let fd = open(&dir.join("a"), libc::O_RDWR | libc::O_CREAT).expect("open");
    let barrier = Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let barrier = &barrier;
            let one = std::thread::Builder::new().stack_size(128 * 1024);
            let thread = one.spawn_scoped(scope, move || {
                let at = (number * BLOCK) as i64;
                assert_eq!(pwrite(fd, &block(number, 0), at), Ok(BLOCK));
                barrier.wait();
                barrier.wait();
                let next = (number + 1) % THREADS;
                let turn = usize::from(next < OTHERS);
                let seen = pread(fd, BLOCK, (next * BLOCK) as i64);
                assert!(seen == Ok(block(next, turn)), "block {next}");
                barrier.wait();
                if number >= OTHERS {
                    assert_eq!(pwrite(fd, &block(number, 2), at), Ok(BLOCK));
                }
            });
            thread.expect("a thread");
        }
        barrier.wait();
        std::fs::write(dir.join("all-there"), "").expect("a mark");
        await_file(&dir.join("go-on"));
        barrier.wait();
        barrier.wait();
    });
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::fsync(fd) }, 0);
    close(fd).expect("close");
}

fn beside_many_threads(dir: &Path) {
    let fd = open(&dir.join("a"), libc::O_RDWR).expect("open");
    for number in 0..THREADS {
        let seen = pread(fd, BLOCK, (number * BLOCK) as i64);
        assert!(seen == Ok(block(number, 0)), "block {number}");
    }
    for number in 0..OTHERS {
        let at = (number * BLOCK) as i64;
        assert_eq!(pwrite(fd, &block(number, 1), at), Ok(BLOCK));
    }
    close(fd).expect("close");
}

/// What a program has said, once it has ended; one that does not end is killed.
fn ended(mut child: Child) -> Output {
    let begun = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().expect("a child");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("an end")
}

#[test]
fn more_threads_than_slots() {
    let scene = Scene::new("many", 0);
    let mut many = scene.start("many-threads", "");
    let begun = Instant::now();
    while !scene.path("all-there").exists() && many.try_wait().expect("a child").is_none() {
        if begun.elapsed() > PATIENCE {
            many.kill().expect("a child");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if many.try_wait().expect("a child").is_none() {
        said(ended(scene.start("beside-many-threads", "")));
        std::fs::write(scene.path("go-on"), "").expect("a mark");
    }
    said(ended(many));
    let bytes = std::fs::read(scene.path("a")).expect("a file");
    assert_eq!(bytes.len(), THREADS * BLOCK);
    for (number, seen) in bytes.chunks(BLOCK).enumerate() {
        let turn = if number < OTHERS { 1 } else { 2 };
        assert!(seen == block(number, turn), "block {number}");
    }
    assert!(scene.bytes_to_memory() >= (THREADS * BLOCK) as u64);
}
