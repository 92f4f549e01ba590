//! Blocks that the servers lack for too long: they are written though nobody has asked for them, so that a client that dies takes no more with it than what
//! it was given lately. This is no sync: what is written so is remembered as unsynced, and the next sync tells what has become of it.
//!
//! A block is as old as its first change that the servers lack. If it is changed while it is being written, it is as old as the end of that. The oldest go first, and
//! leave most of the room for what operations wait for. The client's clock begins it, and the servers' answers carry it on: when there is room, they go before what
//! operations write, which would take all of it.
//!
//! A length goes to the servers after the bytes up to it (`growth`). Where a file grows all the time there are always bytes that they lack. So a length is
//! fixed, the bytes up to it are written, and then a draft of the size block says it.

use std::collections::BTreeMap;

use super::state::{Phase, State};
use super::transfer::{UNANSWERED_MAX, WRITE_BATCH};
use super::{Client, Operation};
use crate::ids::{File, SIZE_BLOCK};
use crate::message::{Outbox, Place};
use crate::mistakes::{Mistake, is_made};
use crate::range::Range;

/// So many blocks are looked at in one go, those that cannot be written now among them.
const LOOKS_MAX: usize = 1 << 10;

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

    /// Begins to write what the servers lack for too long, while it has less than its part of what may be under way.
    pub(super) fn write_old(&mut self, out: &mut Outbox) {
        let due = self.now.checked_sub(self.config.flush_interval);
        let oldest = self.dirty.first_key_value().map(|(_, (time, _))| *time);
        let Some(due) = due.filter(|due| oldest.is_some_and(|time| time <= *due)) else {
            return;
        };
        // Until all servers have let it in, what is begun waits in memory alone, and is in the way of others.
        let is_in = { self.view.servers.iter() }.all(|server| self.keys.contains_key(server));
        if !is_in || !self.is_member(self.now) {
            return;
        }
        let most = self.room_for_old();
        let mut old = BTreeMap::<File, Vec<u64>>::new();
        for (file, block) in self.old(due, most) {
            old.entry(file).or_default().push(block);
        }
        for (file, blocks) in old {
            let most = self.room_for_old();
            if most == 0 {
                break;
            }
            let before = self.counter;
            self.write_old_of(file, &blocks, most, out);
            let begun = self.transfers.range(before + 1..);
            self.of_old.extend(begun.map(|(number, _)| *number));
        }
    }

    /// How many blocks may be begun now. What operations write may be all the rest, and does not hold these up.
    fn room_for_old(&mut self) -> usize {
        let transfers = &self.transfers;
        self.of_old.retain(|number| transfers.contains_key(number));
        let of_old = self.of_old.iter().map(|number| &transfers[number]);
        let under_way: u64 = of_old.map(|transfer| transfer.request.written()).sum();
        if under_way >= WRITE_BATCH || self.unanswered >= UNANSWERED_MAX {
            return 0;
        }
        let room = (WRITE_BATCH - under_way) / self.config.block_bytes;
        room.max(1) as usize
    }

    /// The oldest of what the servers lack since `due`, or for longer, and what can go now.
    fn old(&self, due: u64, most: usize) -> Vec<Place> {
        let can_go = |(file, block): &Place| {
            let state = self.files.get(file);
            state.is_some_and(|state| {
                let cached = state.cache.get(block);
                cached.is_some_and(|cached| cached.flushing.is_none()) && !state.is_being_cut()
            })
        };
        let all = self.dirty.values().take(LOOKS_MAX);
        let old = all.take_while(|(time, _)| *time <= due);
        let old = old.map(|(_, place)| *place).filter(can_go);
        old.take(most).collect()
    }

    fn write_old_of(&mut self, file: File, blocks: &[u64], most: usize, out: &mut Outbox) {
        let is_born = self.state(file).unborn.is_empty();
        if is_born || !blocks.contains(&SIZE_BLOCK) {
            self.flush(file, blocks, out);
            return;
        }
        let blocks = blocks.iter().copied();
        let blocks: Vec<u64> = blocks.filter(|block| *block != SIZE_BLOCK).collect();
        self.flush(file, &blocks, out);
        self.raise(file, most.saturating_sub(blocks.len()).max(1), out);
    }

    /// Goes on with telling the servers a length of a file that grows, by so many blocks at most.
    fn raise(&mut self, file: File, most: usize, out: &mut Outbox) {
        let state = self.state(file);
        let Some(inode) = state.inode() else {
            return;
        };
        let told = state.size_written;
        let rising = state.rising.take().filter(|rising| rising.size > told);
        let mut rising = rising.unwrap_or_else(|| Rising {
            size: inode.size,
            blocks: state.unborn.clone(),
        });
        // What has been written may have gone from memory since, or come again.
        let cache = &state.cache;
        rising.blocks.retain(|block, change| {
            let cached = cache.get(block);
            cached.is_some_and(|cached| cached.is_owed() && cached.written < *change)
        });
        let lacking: Vec<u64> = rising.blocks.keys().copied().take(most).collect();
        let size = state.cache.get(&SIZE_BLOCK);
        let is_free = size.is_some_and(|cached| cached.flushing.is_none());
        let is_there = lacking.is_empty() || is_made(Mistake::TellsRisingLengths);
        let size = rising.size;
        state.rising = Some(rising);
        if !is_there || !is_free {
            self.flush(file, &lacking, out);
            return;
        }
        // As a change of its own: what was written of this block before is older.
        self.set_inode(file, inode);
        self.flush_draft(file, inode, size, out);
        // There may have been no room for it.
        let state = self.state(file);
        let size = state.cache.get(&SIZE_BLOCK);
        if size.is_some_and(|cached| cached.flushing.is_some()) {
            state.rising = None;
            self.is_as_old_as_now((file, SIZE_BLOCK));
        }
    }
}
