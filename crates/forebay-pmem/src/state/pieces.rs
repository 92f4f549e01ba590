//! Bytes that an operation puts into blocks of files: noted while it can still fail, stored when it stays.
//!
//! So nothing is ever stored that has to be taken back, and bytes that are written over need no copy for that case.

use super::State;
use crate::layout::BLOCK;
use crate::medium::For;

/// Where bytes come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// What the caller has given, from this byte on.
    Given(usize),
    /// Zeros, a page at most.
    Zeros,
    /// What lies in the medium at this byte, within one block.
    Medium(u64),
}

/// Bytes for one block, or for consecutive ones.
pub(super) struct Piece {
    /// Byte of the medium.
    to: u64,
    length: usize,
    source: Source,
}

impl State {
    /// Puts bytes into a fresh block when the operation stays.
    pub fn store_data(&mut self, block: u64, at: usize, length: usize, source: Source) {
        assert!(
            self.is_fresh(block) && !self.pins.is_pinned(block),
            "block {block}: what is committed or viewed is never written over"
        );
        if length == 0 {
            return;
        }
        let to = block * BLOCK as u64 + at as u64;
        if let Some(last) = self.operation.pieces.last_mut()
            && last.to + last.length as u64 == to
            && let (Source::Given(before), Source::Given(from)) = (last.source, source)
            && before + last.length == from
        {
            last.length += length;
            return;
        }
        self.operation.pieces.push(Piece { to, length, source });
    }

    /// Stores what was noted. Whether that was anything.
    pub(super) fn store_pieces(&self, pieces: &[Piece], given: &[u8]) -> bool {
        for Piece { to, length, source } in pieces {
            let stream = |bytes: &[u8]| self.medium.stream(*to, bytes, For::Data);
            match *source {
                Source::Given(from) => stream(&given[from..from + length]),
                Source::Zeros => stream(&[0; BLOCK][..*length]),
                Source::Medium(from) => {
                    let mut page = [0; BLOCK];
                    self.medium.read(from, &mut page[..*length]);
                    stream(&page[..*length]);
                }
            }
        }
        if pieces.is_empty() {
            return false;
        }
        self.medium.fence(For::Data);
        true
    }
}
