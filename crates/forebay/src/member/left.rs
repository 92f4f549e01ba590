//! Files that were left or given to the kernel, and why: the last of them, for reports.
//!
//! A ring in the arena, without locks: a writer clears the `last` of its place first and sets it last, and a reader looks at it
//! before and after. Two that write one place at once may mix their paths; a report says so much and no more. The same file for
//! the same reason has one place.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use serde::Serialize;

use crate::member::given;
use crate::memory::arena::Arena;
use crate::memory::superblock::{LEFT, LEFT_PATH_BYTES, Left, Superblock};
use crate::sync::Ordering;
use crate::text::as_text;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftFile {
    /// The path it had then; of a long one the end.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// Why.
    pub reason: &'static str,
    /// The reason's number.
    pub code: u32,
    /// How often, since it was first.
    pub times: u32,
    /// Later ones have larger numbers.
    #[serde(skip)]
    pub last: u64,
}

/// What is noted of a file for a reason.
fn key((device, inode): (u64, u64), reason: u32) -> u64 {
    super::reached::hash(device, inode).rotate_left(8) ^ u64::from(reason) | 1
}

fn place_of(superblock: &Superblock, key: u64) -> Option<&Left> {
    let same = |left: &&Left| left.key.load(Ordering::Acquire) == key;
    superblock.left.iter().find(same)
}

/// Notes one that has been noted before, by the path that it had then. `false`: it has not.
pub fn note_again(arena: &Arena, inode: (u64, u64), reason: u32) -> bool {
    let superblock = arena.superblock();
    let Some(place) = place_of(superblock, key(inode, reason)) else {
        return false;
    };
    let now = superblock.left_count.fetch_add(1, Ordering::AcqRel) + 1;
    let times = place.times.load(Ordering::Relaxed).saturating_add(1);
    place.times.store(times, Ordering::Release);
    place.last.store(now, Ordering::Release);
    true
}

/// Notes one.
pub fn note(arena: &Arena, inode: (u64, u64), reason: u32, path: &[u8]) {
    let superblock = arena.superblock();
    let now = superblock.left_count.fetch_add(1, Ordering::AcqRel) + 1;
    let key = key(inode, reason);
    let (place, times) = match place_of(superblock, key) {
        Some(place) => (place, place.times.load(Ordering::Relaxed).saturating_add(1)),
        None => (&superblock.left[now as usize % LEFT], 1),
    };
    place.last.store(0, Ordering::Release);
    place.key.store(key, Ordering::Release);
    place.times.store(times, Ordering::Release);
    place.reason.store(reason, Ordering::Release);
    let path = &path[path.len().saturating_sub(LEFT_PATH_BYTES)..];
    for (word, chunk) in place.path.iter().zip(path.chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(bytes), Ordering::Release);
    }
    place.path_len.store(path.len() as u64, Ordering::Release);
    place.last.store(now, Ordering::Release);
}

/// How often files have been left so far.
pub fn count(arena: &Arena) -> u64 {
    arena.superblock().left_count.load(Ordering::Acquire)
}

/// Those that were left after so many, the first of them first.
pub fn since(arena: &Arena, count: u64) -> Vec<LeftFile> {
    let places = arena.superblock().left.iter();
    let mut files: Vec<_> = places
        .filter_map(read)
        .filter(|file| file.last > count)
        .collect();
    files.sort_by_key(|file| file.last);
    files
}

fn read(left: &Left) -> Option<LeftFile> {
    let last = left.last.load(Ordering::Acquire);
    let len = left.path_len.load(Ordering::Acquire) as usize;
    let words = left.path.iter().map(|word| word.load(Ordering::Acquire));
    let mut path: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    path.truncate(len);
    let code = left.reason.load(Ordering::Acquire);
    let file = LeftFile {
        path: PathBuf::from(std::ffi::OsString::from_vec(path)),
        reason: given::words(code),
        code,
        times: left.times.load(Ordering::Acquire),
        last,
    };
    (last != 0 && left.last.load(Ordering::Acquire) == last).then_some(file)
}
