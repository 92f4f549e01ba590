//! Full stores, many names, long names.

use super::drive::{by, faults, new_store, open};
use super::sim::Simulated;
use crate::errno::{Errno, Result};
use crate::medium::Durability;
use crate::store::Store;
use crate::types::{CreateOptions, ROOT};

fn store(blocks: usize, options: &CreateOptions) -> (std::sync::Arc<Simulated>, Store) {
    let medium = Simulated::new(new_store(blocks, options), Durability::Dax);
    let store = open(&medium).expect("a new store opens");
    (medium, store)
}

#[test]
fn a_full_store_loses_nothing_takes_new_bytes_for_old_and_can_be_emptied() {
    let (medium, store) = store(300, &CreateOptions::default());
    let before = store.statfs();
    let file = store
        .create(ROOT, b"old", by(0o644))
        .map(|is| is.inode)
        .expect("made");
    assert_eq!(store.write(file, 0, &[1; 300_000]), Ok(300_000));
    let (mut files, mut bytes) = (0u64, 0);
    loop {
        let name = files.to_string();
        let made = match store.create(ROOT, name.as_bytes(), by(0o644)) {
            Ok(made) => made.inode,
            Err(error) => break assert_eq!(error, Errno::ENOSPC),
        };
        files += 1;
        match store.write(made, 0, &[files as u8; 30_000]) {
            Ok(30_000) => bytes += 30_000,
            Ok(less) => bytes += less,
            Err(error) => break assert_eq!(error, Errno::ENOSPC),
        }
    }
    assert!(files > 5 && bytes > 200_000, "{files} files, {bytes} bytes");
    assert!(store.statfs().blocks_available == 0);
    // New bytes in place of old ones always have room, one piece after the other.
    for turn in 2..6 {
        assert_eq!(
            store.write(file, 0, &[turn; 300_000]),
            Ok(300_000),
            "turn {turn}"
        );
    }
    let mut read = vec![0; 300_000];
    assert_eq!(store.read(file, 0, &mut read), Ok(300_000));
    assert!(read.iter().all(|byte| *byte == 5));
    assert_eq!(store.sync(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
    for name in 0..files {
        assert_eq!(store.unlink(ROOT, name.to_string().as_bytes()), Ok(()));
    }
    assert_eq!(store.unlink(ROOT, b"old"), Ok(()));
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
    let store = open(&medium).expect("opens again");
    let after = store.statfs();
    assert_eq!(after.inodes_free, before.inodes_free);
    // The root keeps the bucket that it got.
    assert_eq!(after.blocks_free, before.blocks_free - 1);
}

#[test]
fn what_fails_leaves_the_bytes_as_they_were() {
    let (medium, store) = store(300, &CreateOptions::default());
    let file = store
        .create(ROOT, b"f", by(0o644))
        .map(|is| is.inode)
        .expect("made");
    assert_eq!(store.write(file, 0, &[7; 10_000]), Ok(10_000));
    // In one step, and in two.
    let zero = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    for length in [(2 << 20) - 4096, 2 << 20] {
        let done = store.fallocate(file, zero, 100, length);
        assert_eq!(done.err(), Some(Errno::ENOSPC));
    }
    let mut bytes = vec![0; 10_000];
    assert_eq!(store.read(file, 0, &mut bytes), Ok(10_000));
    assert!(bytes.iter().all(|byte| *byte == 7));
    // What is committed afterwards is the same.
    assert_eq!(store.sync(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

/// Makes a range zeros that begins and ends with data and has a hole of `hole` pages, where the store has room for `room` pages
/// more. Answers what came of it, and whether the file is what it was.
fn make_zeros(hole: u64, room: u64) -> (Result<()>, bool) {
    const DATA: usize = 700 * 4096;
    let (medium, store) = store(6000, &CreateOptions::default());
    let file = store.create(ROOT, b"f", by(0o644)).expect("made").inode;
    let filler = store.create(ROOT, b"g", by(0o644)).expect("made").inode;
    let second = DATA as u64 + hole * 4096;
    assert_eq!(store.write(file, 0, &vec![7; DATA]), Ok(DATA));
    assert_eq!(store.write(file, second, &vec![8; DATA]), Ok(DATA));
    if hole > 0 {
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let punched = store.fallocate(file, punch, DATA as u64, hole * 4096);
        assert_eq!(punched, Ok(()));
    }
    assert_eq!(store.sync(), Ok(()));
    let free = store
        .statfs_when_committed()
        .expect("committed")
        .blocks_available;
    // Without the nodes of the filler's map, which come as they come.
    let length = (free - room) as usize * 4096;
    assert_eq!(
        store.fallocate(filler, 0, 0, length as u64 - 16 * 4096),
        Ok(())
    );
    while store.statfs().blocks_available > room {
        let end = store.getattr(filler).expect("there").size;
        assert_eq!(store.fallocate(filler, 0, end, 4096), Ok(()));
    }
    let before = store.statfs_when_committed().expect("committed");
    let all = second + DATA as u64;
    let done = store.fallocate(file, libc::FALLOC_FL_ZERO_RANGE, 100, all - 200);
    let mut bytes = vec![1; all as usize];
    assert_eq!(store.read(file, 0, &mut bytes), Ok(bytes.len()));
    let mut expected = vec![0; all as usize];
    expected[..DATA].fill(7);
    expected[second as usize..].fill(8);
    if done.is_ok() {
        expected[100..all as usize - 100].fill(0);
        let has = store.getattr(file).expect("there").blocks / 8;
        assert!(has >= all / 4096, "{has} blocks of {all} bytes");
    } else {
        let now = store.statfs_when_committed().expect("committed");
        assert_eq!(now.blocks_free, before.blocks_free);
    }
    let same = bytes == expected;
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
    (done, same)
}

#[test]
fn zeros_that_find_no_room_leave_the_bytes_as_they_were() {
    // Room for the first part alone.
    assert_eq!(make_zeros(1200, 600), (Err(Errno::ENOSPC), true));
    assert_eq!(make_zeros(600, 590), (Err(Errno::ENOSPC), true));
    // Room for the hole alone: bytes that are there become zeros where the store is full, too.
    assert_eq!(make_zeros(1200, 1230), (Ok(()), true));
    assert_eq!(make_zeros(0, 0), (Ok(()), true));
}

#[test]
fn inodes_end_and_come_back() {
    let options = CreateOptions {
        inodes: Some(30),
        ..CreateOptions::default()
    };
    let (_, store) = store(300, &options);
    for number in 0..28 {
        assert!(
            store
                .create(ROOT, format!("{number}").as_bytes(), by(0))
                .is_ok(),
            "{number}"
        );
    }
    assert_eq!(store.statfs().inodes_free, 0);
    assert_eq!(
        store.create(ROOT, b"more", by(0)).err(),
        Some(Errno::ENOSPC)
    );
    assert_eq!(store.unlink(ROOT, b"3"), Ok(()));
    assert!(store.create(ROOT, b"more", by(0)).is_ok());
}

/// Creates and syncs files, then creates so many without a sync, and then punches what changes many lines of a block that the
/// batch has already.
fn fill_a_batch(new: &[u8], synced: usize, running: usize) {
    const PAGES: usize = 500;
    let medium = Simulated::new(new.to_vec(), Durability::Dax);
    let store = open(&medium).expect("a new store opens");
    let create = |number: usize| {
        let made = store.create(ROOT, number.to_string().as_bytes(), by(0o644));
        made.expect("there is room").inode
    };
    let file = create(0);
    let bytes = vec![1; PAGES * 4096];
    assert_eq!(store.write(file, 0, &bytes), Ok(bytes.len()));
    for number in 1..=synced {
        create(number);
        assert_eq!(store.sync(), Ok(()));
    }
    assert_eq!(store.write(file, 0, b"new"), Ok(3));
    for number in synced + 1..=synced + running {
        create(number);
    }
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let length = (PAGES as u64 - 2) * 4096;
    assert_eq!(store.fallocate(file, punch, 4096, length), Ok(()));
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn batches_that_fill_the_log_begin_anew_wherever_the_log_stands() {
    let options = CreateOptions {
        inodes: Some(1000),
        log_blocks: Some(24),
        ..CreateOptions::default()
    };
    let new = new_store(1200, &options);
    for synced in 24..48 {
        for running in (80..160).step_by(5) {
            fill_a_batch(&new, synced, running);
        }
    }
}

/// All names of a directory, a few at a time, while names come and go that are not looked at.
fn all_names(store: &Store, directory: u64) -> Vec<Vec<u8>> {
    let (mut names, mut cookie, mut turn) = (Vec::new(), 0, 0u32);
    loop {
        let mut taken = 0;
        let done = store.readdir(directory, cookie, &mut |entry| {
            if taken == 100 {
                return false;
            }
            taken += 1;
            cookie = entry.cookie;
            names.push(entry.name.clone());
            true
        });
        assert_eq!(done, Ok(()));
        if taken == 0 {
            return names;
        }
        turn += 1;
        assert!(
            store
                .create(directory, format!("other{turn}").as_bytes(), by(0))
                .is_ok()
        );
    }
}

fn many_names(count: usize, length: usize) {
    let inodes = Some(count as u64 * 2 + 1000);
    let blocks = 2000 + count * (length + 40) / 1500 + count * 280 * 2 / 4096;
    let (medium, store) = store(
        blocks,
        &CreateOptions {
            inodes,
            ..CreateOptions::default()
        },
    );
    let directory = store
        .mkdir(ROOT, b"many", by(0o755))
        .map(|is| is.inode)
        .expect("made");
    let name = |number: usize| format!("{number:0length$}").into_bytes();
    for number in 0..count {
        assert!(
            store.create(directory, &name(number), by(0o600)).is_ok(),
            "{number}"
        );
    }
    let found = store.lookup(directory, &name(count / 3)).map(|is| is.links);
    assert_eq!(found, Ok(1));
    assert_eq!(store.rmdir(ROOT, b"many").err(), Some(Errno::ENOTEMPTY));
    let mut names = all_names(&store, directory);
    names.retain(|name| !name.starts_with(b".") && !name.starts_with(b"other"));
    names.sort();
    assert!(names.len() == count && names.iter().enumerate().all(|(at, has)| *has == name(at)));
    assert_eq!(store.sync(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
    for number in 0..count {
        assert_eq!(store.unlink(directory, &name(number)), Ok(()), "{number}");
    }
    assert_eq!(store.lookup(directory, &name(1)).err(), Some(Errno::ENOENT));
    let mut rest = Vec::new();
    let listed = store.readdir(directory, 2, &mut |entry| {
        rest.push(entry.name.clone());
        true
    });
    assert_eq!(listed, Ok(()));
    for name in rest {
        assert_eq!(store.unlink(directory, &name), Ok(()));
    }
    assert_eq!(store.rmdir(ROOT, b"many"), Ok(()));
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn a_directory_has_100_000_names() {
    many_names(100_000, 8);
}

#[test]
fn names_of_255_bytes_are_found() {
    many_names(3_000, 255);
}

/// Names that differ in the highest bits of two words were alike once, in every store: one bucket has room for a few.
#[test]
fn names_that_are_made_to_be_alike_find_places() {
    let medium = Simulated::new(new_store(4096, &CreateOptions::default()), Durability::Dax);
    let store = open(&medium).expect("opens");
    for number in 0u32..256 {
        let mut name = [b'a'; 255];
        for bit in (0..8).filter(|bit| number & (1 << bit) != 0) {
            for byte in [7, 11, 15] {
                name[bit * 16 + byte] ^= 0x80;
            }
        }
        store.create(ROOT, &name, by(0o644)).expect("room");
    }
}
