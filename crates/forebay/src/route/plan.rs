//! A plan: one request cut into at most three parts, each with its way (WSBuffer 3.3, Algorithm 1,
//! `Splitting_Write`).
//!
//! The paper cuts a long write into a ragged head, a middle of whole blocks and a ragged tail. The
//! unit is the block of 256 KiB, not the page, so that what the device receives is never smaller
//! than what a frame holds and the file's space stays unfragmented.
//!
//! Invariants, which [`Plan::check`] states and the tests hold every policy to: the parts lie one
//! after the other, cover the request and nothing else, and a direct part begins and ends on a
//! block. A plan is three fixed parts and never allocates; empty parts are skipped when it is read.

use super::WriteRequest;
use crate::limits::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Where a part of a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Copied into frames, flushed later.
    Scrap {
        /// Frames are handed to the flush as soon as each is filled, so that copying overlaps with
        /// the device, instead of when dirty bytes or time call for it.
        eager: bool,
    },
    /// Written to the device before the call returns, past the frames.
    Direct,
    /// Written with a plain system call.
    Kernel,
}

impl Way {
    /// Memory, flushed when it suits.
    pub const SCRAP: Way = Way::Scrap { eager: false };
    /// Memory, flushed at once.
    pub const SCRAP_EAGER: Way = Way::Scrap { eager: true };
}

/// One run of a request's bytes and its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes; 0 for a part that is not there.
    pub len: u64,
    /// Where the bytes go.
    pub way: Way,
}

impl Part {
    fn between(start: u64, end: u64, way: Way) -> Self {
        Part {
            offset: start,
            len: end - start,
            way,
        }
    }

    fn is_aligned(&self) -> bool {
        self.offset.is_multiple_of(BLOCK) && self.len.is_multiple_of(BLOCK)
    }
}

/// A request in parts, in file order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes before the first whole block of a split request; empty otherwise.
    pub head: Part,
    /// The whole blocks of a split request, or all of one that is not split.
    pub middle: Part,
    /// Bytes after the last whole block of a split request; empty otherwise.
    pub tail: Part,
}

/// What is wrong with a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// A part does not begin where the one before it ended.
    #[error("a part begins at byte {found}, where byte {expected} is next")]
    OutOfPlace {
        /// Where the next part should begin.
        expected: u64,
        /// Where it does.
        found: u64,
    },
    /// The parts stop before the request's end or go beyond it.
    #[error("the parts end at byte {found}, the request at byte {expected}")]
    WrongEnd {
        /// The request's end.
        expected: u64,
        /// The last part's end.
        found: u64,
    },
    /// A direct part does not begin and end on a block.
    #[error("a direct part of {len} bytes at byte {offset} is not made of whole blocks")]
    Ragged {
        /// First byte of the part.
        offset: u64,
        /// Its bytes.
        len: u64,
    },
}

impl Plan {
    /// The whole request one way.
    pub fn whole(request: &WriteRequest, way: Way) -> Self {
        let (start, end) = (request.offset, request.end());
        Plan {
            head: Part::between(start, start, way),
            middle: Part::between(start, end, way),
            tail: Part::between(end, end, way),
        }
    }

    /// The request's whole blocks direct and its ragged ends to memory. `None` where it has no whole
    /// block.
    pub fn split(request: &WriteRequest) -> Option<Self> {
        let (start, end) = aligned_middle(request)?;
        Some(Plan {
            head: Part::between(request.offset, start, Way::SCRAP),
            middle: Part::between(start, end, Way::Direct),
            tail: Part::between(end, request.end(), Way::SCRAP),
        })
    }

    /// The parts that have bytes, in file order.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        [self.head, self.middle, self.tail]
            .into_iter()
            .filter(|part| part.len > 0)
    }

    /// Bytes that go straight to the device.
    pub fn direct_bytes(&self) -> u64 {
        self.parts()
            .filter(|part| part.way == Way::Direct)
            .map(|part| part.len)
            .sum()
    }

    /// The plan itself, or all to memory where it is none for this request.
    pub(crate) fn or_memory(self, request: &WriteRequest) -> Self {
        match self.check(request) {
            Ok(()) => self,
            Err(_) => Plan::whole(request, Way::SCRAP),
        }
    }

    /// Whether the plan is one for this request: complete, in order, direct parts in whole blocks.
    pub fn check(&self, request: &WriteRequest) -> Result<(), Flaw> {
        let mut expected = request.offset;
        for part in self.parts() {
            check_part(&part, expected)?;
            expected = part.offset.saturating_add(part.len);
        }
        if expected != request.end() {
            return Err(Flaw::WrongEnd {
                expected: request.end(),
                found: expected,
            });
        }
        Ok(())
    }
}

fn check_part(part: &Part, expected: u64) -> Result<(), Flaw> {
    if part.offset != expected {
        return Err(Flaw::OutOfPlace {
            expected,
            found: part.offset,
        });
    }
    if part.way == Way::Direct && !part.is_aligned() {
        return Err(Flaw::Ragged {
            offset: part.offset,
            len: part.len,
        });
    }
    Ok(())
}

/// Start and end of the whole blocks within a request, in bytes; at least one block, or `None`.
pub fn aligned_middle(request: &WriteRequest) -> Option<(u64, u64)> {
    let start = request.offset.checked_next_multiple_of(BLOCK)?;
    let end = request.end() / BLOCK * BLOCK;
    (start < end).then_some((start, end))
}
