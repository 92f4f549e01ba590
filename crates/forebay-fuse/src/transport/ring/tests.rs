//! Rings of this kernel. They need root and a switch: `echo Y > /sys/module/fuse/parameters/enable_uring`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::statvfs;
use rustix::mount::{UnmountFlags, unmount};

use super::*;
use crate::transport::mounted::{FILE_BYTES, Mounted, PATIENCE, byte_at, locked, stay_on, within};

/// A mount by rings. `None`, and said so, where there can be none.
fn by_rings() -> Option<Mounted> {
    if is_switched_on() != Some(true) {
        forebay_model::skipped("this kernel sends no requests by io_uring, or it is switched off");
        return None;
    }
    Mounted::begin(Ring::Always, None)
}

fn online() -> Vec<usize> {
    let parts = processors("online").expect("a list");
    parts.into_iter().flatten().map(usize::from).collect()
}

#[test]
fn requests_are_answered_on_the_processor_that_asks() {
    let Some(mounted) = by_rings() else {
        return;
    };
    for processor in online() {
        locked(&mounted.asked.answered_by).clear();
        let path = mounted.path().to_owned();
        within("rooms are told", move || {
            stay_on(processor);
            for _ in 0..200 {
                statvfs(&path).expect("a room");
            }
        });
        let answered = locked(&mounted.asked.answered_by).clone();
        assert_eq!(answered, BTreeSet::from([(vec![processor], true)]));
    }
    mounted.end();
}

#[test]
fn answers_that_wait_hold_up_nobody_on_their_processor() {
    let Some(mounted) = by_rings() else {
        return;
    };
    let processor = online()[0];
    let waiters: Vec<_> = (0..PLACES_MAX - 1)
        .map(|number| {
            let path = mounted.path().join(format!("wait{number}"));
            thread::spawn(move || {
                stay_on(processor);
                fs::metadata(path).map(drop)
            })
        })
        .collect();
    let begun = Instant::now();
    while locked(&mounted.asked.waiting).len() < waiters.len() {
        assert!(begun.elapsed() < PATIENCE, "not all are asked for");
        thread::sleep(Duration::from_millis(1));
    }
    let path = mounted.path().to_owned();
    within("others are answered", move || {
        stay_on(processor);
        for _ in 0..200 {
            statvfs(&path).expect("a room");
        }
    });
    // They are answered by another thread than the one that got the request.
    mounted.asked.let_go();
    for waiter in waiters {
        let answered = within("those that wait are answered", || waiter.join());
        let error = answered.expect("it ends").expect_err("no such name");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
    mounted.end();
}

#[test]
fn bytes_and_names_come_whole() {
    let Some(mounted) = by_rings() else {
        return;
    };
    let path = mounted.path().join("file");
    let wanted = path.clone();
    let (bytes, value) = within("a file is read", move || {
        let mut bytes = Vec::new();
        let mut file = File::open(&path).expect("opened");
        file.read_to_end(&mut bytes).expect("read");
        let mut value = [0; 64];
        let count = rustix::fs::getxattr(&path, "user.wanted", &mut value[..]);
        (bytes, value[..count.expect("a value")].to_vec())
    });
    assert_eq!(bytes.len() as u64, FILE_BYTES);
    let wrong = { bytes.iter().zip(0..) }.find(|(byte, offset)| **byte != byte_at(*offset));
    assert_eq!(wrong, None);
    assert_eq!(value, [b'x'; 16]);
    // What fails fails alone.
    let missing = wanted.with_file_name("panic");
    let error = within("a panic is an error", move || fs::metadata(missing));
    assert_eq!(error.expect_err("failed").raw_os_error(), Some(libc::EIO));
    let error = within("what is not there is not", move || {
        fs::metadata(wanted.with_file_name("missing"))
    });
    assert_eq!(error.expect_err("none").kind(), io::ErrorKind::NotFound);
    mounted.end();
}

#[test]
fn a_mount_ends_under_load_and_leaves_nothing() {
    for _ in 0..5 {
        let Some(mounted) = by_rings() else {
            return;
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let programs: Vec<_> = (0..8)
            .map(|number| {
                let (path, is_over) = (mounted.path().to_owned(), Arc::clone(&is_over));
                // Held open, the mount goes on without its name; then it is cut off.
                let directory = File::open(&path).expect("opened");
                thread::spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let name = format!("missing{number}");
                        let found =
                            rustix::fs::statat(&directory, name, rustix::fs::AtFlags::empty());
                        if found.err() == Some(rustix::io::Errno::NOTCONN) {
                            return;
                        }
                    }
                })
            })
            .collect();
        let before = mounted.asked.count.load(Ordering::Relaxed);
        let begun = Instant::now();
        while mounted.asked.count.load(Ordering::Relaxed) < before + 500 {
            assert!(begun.elapsed() < PATIENCE, "no load");
            thread::sleep(Duration::from_millis(1));
        }
        // Requests that are under way fail. In use, it is mounted still.
        let _ = unmount(mounted.path(), UnmountFlags::FORCE);
        mounted.end();
        is_over.store(true, Ordering::Relaxed);
        for program in programs {
            within("programs go on", || program.join()).expect("no panic");
        }
    }
}

#[test]
fn lists_of_processors_are_read() {
    assert_eq!(parsed("0-3,5\n"), Some(vec![0..=3, 5..=5]));
    assert_eq!(parsed("0\n"), Some(vec![0..=0]));
    assert_eq!(parsed(""), None);
}
