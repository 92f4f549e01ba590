//! Blocks that the servers lack for too long: they are written though nobody has asked for them, so that a client that dies takes no more with it than what
//! it was given lately. This is no sync: what is written so is remembered as unsynced, and the next sync tells what has become of it.
//!
//! A block is as old as its first change that the servers lack. If it is changed while it is being written, it is as old as the end of that. The oldest go first, and
//! leave most of the room for what operations wait for. The client's clock begins it, and the servers' answers carry it on.
//!
//! A length goes to the servers after the bytes up to it (`growth`). Where a file grows all the time there are always bytes that they lack. So a length is
//! fixed, the bytes up to it are written, and then a draft of the size block says it.

use std::collections::BTreeMap;

use super::growth::blocks_at_once;
use super::state::{Phase, State};
use super::transfer::WRITE_BATCH;
use super::{Client, Operation};
use crate::ids::{File, SIZE_BLOCK};
use crate::message::{Outbox, Place};
use crate::mistakes::{Mistake, is_made};
use crate::range::Range;

/// So many blocks are looked at in one go, those that cannot be written now among them.
const LOOKS_MAX: usize = 64;

/// A length of a file that goes on growing, which the servers are to hear of.
#[derive(Clone, Debug)]
pub(super) struct Rising {
    size: u64,
    /// What must be written before: blocks, and as of which changes.
    blocks: BTreeMap<u64, u64>,
}

impl Rising {
    /// Whether it means nothing any more once these blocks have gone from memory.
    pub fn ends_with(&self, range: Range) -> bool {
        // Nothing is cut but up to the end of all blocks.
        range.end >= SIZE_BLOCK || self.blocks.range(range.start..range.end).next().is_some()
    }
}

impl State {
    /// Whether an operation takes blocks away: it waits until none of them is being written.
    fn is_being_cut(&self) -> bool {
        self.active.as_ref().is_some_and(|active| {
            let is_cut = matches!(active.phase, Phase::Cut { .. } | Phase::Remove { .. });
            let cuts = matches!(
                *active.operation,
                Operation::Truncate { .. } | Operation::Remove { .. }
            );
            is_cut || cuts
        })
    }
}

impl Client {
    /// If the servers lack a block, they lack it since now.
    pub(super) fn is_as_old_as_now(&mut self, (file, block): Place) {
        // Operations write names themselves before they end.
        if self.config.flush_interval == 0 || file == File::NAMES {
            return;
        }
        let (now, since) = (self.now, self.count());
        let Some(cached) = self.state(file).cache.get_mut(&block) else {
            return;
        };
        let before = std::mem::replace(&mut cached.since, since);
        let is_dirty = cached.is_dirty();
        self.dirty.remove(&before);
        if is_dirty {
            self.dirty.insert(since, (now, (file, block)));
        }
    }

    /// Begins to write what the servers lack for too long.
    pub(super) fn write_old(&mut self, out: &mut Outbox) {
        // Until all servers have let it in, what is begun waits in memory alone, and is in the way of others.
        let is_in = { self.view.servers.iter() }.all(|server| self.keys.contains_key(server));
        if !is_in || !self.is_member(self.now) {
            return;
        }
        let looked_at = self.old();
        self.has_old = !looked_at.is_empty();
        if self.unanswered >= WRITE_BATCH {
            return;
        }
        let can_go = |(file, block): &Place| {
            let state = self.files.get(file);
            state.is_some_and(|state| {
                let cached = state.cache.get(block);
                cached.is_some_and(|cached| cached.flushing.is_none()) && !state.is_being_cut()
            })
        };
        let most = blocks_at_once(self.config.block_bytes);
        let mut old = BTreeMap::<File, Vec<u64>>::new();
        for (file, block) in looked_at.into_iter().filter(can_go).take(most) {
            old.entry(file).or_default().push(block);
        }
        for (file, blocks) in old {
            self.write_old_of(file, &blocks, out);
        }
    }

    /// The oldest of what the servers lack for too long.
    fn old(&self) -> Vec<Place> {
        let due = self.now.checked_sub(self.config.flush_interval);
        let is_old = |time: u64| due.is_some_and(|due| time <= due);
        let all = self.dirty.iter().take(LOOKS_MAX);
        let old = all.take_while(|(_, (time, _))| is_old(*time));
        old.map(|(_, (_, place))| *place).collect()
    }

    fn write_old_of(&mut self, file: File, blocks: &[u64], out: &mut Outbox) {
        let is_born = self.state(file).unborn.is_empty();
        if is_born || !blocks.contains(&SIZE_BLOCK) {
            self.flush(file, blocks, out);
            return;
        }
        let blocks = blocks.iter().copied();
        let blocks: Vec<u64> = blocks.filter(|block| *block != SIZE_BLOCK).collect();
        self.flush(file, &blocks, out);
        self.raise(file, out);
    }

    /// Goes on with telling the servers a length of a file that grows.
    fn raise(&mut self, file: File, out: &mut Outbox) {
        let most = blocks_at_once(self.config.block_bytes);
        let state = self.state(file);
        let Some(inode) = state.inode() else {
            return;
        };
        let told = state.size_written;
        let rising = state.rising.take().filter(|rising| rising.size > told);
        let rising = rising.unwrap_or_else(|| Rising {
            size: inode.size,
            blocks: state.unborn.clone(),
        });
        let lacks = |(block, change): &(&u64, &u64)| {
            let cached = state.cache.get(block);
            cached.is_none_or(|cached| cached.written < **change)
        };
        let lacking = rising.blocks.iter().filter(lacks).take(most);
        let lacking: Vec<u64> = lacking.map(|(block, _)| *block).collect();
        let size = state.cache.get(&SIZE_BLOCK);
        let is_free = size.is_some_and(|cached| cached.flushing.is_none());
        let is_there = lacking.is_empty() || is_made(Mistake::TellsRisingLengths);
        if is_there && is_free {
            // As a change of its own: what was written of this block before is older.
            self.set_inode(file, inode);
            self.flush_draft(file, inode, rising.size, out);
            self.is_as_old_as_now((file, SIZE_BLOCK));
            return;
        }
        state.rising = Some(rising);
        self.flush(file, &lacking, out);
    }
}
