//! Stores that were made to hurt whoever opens them, with right checksums: what they cost has a bound.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use super::drive::{by, clock, faults, open, quiet, small_store};
use super::sim::Simulated;
use super::watched::Watched;
use crate::errno::Errno;
use crate::layout::inode::INODE_BYTES;
use crate::layout::superblock::{Superblock, TAILS, Tail};
use crate::layout::{self, BLOCK, LOG_START};
use crate::medium::{Durability, LINE, Medium};
use crate::store::Store;
use crate::types::ROOT;

fn superblock(bytes: &[u8]) -> Superblock {
    let mut block = [0; BLOCK];
    block.copy_from_slice(&bytes[..BLOCK]);
    Superblock::decode(&block).expect("a superblock")
}

/// Numbers of inodes, each changed with the checksum made right: field, inode, value. Fields have 4 bytes or 8.
type Planted = (usize, u64, u64);

const MODE: usize = 0;
const LINKS: usize = 4;
const NEXT: usize = 80;
const PREVIOUS: usize = 88;

fn plant(bytes: &mut [u8], changes: &[Planted]) {
    let superblock = superblock(bytes);
    for (field, inode, value) in changes {
        let block = superblock.geometry.table as usize + *inode as usize / 15;
        let block = &mut bytes[block * BLOCK..(block + 1) * BLOCK];
        let at = *inode as usize % 15 * INODE_BYTES + field;
        let length = if *field < 32 { 4 } else { 8 };
        block[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
        let mut whole = [0; BLOCK];
        whole.copy_from_slice(block);
        layout::seal(superblock.id, &mut whole);
        block.copy_from_slice(&whole);
    }
}

/// A store as a crash leaves it, with a file and two without a name: the first of their list, and the other one.
fn crashed() -> (Vec<u8>, [u64; 3]) {
    let medium = Simulated::new(small_store(), Durability::Dax);
    let store = open(&medium).expect("opens");
    let file = store.create(ROOT, b"file", by(0o644)).expect("made").inode;
    let other = store.tmpfile(ROOT, by(0o600)).expect("made").inode;
    let first = store.tmpfile(ROOT, by(0o600)).expect("made").inode;
    for number in [file, first, other] {
        assert_eq!(store.write(number, 0, &[1; 5000]), Ok(5000));
    }
    assert_eq!(store.sync(), Ok(()));
    let options = crate::types::OpenOptions {
        read_only: true,
        ..quiet()
    };
    // The log holds the same as what lies where it belongs: it is made empty, or it would be put over what is planted.
    let mut bytes = medium.bytes();
    let superblock = superblock(&bytes);
    let log = (superblock.geometry.bitmap - LOG_START) as usize * BLOCK;
    bytes[LOG_START as usize * BLOCK..][..log].fill(0);
    let base = Simulated::new(bytes, Durability::Dax);
    let opened = Store::open_medium(Arc::clone(&base) as Arc<dyn Medium>, options, clock);
    assert!(opened.is_ok_and(|store| store.lookup(ROOT, b"file").is_ok()));
    assert_eq!(faults(&base), [""; 0]);
    (base.bytes(), [file, first, other])
}

/// Runs something that has to come to an end.
fn in_time<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(work()));
    told.recv_timeout(Duration::from_secs(60))
        .expect("it ends, without a panic")
}

#[test]
fn a_damaged_list_of_files_without_a_name_ends_and_costs_nothing_else() {
    let (whole, [file, first, other]) = crashed();
    let cases: [(&str, &[Planted]); 7] = [
        ("a first one with a name", &[(LINKS, first, 1)]),
        ("a file with a name", &[(NEXT, ROOT, file)]),
        ("the root", &[(NEXT, ROOT, ROOT)]),
        (
            "the root, without links",
            &[(NEXT, ROOT, ROOT), (LINKS, ROOT, 0)],
        ),
        ("before itself", &[(PREVIOUS, first, first)]),
        (
            "round and round",
            &[(NEXT, other, first), (PREVIOUS, first, other)],
        ),
        ("an inode that is free", &[(NEXT, ROOT, 50)]),
    ];
    for (what, changes) in cases {
        let mut bytes = whole.clone();
        plant(&mut bytes, changes);
        let medium = Simulated::new(bytes, Durability::Dax);
        assert!(!faults(&medium).is_empty(), "{what}");
        let store = in_time({
            let medium = Arc::clone(&medium);
            move || open(&medium)
        });
        let store = store.expect("it can be opened");
        assert_eq!(store.write(file, 0, b"new"), Ok(3), "{what}");
        assert_eq!(in_time(move || store.close()), Ok(()), "{what}");
        let again = open(&medium).expect("opens again");
        let mut read = [0; 3];
        assert_eq!(again.read(file, 0, &mut read), Ok(3), "{what}");
        assert_eq!(&read, b"new", "{what}");
    }
}

/// Files lose their names while they are held, go, or get names again: in front of one that cannot be read.
#[test]
fn files_without_a_name_come_and_go_beside_a_damaged_one() {
    let (whole, [file, first, _]) = crashed();
    let cases: [(&str, &[Planted]); 2] = [
        ("a first one without a mode", &[(MODE, first, 0)]),
        ("an inode that is free", &[(NEXT, ROOT, 50)]),
    ];
    for (what, changes) in cases {
        let mut bytes = whole.clone();
        plant(&mut bytes, changes);
        let medium = Simulated::new(bytes, Durability::Dax);
        let found = faults(&medium);
        let store = open(&medium).expect("it can be opened");
        let free = store.statfs().inodes_free;
        assert_eq!(store.hold(file), Ok(()));
        assert_eq!(store.unlink(ROOT, b"file"), Ok(()), "{what}");
        let other = store.tmpfile(ROOT, by(0)).expect(what).inode;
        assert!(store.link(other, ROOT, b"other").is_ok(), "{what}");
        store.release(file, 1);
        assert_eq!(store.getattr(file), Err(Errno::ENOENT), "{what}");
        store.release(other, 1);
        assert_eq!(store.unlink(ROOT, b"other"), Ok(()), "{what}");
        assert_eq!(store.statfs().inodes_free, free + 1, "{what}");
        assert_eq!(store.close(), Ok(()), "{what}");
        // Nothing but what there was before.
        assert_eq!(faults(&medium).len(), found.len(), "{what}");
    }
}

#[test]
fn a_log_full_of_heads_is_read_a_few_times_and_not_once_for_each() {
    let mut bytes = small_store();
    let superblock = superblock(&bytes);
    let lines = superblock.geometry.log_lines();
    for line in 0..lines {
        let at = LOG_START as usize * BLOCK + line as usize * LINE;
        let words = [
            u64::from_le_bytes(*b"FPMRECRD"),
            superblock.id,
            lines * 1000 + line,
            lines / 2,
            1,
        ];
        for (index, word) in words.into_iter().enumerate() {
            bytes[at + index * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
    }
    let medium = Watched::new(Simulated::new(bytes, Durability::Dax));
    let found = crate::log::recover(&*medium, &superblock);
    assert_eq!((found.records, found.damage.len()), (0, 0));
    let read = medium.bytes_read();
    let log = lines * LINE as u64;
    assert!(read < 5 * log, "{read} bytes of a log of {log}");
}

/// A log whose lines have been counted nearly as far as they can be: nothing is acknowledged that the next one to open the store would not find.
#[test]
fn a_log_that_has_come_to_its_last_line_takes_nothing_more() {
    let mut bytes = small_store();
    let superblock = superblock(&bytes);
    let log = (superblock.geometry.bitmap - LOG_START) as usize * BLOCK;
    bytes[LOG_START as usize * BLOCK..][..log].fill(0);
    let tail = Tail((1 << 48) - 5);
    let word = tail.encode(superblock.id).expect("there is room");
    for block in TAILS {
        bytes[block as usize * BLOCK..][..8].copy_from_slice(&word);
    }
    assert_eq!(Tail(1 << 48).encode(superblock.id), None);
    let medium = Simulated::new(bytes, Durability::Dax);
    let store = open(&medium).expect("opens");
    assert!(store.create(ROOT, b"file", by(0o644)).is_ok());
    assert_eq!(store.sync(), Err(Errno::EIO));
    assert_eq!(store.close(), Err(Errno::EIO));
    let again = open(&medium).expect("opens again");
    assert_eq!(again.lookup(ROOT, b"file"), Err(Errno::ENOENT));
}
