//! Large reads of what is not in memory: from the device straight into the caller's memory, with no copy between.
//!
//! For blocks that memory has nothing of, when it is looked at inside the operation: then the device has all that was
//! acknowledged before, and what is written meanwhile the read may or may not show. Nothing is kept, so no epoch is asked.
//!
//! What a file is read for the first time leaves no second copy in memory; once as many bytes have been read past memory as
//! the file has, reads fill memory again, unless the file is too large to be worth it.

use crate::device::{Piece, read_rest};
use crate::file::core::{Core, Halt};
use crate::file::direct::is_aligned;
use crate::frame::header::{Identity, State};
use crate::frame::slots;
use crate::ids::BlockIndex;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::memory::copy;
use crate::memory::threads::{Me, Operation};
use crate::stats::Counter;
use crate::sync::Ordering;
use crate::sys::memory::Spare;

/// Blocks that are read at once at most: 4 MiB.
const BLOCKS_MAX: u64 = 16;
/// As much is read at once for a caller whose memory the device does not take.
const BOUNCE_BYTES: usize = 1024 * 1024;

/// Memory for callers whose own the device does not take.
static BOUNCE: Spare = Spare::new();

/// Whether a read of `len` bytes shall go past memory where memory has nothing.
pub fn is_wanted(core: &Core, len: usize) -> bool {
    if (len as u64) < core.shared.config.direct_min {
        return false;
    }
    let entry = core.entry();
    let size = entry.size.load(Ordering::Relaxed);
    let frames = core
        .shared
        .arena
        .superblock()
        .frames_max
        .load(Ordering::Relaxed);
    let memory = u64::from(frames) * BLOCK_BYTES as u64;
    entry.read_past.load(Ordering::Relaxed) < size || size > memory / 2
}

/// Reads whole blocks from `offset` on, which begins one, as far as memory has nothing of them, and not beyond `len` bytes.
/// Returns the bytes read; 0 where memory, or reading the usual way, is asked first.
///
/// # Safety
/// `target` is valid for `len` bytes for the whole call.
pub unsafe fn read(
    core: &Core,
    me: Me<'_>,
    target: *mut u8,
    len: usize,
    offset: u64,
) -> Result<usize, Halt> {
    let blocks = (len / BLOCK_BYTES) as u64;
    let first = BlockIndex::of(offset);
    let look = |operation: &Operation<'_>, most| Ok(absent(core, operation, first, most));
    let most = core.operate(me, |operation| look(operation, blocks.min(BLOCKS_MAX)))?;
    // SAFETY: the caller's promise.
    unsafe { copy::fault_in_to_write(target, most as usize * BLOCK_BYTES) };
    core.operate(me, |operation| {
        let count = look(operation, most)?;
        if count == 0 {
            return Ok(0);
        }
        let len = count as usize * BLOCK_BYTES;
        operation.park();
        // SAFETY: the caller's promise; no more than was asked for.
        let read = unsafe { from_device(core, target, len, offset) };
        operation.unpark();
        // An error, or a file that somebody else has cut: the usual way finds out what it is.
        let whole = read.unwrap_or(0) / BLOCK_BYTES * BLOCK_BYTES;
        me.count(Counter::DeviceReadBytes as usize, whole as u64);
        let past = &core.entry().read_past;
        past.fetch_add(whole as u64, Ordering::Relaxed);
        Ok(whole)
    })
}

/// How many blocks in a row memory has nothing of and the device has all of.
fn absent(core: &Core, operation: &Operation<'_>, first: BlockIndex, blocks: u64) -> u64 {
    let entry = core.entry();
    let is_absent = |&index: &u64| {
        let block = BlockIndex(first.0 + index as u32);
        is_absent(core, operation, block)
    };
    let absent = (0..blocks).take_while(is_absent).count() as u64;
    // After the blocks: what was flushed and left memory before is within this.
    let end = entry.disk_end.load(Ordering::Acquire);
    let end = end.min(entry.size.load(Ordering::Acquire));
    absent.min(end.saturating_sub(first.start()) / BLOCK_BYTES as u64)
}

fn is_absent(core: &Core, operation: &Operation<'_>, block: BlockIndex) -> bool {
    let me = operation.me;
    let Some(id) = slots::lookup(me.arena, core.entry(), block) else {
        return true;
    };
    let identity = Identity {
        file: core.id,
        block,
    };
    let Some(header) = me.arena.header(id) else {
        return false;
    };
    // A glance first: locking would send readers without a lock the long way.
    let is_empty = header.peek(identity).is_some_and(|peek| peek.valid == 0);
    let guard = if is_empty {
        header.try_lock(me, id)
    } else {
        None
    };
    guard.is_some_and(|guard| {
        guard.is_for(identity)
            && guard.state() == State::Linked
            && guard.valid() | guard.dirty() | guard.inflight() == 0
    })
}

/// # Safety
/// `target` is valid for `len` bytes.
unsafe fn from_device(
    core: &Core,
    target: *mut u8,
    len: usize,
    offset: u64,
) -> std::io::Result<usize> {
    let end = offset + len as u64;
    let whole = Piece { ptr: target, len };
    let cached = core.device.read_cached(whole, offset);
    if let Some(read) = cached.filter(|&read| read == len) {
        return Ok(read);
    }
    if is_aligned(core, target) {
        return read_rest(core.device.as_ref(), whole, offset, 0, end);
    }
    let buffer = BOUNCE.take(BOUNCE_BYTES, PAGE_BYTES);
    let mut done = 0;
    while done < len {
        let piece = buffer.part(0, (len - done).min(BOUNCE_BYTES));
        let at = offset + done as u64;
        let read = read_rest(core.device.as_ref(), piece, at, 0, end)?;
        // SAFETY: within the caller's memory; the buffer is this thread's own.
        if !unsafe { copy::try_copy(piece.ptr, target.add(done), read) } {
            break;
        }
        done += read;
        if read < piece.len {
            break;
        }
    }
    BOUNCE.put(buffer);
    Ok(done)
}
