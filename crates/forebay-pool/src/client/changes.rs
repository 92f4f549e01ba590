//! What operations do to blocks and sizes: writes, appends, and the bytes themselves.

use bytes::Bytes;

use super::attributes::Inode;
use super::operate::{Step, blocks};
use super::state::{Active, Cached, Phase, State};
use super::transfer::Request;
use super::{Answer, Client, Failure, Mode, Operation};
use crate::ids::{Epoch, File, SIZE_BLOCK};
use crate::message::Outbox;
use crate::mistakes::{Mistake, is_made};
use crate::placement::{key_of_block, owners};
use crate::range::Range;
use crate::rope::Rope;

/// All that a file can have.
pub(super) const WHOLE: Range = Range {
    start: 0,
    end: SIZE_BLOCK + 1,
};

impl Client {
    pub(super) fn write_at(
        &mut self,
        file: File,
        active: &Active,
        inode: Inode,
        (offset, bytes): (u64, &Rope),
        mode: Mode,
        out: &mut Outbox,
    ) -> Step {
        let end = offset + bytes.len() as u64;
        if bytes.is_empty() {
            return Step::End(Ok(Answer::Done));
        }
        let extends = end > inode.size;
        if extends && !active.extends && active.wide.is_none() {
            return self.change(file, |active| active.extends = true);
        }
        if extends && let Some(step) = self.clean_tail(file, active, inode, offset) {
            return step;
        }
        if extends && self.must_not_grow(file, out) {
            return Step::Wait;
        }
        let length = bytes.len() as u64;
        if let Some(step) = self.without_room(file, (offset, length), out) {
            return step;
        }
        if mode == Mode::Remote && self.may_pass(file, inode, offset, length) {
            return Step::Aside((offset, length));
        }
        match self.put(file, inode, offset, bytes, out) {
            Ok(false) => return Step::Wait,
            Err(failure) => return Step::End(Err(failure)),
            Ok(true) => {}
        }
        if extends {
            self.grow(file, inode, (offset, length));
        }
        if mode == Mode::Local {
            return Step::End(Ok(Answer::Done));
        }
        let range = blocks(offset, length, self.config.block_bytes);
        let written = range.into_iter().flat_map(|range| range.start..range.end);
        let state = self.state(file);
        let mut targets: Vec<(u64, u64)> = written
            .filter_map(|block| Some((block, state.cache.get(&block)?.change)))
            .collect();
        targets.extend(
            state
                .cache
                .get(&SIZE_BLOCK)
                .map(|cached| (SIZE_BLOCK, cached.change)),
        );
        self.enter_phase(
            file,
            Phase::Flush {
                targets,
                answer: Answer::Done,
                drop: true,
            },
        )
    }

    pub(super) fn append(
        &mut self,
        file: File,
        active: &Active,
        inode: Inode,
        bytes: &Rope,
        out: &mut Outbox,
    ) -> Step {
        if inode.size + bytes.len() as u64 > self.size_max() {
            return Step::End(Err(Failure::TooLarge));
        }
        let from = inode.size / self.config.block_bytes;
        if active.wide.is_none_or(|wide| wide > from) {
            return self.change(file, |active| active.wide = Some(from));
        }
        if let Some(step) = self.clean_tail(file, active, inode, inode.size) {
            return step;
        }
        if self.must_not_grow(file, out) {
            return Step::Wait;
        }
        if let Some(step) = self.without_room(file, (inode.size, bytes.len() as u64), out) {
            return step;
        }
        match self.put(file, inode, inode.size, bytes, out) {
            Ok(false) => return Step::Wait,
            Err(failure) => return Step::End(Err(failure)),
            Ok(true) => {}
        }
        self.grow(file, inode, (inode.size, bytes.len() as u64));
        Step::End(Ok(Answer::At(inode.size)))
    }

    /// Whether the servers lack a block as it is here; begins to write it.
    pub(super) fn is_owed(&mut self, file: File, block: u64, out: &mut Outbox) -> bool {
        let owed = self.state(file).cache.get(&block);
        let owed = owed.is_some_and(Cached::is_owed);
        if owed {
            self.flush(file, &[block], out);
        }
        owed
    }

    pub(super) fn flushed(
        &mut self,
        file: File,
        targets: &[(u64, u64)],
        answer: Answer,
        drop: bool,
        out: &mut Outbox,
    ) -> Step {
        if self.is_busy() {
            return Step::Wait;
        }
        let lacks = |state: &State, (block, change): &(u64, u64)| {
            state
                .cache
                .get(block)
                .is_some_and(|cached| cached.written < *change)
        };
        let state = self.state(file);
        let owed: Vec<u64> = targets
            .iter()
            .filter(|target| lacks(state, target))
            .map(|(block, _)| *block)
            .collect();
        if !owed.is_empty() {
            if file == File::NAMES {
                self.flush_together(file, &owed, out);
            } else {
                self.flush(file, &owed, out);
            }
            return Step::Wait;
        }
        if drop {
            for (block, _) in targets.iter().filter(|(block, _)| *block != SIZE_BLOCK) {
                let clean = self
                    .state(file)
                    .cache
                    .get(block)
                    .is_some_and(|cached| !cached.is_dirty());
                if clean {
                    self.forget(file, *block);
                }
            }
        }
        let active = self.state(file).active.as_ref();
        let syncs =
            active.is_some_and(|active| matches!(*active.operation, Operation::Sync { .. }));
        if !syncs {
            return Step::End(Ok(answer));
        }
        if !self.config.has_home {
            return Step::End(self.synced_at_servers(file));
        }
        let transfer = self.transfer(Request::Persist(file), out);
        self.enter_phase(file, Phase::Persist { transfer })
    }

    pub(super) fn forget(&mut self, file: File, block: u64) {
        self.drop_blocks(file, Range::one(block));
    }

    /// Whether a block that no server has was on servers that died, or is damaged in the home.
    pub(super) fn is_lost(&self, file: File, block: u64, born: Epoch) -> bool {
        if self.is_damaged(file, block) {
            return true;
        }
        if self.config.has_home || is_made(Mistake::LossesAreHoles) {
            return false;
        }
        let key = key_of_block(file, block);
        let after = self.view.losses.iter().filter(|loss| loss.epoch > born);
        { after }.any(|loss| {
            owners(&loss.before, key, self.config.copies)
                .iter()
                .all(|server| loss.dead.contains(server))
        })
    }

    /// Bytes of blocks that are all here.
    pub(super) fn read(&mut self, file: File, offset: u64, length: u64) -> Result<Answer, Failure> {
        let unit = self.config.block_bytes;
        let inode = self.inode(file)?;
        let length = length.min(inode.size.saturating_sub(offset));
        let mut rope = Rope::default();
        let range = blocks(offset, length, unit);
        for block in range.into_iter().flat_map(|range| range.start..range.end) {
            self.touch(file, block);
            let state = self.files.get(&file);
            let cached = state.and_then(|state| state.cache.get(&block));
            let from = (offset.max(block * unit) - block * unit) as usize;
            let to = ((offset + length).min((block + 1) * unit) - block * unit) as usize;
            let here = match cached.and_then(|cached| cached.bytes.as_ref()) {
                Some(held) => held.slice(from.min(held.len())..to.min(held.len())),
                None if self.is_lost(file, block, inode.born) => return Err(Failure::Lost),
                None => Bytes::new(),
            };
            let zeros = to - from - here.len();
            rope.push(here);
            rope.push_zeros(zeros);
        }
        Ok(Answer::Bytes(rope))
    }

    pub(super) fn touch(&mut self, file: File, block: u64) {
        let newest = self.cached.last_key_value();
        if newest.is_some_and(|(_, newest)| *newest == (file, block)) {
            return;
        }
        let used = self.count();
        if let Some(cached) = self.state(file).cache.get_mut(&block) {
            let before = std::mem::replace(&mut cached.used, used);
            self.cached.remove(&before);
            self.block_used(used, (file, block));
        }
    }

    /// Puts bytes into blocks; `false` if some must come first.
    pub(super) fn put(
        &mut self,
        file: File,
        inode: Inode,
        offset: u64,
        bytes: &Rope,
        out: &mut Outbox,
    ) -> Result<bool, Failure> {
        let unit = self.config.block_bytes;
        let end = offset + bytes.len() as u64;
        let range = blocks(offset, bytes.len() as u64, unit);
        let written = || range.into_iter().flat_map(|range| range.start..range.end);
        let is_whole = |block: u64| offset <= block * unit && (block + 1) * unit <= end;
        if !self.fetch_all(file, written().filter(|block| !is_whole(*block)), out) {
            return Ok(false);
        }
        let is_hole = |client: &Client, block| {
            client.files[&file]
                .cache
                .get(&block)
                .is_none_or(|cached| cached.bytes.is_none())
        };
        if written().any(|block| {
            !is_whole(block) && is_hole(self, block) && self.is_lost(file, block, inode.born)
        }) {
            return Err(Failure::Lost);
        }
        for block in written() {
            let from = offset.max(block * unit);
            let to = end.min((block + 1) * unit);
            let part = bytes.part((from - offset) as usize, (to - from) as usize);
            if is_whole(block) {
                self.replace(file, block, part);
                continue;
            }
            let at = (from - block * unit) as usize;
            self.modify(file, block, |held| {
                held.resize(unit as usize, 0);
                held[at..at + part.len()].copy_from_slice(&part);
            });
        }
        Ok(true)
    }

    pub(super) fn zero_tail(&mut self, file: File, block: u64, from: u64) {
        let cached = self.state(file).cache.get(&block);
        // What a block does not have is zero.
        let tail = cached.and_then(|cached| cached.bytes.as_ref()?.get(from as usize..));
        if tail.is_some_and(|tail| tail.iter().any(|byte| *byte != 0)) {
            self.modify(file, block, |held| held[from as usize..].fill(0));
        }
    }

    pub(super) fn set_inode(&mut self, file: File, inode: Inode) {
        // The number before its own is that of its draft.
        self.count();
        self.modify(file, SIZE_BLOCK, |held| *held = inode.bytes());
    }

    /// Changes a block in memory.
    pub(super) fn modify(&mut self, file: File, block: u64, how: impl FnOnce(&mut Vec<u8>)) {
        let cached = self.state(file).cache.get_mut(&block);
        // Where nobody else has the bytes they are changed where they lie.
        let held = cached.and_then(|cached| cached.bytes.take());
        let mut held = held.map(Vec::from).unwrap_or_default();
        how(&mut held);
        self.replace(file, block, held.into());
    }

    fn replace(&mut self, file: File, block: u64, bytes: Bytes) {
        let change = self.count();
        let state = self.state(file);
        state.reading.remove(&block);
        let cached: &mut Cached = state.cache.entry(block).or_default();
        let was_dirty = cached.is_dirty();
        cached.bytes = Some(bytes);
        cached.is_damaged = false;
        cached.change = change;
        if !was_dirty {
            self.is_as_old_as_now((file, block));
        }
        self.touch(file, block);
    }
}
