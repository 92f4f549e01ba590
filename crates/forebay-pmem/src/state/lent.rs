//! Blocks that are lent to windows: taken in DRAM alone, so that a crash gives them back, until a commit of the window makes them a
//! file's.

use super::bits::set_bits;
use super::{Room, State};
use crate::errno::{Errno, Result};
use crate::layout::Kind;
use crate::space::Run;

impl State {
    /// Lends up to `wanted` consecutive blocks, from `goal` on if that can be had.
    pub fn lend(&mut self, goal: Option<u64>, wanted: u64) -> Result<Run> {
        let wanted = wanted.min(self.available(Room::New));
        if wanted == 0 {
            return Err(Errno::ENOSPC);
        }
        self.blocks.take_run(goal, wanted).ok_or(Errno::ENOSPC)
    }

    /// Takes lent blocks back.
    pub fn give_back(&mut self, run: Run) {
        (run.start..run.start + run.length).for_each(|block| self.blocks.release(block));
    }

    /// Lent blocks become a file's, with what a program has stored there.
    pub fn adopt(&mut self, run: Run) -> Result<()> {
        for block in run.start..run.start + run.length {
            self.set_fresh(block, true);
        }
        self.operation.adopted.push(run);
        let first = self.geometry().bitmap;
        match set_bits(&mut self.pages, first, Kind::Blocks, run, true)? {
            set if set == run.length => Ok(()),
            _ => Err(Errno::EIO),
        }
    }
}
