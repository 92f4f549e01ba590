//! Descriptors that are closed while other threads use them: a write is in the file, or hears that there is no such descriptor.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::scene::Scene;
use crate::sys::*;

const RECORD: usize = 4000;
const FILES: usize = 40;

type Way = (&'static str, fn(i32));

/// Ways to close a descriptor.
const WAYS: [Way; 3] = [
    ("close", |fd| close(fd).expect("close")),
    ("close_range", |fd| {
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::close_range(fd as u32, fd as u32, 0) }, 0);
    }),
    ("closefrom", |fd| {
        // SAFETY: takes no memory.
        unsafe { closefrom(fd) }
    }),
];

unsafe extern "C" {
    fn closefrom(first: i32);
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "close-beside" => {
            let (way, flags) = argument.split_once(' ').expect("a way and flags");
            let (_, end) = WAYS.iter().find(|it| it.0 == way).expect("a way");
            close_beside(dir, *end, flags.parse().expect("flags"));
        }
        _ => return false,
    }
    true
}

/// A record that nobody takes for another one.
fn record(number: usize) -> Vec<u8> {
    let mut bytes = vec![b'.'; RECORD];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A thread writes records until it hears that the descriptor is closed, which another one does to it.
fn close_beside(dir: &Path, end: fn(i32), flags: i32) {
    for number in 0..FILES {
        let path = dir.join(number.to_string());
        let fd = open(&path, libc::O_RDWR | libc::O_CREAT | flags).expect("a file");
        let written = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    match write(fd, &record(written.load(Relaxed))) {
                        Ok(len) => assert_eq!(len, RECORD),
                        Err(errno) => break assert_eq!(errno, libc::EBADF),
                    }
                    written.fetch_add(1, Relaxed);
                }
            });
            std::thread::sleep(Duration::from_micros(1500 + number as u64 * 37));
            end(fd);
        });
        let bytes = std::fs::read(&path).expect("the file");
        let written = written.into_inner();
        assert_eq!(bytes.len(), written * RECORD, "bytes of file {number}");
        for (at, one) in bytes.chunks(RECORD).enumerate() {
            assert!(
                one == record(at),
                "record {at} of {written} in file {number} is another one"
            );
        }
        std::fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn a_close_beside_a_writer_loses_no_record() {
    for (way, _) in WAYS {
        for flags in [0, libc::O_APPEND] {
            for small in [0, 64 * 1024] {
                let scene = Scene::new("close-beside", small);
                scene.play("close-beside", &format!("{way} {flags}"));
                assert!(scene.bytes_to_memory() > 0);
            }
        }
    }
}
