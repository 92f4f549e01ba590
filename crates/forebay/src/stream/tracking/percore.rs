//! Dirty sets, one for each core: what FastMap has instead of tags in the index of pages (StreamCache 2.3), for comparison with
//! streams.
//!
//! A set has a lock of its own and a tree ordered by file and block, so that a sync finds its blocks in order and two
//! writers seldom meet at one lock. As FastMap's pages, blocks are dealt out to the sets by their number: the neighbours of a block
//! are in other sets, and who looks for the next one asks all.
//!
//! The unit is the block, as it is for streams. FastMap's nodes lie in the descriptors of pages; ours are records of the
//! table of streams, which is of no other use here, and a bit for each of 64 blocks that a set may have of a file makes them suffice.
//! A record's `start` counts such groups, `dirty_start` and `dirty_end` are the halves of the bits.
//!
//! As a tree of streams, a set is a hint beside the marks: nobody waits for it, and who cannot have its lock, or finds no free
//! record, leaves the file in doubt.

use crate::frame::slots;
use crate::ids::{FileId, StreamId};
use crate::memory::arena::Arena;
use crate::memory::files::FileEntry;
use crate::memory::streams::{DirtySet, SETS_MAX, Stream};
use crate::memory::threads::Me;
use crate::stream::tree::index::{Damaged, Index, key};
use crate::stream::tree::records::{claim, release};
use crate::stream::tree::{LOCK_ROUNDS, try_word};
use crate::sync::Ordering::{Relaxed, Release};

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

/// Blocks that a leaf has bits for.
const LEAF_BLOCKS: u32 = 64;

/// The sets could not be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// How many sets the session has.
pub fn count(arena: &Arena) -> u32 {
    let sets = arena.stream_lists().sets.load(Relaxed);
    sets.clamp(1, SETS_MAX as u32).next_power_of_two()
}

/// Where a block is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    set: u32,
    leaf: u32,
    bit: u32,
}

impl Place {
    fn of(block: u32, sets: u32) -> Place {
        let index = block / sets;
        Place {
            set: block % sets,
            leaf: index / LEAF_BLOCKS,
            bit: index % LEAF_BLOCKS,
        }
    }

    /// Of a damaged leaf, any block.
    fn block(self, sets: u32) -> u32 {
        let index = self.leaf.wrapping_mul(LEAF_BLOCKS).wrapping_add(self.bit);
        index.wrapping_mul(sets).wrapping_add(self.set)
    }
}

fn bits_of(leaf: &Stream) -> u64 {
    u64::from(leaf.dirty_end.load(Relaxed)) << 32 | u64::from(leaf.dirty_start.load(Relaxed))
}

fn store_bits(leaf: &Stream, bits: u64) {
    leaf.dirty_start.store(bits as u32, Relaxed);
    leaf.dirty_end.store((bits >> 32) as u32, Relaxed);
}

/// A set, locked.
struct Set<'a> {
    me: Me<'a>,
    set: &'a DirtySet,
    number: u32,
}

fn try_lock(me: Me<'_>, number: u32) -> Option<Set<'_>> {
    let set = me.arena.dirty_set(number);
    // Made only with the lock in hand: its end opens it.
    try_word(me, &set.lock, LOCK_ROUNDS).then(|| Set { me, set, number })
}

impl Drop for Set<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.set.lock.store(0, Release);
    }
}

impl<'a> Set<'a> {
    fn index(&self) -> Index<'a, true> {
        Index {
            arena: self.me.arena,
            root: &self.set.root,
        }
    }

    fn of_file(&self, id: Option<StreamId>, file: FileId) -> Option<(StreamId, &'a Stream)> {
        let leaf = self.me.arena.stream(id?)?;
        (leaf.file.load(Relaxed) == file.0 + 1).then_some((id?, leaf))
    }

    fn leaf(&self, file: FileId, leaf: u32) -> Result<Option<(StreamId, &'a Stream)>, Damaged> {
        let found = self.of_file(self.index().floor(key(file, leaf))?, file);
        Ok(found.filter(|(_, found)| found.start.load(Relaxed) == leaf))
    }

    fn above(&self, file: FileId, leaf: u32) -> Result<Option<(StreamId, &'a Stream)>, Damaged> {
        Ok(self.of_file(self.index().above(key(file, leaf))?, file))
    }

    /// `false`: there is no free record.
    fn add(&self, file: FileId, at: Place) -> Result<bool, Damaged> {
        if let Some((_, leaf)) = self.leaf(file, at.leaf)? {
            store_bits(leaf, bits_of(leaf) | 1 << at.bit);
            return Ok(true);
        }
        let Some((id, leaf)) = claim(self.me, file) else {
            return Ok(false);
        };
        leaf.start.store(at.leaf, Relaxed);
        leaf.upper_limit.store(self.number, Relaxed);
        store_bits(leaf, 1 << at.bit);
        self.index().insert(id, leaf)?;
        Ok(true)
    }

    fn remove(&self, file: FileId, at: Place) -> Result<(), Damaged> {
        let Some((id, leaf)) = self.leaf(file, at.leaf)? else {
            return Ok(());
        };
        let rest = bits_of(leaf) & !(1 << at.bit);
        store_bits(leaf, rest);
        if rest == 0 {
            self.index().remove(id, leaf)?;
            release(self.me.arena, id, leaf);
        }
        Ok(())
    }

    /// The first block of a file that the set has at or after `from`.
    fn next(&self, file: FileId, from: u32, sets: u32) -> Result<Option<u32>, Damaged> {
        let Some(sum) = from.checked_add(sets - 1 - self.number) else {
            return Ok(None);
        };
        // The first number within the set that is not below `from`.
        let (group, low) = (sum / sets / LEAF_BLOCKS, sum / sets % LEAF_BLOCKS);
        let at = |leaf: &Stream, bits: u64| {
            let place = Place {
                set: self.number,
                leaf: leaf.start.load(Relaxed),
                bit: bits.trailing_zeros(),
            };
            (bits != 0).then(|| place.block(sets))
        };
        let here = self.leaf(file, group)?;
        if let Some(found) = here.and_then(|(_, leaf)| at(leaf, bits_of(leaf) & u64::MAX << low)) {
            return Ok(Some(found));
        }
        // A leaf has at least one bit.
        let after = self.above(file, group)?;
        Ok(after.and_then(|(_, leaf)| at(leaf, bits_of(leaf))))
    }

    /// Forgets all that is known of a file.
    fn purge(&self, file: FileId) -> Result<(), Damaged> {
        loop {
            let first = match self.leaf(file, 0)? {
                Some(first) => Some(first),
                None => self.above(file, 0)?,
            };
            let Some((id, leaf)) = first else {
                return Ok(());
            };
            self.index().remove(id, leaf)?;
            release(self.me.arena, id, leaf);
        }
    }

    /// Links that are damaged lead nowhere any more, and what they led to is in doubt.
    fn begin_anew(&self) {
        self.set.root.store(0, Relaxed);
        for id in (0..self.me.arena.counts().streams()).map(StreamId) {
            let Some(leaf) = self.me.arena.stream(id) else {
                continue;
            };
            let file = leaf.file.load(Relaxed).checked_sub(1);
            if let Some(file) = file.filter(|_| leaf.upper_limit.load(Relaxed) == self.number) {
                doubt(self.me.arena, FileId(file));
                release(self.me.arena, id, leaf);
            }
        }
    }
}

fn doubt(arena: &Arena, file: FileId) {
    arena.stream_tree(file).doubt.store(1, Release);
}

/// Changes a set, or leaves the file in doubt.
fn change(
    me: Me<'_>,
    file: FileId,
    number: u32,
    change: impl FnOnce(&Set<'_>) -> Result<bool, Damaged>,
) {
    let Some(set) = try_lock(me, number) else {
        return doubt(me.arena, file);
    };
    #[cfg(feature = "sim")]
    let _quiet = crate::sim::explore::quiet();
    match change(&set) {
        Ok(true) => {}
        Ok(false) => doubt(me.arena, file),
        Err(Damaged) => {
            set.begin_anew();
            doubt(me.arena, file);
        }
    }
}

/// A block owes something.
pub(super) fn add(me: Me<'_>, file: FileId, block: u32) {
    let at = Place::of(block, count(me.arena));
    change(me, file, at.set, |set| set.add(file, at));
}

/// A block owes nothing any more.
pub(super) fn remove(me: Me<'_>, file: FileId, block: u32) {
    let at = Place::of(block, count(me.arena));
    change(me, file, at.set, |set| set.remove(file, at).map(|()| true));
}

/// The first block at or after `from` that owes something: of all sets, since each has a part of any range.
pub(super) fn next(me: Me<'_>, file: FileId, from: u32) -> Result<Option<u32>, Unknown> {
    let sets = count(me.arena);
    let mut least: Option<u32> = None;
    for number in 0..sets {
        let set = try_lock(me, number).ok_or(Unknown)?;
        #[cfg(feature = "sim")]
        let _quiet = crate::sim::explore::quiet();
        let found = set.next(file, from, sets).map_err(|Damaged| Unknown)?;
        least = least.into_iter().chain(found).min();
    }
    Ok(least)
}

/// Makes anew from the marks what the sets have of a file. In an operation on it.
pub(super) fn mend(me: Me<'_>, file: FileId, entry: &FileEntry) {
    // First: what fails from here on is a new doubt.
    me.arena.stream_tree(file).doubt.store(0, Release);
    me.arena.stream_lists().mended.fetch_add(1, Relaxed);
    let sets = count(me.arena);
    for number in 0..sets {
        change(me, file, number, |set| fill(set, file, entry, sets));
    }
}

/// The set's part of a file's marks. A mark changes before a set is told of it, so who changes one meanwhile is seen, or comes
/// after with the lock.
fn fill(set: &Set<'_>, file: FileId, entry: &FileEntry, sets: u32) -> Result<bool, Damaged> {
    set.purge(file)?;
    let (mut at, mut all) = (0, true);
    while let Some((block, _)) = slots::next_owed(set.me.arena, entry, at) {
        at = u64::from(block.0) + 1;
        let place = Place::of(block.0, sets);
        if place.set == set.number {
            all &= set.add(file, place)?;
        }
    }
    Ok(all)
}

/// What a set has, by its links, without a lock: for the arena checker, and for people. `Err`: links lead in circles or to nothing.
pub fn contents(arena: &Arena, number: u32) -> Result<Vec<(StreamId, FileId, u32)>, Damaged> {
    let (mut found, sets) = (Vec::new(), count(arena));
    let mut open = vec![arena.dirty_set(number).root.load(Relaxed)];
    let mut left = arena.counts().streams();
    while let Some(word) = open.pop() {
        let Some(id) = word.checked_sub(1).map(StreamId) else {
            continue;
        };
        left = left.checked_sub(1).ok_or(Damaged)?;
        let leaf = arena.stream(id).ok_or(Damaged)?;
        let file = leaf.file.load(Relaxed).checked_sub(1).ok_or(Damaged)?;
        let bits = bits_of(leaf);
        for bit in (0..LEAF_BLOCKS).filter(|bit| bits & 1 << bit != 0) {
            let place = Place {
                set: number,
                leaf: leaf.start.load(Relaxed),
                bit,
            };
            found.push((id, FileId(file), place.block(sets)));
        }
        open.push(leaf.left.load(Relaxed));
        open.push(leaf.right.load(Relaxed));
    }
    Ok(found)
}
