//! Writing past memory: straight to the device, or through the kernel's cache into a hole.
//!
//! Both write the file behind the headers' backs, so both *supersede* the blocks first (`docs/locking.md`, "Direct
//! writes against everything"). WSBuffer 3.3 reclaims obsolete scrap pages after its SSD write; superseding
//! before it is what makes that safe against flushes, fills and readers. `direct/kernel.rs` is the second way.

mod kernel;

pub use kernel::through_kernel;

use std::ops::Range;
use std::time::Duration;

use crate::device::Piece;
use crate::error::Error;
use crate::file::bounce::Bounce;
use crate::file::core::{Core, Halt};
use crate::flush::busy;
use crate::frame::header::{Guard, State};
use crate::ids::BlockIndex;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::memory::files::{EXCEEDING, FileEntry};
use crate::memory::superblock::Superblock;
use crate::memory::threads::{Me, Operation};
use crate::scrap::absorb::{drop_pages, free_header};
use crate::stats::Counter;
use crate::sync::time::Instant;
use crate::sync::{Ordering, planted};

/// Longest stretch that is superseded at once, in blocks: 16 MiB.
const BLOCKS_MAX: u64 = 64;

/// Writes whole blocks to the device. Returns the bytes written; fewer than `len` only if an error came after some
/// blocks had been. `at_end`: only as long as the file ends there.
///
/// # Safety
/// `source` is valid for `len` bytes for the whole call.
pub unsafe fn write(
    core: &Core,
    me: Me<'_>,
    source: *const u8,
    len: usize,
    offset: u64,
    at_end: bool,
) -> Result<usize, Halt> {
    let block_bytes = BLOCK_BYTES as u64;
    debug_assert!(offset.is_multiple_of(block_bytes) && (len as u64).is_multiple_of(block_bytes));
    let mut done = 0usize;
    while done < len {
        let first = BlockIndex::of(offset + done as u64);
        let blocks = ((len - done) as u64 / block_bytes).min(BLOCKS_MAX);
        // SAFETY: within the caller's memory.
        let from = unsafe { source.add(done) };
        let step = core.operate(me, |operation| {
            // SAFETY: as above.
            unsafe { write_blocks(core, operation, from, first, blocks as u32, at_end) }
        });
        match step {
            Ok(written) => done += written,
            Err(halt) if is_fault(&halt) => {
                me.count(Counter::DirectBytes as usize, done as u64);
                // The device says no more than that something is missing; memory takes what is there.
                let manner = super::write::Manner {
                    sequential: false,
                    long: false,
                    eager: false,
                    holes: core.entry().holes.load(Ordering::Acquire),
                    at_end,
                };
                // SAFETY: within the caller's memory, as far as that goes.
                let there = unsafe {
                    super::write::scrap(core, me, from, len - done, offset + done as u64, manner)
                };
                return match there {
                    Err(Halt::Kernel) => Err(Halt::Kernel),
                    Err(_) if done > 0 => Ok(done),
                    there => Ok(done + there?),
                };
            }
            Err(halt) if done == 0 || matches!(halt, Halt::Kernel) => return Err(halt),
            Err(_) => break,
        }
    }
    me.count(Counter::DirectBytes as usize, done as u64);
    Ok(done)
}

/// Whether a write has failed because of the caller's memory.
fn is_fault(halt: &Halt) -> bool {
    match halt {
        Halt::Fault => true,
        Halt::Failed(error) => error.errno() == libc::EFAULT,
        _ => false,
    }
}

/// # Safety
/// `source` is valid for the blocks.
unsafe fn write_blocks(
    core: &Core,
    operation: &Operation<'_>,
    source: *const u8,
    first: BlockIndex,
    blocks: u32,
    at_end: bool,
) -> Result<usize, Halt> {
    // As many as headers can be had for; at least one.
    let blocks = supersede(core, operation, first, blocks)?;
    if at_end && core.entry().size.load(Ordering::Acquire) != first.start() {
        release(core, operation, first, blocks);
        return Err(Halt::Outgrown);
    }
    let len = blocks as usize * BLOCK_BYTES;
    let end = first.start() + len as u64;
    let entry = core.entry();
    let me = operation.me;
    let bounce = (!goes_as_it_is(core, source)).then(|| Bounce::take(me, blocks));
    operation.park();
    // SAFETY: the caller's promise.
    let result = core.change(me, |_| unsafe {
        to_device(core, me, source, len, first.start(), bounce.as_ref())
    });
    operation.unpark();
    drop(bounce);
    // Whole blocks only: what a short write left of a block is as if it had failed.
    let whole = match &result {
        Ok(written) => written / BLOCK_BYTES,
        Err(_) => 0,
    };
    let reached = first.start() + (whole * BLOCK_BYTES) as u64;
    if reached < end {
        reach_is_unknown(entry, end);
    }
    entry.disk_end.fetch_max(reached, Ordering::AcqRel);
    if whole > 0 {
        drop_old_end(core, operation, first.start()..reached);
        // Before the blocks can be filled again: a fill makes zeros of what is beyond the size.
        entry.size.fetch_max(reached, Ordering::AcqRel);
    }
    for index in 0..blocks {
        let block = BlockIndex(first.0 + index);
        let written = (index as usize) < whole;
        end_supersede(core, operation, block, |guard| {
            if written {
                After::Gone
            } else {
                After::Stays(guard)
            }
        });
    }
    match result {
        _ if whole > 0 => Ok(whole * BLOCK_BYTES),
        Ok(_) => Err(Halt::Failed(Error::NoSpace {
            what: "write to the device",
        })),
        Err(error) => Err(Halt::Failed(Error::device("write to the device", &error))),
    }
}

/// Writes from the caller's memory, or by way of `bounce` where the device cannot take that.
///
/// # Safety
/// `source` is valid for `len` bytes.
unsafe fn to_device(
    core: &Core,
    me: Me<'_>,
    source: *const u8,
    len: usize,
    offset: u64,
    bounce: Option<&Bounce<'_>>,
) -> std::io::Result<usize> {
    let caps = core.device.caps();
    let superblock = me.arena.superblock();
    let was_busy = busy::inflight_bytes(superblock, caps.device) > 0;
    let flight = busy::begin(superblock, caps.device, len as u64);
    let begun = Instant::now();
    let result = match bounce {
        // SAFETY: the caller's promise.
        Some(bounce) => unsafe { bounce.write(core, source, len, offset, was_busy) },
        None => {
            let piece = Piece {
                ptr: source.cast_mut(),
                len,
            };
            write_all(core, &[piece], offset)
        }
    };
    busy::end(superblock, caps.device, flight);
    if bounce.is_none() && matches!(result, Ok(n) if n == len) {
        observe_write(core, superblock, len as u64, begun.elapsed(), was_busy);
    }
    result
}

/// Notes how long the device took. `was_busy`: others' writes were under way when it began.
pub(super) fn observe_write(
    core: &Core,
    superblock: &Superblock,
    bytes: u64,
    time: Duration,
    was_busy: bool,
) {
    let (device, ns) = (core.device.caps().device, time.as_nanos() as u64);
    if was_busy {
        busy::observe_write_beside(superblock, device, bytes, ns);
    } else {
        busy::observe_write(superblock, device, bytes, ns);
    }
}

/// Whether the device writes memory of a program's from `source` on. Of what must not change under way it gets a copy: the
/// program may change its memory.
pub(super) fn goes_as_it_is(core: &Core, source: *const u8) -> bool {
    let unstable = !core.device.caps().stable_writes || planted!(UnstablePages);
    unstable && is_aligned(core, source)
}

/// Whether the device takes memory from `source` on.
pub(super) fn is_aligned(core: &Core, source: *const u8) -> bool {
    let align = core.device.caps().memory_align.max(1) as usize;
    source.addr().is_multiple_of(align)
}

/// Writes pieces that lie in a row, going on after short writes. An error after some bytes gives those bytes.
pub(super) fn write_all(core: &Core, pieces: &[Piece], offset: u64) -> std::io::Result<usize> {
    let mut done = 0;
    let len: usize = pieces.iter().map(|piece| piece.len).sum();
    while done < len {
        // Each request dates the file anew, and there may be many.
        core.entry().show_change();
        let written = if done == 0 {
            core.device.write_direct(pieces, offset)
        } else {
            let (piece, at) = find(pieces, done);
            let rest = Piece {
                // SAFETY: `at` is less than the piece's length.
                ptr: unsafe { piece.ptr.add(at) },
                len: piece.len - at,
            };
            core.device.write_direct(&[rest], offset + done as u64)
        };
        match written {
            Ok(n) if n >= PAGE_BYTES => done += n / PAGE_BYTES * PAGE_BYTES,
            Ok(_) => break,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The piece in which byte `at` of all of them lies, and where in it. `at` is before their end.
fn find(pieces: &[Piece], mut at: usize) -> (Piece, usize) {
    for &piece in pieces {
        if at < piece.len {
            return (piece, at);
        }
        at -= piece.len;
    }
    unreachable!("before the end")
}

/// Supersedes blocks in ascending order, and waits until none of them is in flight. Returns how many: fewer than asked for
/// when headers run out.
fn supersede(
    core: &Core,
    operation: &Operation<'_>,
    first: BlockIndex,
    blocks: u32,
) -> Result<u32, Halt> {
    let me = operation.me;
    let mut taken = 0;
    while taken < blocks {
        match core.lock(me, BlockIndex(first.0 + taken)) {
            Ok(guard) => guard.set_state(State::Superseded(me.id)),
            Err(Halt::NoMemory) if taken > 0 => break,
            Err(halt) => {
                // Nothing is kept while waiting: the thread in the way may be waiting for us.
                release(core, operation, first, taken);
                return Err(halt);
            }
        }
        taken += 1;
    }
    if planted!(NoLanding) || wait_for_flights(core, operation, first, taken) {
        return Ok(taken);
    }
    release(core, operation, first, taken);
    Err(Halt::Busy)
}

/// Waits, parked, for writes in flight of superseded blocks. `false`: somebody wants to be alone on the file, or the thread
/// that writes is gone; give way.
fn wait_for_flights(
    core: &Core,
    operation: &Operation<'_>,
    first: BlockIndex,
    blocks: u32,
) -> bool {
    let me = operation.me;
    for index in 0..blocks {
        let mut round = 0;
        loop {
            let Ok(guard) = core.lock_any(me, BlockIndex(first.0 + index)) else {
                return false;
            };
            let (flying, flusher) = (guard.inflight() != 0, guard.flusher());
            drop(guard);
            if !flying {
                break;
            }
            if operation.file_is_closing() || crate::memory::threads::is_gone(me.arena, flusher) {
                return false;
            }
            round += 1;
            operation.wait(round);
        }
    }
    true
}

fn release(core: &Core, operation: &Operation<'_>, first: BlockIndex, blocks: u32) {
    for index in 0..blocks {
        end_supersede(core, operation, BlockIndex(first.0 + index), |guard| {
            After::Stays(guard)
        });
    }
}

/// The device has newer bytes of all these blocks, which this thread has superseded. If the file ends in one of them, the page that has the
/// end has zeros behind it in memory: it goes before the end moves, or those that read to the new end would see the zeros, as would everybody
/// if this thread died before it frees the header.
fn drop_old_end(core: &Core, operation: &Operation<'_>, written: Range<u64>) {
    let end = core.entry().size.load(Ordering::Acquire);
    if !written.contains(&end) || end.is_multiple_of(PAGE_BYTES as u64) || planted!(ZerosAtTheEnd) {
        return;
    }
    let guard = lock_patiently(core, operation, BlockIndex::of(end));
    if guard.state() == State::Superseded(operation.me.id) {
        drop_pages(&guard, core.entry(), u64::MAX);
    }
}

/// What becomes of a header that is no longer superseded.
enum After<'g, 'a> {
    /// The device has newer bytes of the whole block.
    Gone,
    /// It stays, as what is in memory says; clean pages may be older than the device and are dropped.
    Stays(&'g Guard<'a>),
}

fn end_supersede<'a>(
    core: &Core,
    operation: &Operation<'a>,
    block: BlockIndex,
    decide: impl for<'g> FnOnce(&'g Guard<'a>) -> After<'g, 'a>,
) {
    let guard = lock_patiently(core, operation, block);
    if guard.state() != State::Superseded(operation.me.id) {
        return;
    }
    match decide(&guard) {
        After::Gone => free_header(guard, core.entry(), core.id),
        After::Stays(guard) => {
            leave_superseded(guard, core.entry());
        }
    }
}

/// Locks a header that this thread has superseded. Only readers and flushers that look at it hold its lock, for moments;
/// should one die, this waits, parked, until that has been repaired.
fn lock_patiently<'a>(core: &Core, operation: &Operation<'a>, block: BlockIndex) -> Guard<'a> {
    let mut round = 0;
    loop {
        if let Ok(guard) = core.lock_any(operation.me, block) {
            return guard;
        }
        round += 1;
        operation.wait(round);
    }
}

/// Links a superseded header again. Clean pages go, since the device may hold newer bytes; what is owed stays; fills that
/// began before see a new epoch.
pub fn leave_superseded(guard: &Guard<'_>, entry: &crate::memory::files::FileEntry) {
    let clean = guard.valid() & !guard.dirty() & !guard.inflight();
    drop_pages(guard, entry, clean);
    guard.set_state(State::Linked);
}

/// A write up to `end` has failed, and may have left bytes all the same: nothing there is known to be zeros, and how far the
/// device file reaches is to be looked at.
fn reach_is_unknown(entry: &FileEntry, end: u64) {
    entry.flags.fetch_or(EXCEEDING, Ordering::AcqRel);
    let within = end.min(entry.size.load(Ordering::Acquire));
    entry.disk_end.fetch_max(within, Ordering::AcqRel);
}

#[cfg(all(test, feature = "sim", not(feature = "shuttle")))]
mod tests;
