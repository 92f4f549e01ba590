//! Truncations and removals: what goes, in which order, and at which servers.

use super::attributes::Inode;
use super::changes::WHOLE;
use super::operate::Step;
use super::state::{Active, Phase};
use super::transfer::Request;
use super::{Answer, Client, Operation};
use crate::ids::{File, SIZE_BLOCK};
use crate::message::Outbox;
use crate::range::Range;

impl Client {
    pub(super) fn truncate(&mut self, file: File, active: &Active, inode: Inode, new: u64) -> Step {
        if new > inode.size {
            if let Some(step) = self.clean_tail(file, active, inode, inode.size) {
                return step;
            }
            self.set_inode(
                file,
                Inode {
                    size: new,
                    high: new,
                    ..inode
                },
            );
        }
        if new >= inode.size {
            return Step::End(Ok(Answer::Done));
        }
        self.enter_phase(
            file,
            Phase::Cut {
                size: new,
                step: 0,
                discard: None,
            },
        )
    }

    /// What a dead client's truncation has left beyond the end must go before the file grows over it.
    pub(super) fn clean_tail(
        &mut self,
        file: File,
        active: &Active,
        inode: Inode,
        offset: u64,
    ) -> Option<Step> {
        if inode.high <= inode.size {
            return None;
        }
        let from = offset.min(inode.size) / self.config.block_bytes;
        if active.wide.is_none_or(|wide| wide > from) {
            return Some(self.change(file, |active| active.wide = Some(from)));
        }
        Some(self.enter_phase(
            file,
            Phase::Cut {
                size: inode.size,
                step: 0,
                discard: None,
            },
        ))
    }

    /// A truncation, step by step: the size is durable before what is beyond it goes, and says that it has gone when it has.
    pub(super) fn cut(
        &mut self,
        file: File,
        active: &Active,
        (new, step, discard): (u64, u8, Option<u64>),
        out: &mut Outbox,
    ) -> Step {
        let first = new.div_ceil(self.config.block_bytes);
        let edge = Some(new / self.config.block_bytes).filter(|edge| *edge < first);
        let discard = match step {
            0 if !self.cut_here(file, new, first) => return Step::Wait,
            1 if self.is_owed(file, SIZE_BLOCK, out) => return Step::Wait,
            1 => {
                let beyond = self.blocks_from(file, first);
                Some(self.transfer(Request::Discard(file, beyond, false), out))
            }
            2 if !self.cut_edge(file, edge, new, out) => return Step::Wait,
            3 if !self.is_cut_there(file, (edge, new), discard, out) => return Step::Wait,
            3 => {
                if let Some(inode) = self.state(file).inode() {
                    self.set_inode(file, Inode { high: new, ..inode });
                }
                discard
            }
            0..=2 => discard,
            _ if self.is_owed(file, SIZE_BLOCK, out) => return Step::Wait,
            _ => match *active.operation {
                Operation::Truncate { size, .. } if size == new => {
                    return Step::End(Ok(Answer::Done));
                }
                _ => return self.enter_phase(file, Phase::Gather),
            },
        };
        let (size, step) = (new, step + 1);
        self.enter_phase(
            file,
            Phase::Cut {
                size,
                step,
                discard,
            },
        )
    }

    /// Cuts the file in this client's memory, unless blocks are being written.
    fn cut_here(&mut self, file: File, new: u64, first: u64) -> bool {
        let state = self.state(file);
        let mut beyond = state.cache.range(first..);
        let under_way = beyond.any(|(_, cached)| cached.flushing.is_some());
        let Some(inode) = state.inode().filter(|_| !under_way) else {
            return false;
        };
        let beyond = Range {
            start: first,
            end: SIZE_BLOCK,
        };
        self.drop_blocks(file, beyond);
        self.forget_went(file, beyond);
        let high = inode.high.max(inode.size);
        let inode = Inode {
            size: new,
            high,
            ..inode
        };
        self.set_inode(file, inode);
        true
    }

    /// Zeros what is beyond the end in the last block, once that is here.
    fn cut_edge(&mut self, file: File, edge: Option<u64>, new: u64, out: &mut Outbox) -> bool {
        let Some(edge) = edge else {
            return true;
        };
        if !self.fetch(file, edge, out) {
            return false;
        }
        if !self.state(file).cache[&edge].is_dirty() {
            self.zero_tail(file, edge, new % self.config.block_bytes);
        }
        true
    }

    /// Whether the servers have the last block as it is now, and nothing beyond it.
    fn is_cut_there(
        &mut self,
        file: File,
        (edge, new): (Option<u64>, u64),
        discard: Option<u64>,
        out: &mut Outbox,
    ) -> bool {
        if let Some(edge) = edge {
            self.zero_tail(file, edge, new % self.config.block_bytes);
            if self.is_owed(file, edge, out) {
                return false;
            }
        }
        !discard.is_some_and(|number| self.is_under_way(number))
    }

    /// The blocks from this one on that servers may have, and others than these they have not: what is written lies below `high` or the size before it goes
    /// there. Of a file whose size is lost they may have any.
    fn blocks_from(&self, file: File, start: u64) -> Range {
        let state = self.files.get(&file);
        let ends = state.and_then(|state| {
            let inode = state.inode()?;
            let written = state.high_written.max(state.size_written);
            Some(inode.high.max(inode.size).max(written))
        });
        let end = ends.map_or(SIZE_BLOCK, |end| end.div_ceil(self.config.block_bytes));
        let end = end.max(start + 1);
        Range { start, end }
    }

    /// A file goes, as soon as nothing of it is being written.
    pub(super) fn remove(&mut self, file: File, out: &mut Outbox) -> Step {
        let state = self.state(file);
        if { state.cache.values() }.any(|cached| cached.flushing.is_some()) {
            return Step::Wait;
        }
        let all = self.blocks_from(file, 0);
        self.drop_blocks(file, WHOLE);
        self.forget_all_that_went(file);
        let discard = self.transfer(Request::Discard(file, all, true), out);
        self.enter_phase(file, Phase::Remove { discard })
    }

    pub(super) fn removed(&mut self, file: File, discard: u64) -> Step {
        if self.is_under_way(discard) {
            return Step::Wait;
        }
        // Nobody needs its grants any more: as if somebody else had wanted them.
        self.state(file).recalls.push((WHOLE, false));
        Step::End(Ok(Answer::Done))
    }
}
