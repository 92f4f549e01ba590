//! Files that become longer: their bytes are at the servers before their length is, and whoever finds a length finds its bytes.
//!
//! So that nothing lies beyond what a size block says if its client dies, a *draft* of it goes first: with the length that the servers have, and what
//! may lie beyond that (`high`). Then the bytes go, and the true size block goes last. Until then it is owed, and is not given back.

use super::Client;
use super::attributes::Inode;
use super::operate::blocks;
use super::transfer::{Request, UNANSWERED_MAX, WRITE_BATCH};
use crate::ids::{File, SIZE_BLOCK};
use crate::message::Outbox;
use crate::mistakes::{Mistake, is_made};
use crate::range::Range;

/// Bytes that make a file longer and that the servers do not have: whoever would make it longer still waits until they are fewer. For who asks for the
/// length waits for all of them, and servers wait for two terms only.
pub(super) const UNBORN_MAX: u64 = 2 * UNANSWERED_MAX;

impl Client {
    /// A file is as long now as bytes that were put there reach.
    pub(super) fn grow(&mut self, file: File, inode: Inode, (offset, length): (u64, u64)) {
        let (unit, old, end) = (self.config.block_bytes, inode.size, offset + length);
        let inode = Inode {
            size: end,
            high: end,
            ..inode
        };
        self.set_inode(file, inode);
        let state = self.state(file);
        let range = blocks(offset, length, unit);
        for block in range.into_iter().flat_map(|range| range.start..range.end) {
            if let Some(cached) = state.cache.get(&block)
                && (block + 1).saturating_mul(unit) > old
            {
                state.unborn.insert(block, cached.change);
            }
        }
    }

    /// Whether a file must not become longer before the servers have more of its bytes. They begin to go before that.
    pub(super) fn must_not_grow(&mut self, file: File, out: &mut Outbox) -> bool {
        let unit = self.config.block_bytes;
        let unborn = |client: &mut Client| client.state(file).unborn.len() as u64 * unit;
        if unborn(self) >= UNBORN_MAX / 4 * 3 && !self.is_busy() {
            let blocks: Vec<u64> = self.state(file).unborn.keys().copied().collect();
            self.flush(file, &blocks, out);
        }
        unborn(self) >= UNBORN_MAX
    }

    /// Begins to write dirty blocks, unless that is under way: those that lie together in one request, and the size when it is its turn. Who wants the
    /// size to be written calls this again when servers have answered.
    pub(super) fn flush(&mut self, file: File, blocks: &[u64], out: &mut Outbox) {
        let state = self.state(file);
        let size = { state.cache.get(&SIZE_BLOCK) }.filter(|cached| cached.is_dirty());
        let inode = size.and_then(|cached| Inode::of(cached.bytes.as_deref()?));
        match inode.filter(|_| file != File::NAMES) {
            Some(inode) => self.flush_in_turn(file, inode, blocks, out),
            None => self.flush_all(file, blocks.iter().copied(), out),
        }
    }

    /// The same where the size is dirty.
    fn flush_in_turn(&mut self, file: File, inode: Inode, blocks: &[u64], out: &mut Outbox) {
        let unit = self.config.block_bytes;
        let state = self.state(file);
        let mut wanted: Vec<u64> = { blocks.iter().copied() }
            .filter(|block| *block != SIZE_BLOCK)
            .collect();
        let wants_size = wanted.len() < blocks.len();
        let is_size_first = is_made(Mistake::LengthsBeforeBytes);
        if wants_size && !is_size_first {
            let unborn = state.unborn.keys().copied();
            wanted.extend(unborn.filter(|block| !blocks.contains(block)));
        }
        let top = inode.size.max(inode.high);
        let is_early = |block: &u64| {
            let end = (block + 1).saturating_mul(unit).min(top);
            end > state.high_written
        };
        let (early, now): (Vec<u64>, Vec<u64>) = wanted.into_iter().partition(is_early);
        let is_born = state.unborn.is_empty() || is_size_first;
        if !early.is_empty() {
            let told = self.state(file).size_written;
            self.flush_draft(file, inode, told, out);
        }
        let size = (wants_size && is_born).then_some(SIZE_BLOCK);
        self.flush_all(file, now.into_iter().chain(size), out);
    }

    fn flush_all(&mut self, file: File, blocks: impl Iterator<Item = u64>, out: &mut Outbox) {
        let blocks = blocks.map(|block| (block, ()));
        for group in self.groups(file, blocks, (self.config.copies, WRITE_BATCH)) {
            let group: Vec<u64> = group.into_iter().map(|(block, ())| block).collect();
            self.flush_together(file, &group, out);
        }
    }

    /// Begins to write that the file is so long, and that there may be bytes beyond that, unless its size block is under way.
    pub(super) fn flush_draft(&mut self, file: File, inode: Inode, size: u64, out: &mut Outbox) {
        if self.must_wait(UNANSWERED_MAX) {
            return;
        }
        let state = self.state(file);
        let Some(cached) = state.cache.get(&SIZE_BLOCK) else {
            return;
        };
        if cached.flushing.is_some() {
            return;
        }
        let draft = Inode {
            size,
            high: inode.high.max(inode.size),
            ..inode
        };
        // Older than what it is a draft of: that takes its place.
        let change = cached.change - 1;
        let part = ((file, SIZE_BLOCK), change, draft.bytes().into());
        let number = self.transfer(Request::Write(vec![part]), out);
        let state = self.state(file);
        state.draft = Some(number);
        if let Some(cached) = state.cache.get_mut(&SIZE_BLOCK) {
            cached.flushing = Some(number);
        }
    }

    /// The servers have a block as a transfer has written it.
    pub(super) fn block_went(
        &mut self,
        number: u64,
        (file, block): (File, u64),
        change: u64,
        bytes: &[u8],
    ) {
        let state = self.state(file);
        let is_draft = state.draft == Some(number);
        let cached = state.cache.get_mut(&block);
        let Some(cached) = cached.filter(|cached| cached.flushing == Some(number)) else {
            return;
        };
        cached.flushing = None;
        if !is_draft {
            cached.written = change;
            if state.unborn.get(&block).is_some_and(|born| *born <= change) {
                state.unborn.remove(&block);
            }
        }
        if block == SIZE_BLOCK {
            state.size_is(Some(bytes));
        }
        if !is_draft {
            self.is_as_old_as_now((file, block));
        }
        self.remember(file, Range::one(block), self.view.epoch);
    }
}
