//! Writing into a hole: through the kernel's cache, which answers for a full disk, and into what memory has of the same pages.

use super::{lock_patiently, reach_is_unknown, release, supersede};
use crate::device::Piece;
use crate::error::Error;
use crate::file::core::{Core, Halt};
use crate::file::read::BOUNCE;
use crate::file::write::is_outgrown;
use crate::frame::header::{Guard, State};
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::memory::copy;
use crate::memory::threads::{Me, Operation};
use crate::scrap::absorb::{Home, Refusal, absorb, drop_pages, pages_of};
use crate::scrap::own::own_frame;
use crate::scrap::split::{Segment, segments};
use crate::stats::Counter;
use crate::sync::Ordering;
use crate::sys::memory::AlignedBytes;

/// Writes through the kernel's cache, for ranges whose space is not allocated: the kernel's delayed allocation answers
/// for a full disk. Afterwards the bytes are merged into whatever is in memory of their pages. `at_end`: as for [`write`].
///
/// # Safety
/// `source` is valid for `len` bytes for the whole call.
pub unsafe fn through_kernel(
    core: &Core,
    me: Me<'_>,
    source: *const u8,
    len: usize,
    offset: u64,
    at_end: bool,
) -> Result<usize, Halt> {
    let mut done = 0;
    for segment in segments(offset, len) {
        // SAFETY: within the caller's memory.
        let from = unsafe { source.add(segment.done) };
        // SAFETY: as above.
        unsafe { copy::fault_in(from, segment.len) };
        let step = core.operate(me, |operation| {
            // SAFETY: as above.
            unsafe { kernel_segment(core, operation, &segment, from, at_end) }
        });
        match step {
            Ok(written) => done += written,
            Err(halt) if done == 0 || matches!(halt, Halt::Kernel) => return Err(halt),
            Err(_) => break,
        }
        if done < segment.done + segment.len {
            break;
        }
    }
    me.count(Counter::KernelBytes as usize, done as u64);
    Ok(done)
}

/// # Safety
/// `source` is valid for the segment.
unsafe fn kernel_segment(
    core: &Core,
    operation: &Operation<'_>,
    segment: &Segment,
    source: *const u8,
    at_end: bool,
) -> Result<usize, Halt> {
    // SAFETY: the caller's promise.
    let copied = unsafe { claim(core, operation, segment, source, at_end)? };
    let (source, len) = match &copied {
        Some(copied) => (copied.bytes.piece().ptr.cast_const(), copied.len),
        None => (source, segment.len),
    };
    let segment = &Segment { len, ..*segment };
    let at = segment.offset();
    let piece = Piece {
        ptr: source.cast_mut(),
        len,
    };
    operation.park();
    let result = core.change(operation.me, |device| device.write_buffered(&[piece], at));
    operation.unpark();
    let written = *result.as_ref().unwrap_or(&0);
    let entry = core.entry();
    // What failed as a whole has not made the file longer, though it was to begin beyond its end.
    let end = if written > 0 { at + written as u64 } else { 0 };
    if written < segment.len {
        reach_is_unknown(entry, at + segment.len as u64);
    }
    entry.disk_end.fetch_max(end, Ordering::AcqRel);
    let guard = lock_patiently(core, operation, segment.block);
    if written > 0 {
        let part = Segment {
            len: written,
            ..*segment
        };
        // SAFETY: the copy's, as long as the segment; without one, nothing of these pages is in memory.
        unsafe { merge_written(&guard, core, &part, source) };
    }
    if let Some(copied) = copied {
        BOUNCE.put(copied.bytes);
    }
    if written < segment.len {
        // What the kernel took of the rest is not known: clean bytes in memory may be older.
        let clean = guard.valid() & !guard.dirty() & !guard.inflight();
        drop_pages(&guard, entry, clean & segment.touched());
    }
    guard.next_epoch();
    guard.set_state(State::Linked);
    entry.size.fetch_max(end, Ordering::AcqRel);
    drop(guard);
    match result {
        Ok(0) => Err(Halt::Failed(Error::NoSpace { what: "write" })),
        Ok(written) => Ok(written),
        Err(error) => Err(Halt::Failed(Error::device("write", &error))),
    }
}

/// Supersedes the segment's block, and sees to it that memory can take what the kernel has taken: that happens whatever comes. Bytes of our own
/// where memory has anything of these pages.
///
/// # Safety
/// `source` is valid for the segment.
unsafe fn claim(
    core: &Core,
    operation: &Operation<'_>,
    segment: &Segment,
    source: *const u8,
    at_end: bool,
) -> Result<Option<Copied>, Halt> {
    supersede(core, operation, segment.block, 1)?;
    let give_up = |halt| {
        release(core, operation, segment.block, 1);
        Err(halt)
    };
    if at_end && is_outgrown(core.entry(), segment.offset()) {
        return give_up(Halt::Outgrown);
    }
    let guard = lock_patiently(core, operation, segment.block);
    let owns = own_frame(&guard).is_ok();
    let is_in_memory = (guard.valid() | guard.ragged()) & segment.touched() != 0;
    drop(guard);
    if !owns {
        return give_up(Halt::NoMemory);
    }
    if !is_in_memory {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    match unsafe { Copied::of(segment, source) } {
        copied if copied.len == 0 => give_up(Halt::Fault),
        copied => Ok(Some(copied)),
    }
}

/// What goes to the kernel and into memory, in memory of our own: both get the same bytes, whatever the program does to its own meanwhile.
struct Copied {
    bytes: AlignedBytes,
    /// Up to the first page of the source that is not there.
    len: usize,
}

impl Copied {
    /// # Safety
    /// `source` is valid for the segment.
    unsafe fn of(segment: &Segment, source: *const u8) -> Self {
        let bytes = BOUNCE.take(BLOCK_BYTES, PAGE_BYTES);
        let mut len = 0;
        for (done, part) in segment.by_pages_of(source.addr()) {
            // SAFETY: a part lies within its segment, and a segment within a block; the buffer is this thread's own.
            let copied =
                unsafe { copy::try_copy(source.add(done), bytes.piece().ptr.add(done), part.len) };
            if !copied {
                break;
            }
            len = done + part.len;
        }
        Copied { bytes, len }
    }
}

/// Brings bytes that the kernel has taken into the pages that have bytes in memory; pages without any stay absent.
///
/// # Safety
/// `source` is valid for the segment.
unsafe fn merge_written(guard: &Guard<'_>, core: &Core, segment: &Segment, source: *const u8) {
    let present = guard.valid() | guard.ragged();
    for page in pages_of(segment.touched() & present) {
        let (start, end) = crate::scrap::give::part_of(segment, page);
        let first = page * PAGE_BYTES + start;
        let part = Segment {
            start: first,
            len: end - start,
            ..*segment
        };
        // SAFETY: within the segment.
        let from = unsafe { source.add(first - segment.start) };
        // Only a map can be short of memory, and then nothing of the page's runs touches these bytes: the page will be
        // filled from what the kernel has.
        // SAFETY: the caller's promise.
        let merged = unsafe { absorb(guard, core.entry(), &part, from, Home::Small, 0, false) };
        debug_assert!(merged != Err(Refusal::NoMemory) || guard.valid() & (1 << page) == 0);
    }
}
