//! Calls in several pieces, and others of the same file between the pieces: there where the store is full, and the next
//! piece waits for the commit that gives back what was freed. And calls that find their batch full, and the next one too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::drive::{by, clock, faults, new_store, quiet, small_store};
use super::sim::Simulated;
use super::watched::Watched;
use crate::errno::{Errno, Result};
use crate::medium::{Durability, Medium};
use crate::store::Store;
use crate::types::{Changes, CreateOptions, OnExisting, ROOT};

/// Two pieces.
const BYTES: usize = 4 << 20;
/// Pages that are free before them: more than one piece takes, and less than two.
const FREE: u64 = 700;
const ROUNDS: usize = 3;
/// For what has to wait, and is not done.
const A_WHILE: Duration = Duration::from_millis(50);

/// More changes than a batch of the smallest log has room for.
const FILES: usize = 2500;

fn cut(store: &Store, file: u64) {
    let empty = Changes {
        size: Some(0),
        ..Changes::default()
    };
    assert!(store.setattr(file, &empty).is_ok());
}

/// Leaves [`FREE`] pages, and more after the next commit.
fn fill(store: &Store, filler: u64) {
    assert_eq!(store.sync(), Ok(()));
    let pages = store.statfs().blocks_available - FREE;
    let bytes = vec![9; pages as usize * 4096];
    assert_eq!(store.write(filler, 0, &bytes), Ok(bytes.len()));
    assert_eq!(store.sync(), Ok(()));
    cut(store, filler);
}

/// Does something in two pieces and, at the commit between them, something else in another thread; then looks at the file's
/// bytes.
fn rounds(whole: impl Fn(&Store, u64), other: impl Fn(&Store, u64) + Sync, look: impl Fn(&[u8])) {
    let bytes = new_store(1500, &CreateOptions::default());
    let simulated = Simulated::new(bytes, Durability::Dax);
    let medium = Watched::new(Arc::clone(&simulated));
    let opened = Store::open_medium(Arc::clone(&medium) as Arc<dyn Medium>, quiet(), clock);
    let store = opened.expect("a new store opens");
    let file = store.create(ROOT, b"f", by(0o644)).expect("made").inode;
    let filler = store.create(ROOT, b"g", by(0o644)).expect("made").inode;
    for _ in 0..ROUNDS {
        fill(&store, filler);
        let (begin, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        medium.at_commit(Some(Box::new(move || {
            let _ = begin.send(());
            let _ = ended.recv_timeout(A_WHILE);
        })));
        std::thread::scope(|scope| {
            let (store, other) = (&store, &other);
            let between = scope.spawn(move || {
                let is_time = begun.recv().is_ok();
                if is_time {
                    other(store, file);
                }
                let _ = end.send(());
                is_time
            });
            whole(store, file);
            // Whoever still waits for a commit hears that there is none.
            medium.at_commit(None);
            assert_eq!(between.join().ok(), Some(true), "a commit in between");
        });
        let size = store.getattr(file).expect("there").size;
        let mut bytes = vec![0; size as usize];
        assert_eq!(store.read(file, 0, &mut bytes), Ok(bytes.len()));
        look(&bytes);
        cut(&store, file);
    }
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&simulated), [""; 0]);
}

#[test]
fn an_append_in_pieces_is_not_written_over_by_another() {
    rounds(
        |store, file| {
            let appended = store.append(file, &vec![1; BYTES]);
            assert_eq!(appended.map(|(_, written)| written), Ok(BYTES));
        },
        |store, file| {
            assert_eq!(
                store.append(file, b"another").map(|(_, written)| written),
                Ok(7)
            )
        },
        |bytes| {
            let ones = bytes.iter().filter(|byte| **byte == 1).count();
            assert_eq!((ones, bytes.len()), (BYTES, BYTES + 7));
            assert!(bytes.windows(7).any(|part| part == b"another"));
        },
    );
}

#[test]
fn a_file_is_not_cut_between_the_pieces_of_a_write() {
    rounds(
        |store, file| assert_eq!(store.write(file, 0, &vec![7; BYTES]), Ok(BYTES)),
        cut,
        |bytes| {
            assert!(
                bytes.iter().all(|byte| *byte == 7),
                "the first piece is gone"
            );
            assert!(bytes.len() == BYTES || bytes.is_empty());
        },
    );
}

/// Fills the running batch until it takes no more, and at the commit that comes of it, meanwhile, the next one by another thread;
/// what did not fit is done all the same. `call` gets a number of its own each time.
fn full_batches(call: impl Fn(&Store, usize) -> Result<()>) {
    let options = CreateOptions {
        inodes: Some(6000),
        log_blocks: Some(24),
        ..CreateOptions::default()
    };
    let simulated = Simulated::new(new_store(3000, &options), Durability::Dax);
    let medium = Watched::new(Arc::clone(&simulated));
    let opened = Store::open_medium(Arc::clone(&medium) as Arc<dyn Medium>, quiet(), clock);
    let store = opened.expect("a new store opens");
    let files: Vec<u64> = (0..FILES)
        .map(|number| {
            let made = store.create(ROOT, format!("old{number}").as_bytes(), by(0));
            made.expect("there is room").inode
        })
        .collect();
    assert_eq!(store.sync(), Ok(()));
    let (begin, begun) = mpsc::channel();
    let (told, tell) = mpsc::channel();
    let waits = AtomicBool::new(true);
    medium.at_commit(Some(Box::new(move || {
        let _ = begin.send(());
        // Until the other thread has not been heard of for a while: it waits for this commit then.
        while tell.recv_timeout(A_WHILE).is_ok() {}
    })));
    std::thread::scope(|scope| {
        let (store, waits) = (&store, &waits);
        scope.spawn(move || {
            if begun.recv().is_err() {
                return;
            }
            // Each needs less than what `call` does.
            for file in files {
                let changes = Changes {
                    mode: Some(0o640),
                    ..Changes::default()
                };
                let done = store.setattr(file, &changes);
                assert!(matches!(done, Ok(_) | Err(Errno::ENOENT)), "{done:?}");
                let _ = told.send(());
            }
            waits.store(false, Ordering::Relaxed);
        });
        for number in 0..FILES {
            assert_eq!(call(store, number), Ok(()), "{number}");
        }
        medium.at_commit(None);
    });
    assert!(
        !waits.load(Ordering::Relaxed),
        "there was a commit, and the other thread went on"
    );
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&simulated), [""; 0]);
}

#[test]
fn a_batch_that_others_fill_is_no_full_store() {
    full_batches(|store, number| {
        let name = format!("new{number}");
        store.create(ROOT, name.as_bytes(), by(0)).map(|_| ())
    });
    full_batches(|store, number| store.unlink(ROOT, format!("old{number}").as_bytes()));
    full_batches(|store, number| {
        let (from, to) = (format!("old{number}"), format!("renamed{number}"));
        store.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), OnExisting::Fail)
    });
}

#[test]
fn a_file_without_a_name_is_held_once_where_its_batch_was_full() {
    let options = CreateOptions {
        inodes: Some(6000),
        log_blocks: Some(24),
        ..CreateOptions::default()
    };
    let simulated = Simulated::new(new_store(3000, &options), Durability::Dax);
    let opened = Store::open_medium(Arc::clone(&simulated) as Arc<dyn Medium>, quiet(), clock);
    let store = opened.expect("a new store opens");
    let make = |_| store.tmpfile(ROOT, by(0)).expect("made").inode;
    let made: Vec<u64> = (0..FILES).map(make).collect();
    for number in made {
        store.release(number, 1);
        assert_eq!(store.getattr(number), Err(Errno::ENOENT));
    }
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&simulated), [""; 0]);
}

/// All but what is kept back is in use, and others write over old bytes: they take each block as soon as it is free.
#[test]
fn a_file_is_cut_though_others_take_what_becomes_free() {
    let simulated = Simulated::new(small_store(), Durability::Dax);
    let medium = Watched::new(Arc::clone(&simulated));
    let opened = Store::open_medium(Arc::clone(&medium) as Arc<dyn Medium>, quiet(), clock);
    let store = Arc::new(opened.expect("a new store opens"));
    let file = store.create(ROOT, b"f", by(0o644)).expect("made").inode;
    let other = store.create(ROOT, b"g", by(0o644)).expect("made").inode;
    assert_eq!(store.write(file, 0, &[1; 5000]), Ok(5000));
    let mut pages = 0;
    while store.write(other, pages * 4096, &[2; 4096]).is_ok() {
        pages += 1;
    }
    assert_eq!(store.sync(), Ok(()));
    let take_all = |store: &Store| {
        let free = store.statfs().blocks_free;
        assert!(free < pages);
        for page in 0..free {
            assert_eq!(store.write(other, page * 4096, &[3; 4096]), Ok(4096));
        }
        free
    };
    for size in [4999, 4998, 4997] {
        assert_eq!(store.sync(), Ok(()));
        assert!(take_all(&store) > 0);
        assert_eq!(store.statfs().blocks_free, 0);
        let (others, taken) = (Arc::clone(&store), Arc::new(AtomicBool::new(false)));
        let has_taken = Arc::clone(&taken);
        medium.at_truncation(Box::new(move || {
            for page in 0..others.statfs().blocks_free {
                assert_eq!(others.write(other, page * 4096, &[4; 4096]), Ok(4096));
            }
            has_taken.store(true, Ordering::Relaxed);
        }));
        let changes = Changes {
            size: Some(size),
            ..Changes::default()
        };
        assert_eq!(store.setattr(file, &changes).map(|is| is.size), Ok(size));
        assert!(taken.load(Ordering::Relaxed));
    }
    let store = Arc::into_inner(store).expect("nobody else has it");
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&simulated), [""; 0]);
}

#[test]
fn others_go_on_while_a_large_write_beside_them_is_copied() {
    let bytes = new_store(1500, &CreateOptions::default());
    let simulated = Simulated::new(bytes, Durability::Dax);
    let medium = Watched::new(Arc::clone(&simulated));
    let opened = Store::open_medium(Arc::clone(&medium) as Arc<dyn Medium>, quiet(), clock);
    let store = opened.expect("a new store opens");
    let [file, other] =
        [b"f", b"g"].map(|name| store.create(ROOT, name, by(0o644)).expect("made").inode);
    let before = vec![1; 600 << 10];
    assert_eq!(store.write(file, 0, &before), Ok(before.len()));
    // Over bytes of this batch, which a write alone would store in place.
    let large = vec![2; 500 << 10];
    let (begin, begun) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    medium.at_copy(Box::new(move || {
        let _ = begin.send(());
        let _ = tell.send(ended.recv_timeout(20 * A_WHILE).is_ok());
    }));
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| store.write_beside(file, 100, &large));
        assert!(begun.recv().is_ok(), "bytes are copied");
        assert_eq!(store.write(other, 0, b"another"), Ok(7));
        let mut seen = vec![0; before.len()];
        assert_eq!(store.read(file, 0, &mut seen), Ok(before.len()));
        assert!(seen == before, "nothing is seen before all is");
        let _ = end.send(());
        assert_eq!(writing.join().ok(), Some(Ok(large.len())));
    });
    assert_eq!(told.recv(), Ok(true), "nobody has waited for the copy");
    let mut seen = vec![0; before.len()];
    assert_eq!(store.read(file, 0, &mut seen), Ok(before.len()));
    let expected = [&before[..100], &large, &before[100 + large.len()..]].concat();
    assert!(seen == expected);
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&simulated), [""; 0]);
}

#[test]
fn a_large_write_beside_others_stays_in_the_space_that_it_was_given() {
    let bytes = new_store(1500, &CreateOptions::default());
    let medium = Simulated::new(bytes, Durability::Dax);
    let opened = Store::open_medium(Arc::clone(&medium) as Arc<dyn Medium>, quiet(), clock);
    let store = opened.expect("a new store opens");
    let file = store.create(ROOT, b"f", by(0o644)).expect("made").inode;
    assert_eq!(store.fallocate(file, 0, 0, 1 << 20), Ok(()));
    assert_eq!(store.sync(), Ok(()));
    let free = store.statfs().blocks_free;
    let large = vec![2; 1 << 20];
    assert_eq!(store.write_beside(file, 0, &large), Ok(large.len()));
    assert_eq!(store.statfs().blocks_free, free);
    // One that would need more than there is goes the other way, and says so.
    let filling = store.statfs().blocks_available as usize * 4096;
    let other = store.create(ROOT, b"g", by(0o644)).expect("made").inode;
    let written = store.write_beside(other, 0, &vec![3; filling + 4096]);
    assert!(written.is_ok_and(|written| written < filling + 4096));
    assert_eq!(
        store.write_beside(other, 1 << 40, &large),
        Err(Errno::ENOSPC)
    );
    assert_eq!(store.close(), Ok(()));
    assert_eq!(faults(&medium), [""; 0]);
}
