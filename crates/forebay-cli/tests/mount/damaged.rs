//! A mounted store whose metadata say what cannot be, with checksums that are right: only sense tells that they are wrong.
//! Where things lie is what `crates/forebay-pmem/src/layout.rs` says.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr, statvfs};

use forebay_fuse::points::State;

use crate::scene::Scene;

const BLOCK: usize = 4096;
/// A metadata block ends in its number, its kind, and a checksum.
const NUMBER_AT: usize = BLOCK - 16;
const KIND_AT: usize = BLOCK - 8;
const SUM_AT: usize = BLOCK - 4;
const TABLE: u32 = 3;
const INODES_PER_BLOCK: usize = 15;
const INODE_BYTES: usize = 272;
/// In an inode.
const POINTER: usize = 176;
const ROOT: u64 = 1;
/// In the superblock.
const IDENTITY_AT: usize = 24;

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("bytes"))
}

/// CRC-32C, bit by bit.
fn sum(seed: u32, bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
    !bytes
        .iter()
        .fold(!seed, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// Where an inode lies in a store's bytes.
fn place(store: &[u8], inode: u64) -> usize {
    let is_table = |block: &usize| {
        let part = &store[block * BLOCK..][..BLOCK];
        number(part, NUMBER_AT) == *block as u64 && half(part, KIND_AT) == TABLE
    };
    let first = { 4..store.len() / BLOCK }.find(is_table).expect("a table");
    let block = first + inode as usize / INODES_PER_BLOCK;
    block * BLOCK + inode as usize % INODES_PER_BLOCK * INODE_BYTES
}

/// The store with another number in an inode.
fn forged(store: &[u8], inode: u64, field: usize, value: &[u8]) -> Vec<u8> {
    let mut store = store.to_vec();
    let identity = number(&store, IDENTITY_AT) as u32;
    let at = place(&store, inode) + field;
    let block = &mut store[at / BLOCK * BLOCK..][..BLOCK];
    assert_eq!(half(block, SUM_AT), sum(identity, &block[..SUM_AT]));
    block[at % BLOCK..][..value.len()].copy_from_slice(value);
    let sum = sum(identity, &block[..SUM_AT]);
    block[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
    store
}

/// What a store has: a directory with a file of two pages, and files with a map's node and with an attribute.
const FILES: [(&str, usize); 3] = [("dir/one", 5000), ("two", 80_000), ("whole", 80_000)];

fn fill(point: &Path) -> io::Result<()> {
    fs::create_dir(point.join("dir"))?;
    for (name, len) in FILES {
        fs::write(point.join(name), vec![len as u8; len])?;
        setxattr(point.join(name), "user.x", b"y", XattrFlags::empty())?;
    }
    fs::hard_link(point.join("two"), point.join("dir/also"))
}

/// Asks for everything and changes everything, whatever is answered.
fn use_it(point: &Path) {
    for directory in ["", "dir", "dir/one", "two"] {
        let listed = fs::read_dir(point.join(directory));
        let _ = listed.map(|all| all.map(|entry| entry?.metadata()).count());
    }
    for (name, len) in FILES {
        let path = point.join(name);
        let _ = getxattr(&path, "user.x", &mut [0; 8]);
        let _ = fs::read(&path);
        let _ = setxattr(&path, "user.new", &[1; 100], XattrFlags::empty());
        let _ = File::options().write(true).open(&path).map(|file| {
            let _ = file.write_all_at(&[1; 9000], len as u64 - 1000);
            let _ = file.write_all_at(b"x", 1 << 24);
            let _ = file.set_len(100);
            file.sync_all()
        });
    }
    let _ = fs::write(point.join("dir/new"), "bytes");
    let _ = fs::rename(point.join("two"), point.join("dir/two"));
    let _ = fs::remove_dir_all(point.join("dir"));
    let _ = fs::write(point.join("new"), vec![1; 300_000]);
    let _ = fs::remove_file(point.join("two"));
}

/// What is wrong: its name, where in the inode, how many bytes, whose, and what it says.
type Case = (&'static str, usize, usize, u64, u64);

fn cases(store: &[u8], [directory, one, two]: [u64; 3]) -> [Case; 21] {
    let first_of = |inode| number(store, place(store, inode) + POINTER);
    [
        ("a type that there is not", 0, 4, one, 0o017_0644),
        ("no type", 0, 4, one, 0o644),
        ("a name too many", 4, 4, one, 2),
        ("a directory too many", 4, 4, directory, 3),
        ("no name", 4, 4, one, 0),
        ("a map that is too high", 20, 4, one, 1),
        ("a directory's bits", 24, 4, directory, 1),
        ("a size that is too large", 32, 8, one, u64::MAX),
        ("a size that is too small", 32, 8, one, 10),
        ("a size within the last page", 32, 8, one, 4999),
        ("blocks too few", 40, 8, one, 1),
        ("attributes that are forgotten", 56, 8, one, 0),
        ("attributes elsewhere", 56, 8, two, 99),
        ("names too few", 64, 8, directory, 1),
        ("a parent that is none", 72, 8, directory, one),
        ("a list of those without a name", 80, 8, ROOT, one),
        ("a page in the log", POINTER, 8, one, 5),
        ("a page beyond the end", POINTER, 8, one, 1 << 40),
        ("a page of two", POINTER + 8, 8, one, first_of(two)),
        ("no bucket", POINTER, 8, directory, 0),
        ("another's bucket", POINTER, 8, directory, first_of(ROOT)),
    ]
}

#[test]
fn what_cannot_be_is_told_and_ends_no_mount() {
    let Some(mut scene) = Scene::begin_store("forged", "8MiB", &[]) else {
        return;
    };
    fill(&scene.point).expect("filled");
    let inode = |name: &str| fs::metadata(scene.point.join(name)).expect("there").ino();
    let inodes = ["dir", "dir/one", "two"].map(inode);
    scene.umount();
    scene.await_end(0);
    let store = fs::read(&scene.store).expect("read");
    let (mut refused, mut served) = (0, 0);
    for (what, field, bytes, inode, value) in cases(&store, inodes) {
        let forged = forged(&store, inode, field, &value.to_le_bytes()[..bytes]);
        fs::write(&scene.store, forged).expect("forged");
        let check = scene.run(&["pmem", "check"], &scene.store);
        let is_told = check.code == 1 && check.stdout.contains("lost: ");
        assert!(is_told, "{what}: {check:?}");
        if !scene.is_served_behind(what) {
            refused += 1;
            continue;
        }
        served += 1;
        // What is not damaged is as it was, and stays so beside everything else.
        let whole = || fs::read(scene.point.join("whole")).ok();
        assert!(whole() == Some(vec![80_000_u32 as u8; 80_000]), "{what}");
        use_it(&scene.point);
        let left = whole().map(|bytes| bytes[..100] == [80_000_u32 as u8; 100]);
        assert_eq!(left, Some(true), "{what}");
        statvfs(&scene.point).expect("known");
        assert_eq!(scene.state(), State::Alive, "{what}");
        scene.umount();
        scene.await_store();
    }
    println!("{refused} refused, {served} served");
    assert!(served > 10, "{refused} refused, {served} served");
}
