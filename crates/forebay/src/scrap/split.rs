//! Cuts a request into blocks, and what falls into a block into pages.
//!
//! ```text
//!   offset=131 KiB, size=276 KiB (WSBuffer, Figure 5)
//!   block 0: page 32 from its byte 3072 (head), pages 33..64 whole
//!   block 1: pages 0..37 whole, page 37 up to its byte 3072 (tail)
//! ```
//!
//! All of it is arithmetic on the stack. Sets of pages are masks of 64 bits, one bit a page, as in
//! the header's `valid`, `dirty` and `inflight`.

use std::ops::Range;

use crate::ids::BlockIndex;
use crate::limits::{BLOCK_BYTES, BLOCK_PAGES, FILE_BYTES_MAX, PAGE_BYTES};

/// The part of a request that falls into one block. Never empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The block.
    pub block: BlockIndex,
    /// First byte, counted from the block's first.
    pub start: usize,
    /// Bytes; `start + len` is at most the block's size.
    pub len: usize,
    /// Bytes of the request before this segment: where in the caller's buffer it begins.
    pub done: usize,
}

/// A page that a segment touches in part: page in the block, first byte and end in the page.
pub type PagePart = (u32, usize, usize);

/// The pages of a segment: those that it covers, and the ragged ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageSpan {
    /// Pages that are covered; may be empty.
    pub whole: Range<u32>,
    /// The page before them, covered from within to its end; or the only page, covered in part.
    pub head: Option<PagePart>,
    /// The page after them, covered from its first byte to within.
    pub tail: Option<PagePart>,
}

/// The parts of `offset..offset + len` block by block, in ascending order.
///
/// The range must end at or before [`FILE_BYTES_MAX`].
#[inline]
pub fn segments(offset: u64, len: usize) -> impl Iterator<Item = Segment> + Clone {
    debug_assert!(
        offset
            .checked_add(len as u64)
            .is_some_and(|end| end <= FILE_BYTES_MAX),
        "{len} bytes at {offset} pass the end of what a file can hold"
    );
    Segments {
        offset,
        done: 0,
        len,
    }
}

#[derive(Clone)]
struct Segments {
    offset: u64,
    done: usize,
    len: usize,
}

impl Iterator for Segments {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let left = self.len - self.done;
        if left == 0 {
            return None;
        }
        let at = self.offset + self.done as u64;
        let start = (at % BLOCK_BYTES as u64) as usize;
        let len = left.min(BLOCK_BYTES - start);
        let segment = Segment {
            block: BlockIndex::of(at),
            start,
            len,
            done: self.done,
        };
        self.done += len;
        Some(segment)
    }
}

impl Segment {
    /// Its parts that lie in one page each of the caller's memory, which begins at `address`; and what of the segment
    /// comes before each.
    pub fn by_pages_of(self, address: usize) -> impl Iterator<Item = (usize, Segment)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let rest = self.len - done;
            let len = rest.min(PAGE_BYTES - (address + done) % PAGE_BYTES);
            let part = Segment {
                start: self.start + done,
                len,
                ..self
            };
            done += len;
            (len > 0).then_some((done - len, part))
        })
    }

    /// Where it begins in the file.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.block.start() + self.start as u64
    }

    /// End in the block: one past the last byte.
    #[inline]
    pub fn end(&self) -> usize {
        self.start + self.len
    }

    /// Which pages are covered, and the ragged ends. A segment inside one page has only a head.
    #[inline]
    pub fn pages(&self) -> PageSpan {
        self.check();
        let (first, from) = (self.start / PAGE_BYTES, self.start % PAGE_BYTES);
        let (last, to) = (self.end() / PAGE_BYTES, self.end() % PAGE_BYTES);
        let (first, last) = (first as u32, last as u32);
        if first == last {
            return PageSpan {
                whole: first..first,
                head: Some((first, from, to)),
                tail: None,
            };
        }
        PageSpan {
            whole: first + u32::from(from > 0)..last,
            head: (from > 0).then_some((first, from, PAGE_BYTES)),
            tail: (to > 0).then_some((last, 0, to)),
        }
    }

    /// Mask of the pages that the segment has bytes in, covered or not.
    #[inline]
    pub fn touched(&self) -> u64 {
        self.check();
        mask((self.start / PAGE_BYTES) as u32..self.end().div_ceil(PAGE_BYTES) as u32)
    }

    #[inline]
    fn check(&self) {
        debug_assert!(
            self.len > 0 && self.end() <= BLOCK_BYTES,
            "{self:?} is not in a block"
        );
    }
}

/// Mask of the pages in `range`, which may be empty and may be all 64.
#[inline]
pub fn mask(range: Range<u32>) -> u64 {
    debug_assert!(
        range.end <= BLOCK_PAGES as u32,
        "{range:?} is not in a block"
    );
    if range.is_empty() {
        return 0;
    }
    u64::MAX >> (BLOCK_PAGES as u32 - (range.end - range.start)) << range.start
}

/// The maximal runs of set bits of `mask`, in ascending order.
#[inline]
pub fn runs_of(mask: u64) -> impl Iterator<Item = Range<u32>> + Clone {
    RunsOf { left: mask }
}

#[derive(Clone)]
struct RunsOf {
    left: u64,
}

impl Iterator for RunsOf {
    type Item = Range<u32>;

    #[inline]
    fn next(&mut self) -> Option<Range<u32>> {
        if self.left == 0 {
            return None;
        }
        let start = self.left.trailing_zeros();
        let end = start + (self.left >> start).trailing_ones();
        // Adding the lowest bit carries through the lowest run, and out of the word at its top.
        self.left &= self.left.wrapping_add(1 << start);
        Some(start..end)
    }
}
