//! A commit: whole blocks change hands, the rest is written.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Window;
use super::blocks::{Block, RUN};
use crate::error::Result;
use crate::file::core::{Core, Halt};
use crate::file::managed::Managed;
use crate::file::throttle::throttle;
use crate::file::{File, Kind, reserve};
use crate::ids::{BlockIndex, FrameId};
use crate::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use crate::memory::threads::{Me, Operation};
use crate::scrap::own::attach;
use crate::stats::Counter;
use crate::sync::Ordering;
use crate::sys::limits;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Window {
    /// As [`Window::commit`], of a range that the window has.
    pub(super) fn commit_checked(
        &mut self,
        file: &File,
        offset: u64,
        range: Range<usize>,
    ) -> Result<usize> {
        let len = range.len();
        if len == 0 {
            // A file that may not be written says so of no bytes as well.
            return file.write_at(&[], offset);
        }
        let managed = self.takes_frames(file, offset, len);
        let mut done = 0;
        while done < len {
            let (at, from, rest) = (offset + done as u64, range.start + done, len - done);
            let fresh = managed.map_or(0, |_| self.fresh(at, from, rest));
            let given = match managed {
                Some(managed) if fresh > 0 => self.give(managed, at, from, fresh)?,
                _ => 0,
            };
            done += given;
            if given == fresh * BLOCK_BYTES && fresh > 0 {
                continue;
            }
            // What could not be given, or what comes before the next block that may be.
            let (at, from, rest) = (at + given as u64, from + given, rest - given);
            let bytes = match (managed, fresh) {
                (Some(_), 0) => self.copied(at, from, rest),
                (Some(_), _) => fresh * BLOCK_BYTES - given,
                (None, _) => rest,
            };
            match file.write_at(&self[from..from + bytes], at) {
                Ok(written) if written == bytes => done += written,
                Ok(written) => return Ok(done + written),
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
        Ok(len)
    }

    /// Whether frames of this window can become the file's: it is managed, of the same session, and bytes go where they are said to go.
    fn takes_frames<'f>(&self, file: &'f File, offset: u64, len: usize) -> Option<&'f Managed> {
        let Kind::Managed(managed) = &file.kind else {
            return None;
        };
        let end = offset.checked_add(len as u64)?;
        let fits = end <= FILE_BYTES_MAX && end <= limits::file_bytes();
        let ours = Arc::ptr_eq(&managed.core.shared, &self.shared);
        let is_served = managed.core.entry().kernel_reason.load(Relaxed) == 0;
        (file.writable && !file.appends && fits && ours && is_served).then_some(managed)
    }

    /// How many blocks of the file begin at `at`, lie in fresh blocks of the window that begin with its byte `from`, and are worth giving: all
    /// those of a huge page, in the window and in the file. One that is given by itself is shown by a mapping of its own, and filling the window
    /// again takes a fault for each of its small pages: five times its copy (decision 0044). Where bytes lie apart nothing is mapped, and any
    /// block is given.
    fn fresh(&self, at: u64, from: usize, len: usize) -> usize {
        let Some(blocks) = self.blocks.get() else {
            return 0;
        };
        let run = if blocks.lie_apart() { 1 } else { RUN };
        let place = self.shift + from;
        let begins = |at: usize| at.is_multiple_of(run * BLOCK_BYTES);
        if !begins(at as usize) || !begins(place) {
            return 0;
        }
        let first = place / BLOCK_BYTES;
        let blocks = blocks.list[first..first + len / BLOCK_BYTES].iter();
        let fresh = blocks
            .take_while(|block| matches!(block, Block::Fresh(_)))
            .count();
        fresh / run * run
    }

    /// How many bytes come before the next block that can be given.
    fn copied(&self, at: u64, from: usize, len: usize) -> usize {
        let place = (self.shift + from) as u64;
        if at % BLOCK != place % BLOCK {
            return len;
        }
        let mut bytes = (BLOCK - at % BLOCK) as usize;
        while bytes < len && self.fresh(at + bytes as u64, from + bytes, len - bytes) == 0 {
            bytes += BLOCK_BYTES;
        }
        bytes.min(len)
    }

    /// Gives blocks to the file, up to the first that cannot be. How many bytes. The thread that writes those that were not finds out why.
    fn give(&mut self, managed: &Managed, at: u64, from: usize, blocks: usize) -> Result<usize> {
        let core = &managed.core;
        let me = core.shared.me()?;
        let bytes = blocks * BLOCK_BYTES;
        managed.recent.stream(me).is_sequential(at, bytes);
        managed.hand_over(me);
        core.entry().count_sync(false);
        if throttle(core, me).is_err()
            || !matches!(
                reserve::ahead(core, me, at, at + bytes as u64, false),
                Ok(false)
            )
        {
            return Ok(0);
        }
        let first = (self.shift + from) / BLOCK_BYTES;
        let Some(own) = self.blocks.get_mut() else {
            return Ok(0);
        };
        let protected = own.protect(&self.addresses.addresses, first..first + blocks);
        let frames = own.list[first..first + protected].iter();
        let mut given = 0;
        for (step, block) in (0..).zip(frames) {
            let Block::Given(pin) = block else { break };
            let block = BlockIndex(BlockIndex::of(at).0 + step);
            // One commit must not pass the limits by all its length.
            if step > 0 && throttle(core, me).is_err()
                || attach_block(core, me, block, pin.frame).is_err()
            {
                break;
            }
            given += BLOCK_BYTES;
        }
        me.count(Counter::ScrapBytes as usize, given as u64);
        self.attached_bytes += given as u64;
        Ok(given)
    }
}

/// Makes a window's frame a block's, whose space was there a moment ago.
///
/// # Errors
/// As for [`Core::operate`]; [`Halt::Unreserved`] where the block lies in a hole by now.
#[doc(hidden)]
pub fn attach_block(
    core: &Core,
    me: Me<'_>,
    block: BlockIndex,
    frame: FrameId,
) -> std::result::Result<(), Halt> {
    loop {
        let holes = core.entry().holes.load(Ordering::Acquire);
        if reserve::ahead(core, me, block.start(), block.start() + BLOCK, false)? {
            return Err(Halt::Unreserved);
        }
        let step = core.operate(me, |operation| {
            try_attach(core, operation, block, frame, holes)
        });
        match step {
            Err(Halt::Unreserved) => {}
            done => return done,
        }
    }
}

fn try_attach(
    core: &Core,
    operation: &Operation<'_>,
    block: BlockIndex,
    frame: FrameId,
    holes: u32,
) -> std::result::Result<(), Halt> {
    let guard = core.lock(operation.me, block)?;
    let entry = core.entry();
    let end = block.start() + BLOCK;
    // In this order: a thread that raises the end over a gap has counted the gap before.
    if end > entry.reserved_end.load(Ordering::Acquire)
        || entry.holes.load(Ordering::Acquire) != holes
    {
        return Err(Halt::Unreserved);
    }
    if guard.inflight() != 0 {
        return Err(Halt::Busy);
    }
    attach(&guard, entry, frame, end);
    Ok(())
}
