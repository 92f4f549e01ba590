//! What the store's lock guards: metadata blocks, free space, and what the running batch has freed.
//!
//! An *operation* changes blocks, takes and frees space, and ends by [`State::keep`] or [`State::undo`]; it is
//! wholly in one batch. What it takes is *fresh* until its batch is collected: nothing that is committed knows
//! of it, so its bytes may be changed in place. What it frees is used again
//!
//! - at once, if it was fresh;
//! - when the batch is durable, if it held bytes of a file;
//! - when the log no longer has it either, if it held metadata: replaying an older record would write into it.

mod bits;
mod fresh;
mod held;
mod lent;
mod operation;
mod pieces;
mod pins;
#[cfg(test)]
mod planted;

use std::sync::Arc;

use crate::errno::{Errno, Result};
use crate::layout::inode::{INODE_BYTES, Inode};
use crate::layout::superblock::Superblock;
use crate::layout::{BITS, Geometry, INODES_PER_BLOCK, Kind};
use crate::log::Log;
use crate::medium::Medium;
use crate::operations::bytes::Scratch;
use crate::pages::{PageMap, Pages};
use crate::space::{Run, Space};
use crate::types::Time;
use bits::{load_bits, set_bits};
use fresh::Fresh;
use held::Held;
use operation::Operation;
pub(crate) use pieces::Source;
use pins::Pins;

/// Whether what is asked for may use what is kept back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// New bytes, names, inodes.
    New,
    /// Bytes in place of old ones, which become free in turn.
    Replacement,
}

/// Entries of an emptied list whose memory is kept for the next ones.
const KEPT_MAX: usize = 1024;

/// One of so many blocks lies at the end, where metadata is put first: a node is enough for 510 pages, and directories are small.
const METADATA_SHARE: u64 = 64;

/// What a batch frees when it is durable, and when the log is empty.
#[derive(Default)]
pub struct Freed {
    /// Blocks of bytes.
    pub data: Vec<Run>,
    /// Blocks of metadata.
    pub metadata: Vec<u64>,
}

/// A batch, collected.
pub struct Batch {
    /// Blocks that it changed.
    pub pages: Arc<PageMap>,
    /// What it freed.
    pub freed: Freed,
    /// Whether bytes of files belong to it.
    pub wrote_data: bool,
    /// Blocks that programs have stored to themselves: what they left in the CPU's cache is to be written back.
    pub windows: Vec<Run>,
}

/// Everything behind the store's lock.
pub struct State {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) superblock: Superblock,
    pub(crate) pages: Pages,
    pub(crate) blocks: Space,
    pub(crate) inodes: Space,
    /// Where the search for a metadata block begins.
    metadata_next: u64,
    fresh: Fresh,
    freed: Freed,
    /// Freed blocks that wait for a batch or for the log.
    waiting: u64,
    wrote_data: bool,
    windows: Vec<Run>,
    pub(crate) pins: Pins,
    operation: Operation,
    /// A write that fails takes it away, and the next one begins with a new one.
    pub(crate) scratch: Scratch,
    pub(crate) held: Held,
    clock: fn() -> Time,
    /// Why nothing may be changed.
    pub(crate) read_only: Option<Errno>,
}

impl State {
    /// The state of a medium; bitmaps are read by [`State::load`].
    pub fn new(
        medium: Arc<dyn Medium>,
        superblock: Superblock,
        recovered: PageMap,
        clock: fn() -> Time,
    ) -> Self {
        let Geometry { blocks, inodes, .. } = superblock.geometry;
        Self {
            pages: Pages::new(Arc::clone(&medium), superblock.id, blocks, recovered),
            medium,
            superblock,
            blocks: Space::full(blocks),
            inodes: Space::full(inodes),
            metadata_next: blocks - blocks / METADATA_SHARE,
            fresh: Fresh::new(blocks),
            freed: Freed::default(),
            waiting: 0,
            wrote_data: false,
            windows: Vec::new(),
            pins: Pins::new(blocks),
            operation: Operation::default(),
            scratch: Scratch::default(),
            held: Held::default(),
            clock,
            read_only: None,
        }
    }

    /// Reads the bitmaps. Answers the blocks that are damaged; what those stand for counts as in use.
    pub fn load(&mut self) -> Vec<u64> {
        let Geometry {
            data,
            bitmap,
            inode_bitmap,
            blocks,
            inodes,
            ..
        } = self.superblock.geometry;
        let mut damaged = load_bits(
            &self.pages,
            &mut self.blocks,
            bitmap,
            Kind::Blocks,
            data..blocks,
        );
        damaged.extend(load_bits(
            &self.pages,
            &mut self.inodes,
            inode_bitmap,
            Kind::Inodes,
            1..inodes,
        ));
        damaged
    }

    /// Where things lie.
    pub fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    /// The time.
    pub fn now(&self) -> Time {
        (self.clock)()
    }

    /// Blocks kept for writing over old bytes.
    pub fn reserve(&self) -> u64 {
        let Geometry { blocks, data, .. } = self.superblock.geometry;
        ((blocks - data) / 64).clamp(2, 1024)
    }

    /// Blocks that `room` may use.
    pub fn available(&self, room: Room) -> u64 {
        match room {
            Room::New => self.blocks.free().saturating_sub(self.reserve()),
            Room::Replacement => self.blocks.free(),
        }
    }

    /// Whether free blocks would come of a commit.
    pub fn has_waiting(&self) -> bool {
        self.waiting > 0 || !self.freed.data.is_empty() || !self.freed.metadata.is_empty()
    }

    // ---- blocks ----

    /// Takes up to `wanted` consecutive blocks.
    pub fn take_run(&mut self, goal: Option<u64>, wanted: u64, room: Room) -> Result<Run> {
        let wanted = wanted.min(self.available(room));
        if wanted == 0 {
            return Err(Errno::ENOSPC);
        }
        let run = self.blocks.take_run(goal, wanted).ok_or(Errno::ENOSPC)?;
        self.took(run)
    }

    fn took(&mut self, run: Run) -> Result<Run> {
        self.operation.taken.push(run);
        self.fresh.set(run);
        let first = self.geometry().bitmap;
        let set = set_bits(&mut self.pages, first, Kind::Blocks, run, true)?;
        if set == run.length {
            Ok(run)
        } else {
            Err(Errno::EIO)
        }
    }

    /// Takes a block for metadata, and makes it: from the store's end, as long as there are any, so that it does not lie amid a file's bytes.
    pub fn take_metadata(&mut self, kind: Kind) -> Result<u64> {
        if self.available(Room::New) == 0 {
            return Err(Errno::ENOSPC);
        }
        let start = self.blocks.take_one(self.metadata_next);
        let start = start.ok_or(Errno::ENOSPC)?;
        self.metadata_next = start + 1;
        self.took(Run::one(start))?;
        self.pages.make(start, kind);
        Ok(start)
    }

    /// Frees blocks of bytes.
    pub fn free_data(&mut self, run: Run) -> Result<()> {
        self.mark_free(run)?;
        self.operation.freed.push(run);
        Ok(())
    }

    /// Frees a block of metadata.
    pub fn free_metadata(&mut self, block: u64) -> Result<()> {
        self.mark_free(Run::one(block))?;
        self.operation.freed_metadata.push(block);
        Ok(())
    }

    /// A block that is freed was in use: otherwise two files have it, and the store is damaged.
    fn mark_free(&mut self, run: Run) -> Result<()> {
        let last = run.start + run.length - 1;
        if !self.geometry().is_data(run.start) || !self.geometry().is_data(last) {
            return Err(Errno::EIO);
        }
        let first = self.geometry().bitmap;
        let cleared = set_bits(&mut self.pages, first, Kind::Blocks, run, false)?;
        if cleared == run.length {
            Ok(())
        } else {
            Err(Errno::EIO)
        }
    }

    /// Whether nothing that is committed knows of this block.
    pub fn is_fresh(&self, block: u64) -> bool {
        self.fresh.has(block)
    }

    /// A block that counts as zeros is about to get bytes: until they are committed, it still does.
    pub fn freshen(&mut self, block: u64) {
        if !self.is_fresh(block) {
            self.operation.freshened.push(block);
            self.fresh.set(Run::one(block));
        }
    }

    /// Whether bytes may be stored into this block: nothing that is committed knows of it, and no view shows it.
    pub fn is_writable(&mut self, block: u64) -> bool {
        self.is_fresh(block) && !self.pins.is_pinned(block)
    }

    // ---- inodes ----

    /// An inode that is in use.
    pub fn inode(&self, number: u64) -> Result<Inode> {
        if !self.is_inode_marked(number)? {
            return Err(Errno::ENOENT);
        }
        let (block, at) = self.place(number);
        let mut bytes = [0; INODE_BYTES];
        self.pages.read(block, Kind::Table, at, &mut bytes)?;
        let inode = Inode::decode(&bytes);
        if inode.mode == 0 || inode.height > HEIGHT_MAX || inode.depth > crate::directory::DEPTH_MAX
        {
            return Err(Errno::EIO);
        }
        Ok(inode)
    }

    /// Whether the bitmap has this inode in use.
    pub fn is_inode_marked(&self, number: u64) -> Result<bool> {
        if number == 0 || number >= self.geometry().inodes {
            return Ok(false);
        }
        let page = self.geometry().inode_bitmap + number / BITS;
        let mut byte = [0];
        self.pages
            .read(page, Kind::Inodes, (number % BITS / 8) as usize, &mut byte)?;
        Ok(byte[0] & (1 << (number % 8)) != 0)
    }

    /// Stores an inode.
    pub fn put(&mut self, number: u64, inode: &Inode) -> Result<()> {
        let (block, at) = self.place(number);
        self.pages.write(block, Kind::Table, at, &inode.encode())
    }

    /// Block and byte of an inode in the table.
    pub fn place(&self, number: u64) -> (u64, usize) {
        let block = self.geometry().table + number / INODES_PER_BLOCK;
        (block, (number % INODES_PER_BLOCK) as usize * INODE_BYTES)
    }

    /// Takes a number for a new inode, near another one.
    pub fn take_inode(&mut self, near: u64) -> Result<u64> {
        let number = self.inodes.first_free(near).ok_or(Errno::ENOSPC)?;
        self.take_inode_number(number)?;
        Ok(number)
    }

    /// Takes this number, which is free.
    pub fn take_inode_number(&mut self, number: u64) -> Result<()> {
        self.prepare_table(number)?;
        self.inodes.take(number);
        self.operation.inodes_taken.push(number);
        let first = self.geometry().inode_bitmap;
        let run = Run::one(number);
        set_bits(&mut self.pages, first, Kind::Inodes, run, true).map(|_| ())
    }

    /// A block of the table is made when its first inode is: a new store has not written it.
    fn prepare_table(&mut self, number: u64) -> Result<()> {
        let (block, _) = self.place(number);
        if self.pages.with(block, Kind::Table, |_| ()).is_ok() {
            return Ok(());
        }
        let first = number / INODES_PER_BLOCK * INODES_PER_BLOCK;
        for other in first.max(1)..(first + INODES_PER_BLOCK).min(self.geometry().inodes) {
            if self.is_inode_marked(other)? {
                return Err(Errno::EIO);
            }
        }
        self.pages.make(block, Kind::Table);
        Ok(())
    }

    /// Frees a number.
    pub fn free_inode(&mut self, number: u64) -> Result<()> {
        self.operation.inodes_freed.push(number);
        let first = self.geometry().inode_bitmap;
        let run = Run::one(number);
        set_bits(&mut self.pages, first, Kind::Inodes, run, false).map(|_| ())
    }

    /// Holds a file as a part of the operation: now, since somebody may be about to free one of that number.
    pub fn hold(&mut self, number: u64) {
        self.held.hold(number);
        self.operation.held.push(number);
    }

    // ---- ends of operations and batches ----

    /// The operation stays, unless its batch would be too large for the log: then it is undone. `given` are the bytes that
    /// [`Source::Given`] means.
    pub fn keep(&mut self, given: &[u8]) -> bool {
        if self.pages.record_lines() > Log::record_lines_max(self.geometry().log_lines()) {
            self.undo();
            return false;
        }
        self.keep_large(given);
        true
    }

    /// The operation stays, however large: what a new store begins with does not go through a log.
    pub fn keep_large(&mut self, given: &[u8]) {
        let mut operation = std::mem::take(&mut self.operation);
        // Before anything is released: bytes may come from a block that this operation frees.
        self.wrote_data |= self.store_pieces(&operation.pieces, given);
        self.windows.append(&mut operation.adopted);
        for run in operation.freed.drain(..) {
            self.settle_freed(run);
        }
        for block in operation.freed_metadata.drain(..) {
            self.pages.forget(block);
            if self.is_fresh(block) {
                self.fresh.clear(Run::one(block));
                self.blocks.release(block);
            } else {
                self.freed.metadata.push(block);
            }
        }
        for number in operation.inodes_freed.drain(..) {
            self.inodes.release(number);
        }
        self.pages.keep();
        self.operation = operation.emptied();
    }

    /// The operation has not been.
    pub fn undo(&mut self) {
        let operation = std::mem::take(&mut self.operation);
        self.pages.undo();
        for run in operation.taken {
            self.fresh.clear(run);
            self.blocks.release_all(run);
        }
        for run in operation.adopted {
            self.fresh.clear(run);
        }
        for block in operation.freshened {
            self.fresh.clear(Run::one(block));
        }
        for number in operation.inodes_taken {
            self.inodes.release(number);
        }
        for number in operation.held {
            self.held.release(number, 1);
        }
    }

    /// Collects the running batch: what comes now belongs to the next one.
    pub fn collect(&mut self) -> Option<Batch> {
        if self.pages.is_clean() {
            return None;
        }
        self.fresh.clear_all();
        let freed = std::mem::take(&mut self.freed);
        let blocks: u64 = freed.data.iter().map(|run| run.length).sum();
        self.waiting += blocks + freed.metadata.len() as u64;
        Some(Batch {
            pages: self.pages.collect(),
            freed,
            wrote_data: std::mem::take(&mut self.wrote_data),
            windows: std::mem::take(&mut self.windows),
        })
    }

    /// The batch is durable and lies where it belongs.
    pub fn committed(&mut self, batch: &mut Batch) {
        self.pages.dropped(&mut batch.pages);
        for run in batch.freed.data.drain(..) {
            self.release_unseen(run);
            self.waiting -= run.length;
        }
        if self.freed.data.is_empty() {
            batch.freed.data.shrink_to(KEPT_MAX);
            self.freed.data = std::mem::take(&mut batch.freed.data);
        }
    }

    /// These blocks of metadata may be used again.
    pub fn release(&mut self, blocks: &[u64]) {
        blocks.iter().for_each(|block| self.blocks.release(*block));
        self.waiting -= blocks.len() as u64;
    }

    /// Blocks of bytes that the operation has freed: those that are fresh are free now.
    fn settle_freed(&mut self, mut run: Run) {
        while run.length > 0 {
            let Run { start, .. } = run;
            let length = self.fresh.alike(run);
            let alike = Run { start, length };
            if self.is_fresh(start) {
                self.fresh.clear(alike);
                self.release_unseen(alike);
            } else {
                self.freed.data.push(alike);
            }
            run.start += length;
            run.length -= length;
        }
    }

    /// Blocks may be used again, when no view shows them any more.
    fn release_unseen(&mut self, run: Run) {
        if self.pins.are_free(run) {
            return self.blocks.release_all(run);
        }
        for block in run.start..run.start + run.length {
            if !self.pins.keeps(block) {
                self.blocks.release(block);
            }
        }
    }
}

/// Most levels of nodes: enough for [`crate::types::SIZE_MAX`].
pub const HEIGHT_MAX: u32 = 4;
