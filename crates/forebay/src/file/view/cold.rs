//! What a view misses: read from the device by large requests, and kept block by block.
//!
//! A run of blocks of which memory has nothing is read at once, straight into frames that this thread holds ([`Run`]), which lie side by side
//! on a huge page: one request, one piece of memory, and no copy. Where no such frames are free, or memory has something of the block, the
//! bytes go into memory of this thread, and from there into frames. Each block is kept under its header's lock when its turn comes, by the
//! protocol of fills ([`fill::Seen`]); one of which something has left memory since is read again, alone. A thread that makes room leaves what
//! is being read, so no block is read more than twice for want of memory, however short that is. A thread that drops a file from memory does not: a
//! view that has read a block in vain some times ([`pin_block`](super::pin_block)) becomes a copy.
//!
//! Where the device cannot read all of a request, each of its blocks is read alone, and of it only what was asked for.

use std::ops::Range;

use crate::device::{Piece, read_rest};
use crate::error::Error;
use crate::file::core::{Core, Halt};
use crate::file::read::{fill, run_over};
use crate::file::view::run::{Place, Run};
use crate::flush::select::pages_within_size;
use crate::frame::header::Guard;
use crate::ids::BlockIndex;
use crate::limits::{BLOCK_BYTES, BLOCK_PAGES, HUGE_BYTES, HUGE_FRAMES, PAGE_BYTES};
use crate::memory::copy;
use crate::memory::pins;
use crate::memory::threads::{Me, Operation};
use crate::stats::Counter;
use crate::sync::Ordering;
use crate::sys::memory::{AlignedBytes, Spare};

/// Blocks that one request brings at most: those of 2 MiB.
const BLOCKS_MAX: u32 = HUGE_FRAMES;
/// The part of what may be pinned that one request brings at most: in a small session others need memory meanwhile.
const PINNED_PARTS: u32 = 2;

static BUFFERS: Spare = Spare::new();

/// One block that has been read.
#[derive(Debug)]
struct Part {
    block: BlockIndex,
    seen: fill::Seen,
    /// Its pages that were read.
    span: Range<u32>,
}

/// Blocks that have been read at once.
#[doc(hidden)]
pub struct Cold<'a> {
    /// The block behind the last that will be asked for.
    until: u32,
    place: &'a Place,
    /// The block with which the memory begins, and how many have been read into it.
    first: u32,
    count: u32,
    /// Not kept yet.
    parts: Vec<Part>,
    /// Where whole blocks are read to.
    run: Option<Run<'a>>,
    /// Frames are to be found for so many blocks from this one on; for which block that was done last.
    wanted: Option<(BlockIndex, u32)>,
    sought: Option<BlockIndex>,
    /// Of this block nothing is read that was not asked for: a request for more has failed.
    apart: Option<BlockIndex>,
    /// Where all else is read to.
    buffer: Option<AlignedBytes>,
}

impl Drop for Cold<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            BUFFERS.put(buffer);
        }
    }
}

impl<'a> Cold<'a> {
    /// Nothing has been read; blocks up to and with `last` will be asked for. `place`: where their frames shall lie.
    pub fn up_to(last: BlockIndex, place: &'a Place) -> Self {
        Cold {
            until: last.0.saturating_add(1),
            place,
            first: 0,
            count: 0,
            parts: Vec::new(),
            run: None,
            wanted: None,
            sought: None,
            apart: None,
            buffer: None,
        }
    }

    /// Finds the frames that [`Cold::bring`] has wanted. Without any it does with memory of this thread. The caller is in no operation.
    pub fn find_frames(&mut self, core: &Core, me: Me<'a>) {
        if let Some((block, count)) = self.wanted.take() {
            self.run = None;
            self.run = Run::find(core, me, block, count, self.place);
            self.sought = Some(block);
        }
    }

    /// From now on nothing of a block is read but what was asked for. Whether more was before.
    pub fn read_apart(&mut self, block: BlockIndex) -> bool {
        self.apart.replace(block) != Some(block)
    }

    /// Whether nothing of a block is read but what was asked for.
    pub fn is_read_apart(&self, block: BlockIndex) -> bool {
        self.apart == Some(block)
    }

    /// Keeps what has been read of a block, or reads it, with those after it, or wants frames for that; `absent`: its pages that memory lacks.
    ///
    /// # Errors
    /// [`Halt::NoMemory`]: what has been read stays, for when there is some. Those of reading.
    pub fn bring(
        &mut self,
        core: &Core,
        operation: &Operation<'_>,
        guard: Guard<'_>,
        (block, absent): (BlockIndex, u64),
    ) -> Result<(), Halt> {
        let place = self.parts.iter().position(|part| part.block == block);
        if let Some(place) = place.filter(|&place| self.parts[place].seen.holds(&guard)) {
            self.keep(core, &guard, place)?;
            self.parts.remove(place);
            return Ok(());
        }
        if (self.first..self.first + self.count).contains(&block.0) {
            // What was read of it came too late.
            self.parts.retain(|part| part.block != block);
            return self.read(core, operation, guard, (block, absent), 1);
        }
        let most = blocks_max(operation.me)
            .min(self.until - block.0)
            .min(HUGE_FRAMES - block.0 % HUGE_FRAMES);
        if is_empty(&guard) && self.sought != Some(block) {
            self.wanted = Some((block, most));
            return Ok(());
        }
        self.parts.clear();
        (self.first, self.count) = (block.0, 1);
        if self.sought != Some(block)
            && let Some(run) = self.run.take()
        {
            run.let_go(operation);
        }
        self.read(core, operation, guard, (block, absent), most)
    }

    /// Where bytes of a block, and of those after it, are read to.
    fn bytes_of(&mut self, block: u32) -> Piece {
        let frames = self.run.as_ref().and_then(|run| run.bytes_of(block));
        if let Some((ptr, len)) = frames {
            return Piece { ptr, len };
        }
        let buffer = self
            .buffer
            .get_or_insert_with(|| BUFFERS.take(HUGE_BYTES, PAGE_BYTES));
        let at = (block - self.first) as usize * BLOCK_BYTES;
        buffer.part(at, buffer.len() - at)
    }

    fn keep(&mut self, core: &Core, guard: &Guard<'_>, place: usize) -> Result<(), Halt> {
        let (block, span) = (self.parts[place].block.0, self.parts[place].span.clone());
        let frame = self.run.as_ref().and_then(|run| run.frame_of(block));
        let whole = span == (0..BLOCK_PAGES as u32);
        if let (Some(frame), Some(run)) = (frame.filter(|_| whole), &mut self.run)
            && fill::adopt(guard, core.entry(), frame)
        {
            if !run.gave(block) {
                self.run = None;
            }
            return Ok(());
        }
        let (bytes, span) = (self.bytes_of(block), &span);
        // SAFETY: the memory is this thread's, and has the block's pages of the span at their places, read since.
        let kept = unsafe { fill::keep(guard, core.entry(), span, bytes.ptr) };
        kept.map(|_| ()).map_err(|_| Halt::NoMemory)
    }

    /// Reads a block, and up to `most` together with it of which memory has nothing.
    fn read(
        &mut self,
        core: &Core,
        operation: &Operation<'_>,
        guard: Guard<'_>,
        (block, absent): (BlockIndex, u64),
        most: u32,
    ) -> Result<(), Halt> {
        guard.await_bytes();
        let as_a_whole =
            !self.is_read_apart(block) && (is_empty(&guard) || guard.frame().is_some());
        let span = if as_a_whole {
            0..BLOCK_PAGES as u32
        } else {
            run_over(absent)
        };
        let seen = fill::Seen::of(&guard, core.entry());
        drop(guard);
        let start = span.start;
        let mut disk_end = seen.disk_end;
        self.parts.push(Part { block, seen, span });
        let mut last = block;
        while as_a_whole && last.0 + 1 < block.0 + most {
            last = BlockIndex(last.0 + 1);
            let Some(seen) = look(core, operation, last) else {
                last = BlockIndex(last.0 - 1);
                break;
            };
            disk_end = disk_end.max(seen.disk_end);
            self.parts.push(Part {
                block: last,
                seen,
                span: 0..BLOCK_PAGES as u32,
            });
        }
        self.count = self.count.max(last.0 + 1 - self.first);
        let end = if as_a_whole {
            last.start() + BLOCK_BYTES as u64
        } else {
            let part = &self.parts[self.parts.len() - 1];
            block.start() + u64::from(part.span.end) * PAGE_BYTES as u64
        };
        let offset = block.start() + u64::from(start) * PAGE_BYTES as u64;
        let bytes = self.bytes_of(block.0);
        let piece = Piece {
            ptr: bytes.ptr.wrapping_add((offset - block.start()) as usize),
            len: (end - offset) as usize,
        };
        operation.park();
        let read = read_device(core, piece, offset, disk_end);
        operation.unpark();
        if read.is_err() {
            self.parts.clear();
        }
        let counter = Counter::DeviceReadBytes as usize;
        operation.me.count(counter, read? as u64);
        Ok(())
    }
}

/// Blocks that one request brings at most.
fn blocks_max(me: Me<'_>) -> u32 {
    let pinned = pins::frames_max(me.arena.superblock());
    (pinned / PINNED_PARTS).clamp(1, BLOCKS_MAX)
}

/// Whether memory has nothing of a block.
fn is_empty(guard: &Guard<'_>) -> bool {
    guard.valid() | guard.dirty() | guard.inflight() == 0
}

/// How a block is described of which memory has nothing, and the device something.
fn look(core: &Core, operation: &Operation<'_>, block: BlockIndex) -> Option<fill::Seen> {
    let entry = core.entry();
    if block.start() >= entry.disk_end.load(Ordering::Acquire) {
        return None;
    }
    let guard = core.lock(operation.me, block).ok()?;
    if !is_empty(&guard) || pages_within_size(&guard, entry) == 0 {
        return None;
    }
    guard.await_bytes();
    Some(fill::Seen::of(&guard, entry))
}

/// Fills a piece; zeros where the device file does not reach. How many bytes came from it.
fn read_device(core: &Core, piece: Piece, offset: u64, disk_end: u64) -> Result<usize, Halt> {
    let whole = Piece { ..piece };
    let cached = core.device.read_cached(whole, offset).unwrap_or(0);
    let got = read_rest(core.device.as_ref(), whole, offset, cached, disk_end)
        .map_err(|error| Error::device("read from the device", &error))?;
    // SAFETY: within memory that is this thread's own.
    unsafe { copy::zero(piece.ptr.add(got), piece.len - got) };
    Ok(got)
}
