//! The search tree under a file's streams: keyed by first block, found in O(log n), with links that are words of the arena.
//!
//! A treap: a binary search tree in which no stream has one of a higher priority below it. The priority is a hash of the
//! stream's index, so that it needs no word and no balancing beyond two loops, and a tree of n streams is about 2 log n deep
//! whatever the order of requests. Every walk is bounded, so that damaged links end it.

use crate::ids::StreamId;
use crate::memory::arena::Arena;
use crate::memory::streams::Stream;
use crate::sync::{AtomicU32, Ordering::Relaxed};

/// Steps of a walk after which the links must be damaged: 65,536 streams are about 40 deep.
const STEPS_MAX: u32 = 512;

/// The links are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// A tree's streams, for the thread that has its lock.
#[derive(Clone, Copy)]
pub struct Index<'a> {
    /// Where the streams are.
    pub arena: &'a Arena,
    /// Leads to the root.
    pub root: &'a AtomicU32,
}

fn priority(id: StreamId) -> u32 {
    let mixed = (id.0 ^ (id.0 >> 7)).wrapping_mul(0x9E37_79B1);
    mixed ^ (mixed >> 15)
}

/// Whether `a` belongs above `b`.
fn outranks(a: StreamId, b: StreamId) -> bool {
    (priority(a), a.0) > (priority(b), b.0)
}

impl<'a> Index<'a> {
    fn key_of(stream: &Stream) -> u32 {
        stream.start.load(Relaxed)
    }

    fn at(self, word: u32) -> Option<(StreamId, &'a Stream)> {
        let id = StreamId(word.checked_sub(1)?);
        Some((id, self.arena.stream(id)?))
    }

    fn walk(
        self,
        mut go_right: impl FnMut(u32) -> Option<bool>,
        mut on_turn: impl FnMut(StreamId, bool),
    ) -> Result<Option<StreamId>, Damaged> {
        let mut link = self.root;
        for _ in 0..STEPS_MAX {
            let Some((id, stream)) = self.at(link.load(Relaxed)) else {
                return Ok(None);
            };
            let Some(right) = go_right(Self::key_of(stream)) else {
                return Ok(Some(id));
            };
            on_turn(id, right);
            link = if right { &stream.right } else { &stream.left };
        }
        Err(Damaged)
    }

    /// The stream with the greatest key that is not above `key`.
    pub fn floor(self, key: u32) -> Result<Option<StreamId>, Damaged> {
        let mut best = None;
        let exact = self.walk(
            |here| (here != key).then_some(here < key),
            |id, right| {
                if right {
                    best = Some(id);
                }
            },
        )?;
        Ok(exact.or(best))
    }

    /// The stream with the least key above `key`.
    pub fn above(self, key: u32) -> Result<Option<StreamId>, Damaged> {
        let mut best = None;
        self.walk(
            |here| Some(here <= key),
            |id, right| {
                if !right {
                    best = Some(id);
                }
            },
        )?;
        Ok(best)
    }

    /// Both: the stream with the greatest key that is not above `key`, and the one with the least key above it.
    pub fn around(self, key: u32) -> Result<(Option<StreamId>, Option<StreamId>), Damaged> {
        let (mut floor, mut above) = (None, None);
        self.walk(
            |here| Some(here <= key),
            |id, right| {
                if right {
                    floor = Some(id);
                } else {
                    above = Some(id);
                }
            },
        )?;
        Ok((floor, above))
    }

    /// Adds a stream whose key no other has.
    pub fn insert(self, id: StreamId, new: &'a Stream) -> Result<(), Damaged> {
        let key = Self::key_of(new);
        let mut steps = 0..STEPS_MAX;
        let mut link = self.root;
        while let Some((here, stream)) = self.at(link.load(Relaxed)) {
            if outranks(id, here) {
                break;
            }
            steps.next().ok_or(Damaged)?;
            let right = Self::key_of(stream) < key;
            link = if right { &stream.right } else { &stream.left };
        }
        let mut rest = link.load(Relaxed);
        link.store(id.0 + 1, Relaxed);
        let (mut low, mut high) = (&new.left, &new.right);
        while let Some((_, stream)) = self.at(rest) {
            steps.next().ok_or(Damaged)?;
            let side = if Self::key_of(stream) < key {
                low.store(rest, Relaxed);
                low = &stream.right;
                low
            } else {
                high.store(rest, Relaxed);
                high = &stream.left;
                high
            };
            rest = side.load(Relaxed);
        }
        low.store(0, Relaxed);
        high.store(0, Relaxed);
        Ok(())
    }

    /// Takes a stream out.
    pub fn remove(self, id: StreamId, old: &Stream) -> Result<(), Damaged> {
        let key = Self::key_of(old);
        let mut steps = 0..STEPS_MAX;
        let mut link = self.root;
        loop {
            let (here, stream) = self.at(link.load(Relaxed)).ok_or(Damaged)?;
            if here == id {
                break;
            }
            steps.next().ok_or(Damaged)?;
            let right = Self::key_of(stream) < key;
            link = if right { &stream.right } else { &stream.left };
        }
        let (mut low, mut high) = (old.left.load(Relaxed), old.right.load(Relaxed));
        loop {
            steps.next().ok_or(Damaged)?;
            let (Some((a, lower)), Some((b, upper))) = (self.at(low), self.at(high)) else {
                link.store(if low == 0 { high } else { low }, Relaxed);
                return Ok(());
            };
            if outranks(a, b) {
                link.store(low, Relaxed);
                link = &lower.right;
                low = link.load(Relaxed);
            } else {
                link.store(high, Relaxed);
                link = &upper.left;
                high = link.load(Relaxed);
            }
        }
    }
}
