//! Views and windows: what they show and leave, who waits for whom, and what they cost.

use std::sync::Arc;

use super::drive::{by, content, faults, new_store, open, small_store};
use super::sim::Simulated;
use crate::errno::Errno;
use crate::medium::{Durability, Medium};
use crate::store::Store;
use crate::types::{Changes, CreateOptions, ROOT};

const PAGE: usize = 4096;

fn store(blocks: usize) -> (Arc<Simulated>, Store, u64) {
    let bytes = new_store(blocks, &CreateOptions::default());
    let medium = Simulated::new(bytes, Durability::Dax);
    let store = open(&medium).expect("a new store opens");
    let file = store.create(ROOT, b"f", by(0o644)).expect("made").inode;
    (medium, store, file)
}

fn write(store: &Store, file: u64, at: u64, bytes: &[u8]) {
    assert_eq!(store.write(file, at, bytes), Ok(bytes.len()));
}

fn all(store: &Store, file: u64) -> Vec<u8> {
    let mut bytes = vec![0; store.getattr(file).expect("there").size as usize];
    assert_eq!(store.read(file, 0, &mut bytes), Ok(bytes.len()));
    bytes
}

#[test]
fn a_view_shows_one_moment_whatever_becomes_of_the_file() {
    let (medium, store, file) = store(1500);
    let bytes = content(1, 40 * PAGE);
    write(&store, file, 0, &bytes);
    // Of the running batch, whose pages are written in place otherwise.
    let fresh = store.view(file, 100, 30 * PAGE).expect("a view");
    write(&store, file, 0, &content(2, 20 * PAGE));
    assert_eq!(store.sync(), Ok(()));
    let durable = store.view(file, 0, 1 << 30).expect("a view");
    let then = all(&store, file);
    for fill in 3..20 {
        write(&store, file, 0, &content(fill, 40 * PAGE));
        assert_eq!(store.sync(), Ok(()));
    }
    assert_eq!(store.unlink(ROOT, b"f"), Ok(()));
    let other = store.create(ROOT, b"g", by(0o644)).expect("made").inode;
    write(&store, other, 0, &content(99, 1 << 20));
    assert_eq!(store.sync(), Ok(()));
    assert!(*fresh.to_slice() == bytes[100..100 + 30 * PAGE]);
    assert!(*durable.to_slice() == *then);
    drop((fresh, durable));
    let free = store.statfs_when_committed().expect("committed");
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
    let again = open(&medium).expect("it opens");
    assert_eq!(again.statfs().blocks_free, free.blocks_free);
}

#[test]
fn a_view_has_holes_and_ends_with_the_file() {
    let (_, store, file) = store(1500);
    write(&store, file, 10_000, b"behind a hole");
    let fallocated = store.fallocate(file, 0, 20_000, 50_000);
    assert_eq!(fallocated, Ok(()));
    let view = store.view(file, 5, 1 << 20).expect("a view");
    assert!(*view.to_slice() == all(&store, file)[5..]);
    assert!(view.as_slice().is_none() && view.len() == 70_000 - 5);
    assert!(store.view(file, 70_000, 10).expect("a view").is_empty());
    assert!(store.view(file, u64::MAX, 10).expect("a view").is_empty());
    assert_eq!(store.view(ROOT, 0, 1).err(), Some(Errno::EISDIR));
    assert_eq!(store.view(99, 0, 1).err(), Some(Errno::ENOENT));
    let long = Changes {
        size: Some(1 << 40),
        ..Changes::default()
    };
    assert!(store.setattr(file, &long).is_ok());
    let hole = store.view(file, 1 << 30, 200_000).expect("a view");
    assert!(hole.parts().all(|part| part.iter().all(|byte| *byte == 0)));
    assert_eq!(hole.parts().map(<[u8]>::len).sum::<usize>(), 200_000);
}

#[test]
fn bytes_that_a_view_shows_are_those_of_the_medium() {
    let (medium, store, file) = store(1500);
    write(&store, file, 0, &content(1, 64 * PAGE));
    let view = store.view(file, PAGE as u64, 63 * PAGE).expect("a view");
    let bytes = view.as_slice().expect("in one piece");
    let memory = medium.address(0, 1, false) as usize;
    let place = bytes.as_ptr() as usize;
    assert!((memory..memory + medium.length() as usize).contains(&place));
}

/// Nodes of the map, and what else is made meanwhile, lie elsewhere.
#[test]
fn a_file_that_is_written_in_order_is_one_slice() {
    const PIECE: usize = 25 * PAGE;
    let (_, store, file) = store(8000);
    for number in 0..80 {
        write(&store, file, (number * PIECE) as u64, &content(1, PIECE));
        if number % 10 == 0 {
            let name = format!("{number}");
            let made = store.mkdir(ROOT, name.as_bytes(), by(0o755));
            let made = made.expect("made").inode;
            assert!(store.create(made, b"f", by(0o644)).is_ok());
            assert_eq!(store.sync(), Ok(()));
        }
    }
    let view = store.view(file, 5, 80 * PIECE).expect("a view");
    assert!(view.as_slice().is_some(), "{} parts", view.parts().count());
    let mut window = store.window(file, 0, 10 << 20).expect("a window");
    assert_eq!(window.len(), 10 << 20);
    assert_eq!(window.commit(), Ok(()));
    let view = store.view(file, 5, 10 << 20).expect("a view");
    assert!(view.as_slice().is_some(), "{} parts", view.parts().count());
}

#[test]
fn a_window_has_all_that_a_failed_commit_has_not_given() {
    let (_, store, file) = store(1500);
    let mut window = store.window(file, 5, 3 * PAGE).expect("a window");
    window.fill(9);
    assert_eq!(window.commit_first(4 * PAGE), Err(Errno::EINVAL));
    assert_eq!(store.close(), Ok(()));
    assert_eq!(window.commit_first(PAGE), Err(Errno::EROFS));
    assert_eq!(&*window, [9; 3 * PAGE]);
}

#[test]
fn the_first_bytes_of_a_window_are_committed_alone() {
    let (_, store, file) = store(1500);
    let mut window = store.window(file, 5, 3 * PAGE).expect("a window");
    window.fill(9);
    assert_eq!(window.commit_first(PAGE), Ok(()));
    assert!(window.is_empty());
    assert_eq!(store.getattr(file).map(|is| is.size), Ok(5 + PAGE as u64));
}

#[test]
fn a_window_is_the_file_when_it_is_committed_and_nothing_before() {
    let (medium, store, file) = store(1500);
    let before = content(1, 30_000);
    write(&store, file, 0, &before);
    let mut window = store.window(file, 5_000, 20_000).expect("a window");
    assert_eq!((window.len(), window.offset()), (20_000, 5_000));
    window.fill(7);
    let place = window.as_ptr();
    assert!(all(&store, file) == before);
    assert_eq!(window.commit(), Ok(()));
    assert!(window.is_empty());
    let mut expected = before.clone();
    expected[5_000..25_000].fill(7);
    assert!(all(&store, file) == expected);
    // They were not copied.
    let view = store.view(file, 5_000, 20_000).expect("a view");
    assert_eq!(view.as_slice().map(<[u8]>::as_ptr), Some(place));
    // One that is not committed leaves nothing, and gives its room back.
    let free = store.statfs().blocks_free;
    let mut dropped = store.window(file, 0, 100_000).expect("a window");
    dropped.fill(9);
    assert!(store.statfs().blocks_free < free);
    drop(dropped);
    assert_eq!(store.statfs().blocks_free, free);
    assert!(all(&store, file) == expected);
    // Behind the end, with a hole, in part.
    let mut window = store.window(file, 50_001, 9_000).expect("a window");
    window.fill(3);
    window.truncate(10);
    assert_eq!(window.commit(), Ok(()));
    expected.resize(50_001, 0);
    expected.extend([3; 10]);
    assert!(all(&store, file) == expected);
    drop((window, view));
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}

#[test]
fn windows_refuse_what_writes_refuse() {
    let (_, store, file) = store(1500);
    assert_eq!(store.window(file, 0, 0).err(), Some(Errno::EINVAL));
    assert_eq!(store.window(ROOT, 0, 1).err(), Some(Errno::EISDIR));
    assert_eq!(store.window(file, 1 << 50, 1).err(), Some(Errno::EFBIG));
    let mut window = store.window(file, 0, 1 << 40).expect("as much as there is");
    // What lies behind the metadata.
    let rest: Vec<_> = std::iter::from_fn(|| store.window(file, 0, 1 << 40).ok()).collect();
    assert!(rest.len() <= 2, "{} windows more", rest.len());
    assert_eq!(store.window(file, 0, 1).err(), Some(Errno::ENOSPC));
    window.truncate(10 * PAGE);
    window.fill(1);
    assert_eq!(store.unlink(ROOT, b"f"), Ok(()));
    // It holds its file, and what it has left of its room.
    assert_eq!(window.commit(), Ok(()));
    let other = store.create(ROOT, b"g", by(0o644)).expect("made").inode;
    assert_eq!(store.write(other, 0, b"x"), Err(Errno::ENOSPC));
    drop(window);
    write(&store, other, 0, b"x");
}

#[test]
fn views_and_windows_may_outlive_the_store() {
    let (medium, store, file) = store(1500);
    write(&store, file, 0, &content(1, 9000));
    let view = store.view(file, 0, 9000).expect("a view");
    let mut window = store.window(file, 0, 9000).expect("a window");
    window.fill(2);
    assert_eq!(store.close(), Ok(()));
    assert_eq!(window.commit(), Err(Errno::EROFS));
    assert!(*view.to_slice() == content(1, 9000));
    drop((view, window));
    let again = open(&medium).expect("it opens");
    assert!(all(&again, file) == content(1, 9000));
}

/// Views keep room that a commit does not give back, and a full store says so instead of waiting.
#[test]
fn what_views_show_counts_as_in_use() {
    let (_, store, file) = store(600);
    let pages = store.statfs().blocks_available as usize - 8;
    write(&store, file, 0, &vec![1; pages * PAGE]);
    let view = store.view(file, 0, pages * PAGE).expect("a view");
    let done = store.write(file, 0, &vec![2; pages * PAGE]);
    assert!(done.is_err() || done.is_ok_and(|done| done < pages * PAGE));
    assert!(view.parts().flatten().all(|byte| *byte == 1));
    drop(view);
    write(&store, file, 0, &vec![3; pages * PAGE]);
}

/// A write over bytes that no sync has made durable stores them once, and reads nothing.
#[test]
fn a_write_in_place_keeps_no_copy() {
    let bytes = new_store(1500, &CreateOptions::default());
    let medium = super::watched::Watched::new(Simulated::new(bytes, Durability::Dax));
    let opened = Store::open_medium(
        Arc::clone(&medium) as Arc<dyn Medium>,
        super::drive::quiet(),
        super::drive::clock,
    );
    let store = opened.expect("a new store opens");
    let file = store.create(ROOT, b"f", by(0o644)).expect("made").inode;
    write(&store, file, 0, &content(1, 2 << 20));
    let before = medium.bytes_read();
    write(&store, file, 0, &content(2, 2 << 20));
    let read = medium.bytes_read() - before;
    assert!(read < 64 << 10, "{read} bytes read by a write of 2 MiB");
}

/// The file has gone, and its number is free for the next one.
#[test]
fn a_window_is_its_files_alone_when_another_file_could_have_its_number() {
    let medium = Simulated::new(small_store(), Durability::Dax);
    let store = open(&medium).expect("opens");
    let free = store.statfs().blocks_free;
    let one = store.create(ROOT, b"one", by(0o644)).expect("made").inode;
    let mut window = store.window(one, 0, 10).expect("a window");
    window.copy_from_slice(b"of the one");
    assert_eq!(store.unlink(ROOT, b"one"), Ok(()));
    let other = store.create(ROOT, b"other", by(0o600)).expect("made").inode;
    assert_ne!(one, other);
    assert_eq!(window.commit(), Ok(()));
    assert_eq!(store.getattr(other).map(|is| is.size), Ok(0));
    let mut bytes = [0; 10];
    assert_eq!(store.read(one, 0, &mut bytes), Ok(10));
    assert_eq!(&bytes, b"of the one");
    drop(window);
    // Nobody holds it any more.
    assert_eq!(store.getattr(one), Err(Errno::ENOENT));
    assert_eq!(store.unlink(ROOT, b"other"), Ok(()));
    let statistics = store.statfs_when_committed().expect("committed");
    // The root's first bucket stays.
    assert!(free - statistics.blocks_free <= 1);
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}
