//! Directories: names by hash.
//!
//! A name has a *key* of 62 bits: its hash, and in the lowest 7 bits a number that tells names with the same
//! hash apart. The first [`Inode::depth`] bits of a key choose a place in the directory's table (its map),
//! which names a *bucket*; a bucket that needs fewer bits stands in several places. A full bucket is split by
//! one bit more, and the table doubled when it has no such bit yet (extendible hashing). Reading in the order
//! of keys therefore comes to each entry once, whatever is split meanwhile: the cookie of an entry is its key.
//!
//! Removing names frees no bucket; removing the directory does. Nothing that removes needs new space.

pub mod bucket;

use crate::errno::{Errno, Result};
use crate::layout::inode::Inode;
use crate::layout::{Kind, PAYLOAD};
use crate::map;
use crate::state::State;
use bucket::{HEAD, Head};

/// Bits of a key.
pub const KEY_BITS: u32 = 62;
/// Bits of a key that tell names with the same hash apart.
const ORDINAL_BITS: u32 = 7;
/// Most bits that choose a bucket: 16 Mi of them.
pub const DEPTH_MAX: u32 = 24;
/// Cookies of entries are their keys and this.
pub const COOKIE_FIRST: u64 = 3;

/// An entry that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Whom it names.
    pub inode: u64,
    /// Type bits of the mode.
    pub kind: u32,
    /// The bucket that has it.
    bucket: u64,
    /// Where.
    at: usize,
    /// Bytes that it has there.
    length: usize,
}

/// The key of a name, its ordinal 0.
pub fn key_of(id: u64, name: &[u8]) -> u64 {
    // Murmur3's finalizer for each word. With one multiplication, names that differ in the highest bits of two words were alike in every store.
    let mix = |hash: u64, word: u64| {
        let mixed = hash ^ word;
        let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^ (mixed >> 33)
    };
    let mut hash = mix(id, name.len() as u64);
    for chunk in name.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash, u64::from_le_bytes(word));
    }
    hash = mix(mix(hash, 0x2545_f491_4f6c_dd1d), id);
    (hash >> (64 - KEY_BITS)) & !((1 << ORDINAL_BITS) - 1)
}

fn same_hash(one: u64, other: u64) -> bool {
    one >> ORDINAL_BITS == other >> ORDINAL_BITS
}

/// Place of a key in a table of this depth.
pub fn index_of(key: u64, depth: u32) -> u64 {
    key >> (KEY_BITS - depth)
}

/// The bucket for a key, and its head; `None` in a directory that never had an entry.
fn bucket_for(state: &State, directory: &Inode, key: u64) -> Result<Option<(u64, Head)>> {
    let pointer = map::get(state, directory, index_of(key, directory.depth))?;
    if pointer == 0 {
        return if directory.entries == 0 {
            Ok(None)
        } else {
            Err(Errno::EIO)
        };
    }
    let head = state.pages.with(pointer, Kind::Bucket, Head::decode)??;
    match head.depth <= directory.depth {
        true => Ok(Some((pointer, head))),
        false => Err(Errno::EIO),
    }
}

/// Looks a name up.
pub fn find(state: &State, directory: &Inode, name: &[u8]) -> Result<Option<Found>> {
    let key = key_of(state.superblock.id, name);
    let Some((bucket, _)) = bucket_for(state, directory, key)? else {
        return Ok(None);
    };
    let mut found = None;
    state.pages.with(bucket, Kind::Bucket, |bytes| {
        bucket::scan(bytes, |record| {
            let here = same_hash(record.key, key) && record.name == name;
            if here {
                let bucket::Record {
                    at, inode, kind, ..
                } = record;
                found = Some(Found {
                    inode,
                    kind,
                    bucket,
                    at,
                    length: record.length(),
                });
            }
            !here
        })
    })??;
    Ok(found)
}

/// Adds a name that is not there. `directory` is changed, and for the caller to store.
pub fn insert(
    state: &mut State,
    number: u64,
    directory: &mut Inode,
    name: &[u8],
    (inode, kind): (u64, u32),
) -> Result<()> {
    let hash = key_of(state.superblock.id, name);
    if directory.entries == 0 && map::get(state, directory, 0)? == 0 {
        let bucket = make_bucket(state, number, directory, 0)?;
        map::set(state, directory, 0, &[bucket])?;
    }
    loop {
        let (bucket, head) = bucket_for(state, directory, hash)?.ok_or(Errno::EIO)?;
        let entry = bucket::encode(free_key(state, bucket, hash)?, inode, kind, name);
        if head.used + entry.len() <= PAYLOAD {
            state.pages.write(bucket, Kind::Bucket, head.used, &entry)?;
            let head = Head {
                used: head.used + entry.len(),
                ..head
            };
            state.pages.write(bucket, Kind::Bucket, 0, &head.encode())?;
            directory.entries += 1;
            return Ok(());
        }
        split(state, number, directory, hash, (bucket, head))?;
    }
}

/// The key with the first ordinal that no name of the same hash has.
fn free_key(state: &State, bucket: u64, hash: u64) -> Result<u64> {
    let mut taken = 0u128;
    state.pages.with(bucket, Kind::Bucket, |bytes| {
        bucket::scan(bytes, |record| {
            if same_hash(record.key, hash) {
                taken |= 1 << (record.key & ((1 << ORDINAL_BITS) - 1));
            }
            true
        })
    })??;
    let ordinal = taken.trailing_ones();
    match ordinal < 128 {
        true => Ok(hash | u64::from(ordinal)),
        false => Err(Errno::ENOSPC),
    }
}

fn make_bucket(state: &mut State, number: u64, directory: &mut Inode, depth: u32) -> Result<u64> {
    let bucket = state.take_metadata(Kind::Bucket)?;
    directory.blocks += 1;
    let head = Head {
        depth,
        used: HEAD,
        directory: number,
    };
    state.pages.write(bucket, Kind::Bucket, 0, &head.encode())?;
    Ok(bucket)
}

/// Moves the entries of a bucket whose next bit is set to a new one.
fn split(
    state: &mut State,
    number: u64,
    directory: &mut Inode,
    key: u64,
    (bucket, head): (u64, Head),
) -> Result<()> {
    if head.depth == directory.depth {
        double(state, directory)?;
    }
    let depth = head.depth + 1;
    let fresh = make_bucket(state, number, directory, depth)?;
    let old = state
        .pages
        .with(bucket, Kind::Bucket, |bytes| Box::new(*bytes))?;
    let mut halves = [Vec::new(), Vec::new()];
    for record in bucket::records(&old)? {
        let upper = index_of(record.key, depth) & 1;
        halves[upper as usize].extend_from_slice(&old[record.at..record.at + record.length()]);
    }
    for (block, half) in [bucket, fresh].into_iter().zip(halves) {
        let head = Head {
            depth,
            used: HEAD + half.len(),
            directory: number,
        };
        state.pages.write(block, Kind::Bucket, 0, &head.encode())?;
        state.pages.write(block, Kind::Bucket, HEAD, &half)?;
    }
    // The upper half of the places that the old bucket had.
    let places = 1 << (directory.depth - depth);
    let first = (index_of(key, head.depth) * 2 + 1) * places;
    map::set(state, directory, first, &vec![fresh; places as usize])
}

/// Doubles the table: each place becomes two.
fn double(state: &mut State, directory: &mut Inode) -> Result<()> {
    let places = 1u64 << directory.depth;
    // Twice the table goes into one record of the log.
    let lines_max = state.geometry().log_lines() / 8;
    if directory.depth == DEPTH_MAX || places * 2 / 8 > lines_max {
        return Err(Errno::ENOSPC);
    }
    let mut doubled = Vec::with_capacity(places as usize * 2);
    table(state, directory, |bucket, count| {
        doubled.extend(std::iter::repeat_n(bucket, count as usize * 2));
    })?;
    directory.depth += 1;
    map::set(state, directory, 0, &doubled)
}

/// Calls `see` with each bucket and the number of places that it has, in order.
pub fn table(state: &State, directory: &Inode, mut see: impl FnMut(u64, u64)) -> Result<()> {
    let places = 1u64 << directory.depth;
    let mut last: Option<(u64, u64)> = None;
    map::runs(state, directory, 0..places, |_, first, length| {
        for step in 0..length {
            let bucket = if first == 0 { 0 } else { first + step };
            last = match last {
                Some((before, count)) if before == bucket => Some((bucket, count + 1)),
                Some((before, count)) => {
                    see(before, count);
                    Some((bucket, 1))
                }
                None => Some((bucket, 1)),
            };
        }
        true
    })?;
    if let Some((bucket, count)) = last {
        see(bucket, count);
    }
    Ok(())
}

/// Removes an entry that was found. `directory` is changed, and for the caller to store.
pub fn remove(state: &mut State, directory: &mut Inode, found: &Found) -> Result<()> {
    let (mut head, rest) = state.pages.with(found.bucket, Kind::Bucket, |bytes| {
        let head = Head::decode(bytes)?;
        let rest = bytes
            .get(found.at + found.length..head.used)
            .ok_or(Errno::EIO)?;
        Ok::<_, Errno>((head, rest.to_vec()))
    })??;
    state
        .pages
        .write(found.bucket, Kind::Bucket, found.at, &rest)?;
    head.used -= found.length;
    state
        .pages
        .write(found.bucket, Kind::Bucket, 0, &head.encode())?;
    directory.entries = directory.entries.checked_sub(1).ok_or(Errno::EIO)?;
    Ok(())
}

/// Lets an entry name another inode.
pub fn replace(state: &mut State, found: &Found, inode: u64, kind: u32) -> Result<()> {
    let mut number = [0; 16];
    state
        .pages
        .read(found.bucket, Kind::Bucket, found.at + 8, &mut number)?;
    number[..8].copy_from_slice(&inode.to_le_bytes());
    number[10..12].copy_from_slice(&((kind & libc::S_IFMT) as u16).to_le_bytes());
    state
        .pages
        .write(found.bucket, Kind::Bucket, found.at + 8, &number)
}

/// Frees the buckets and the table of a directory without entries.
pub fn free(state: &mut State, directory: &mut Inode) -> Result<()> {
    let mut buckets = Vec::new();
    table(state, directory, |bucket, _| buckets.push(bucket))?;
    for bucket in buckets.into_iter().filter(|bucket| *bucket != 0) {
        state.free_metadata(bucket)?;
        directory.blocks = directory.blocks.checked_sub(1).ok_or(Errno::EIO)?;
    }
    map::forget(state, directory)
}

/// An entry as it is handed out.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its key.
    pub key: u64,
    /// Name, whom it names, and the type.
    pub name: Vec<u8>,
    /// Whom it names.
    pub inode: u64,
    /// Type bits of the mode.
    pub kind: u32,
}

/// The entries from a key on, as many as lie in one bucket, in the order of keys; and the key to go on with.
pub fn list(state: &State, directory: &Inode, from: u64) -> Result<(Vec<Listed>, Option<u64>)> {
    if from >> KEY_BITS != 0 {
        return Ok((Vec::new(), None));
    }
    let Some((bucket, head)) = bucket_for(state, directory, from)? else {
        return Ok((Vec::new(), None));
    };
    let mut listed = Vec::new();
    state.pages.with(bucket, Kind::Bucket, |bytes| {
        bucket::scan(bytes, |record| {
            if record.key >= from {
                let bucket::Record {
                    key,
                    inode,
                    kind,
                    name,
                    ..
                } = record;
                listed.push(Listed {
                    key,
                    name: name.to_vec(),
                    inode,
                    kind,
                });
            }
            true
        })
    })??;
    listed.sort_by_key(|entry| entry.key);
    let next = (index_of(from, head.depth) + 1) << (KEY_BITS - head.depth);
    Ok((listed, (next >> KEY_BITS == 0).then_some(next)))
}
