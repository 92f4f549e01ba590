//! Damaged stores: nothing crashes, what is wrong is found, and what is whole can be read.

use std::sync::Arc;

use forebay_model::fresh_seed;

use super::drive::{Pair, by, content, faults, new_store, open, operations, small_store, tree};
use super::sim::{Random, Simulated};
use crate::layout::inode::INODE_BYTES;
use crate::layout::superblock::Superblock;
use crate::layout::{self, BLOCK, Geometry, PAYLOAD};
use crate::medium::Durability;
use crate::medium::machine::crc32c;
use crate::types::{CreateOptions, ROOT};

/// An empty store whose log is soon full, and the model beside it.
pub fn with_a_short_log() -> (Arc<Simulated>, Pair) {
    let options = CreateOptions {
        log_blocks: Some(24),
        inodes: Some(120),
        ..CreateOptions::default()
    };
    let medium = Simulated::new(new_store(240, &options), Durability::Dax);
    let pair = Pair::new(Arc::clone(&medium));
    (medium, pair)
}

/// A store with a bit of everything, closed; or crashed, with records in its log.
fn filled(seed: u64, crashed: bool) -> Vec<u8> {
    let (medium, mut pair) = with_a_short_log();
    for op in operations(seed, 150, 120_000) {
        assert!(pair.step(&op).is_ok(), "{op:?}");
    }
    assert_eq!(pair.store().sync(), Ok(()));
    if !crashed {
        assert_eq!(
            pair.store.take().map(crate::store::Store::close),
            Some(Ok(()))
        );
    }
    medium.bytes()
}

/// The same, crashed with as many records in its log as it ever has: each operation is one, and the next one would have begun the log anew.
fn filled_with_records(seed: u64) -> (Vec<u8>, usize) {
    let (medium, mut pair) = with_a_short_log();
    let (mut fullest, mut most, mut records) = (Vec::new(), 0, 0);
    for op in operations(seed, 400, 120_000) {
        assert!(pair.step(&op).is_ok(), "{op:?}");
        assert_eq!(pair.store().sync(), Ok(()));
        records = match pair.store().is_log_empty() {
            true => 0,
            false => records + 1,
        };
        if records > most {
            (fullest, most) = (medium.bytes(), records);
        }
    }
    (fullest, most)
}

/// Everything that can be asked of a store, whatever it answers; nothing may panic.
pub fn use_it(medium: &Arc<Simulated>) {
    if let Ok(store) = open(medium) {
        let _ = tree(&store);
        for name in super::model::NAMES {
            let _ = store
                .create(ROOT, name.as_bytes(), by(0o644))
                .map(|is| store.write(is.inode, 0, &[1; 9000]));
            let _ = store.rename(
                ROOT,
                name.as_bytes(),
                ROOT,
                b"other",
                crate::types::OnExisting::Replace,
            );
            let _ = store.unlink(ROOT, name.as_bytes());
            let _ = store.rmdir(ROOT, name.as_bytes());
        }
        let _ = store.sync();
    }
    let _ = faults(medium);
}

pub fn geometry(bytes: &[u8]) -> (Superblock, Geometry) {
    let mut block = [0; BLOCK];
    block.copy_from_slice(&bytes[..BLOCK]);
    let superblock = Superblock::decode(&block).expect("a superblock");
    (superblock, superblock.geometry)
}

/// Whether a metadata block lies here: its trailer says so.
pub fn is_metadata(bytes: &[u8], block: usize) -> bool {
    let part = &bytes[block * BLOCK..(block + 1) * BLOCK];
    let kind = layout::get32(part, PAYLOAD + 8);
    layout::get64(part, PAYLOAD) == block as u64 && (1..=5).contains(&(kind & 0xff)) && kind < 0x200
}

#[test]
fn every_block_damaged_in_turn_is_found_and_crashes_nothing() {
    let whole = filled(5, false);
    assert_eq!(
        faults(&Simulated::new(whole.clone(), Durability::Dax)),
        [""; 0]
    );
    let (_, geometry) = geometry(&whole);
    let log = layout::LOG_START as usize..geometry.bitmap as usize;
    let mut found = 0;
    for block in 0..geometry.blocks as usize {
        let mut bytes = whole.clone();
        let at = block * BLOCK + if block < 4 { 0 } else { 1000 };
        bytes[at..at + 8].iter_mut().for_each(|byte| *byte ^= 0x5a);
        let medium = Simulated::new(bytes, Durability::Dax);
        let faults = faults(&medium);
        // The log of a closed store is not read, blocks of the table that were never used are made when they
        // are needed, and bytes of files have no checksums.
        let counts = block < 4 || !log.contains(&block) && is_metadata(&whole, block);
        if counts && is_reachable(&whole, &geometry, block) {
            assert!(
                !faults.is_empty(),
                "block {block} is damaged, and nothing is found"
            );
            assert!(
                faults.iter().all(|fault| fault.contains("lost: ")),
                "{faults:?}"
            );
            found += 1;
        }
        use_it(&medium);
    }
    assert!(found > 10, "{found} blocks of metadata");
}

/// In a crashed store a block may be damaged where the log puts it right. So a check finds the damage, or the store opens as it was.
#[test]
fn every_block_of_a_crashed_store_damaged_in_turn_is_found_or_recovered() {
    let (whole, records) = filled_with_records(5);
    assert!(records > 20, "{records} records");
    let medium = Simulated::new(whole.clone(), Durability::Dax);
    assert_eq!(faults(&medium), [""; 0]);
    let before = tree(&open(&medium).expect("opens")).expect("read");
    let (_, geometry) = geometry(&whole);
    let log = layout::LOG_START as usize..geometry.bitmap as usize;
    let (mut of_log, mut elsewhere, mut recovered) = (0, 0, 0);
    for block in 0..geometry.blocks as usize {
        let mut bytes = whole.clone();
        let at = block * BLOCK + if block < 4 { 0 } else { 1000 };
        bytes[at..at + 8].iter_mut().for_each(|byte| *byte ^= 0x5a);
        let medium = Simulated::new(bytes.clone(), Durability::Dax);
        let faults = faults(&medium);
        if !faults.is_empty() {
            let count = match log.contains(&block) {
                true => &mut of_log,
                false => &mut elsewhere,
            };
            *count += 1;
        } else if block < geometry.data as usize || is_metadata(&whole, block) {
            let store = open(&Simulated::new(bytes, Durability::Dax)).expect("opens");
            assert_eq!(tree(&store).as_ref(), Ok(&before), "block {block}");
            recovered += 1;
        }
        use_it(&medium);
    }
    println!(
        "{records} records: {of_log} blocks of the log, {elsewhere} others found, {recovered} recovered"
    );
    assert!(of_log > 5 && elsewhere > 5 && recovered > 5);
}

/// Whether the store, as it is, needs this block: one that was freed keeps its trailer.
pub fn is_reachable(bytes: &[u8], geometry: &Geometry, block: usize) -> bool {
    let marked =
        |first: u64, bit: usize| bytes[first as usize * BLOCK + bit / 8] & (1 << (bit % 8)) != 0;
    let table = geometry.table as usize..geometry.data as usize;
    if table.contains(&block) {
        let first = (block - table.start) * 15;
        return (first.max(1)..first + 15).any(|inode| marked(geometry.inode_bitmap, inode));
    }
    block < 4 || marked(geometry.bitmap, block)
}

#[test]
fn damaged_records_of_the_log_are_told_of_unless_they_are_the_last() {
    let whole = filled(6, true);
    let (_, geometry) = geometry(&whole);
    let records: Vec<usize> = (layout::LOG_START as usize * 64..geometry.bitmap as usize * 64)
        .filter(|line| &whole[line * 64..line * 64 + 8] == b"FPMRECRD")
        .collect();
    assert!(records.len() > 3, "{} records", records.len());
    let (mut told, mut mixed) = (0, 0);
    for line in records {
        let mut bytes = whole.clone();
        bytes[line * 64 + 70] ^= 1;
        let medium = Simulated::new(bytes, Durability::Dax);
        let faults = faults(&medium);
        let is_refused = open(&medium).is_err();
        assert!(!is_refused || !faults.is_empty());
        told += usize::from(is_refused);
        mixed += usize::from(!is_refused && !faults.is_empty());
    }
    // What the last one changed may lie where it belongs beside what only older ones have.
    assert!(told > 0 && mixed <= 1, "{told}, {mixed}");
}

#[test]
fn stores_of_random_damage_crash_nothing() {
    for seed in (1..60).chain(fresh_seed()..fresh_seed() + 20) {
        random_damage(seed);
    }
}

#[test]
#[ignore = "long: many seeds"]
fn many_stores_of_random_damage_crash_nothing() {
    for seed in fresh_seed()..fresh_seed() + 4000 {
        random_damage(seed);
    }
}

/// Flips bytes; in half of the cases with checksums made right again, so that what follows is reached.
fn random_damage(seed: u64) {
    let mut random = Random::new(seed);
    let mut bytes = filled(seed % 7, seed.is_multiple_of(3));
    let (superblock, geometry) = geometry(&bytes);
    for _ in 0..random.below(6) + 1 {
        let block = match random.below(4) {
            0 => random.below(geometry.blocks as usize),
            1 => random.below(8),
            _ => {
                (geometry.bitmap as usize)
                    + random.below((geometry.blocks - geometry.bitmap) as usize)
            }
        };
        let at = block * BLOCK + random.below(BLOCK - 8);
        let value = match random.below(4) {
            0 => random.next(),
            1 => random.next() % geometry.blocks,
            2 => 0,
            _ => u64::MAX >> random.below(64),
        };
        // Fields lie at multiples of eight, mostly.
        let at = if random.below(2) == 0 { at / 8 * 8 } else { at };
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        if random.below(2) == 0 && is_metadata(&bytes, block) {
            reseal(&superblock, &mut bytes, block);
        }
    }
    use_it(&Simulated::new(bytes, Durability::Dax));
}

fn reseal(superblock: &Superblock, bytes: &mut [u8], block: usize) {
    let part = &mut bytes[block * BLOCK..(block + 1) * BLOCK];
    let mut whole = [0; BLOCK];
    whole.copy_from_slice(part);
    layout::seal(superblock.id, &mut whole);
    part.copy_from_slice(&whole);
}

/// A small store with a directory, two files and a link, closed.
fn scene() -> (Vec<u8>, [u64; 3]) {
    let medium = Simulated::new(small_store(), Durability::Dax);
    let store = open(&medium).expect("opens");
    let directory = store
        .mkdir(ROOT, b"d", by(0o755))
        .map(|is| is.inode)
        .expect("made");
    let one = store
        .create(directory, b"one", by(0o644))
        .map(|is| is.inode)
        .expect("made");
    let two = store
        .create(ROOT, b"two", by(0o644))
        .map(|is| is.inode)
        .expect("made");
    assert_eq!(store.write(one, 0, &content(1, 5000)), Ok(5000));
    assert_eq!(store.write(two, 0, &content(2, 80_000)), Ok(80_000));
    assert!(store.link(two, directory, b"also").is_ok());
    assert_eq!(store.setxattr(two, b"user.x", b"y", 0), Ok(()));
    assert_eq!(store.close(), Ok(()));
    (medium.bytes(), [directory, one, two])
}

/// Changes a number of an inode, with the checksum made right: only sense tells that it is wrong.
fn planted(field: usize, bytes: usize, inode: u64, value: u64) -> Vec<String> {
    let (mut store, _) = scene();
    let (superblock, geometry) = geometry(&store);
    let block = geometry.table as usize + inode as usize / 15;
    let at = block * BLOCK + inode as usize % 15 * INODE_BYTES + field;
    store[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    reseal(&superblock, &mut store, block);
    faults(&Simulated::new(store, Durability::Dax))
}

#[test]
fn inconsistencies_with_right_checksums_are_found() {
    let (_, [directory, one, two]) = scene();
    let cases = [
        ("mode", 0, 4, one, 0o017_0644),
        ("mode without type", 0, 4, one, 0o644),
        ("links", 4, 4, one, 2),
        ("links of a directory", 4, 4, directory, 3),
        ("no links", 4, 4, one, 0),
        ("height", 20, 4, one, 1),
        ("depth", 24, 4, directory, 1),
        ("size too large", 32, 8, one, u64::MAX),
        ("size too small", 32, 8, one, 10),
        ("end within a page", 32, 8, one, 4999),
        ("blocks", 40, 8, one, 3),
        ("attributes", 56, 8, one, 99),
        ("attributes of nothing", 56, 8, two, 0),
        ("entries", 64, 8, directory, 1),
        ("parent", 72, 8, directory, one),
        ("list of orphans", 80, 8, ROOT, one),
        ("pointer to the log", 176, 8, one, 5),
        ("pointer beyond the end", 176, 8, one, 1 << 40),
        ("lost page", 176, 8, one, 0),
        ("two with one block", 184, 8, one, pointer(two)),
        ("no bucket", 176, 8, directory, 0),
        ("another's bucket", 176, 8, directory, pointer(ROOT)),
    ];
    for (what, field, bytes, inode, value) in cases {
        assert!(
            !planted(field, bytes, inode, value).is_empty(),
            "{what} is not found"
        );
    }
}

/// The first pointer of an inode.
fn pointer(inode: u64) -> u64 {
    field(&scene().0, inode, 176)
}

/// A number of an inode.
fn field(bytes: &[u8], inode: u64, field: usize) -> u64 {
    let (_, geometry) = geometry(bytes);
    let block = geometry.table as usize + inode as usize / 15;
    layout::get64(
        bytes,
        block * BLOCK + inode as usize % 15 * INODE_BYTES + field,
    )
}

#[test]
fn bits_that_are_wrong_are_found() {
    let (whole, _) = scene();
    let (superblock, geometry) = geometry(&whole);
    for (first, limit) in [
        (geometry.bitmap, geometry.blocks),
        (geometry.inode_bitmap, geometry.inodes),
    ] {
        for bit in 0..limit as usize {
            let mut bytes = whole.clone();
            bytes[first as usize * BLOCK + bit / 8] ^= 1 << (bit % 8);
            reseal(&superblock, &mut bytes, first as usize);
            let medium = Simulated::new(bytes, Durability::Dax);
            assert!(
                !faults(&medium).is_empty(),
                "bit {bit} of the bitmap in block {first}"
            );
            if bit % 7 == 0 {
                use_it(&medium);
            }
        }
    }
}

/// Where a check finds nothing wrong when a byte of a block is another one, with the checksum made right. Nothing crashes, whatever it finds.
fn unseen(whole: &[u8], block: u64, places: std::ops::Range<usize>) -> Vec<usize> {
    let (superblock, _) = geometry(whole);
    let is_missed = |at: &usize| {
        let mut bytes = whole.to_vec();
        bytes[block as usize * BLOCK + at] ^= 0x41;
        reseal(&superblock, &mut bytes, block as usize);
        let medium = Simulated::new(bytes, Durability::Dax);
        let is_missed = faults(&medium).is_empty();
        use_it(&medium);
        is_missed
    };
    places.filter(is_missed).collect()
}

#[test]
fn buckets_with_right_checksums_and_wrong_bytes_are_found() {
    let (whole, [directory, ..]) = scene();
    let bucket = pointer(directory);
    let used = layout::get32(&whole[bucket as usize * BLOCK..], 4) as usize;
    let missed = unseen(&whole, bucket, 0..used);
    // Bytes that mean nothing: the gaps after types and names, and those of a key that tell equal hashes apart.
    let meaningless =
        |at: usize| at >= 16 && ((at - 16) % 32 >= 20 || (at - 16).is_multiple_of(32));
    assert!(missed.iter().all(|at| meaningless(*at)), "{missed:?}");
}

/// A node of a file's map: each byte of a pointer is one that the check reads, those to nothing behind the file's end too.
#[test]
fn nodes_with_right_checksums_and_wrong_bytes_are_found() {
    let (whole, [_, _, two]) = scene();
    let node = pointer(two);
    assert!(is_metadata_of(&whole, node, 0x101));
    // The file has 20 pages.
    let missed = unseen(&whole, node, 0..22 * 8);
    assert_eq!(missed, [0; 0]);
    let missed = unseen(&whole, node, PAYLOAD - 16..PAYLOAD);
    assert_eq!(missed, [0; 0]);
}

/// Attributes: lengths are found to be wrong; names and values say nothing of themselves.
#[test]
fn attributes_with_right_checksums_and_wrong_lengths_are_found() {
    let (whole, [_, _, two]) = scene();
    let block = field(&whole, two, 56);
    assert!(is_metadata_of(&whole, block, 4));
    let used = usize::from(layout::get16(&whole[block as usize * BLOCK..], 0));
    let missed = unseen(&whole, block, 0..used);
    assert_eq!(used, 8 + 4 + "user.x".len() + "y".len());
    assert_eq!(missed, [2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18]);
}

/// Whether a metadata block of this kind lies here.
fn is_metadata_of(bytes: &[u8], block: u64, kind: u32) -> bool {
    layout::get32(&bytes[block as usize * BLOCK..], PAYLOAD + 8) == kind
}

/// The superblock with wrong numbers, and a checksum made right: in one copy, and in both, so that only the rest of the store tells.
#[test]
fn superblocks_with_right_checksums_and_wrong_numbers_are_found() {
    let (whole, _) = scene();
    // All that is decoded but the mark: version, layout, identity, blocks, blocks of the log, inodes.
    let fields = (8..12).chain(16..56);
    let mut missed = Vec::new();
    for at in fields {
        for copies in [&[0][..], &[1], &[0, 1]] {
            let mut bytes = whole.clone();
            for copy in copies {
                let block = &mut bytes[copy * BLOCK..(copy + 1) * BLOCK];
                block[at] ^= 0x41;
                let sum = crc32c(0, &block[..128]);
                layout::put32(block.first_chunk_mut::<BLOCK>().expect("a block"), 128, sum);
            }
            let medium = Simulated::new(bytes, Durability::Dax);
            if faults(&medium).is_empty() {
                missed.push((at, copies.len()));
            }
            use_it(&medium);
        }
    }
    assert_eq!(missed, [(0, 0); 0]);
}
