//! The stream tracking tree of a file (StreamCache 4.1): which runs of its blocks are in memory, and which parts of them may be
//! owed to the device.
//!
//! Streams never intersect. Each has an address range and within it one dirty range; where two that merge have dirty ranges
//! that do not touch, the range is split into two streams. The *current* stream, the one of the last request, is reached by the
//! tree's pointer: a request that goes on where it ends, below its `upper_limit`, changes two words and searches nothing.
//! Every other request costs two searches, whatever its length.
//!
//! Our unit is the block, not the page, and both ranges are hulls: a block in the middle may have been evicted or flushed since.
//! What is exact is the other direction, which everything depends on that asks the tree: **a block that owes something is in
//! exactly one dirty range, and a block that has a header is in exactly one address range**, unless the tree is in *doubt*. Why so:
//! `docs/decisions/0013-streams.md`.
//!
//! The tree is a hint. What is owed is said by the marks of the slot tree (`frame::slots`), and a thread that must not miss anything asks them
//! in the end. Nothing waits for a tree: a thread that cannot have its lock for a moment, or finds no free stream, notes a doubt and goes on,
//! and the tree is made anew ([`tracking::mend`](super::tracking::mend)). A holder that died is found by a rebuild, which makes all trees
//! anew.
//!
//! Order: header lock > tree lock > lists' lock. The lock is held for a search and a few stores.

pub mod index;
pub mod lists;
pub(crate) mod records;
mod request;
pub mod span;

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

use index::{Damaged, Index};
pub use span::{Extent, Merged, Span};

use crate::ids::{FileId, StreamId};
use crate::memory::streams::{Stream, Tree};
use crate::memory::threads::Me;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::{AtomicU32, patience, relax};

/// Looks at a lock word: a holder has it for well under a microsecond, unless it is not running.
pub(crate) const LOCK_ROUNDS: u32 = 200;

/// Blocks among which the new beginning of a stream is looked for.
const LOOK_AHEAD: u32 = 64;

/// Tries for a moment to write this thread into a lock word.
pub(crate) fn try_word(me: Me<'_>, word: &AtomicU32, rounds: u32) -> bool {
    for round in 0..patience(rounds) {
        let free = word.load(Relaxed) == 0;
        if free && word.compare_exchange(0, me.id.0, Acquire, Relaxed).is_ok() {
            return true;
        }
        // Spins only: the caller may have a header's lock.
        relax(round.min(63));
    }
    false
}

/// A file's tree, locked.
pub struct Locked<'a> {
    me: Me<'a>,
    file: FileId,
    tree: &'a Tree,
}

/// Locks a file's tree. `None`: somebody else has it, for longer than a moment.
pub fn try_lock(me: Me<'_>, file: FileId) -> Option<Locked<'_>> {
    let tree = me.arena.stream_tree(file);
    // Made only with the lock in hand: its end opens it.
    try_word(me, &tree.lock, LOCK_ROUNDS).then(|| Locked { me, file, tree })
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.tree.lock.store(0, Release);
    }
}

/// The words of a stream as a value.
pub fn extent_of(stream: &Stream) -> Extent {
    let word = |word: &AtomicU32| word.load(Relaxed);
    Extent {
        span: Span {
            start: word(&stream.start),
            end: word(&stream.end),
        },
        dirty: Span::new(word(&stream.dirty_start), word(&stream.dirty_end)),
    }
}

/// Looking.
impl<'a> Locked<'a> {
    /// Says that the tree lacks something.
    pub fn doubt(&self) {
        self.tree.doubt.store(1, Release);
    }

    /// Whether something is missing.
    pub fn is_in_doubt(&self) -> bool {
        self.tree.doubt.load(Acquire) != 0
    }

    fn index(&self) -> Index<'a> {
        Index {
            arena: self.me.arena,
            root: &self.tree.root,
        }
    }

    /// The stream that begins at a block, or is the next below it.
    fn floor(&self, block: u32) -> Result<Option<StreamId>, Damaged> {
        self.index().floor(block)
    }

    /// The first stream that begins above a block.
    fn next_above(&self, block: u32) -> Result<Option<StreamId>, Damaged> {
        self.index().above(block)
    }

    /// A stream of this file, by its number.
    pub fn get(&self, id: StreamId) -> Option<&'a Stream> {
        let stream = self.me.arena.stream(id)?;
        (stream.file.load(Relaxed) == self.file.0 + 1).then_some(stream)
    }

    /// The current stream.
    pub fn current(&self) -> Option<(StreamId, &'a Stream)> {
        let id = StreamId(self.tree.pointer.load(Relaxed).checked_sub(1)?);
        Some((id, self.get(id)?))
    }

    /// The stream that has a block.
    pub fn find(&self, block: u32) -> Option<(StreamId, &'a Stream)> {
        let has = |(_, stream): &(StreamId, &Stream)| extent_of(stream).span.contains(block);
        self.current().filter(has).or_else(|| {
            let id = self.floor(block).ok()??;
            Some((id, self.get(id)?)).filter(has)
        })
    }

    /// The first dirty range that ends after `from`, without what lies before.
    pub fn next_dirty(&self, from: u32) -> Option<Span> {
        let mut next = self.find(from).map(|(id, _)| id);
        next = next.or_else(|| self.next_above(from).ok()?);
        while let Some(stream) = next.and_then(|id| self.get(id)) {
            let extent = extent_of(stream);
            if let Some(dirty) = extent.dirty.filter(|dirty| dirty.end > from) {
                return Span::new(dirty.start.max(from), dirty.end);
            }
            next = self.next_above(extent.span.start).ok()?;
        }
        None
    }

    /// Calls `f` with each stream, ascending.
    pub fn each(&self, mut f: impl FnMut(StreamId, &Stream)) -> Result<(), Damaged> {
        let mut next = match self.floor(0)? {
            Some(first) => Some(first),
            None => self.next_above(0)?,
        };
        let mut left = self.me.arena.counts().streams();
        while let Some(id) = next {
            let stream = self.get(id).ok_or(Damaged)?;
            left = left.checked_sub(1).ok_or(Damaged)?;
            f(id, stream);
            next = self.next_above(stream.start.load(Relaxed))?;
        }
        Ok(())
    }
}

/// What happens to blocks without a request.
impl Locked<'_> {
    /// A block owes nothing any more. `next_owed` says which block at or after another does.
    pub fn clean(&self, block: u32, next_owed: impl Fn(u32) -> Option<u32>) {
        #[cfg(feature = "sim")]
        let _quiet = crate::sim::explore::quiet();
        let Some((id, stream)) = self.find(block) else {
            return;
        };
        let extent = extent_of(stream);
        let Some(dirty) = extent.dirty.filter(|dirty| dirty.contains(block)) else {
            return;
        };
        let dirty = if block == dirty.start {
            next_owed(block).and_then(|next| Span::new(next, dirty.end))
        } else if block == dirty.end - 1 {
            Span::new(dirty.start, block)
        } else {
            return;
        };
        self.save(id, stream, Extent { dirty, ..extent });
    }

    /// A dirty range has been gone over: it begins where something is owed still.
    pub fn settle(&self, block: u32, next_owed: impl Fn(u32) -> Option<u32>) {
        #[cfg(feature = "sim")]
        let _quiet = crate::sim::explore::quiet();
        if let Some((id, stream)) = self.find(block) {
            let extent = extent_of(stream);
            let dirty = extent
                .dirty
                .and_then(|was| Span::new(next_owed(was.start)?.max(was.start), was.end));
            if dirty != extent.dirty {
                self.save(id, stream, Extent { dirty, ..extent });
            }
        }
    }

    /// A block has no header any more. Only the ends of a range move: the beginning to a block that has one (`is_linked`), if
    /// that is not far.
    pub fn drop_block(&self, block: u32, is_linked: impl Fn(u32) -> bool) {
        #[cfg(feature = "sim")]
        let _quiet = crate::sim::explore::quiet();
        if let Some((_, stream)) = self.find(block) {
            let span = extent_of(stream).span;
            if block == span.start {
                let near = span.end.min(block.saturating_add(LOOK_AHEAD));
                let first = (block + 1..near).find(|&next| is_linked(next));
                self.cut_to(block, first.unwrap_or(near), span.end);
            } else if block == span.end - 1 {
                self.cut_to(block, span.start, block);
            }
        }
    }

    /// The stream that has `block` keeps no more than the blocks from `start` up to `end`: the others have no headers. What may
    /// be owed is kept in any case.
    pub fn cut_to(&self, block: u32, start: u32, end: u32) {
        let Some((id, stream)) = self.find(block) else {
            return;
        };
        let extent = extent_of(stream);
        let kept = Span::new(start.max(extent.span.start), end.min(extent.span.end));
        let kept = match (kept, extent.dirty) {
            (Some(kept), Some(dirty)) => Some(kept.hull(dirty)),
            (kept, dirty) => kept.or(dirty),
        };
        match kept {
            Some(span) => self.save(id, stream, Extent { span, ..extent }),
            None => {
                if self.give_up(id, stream).is_err() {
                    self.doubt();
                }
            }
        }
    }

    /// No block from `first` on has a header, or owes anything.
    pub fn truncate(&self, first: u32) {
        if let Some((id, stream)) = first.checked_sub(1).and_then(|last| self.find(last)) {
            let Extent { span, dirty } = extent_of(stream);
            let until = |span: Span| Span::new(span.start, span.end.min(first));
            if let Some(kept) = until(span) {
                let dirty = dirty.and_then(until);
                self.save(id, stream, Extent { span: kept, dirty });
            }
        }
        while let Some((id, stream)) = self.find(first).or_else(|| self.above(first)) {
            if self.give_up(id, stream).is_err() {
                return self.doubt();
            }
        }
    }

    /// Forgets all streams of the file, and that anything was in doubt.
    pub fn begin_anew(&self) {
        self.tree.doubt.store(0, Release);
        self.forget(true);
    }

    /// Forgets all streams of the file, no block of which has a header: nothing is missing any more.
    pub fn clear(&self) {
        let all = self.tree.doubt.swap(0, AcqRel) != 0;
        self.forget(all);
    }

    /// With `all`, also those that are in no tree.
    fn forget(&self, all: bool) {
        #[cfg(feature = "sim")]
        let _quiet = crate::sim::explore::quiet();
        while let Some((id, stream)) = self.both(self.root()) {
            if self.give_up(id, stream).is_err() {
                break;
            }
        }
        // Links that are left lead nowhere.
        if self.tree.root.swap(0, Relaxed) != 0 || all {
            for id in (0..self.me.arena.counts().streams()).map(StreamId) {
                if let Some(stream) = self.get(id) {
                    self.set_free(id, stream);
                }
            }
        }
        self.tree.pointer.store(0, Relaxed);
        self.tree.count.store(0, Relaxed);
    }

    fn above(&self, block: u32) -> Option<(StreamId, &Stream)> {
        let id = self.next_above(block).ok()??;
        Some((id, self.get(id)?))
    }

    fn root(&self) -> Option<StreamId> {
        self.tree.root.load(Relaxed).checked_sub(1).map(StreamId)
    }
}
