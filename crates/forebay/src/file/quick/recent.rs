//! What an open file remembers of its requests, so that the next one is found sooner, and known for one of a sequence.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::file::core::Core;
use crate::file::read::follow::Ahead;
use crate::frame::header::Header;
use crate::frame::slots;
use crate::ids::{BlockIndex, HeaderId};
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::memory::threads::Me;
use crate::sys::cpu;

/// Sequential bytes after which a stream of small requests is given whole frames.
const SEQUENTIAL_BYTES: u64 = BLOCK_BYTES as u64 / 4;
/// Longest gap between requests of one sequence: such a sequence touches every page.
const GAP_MAX: u64 = PAGE_BYTES as u64;
/// Streams that an open file tells apart, by the caller's thread slot.
const STREAMS: usize = 8;
/// Marks that a thread's stream has room for.
const MARKS: usize = 4;

/// What an open file remembers of each thread's requests. All of it is hints: threads that share a place, and torn
/// values, cost speed and nothing else.
#[derive(Default)]
pub struct Recent {
    streams: [Stream; STREAMS],
    /// What is known of its reads.
    pub ahead: Ahead,
}

/// A cache line of its own: threads that share an open file do not fetch each other's.
#[repr(align(64))]
pub struct Stream {
    /// Where the last request ended.
    last_end: AtomicU64,
    /// Where its sequence began.
    run_start: AtomicU64,
    /// Block of the last request in the upper half, its header + 1 in the lower.
    header: AtomicU64,
    /// Blocks + 1 at which the code that follows streams of reads wants to be told; each is hit once.
    marks: [AtomicU32; MARKS],
    /// The one that the next mark takes the place of.
    next_mark: AtomicU32,
    /// 1 where what it reads will not be read again.
    passes_by: AtomicU32,
}

impl Default for Stream {
    fn default() -> Self {
        let none = AtomicU64::new(u64::MAX);
        Stream {
            last_end: none,
            run_start: AtomicU64::new(0),
            header: AtomicU64::new(0),
            marks: Default::default(),
            next_mark: AtomicU32::new(0),
            passes_by: AtomicU32::new(0),
        }
    }
}

impl Recent {
    /// The calling thread's stream.
    #[inline]
    pub fn stream(&self, me: Me<'_>) -> &Stream {
        &self.streams[me.id.index() % STREAMS]
    }

    /// Whether what is read from now on counts as used once, however often it is.
    pub fn pass_by(&self, passes: bool) {
        for stream in &self.streams {
            stream.passes_by.store(u32::from(passes), Relaxed);
        }
    }
}

impl Stream {
    /// Whether a request at `offset` goes on about where the last ended, and has done so for a while.
    #[inline]
    pub fn is_sequential(&self, offset: u64, len: usize) -> bool {
        let follows = offset.wrapping_sub(self.last_end.load(Relaxed)) <= GAP_MAX;
        self.last_end
            .store(offset.wrapping_add(len as u64), Relaxed);
        if !follows {
            self.run_start.store(offset, Relaxed);
            return false;
        }
        offset.wrapping_sub(self.run_start.load(Relaxed)) >= SEQUENTIAL_BYTES
    }

    /// Whether its sequence, this request included, is so long that it leaves the caches before it comes back to where it began. What is written has been
    /// somewhere before, which takes as much room in them.
    pub fn is_long(&self) -> bool {
        let bytes = self
            .last_end
            .load(Relaxed)
            .wrapping_sub(self.run_start.load(Relaxed));
        bytes > cpu::cache_bytes() / 2
    }

    /// Whether what it reads will not be read again.
    pub fn passes_by(&self) -> bool {
        self.passes_by.load(Relaxed) != 0
    }

    /// The next read that comes to this block takes the slow way, where streams are followed.
    pub fn mark(&self, block: u32) {
        let at = self.next_mark.load(Relaxed) as usize % MARKS;
        self.next_mark.store(at as u32 + 1, Relaxed);
        self.marks[at].store(block.wrapping_add(1), Relaxed);
    }

    /// Whether a read comes to a block that was marked.
    #[inline]
    pub(super) fn meets_mark(&self, block: BlockIndex) -> bool {
        let comes = (self.header.load(Relaxed) >> 32) as u32 != block.0;
        comes && self.takes_mark(block)
    }

    fn takes_mark(&self, block: BlockIndex) -> bool {
        let mark = block.0.wrapping_add(1);
        let found = self.marks.iter().find(|word| word.load(Relaxed) == mark);
        found.inspect(|word| word.store(0, Relaxed)).is_some()
    }

    /// The header that the block probably has: the last request's if it was for the same block, without a walk down the
    /// tree. The caller checks its identity.
    #[inline]
    pub(super) fn header_of<'a>(
        &self,
        core: &Core,
        me: Me<'a>,
        block: BlockIndex,
    ) -> Option<(HeaderId, &'a Header)> {
        let known = self.header.load(Relaxed);
        let id = if (known >> 32) as u32 == block.0 && known as u32 != 0 {
            HeaderId(known as u32 - 1)
        } else {
            let id = slots::lookup(me.arena, core.entry(), block)?;
            self.header
                .store(u64::from(block.0) << 32 | u64::from(id.0 + 1), Relaxed);
            id
        };
        Some((id, me.arena.header(id)?))
    }
}

#[cfg(test)]
mod tests {
    use super::{GAP_MAX, Stream};
    use crate::sys::cpu;

    #[test]
    fn a_sequence_is_long_once_it_has_passed_half_of_the_last_cache() {
        let half = cpu::cache_bytes() / 2;
        assert!((16 << 10..1 << 40).contains(&half), "{half}");
        let request = usize::try_from(half / 4).expect("a size");
        let stream = Stream::default();
        let mut at = 0;
        let mut goes_on = |len: usize, gap: u64| {
            let _ = stream.is_sequential(at + gap, len);
            at += gap + len as u64;
            stream.is_long()
        };
        assert!(!goes_on(request, 0));
        assert!(!goes_on(request, 0) && !goes_on(request, 0));
        let rest = half as usize - 3 * request;
        assert!(!goes_on(rest, 0), "as long as half of it");
        assert!(goes_on(1, 0), "this request included");
        assert!(goes_on(1, GAP_MAX));
        assert!(!goes_on(request, GAP_MAX + 1), "another one begins");
        // One request may be long by itself.
        assert!(goes_on(half as usize + 1, GAP_MAX + 1));
    }
}
