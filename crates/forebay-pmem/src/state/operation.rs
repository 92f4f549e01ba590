//! What the running operation has done.

use super::KEPT_MAX;
use super::pieces::Piece;
use crate::space::Run;

/// What an operation has done besides changing blocks.
#[derive(Default)]
pub(super) struct Operation {
    pub taken: Vec<Run>,
    /// Blocks that were unwritten and are written now.
    pub freshened: Vec<u64>,
    pub freed: Vec<Run>,
    pub freed_metadata: Vec<u64>,
    pub inodes_taken: Vec<u64>,
    pub inodes_freed: Vec<u64>,
    /// Blocks of windows that are a file's now.
    pub adopted: Vec<Run>,
    /// Bytes to be stored when it stays.
    pub pieces: Vec<Piece>,
    /// Files that it holds.
    pub held: Vec<u64>,
}

impl Operation {
    /// The same without anything in it: the next one takes its memory.
    pub fn emptied(mut self) -> Self {
        empty(&mut self.taken);
        empty(&mut self.freshened);
        empty(&mut self.freed);
        empty(&mut self.freed_metadata);
        empty(&mut self.inodes_taken);
        empty(&mut self.inodes_freed);
        empty(&mut self.adopted);
        empty(&mut self.pieces);
        empty(&mut self.held);
        self
    }
}

fn empty<T>(list: &mut Vec<T>) {
    list.clear();
    list.shrink_to(KEPT_MAX);
}
