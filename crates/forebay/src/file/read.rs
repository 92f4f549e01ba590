//! Reading: memory first, without a lock where the pages are whole; then the device.
//!
//! `quickly` is the first, [`fill`] keeps what was read, [`follow`] has the keeper read ahead, [`straight`] takes large reads past memory, [`choice`] says which,
//! [`advise`] is what programs say about that.

pub mod advise;
pub mod choice;
pub mod fill;
pub mod follow;
mod quickly;
pub mod straight;

use crate::device::{Piece, read_rest};
use crate::error::Error;
use crate::evict;
use crate::file::core::{Core, Halt};
use crate::file::read::fill::Seen;
use crate::file::read::follow::{Patience, Read};
use crate::file::read::quickly::read_quickly;
use crate::file::room;
use crate::frame::header::Guard;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::member::provision;
use crate::memory::copy;
use crate::memory::files::TRUNCATING;
use crate::memory::regions;
use crate::memory::threads::{Me, Operation, stop_file};
use crate::scrap::absorb::pages_of;
use crate::scrap::give::{copy_out, missing, overlay, part_of};
use crate::scrap::split::{Segment, segments};
use crate::stats::Counter;
use crate::stream::pattern::LARGE_BYTES;
use crate::sync::time::Instant;
use crate::sync::{Ordering, planted};
use crate::sys::memory::{AlignedBytes, Spare};

/// Reads of at least this much of a block bring the whole block into a frame.
const FRAME_BYTES_MIN: usize = LARGE_BYTES as usize;
/// Frames that a reader frees at once when it has found none.
const FRAMES_AT_ONCE: u32 = 4;
/// Ticks for which these must have been left alone.
const IDLE_TICKS: u32 = 2;

/// Reads of the device for one segment that may come to nothing. The next is made alone on the file.
const READS_MAX: u32 = 8;

/// Memory for device reads, kept between them.
pub(super) static BOUNCE: Spare = Spare::new();

/// How a read goes.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// It belongs to a stream: its block is worth a frame.
    pub sequential: bool,
    /// It goes past memory where memory has nothing.
    pub past: bool,
    /// Its time says something about the way that was chosen.
    pub teaches: bool,
    /// Nobody will read the same again.
    pub passes_by: bool,
}

/// As [`read`], for a description's read that is followed: what comes next is read ahead.
///
/// # Safety
/// As for [`read`].
pub unsafe fn followed(
    core: &Core,
    me: Me<'_>,
    following: &Read<'_>,
    (target, len): (*mut u8, usize),
    offset: u64,
    sequential: bool,
) -> Result<usize, Halt> {
    let begun = (len as u64 >= core.shared.config.direct_min).then(Instant::now);
    let manner = following.follow(core, me, offset, len, sequential);
    // SAFETY: the caller's promise.
    let read = unsafe { read_so(core, me, target, len, offset, manner) }?;
    if let Some(begun) = begun.filter(|_| manner.teaches) {
        let choice = &following.recent.ahead.choice;
        choice.learn(core, read as u64, begun.elapsed());
    }
    Ok(read)
}

/// Reads up to `len` bytes at `offset` into `target`; fewer only at the file's end, before what cannot be read, or where the target ends before.
///
/// # Safety
/// `target` is valid for `len` bytes for the whole call.
pub unsafe fn read(
    core: &Core,
    me: Me<'_>,
    target: *mut u8,
    len: usize,
    offset: u64,
    sequential: bool,
) -> Result<usize, Halt> {
    let manner = Manner {
        sequential,
        past: straight::is_wanted(core, len),
        teaches: false,
        passes_by: false,
    };
    // SAFETY: the caller's promise.
    unsafe { read_so(core, me, target, len, offset, manner) }
}

/// # Safety
/// As for [`read`].
unsafe fn read_so(
    core: &Core,
    me: Me<'_>,
    target: *mut u8,
    len: usize,
    offset: u64,
    manner: Manner,
) -> Result<usize, Halt> {
    let size = core.size(me)?;
    let wanted = len;
    let len = (size.saturating_sub(offset)).min(len as u64) as usize;
    // Its length is not ours to tell, should it be the kernel's by now.
    if len < wanted && core.entry().kernel_reason.load(Ordering::Acquire) != 0 {
        return Err(Halt::Kernel);
    }
    // There are no segments beyond what a file can hold.
    if len == 0 {
        return Ok(0);
    }
    let mut done = 0;
    for segment in segments(offset, len) {
        // All that could be has been read straight.
        if segment.done < done {
            continue;
        }
        // SAFETY: a segment lies within the request.
        let to = unsafe { target.add(segment.done) };
        // SAFETY: as above.
        match unsafe { read_step(core, me, &segment, to, len - segment.done, manner) } {
            Ok(read) => {
                done = segment.done + read;
                if read < segment.len {
                    break;
                }
            }
            // The next read begins there, and says so.
            Err(Halt::Failed(_)) if segment.done > 0 => break,
            Err(halt) => return Err(halt),
        }
    }
    me.count(Counter::ReadBytes as usize, done as u64);
    Ok(done)
}

/// Reads a segment, or more of the `rest` of the request, which begins with it, if that goes straight. How many bytes: fewer than the segment
/// has only at the file's end, before what cannot be read, or where the target ends.
///
/// # Safety
/// `target` is valid for `rest` bytes.
unsafe fn read_step(
    core: &Core,
    me: Me<'_>,
    segment: &Segment,
    target: *mut u8,
    rest: usize,
    manner: Manner,
) -> Result<usize, Halt> {
    if manner.past && segment.len == BLOCK_BYTES {
        // SAFETY: the caller's promise.
        let read = unsafe { straight::read(core, me, target, rest, segment.offset())? };
        if read > 0 {
            return Ok(read);
        }
    }
    // SAFETY: the caller's promise.
    let step = unsafe { read_segment(core, me, segment, target, manner) };
    let place = match &step {
        // The target is not all there.
        Err(Halt::Fault) => target.addr(),
        // What cannot be read may be its last page, or one that was not asked for.
        Err(Halt::Failed(Error::Device { .. })) => segment.start,
        _ => return step,
    };
    // SAFETY: as above.
    unsafe { read_by_pages(core, me, segment, target, manner, place) }
}

/// Reads a segment, as far as the file goes by now: it may have been cut since the request began. How many bytes.
///
/// # Safety
/// `target` is valid for the segment.
#[inline]
unsafe fn read_segment(
    core: &Core,
    me: Me<'_>,
    segment: &Segment,
    target: *mut u8,
    manner: Manner,
) -> Result<usize, Halt> {
    let mut patience = Patience::default();
    // SAFETY: the caller's promise.
    unsafe { copy::fault_in_to_write(target, segment.len) };
    let read = loop {
        // SAFETY: as above.
        let step = core.operate(me, |operation| unsafe {
            read_in(core, operation, segment, target, manner, &mut patience)
        })?;
        if let Some(read) = step {
            break read;
        }
        // SAFETY: as above.
        let alone = unsafe { read_alone(core, me, segment, target, manner, &mut patience) };
        if let Some(read) = alone? {
            break read;
        }
    };
    if patience.missed {
        room::keep_clean_within(me);
    }
    if patience.missed && !has_room(me) && !provision::more(&core.shared, me, false) {
        // The next is kept, in place of what has been passed by.
        if evict::evict(me, FRAMES_AT_ONCE, IDLE_TICKS) == 0 {
            core.shared.wake_keeper();
        }
    }
    Ok(read)
}

/// Tries to read a segment while nobody else is at work on the file, so that nothing of it leaves memory. `None`: it could not be, or came to
/// nothing.
///
/// # Safety
/// As for [`read_segment`].
#[cold]
unsafe fn read_alone(
    core: &Core,
    me: Me<'_>,
    segment: &Segment,
    target: *mut u8,
    manner: Manner,
    patience: &mut Patience,
) -> Result<Option<usize>, Halt> {
    patience.reads = 0;
    let Some(_stop) = stop_file(me, core.id) else {
        return Ok(None);
    };
    let Ok(operation) = me.enter_stopped(core.id) else {
        return Ok(None);
    };
    let entry = core.entry();
    if entry.kernel_reason.load(Ordering::Acquire) != 0 {
        return Err(Halt::Kernel);
    }
    if entry.flags.load(Ordering::Acquire) & TRUNCATING != 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    match unsafe { read_in(core, &operation, segment, target, manner, patience) } {
        Err(halt @ (Halt::Kernel | Halt::Fault | Halt::Failed(_))) => Err(halt),
        // Whatever is in the way is seen to between operations.
        Err(_) => Ok(None),
        done => done,
    }
}

/// Reads a segment in an operation. `None`: it has been read from the device so often in vain, since what memory has of the block went each time.
///
/// # Safety
/// As for [`read_segment`].
#[inline]
unsafe fn read_in(
    core: &Core,
    operation: &Operation<'_>,
    segment: &Segment,
    target: *mut u8,
    manner: Manner,
    patience: &mut Patience,
) -> Result<Option<usize>, Halt> {
    let segment = &within_file(core, segment);
    if segment.len == 0 {
        return Ok(Some(0));
    }
    // SAFETY: the caller's promise, of less.
    if unsafe { read_quickly(core, operation, segment, target, manner.passes_by) } {
        return Ok(Some(segment.len));
    }
    if patience.reads >= READS_MAX {
        return Ok(None);
    }
    // SAFETY: as above.
    unsafe {
        read_slowly(
            core,
            operation,
            segment,
            target,
            manner.sequential,
            patience,
        )?;
    }
    Ok(Some(segment.len))
}

/// What the file has of a segment. In an operation, in which it does not get shorter.
fn within_file(core: &Core, segment: &Segment) -> Segment {
    let size = core.entry().size.load(Ordering::Acquire);
    let there = size
        .saturating_sub(segment.offset())
        .min(segment.len as u64) as usize;
    let len = if planted!(ReadOverCut) {
        segment.len
    } else {
        there
    };
    Segment { len, ..*segment }
}

/// Whether there is a frame for what is read.
fn has_room(me: Me<'_>) -> bool {
    regions::shows_free(me.arena)
}

/// Reads a segment page by page, and nothing else, up to the first page that is missing in the target or cannot be read; `place`: where in a
/// page it begins.
///
/// # Safety
/// As for [`read`].
#[cold]
unsafe fn read_by_pages(
    core: &Core,
    me: Me<'_>,
    segment: &Segment,
    target: *mut u8,
    manner: Manner,
    place: usize,
) -> Result<usize, Halt> {
    let manner = Manner {
        sequential: false,
        ..manner
    };
    for (done, part) in segment.by_pages_of(place) {
        // SAFETY: a part lies within its segment.
        match unsafe { read_segment(core, me, &part, target.add(done), manner) } {
            Err(Halt::Fault) if segment.done + done > 0 => return Ok(done),
            // The next read begins there, and says so.
            Err(Halt::Failed(_)) if done > 0 => return Ok(done),
            step => {
                let read = step?;
                if read < part.len {
                    return Ok(done + read);
                }
            }
        }
    }
    Ok(segment.len)
}

/// Reads a segment of which something is not whole in memory.
///
/// # Safety
/// `target` is valid for the segment.
unsafe fn read_slowly(
    core: &Core,
    operation: &Operation<'_>,
    segment: &Segment,
    target: *mut u8,
    sequential: bool,
    patience: &mut Patience,
) -> Result<(), Halt> {
    let guard = core.lock_any(operation.me, segment.block)?;
    let absent = missing(&guard, segment);
    if absent == 0 {
        // SAFETY: the caller's promise.
        return given(unsafe { copy_out(&guard, segment, target) });
    }
    guard.await_bytes();
    let seen = Seen::of(&guard, core.entry());
    let span = if has_room(operation.me) {
        pages_to_read(&guard, segment, absent, sequential)
    } else {
        run_over(absent)
    };
    drop(guard);
    patience.missed = true;
    if let Some(ends) = follow::waits(core, operation.me, segment.block, absent, patience) {
        return Err(Halt::Ahead(ends));
    }
    patience.reads += 1;
    operation.park();
    // Taken out, not borrowed: a thread that waits holds nothing that others may want.
    let buffer = BOUNCE.take(BLOCK_BYTES, PAGE_BYTES);
    let read = read_device(core, segment, &span, &buffer, seen.disk_end);
    operation.unpark();
    // SAFETY: the caller's promise.
    let result = read
        .and_then(|()| unsafe { merge(core, operation, segment, &span, &buffer, seen, target) });
    BOUNCE.put(buffer);
    operation.me.count(
        Counter::DeviceReadBytes as usize,
        (span.len() * PAGE_BYTES) as u64,
    );
    result
}

/// The run of pages that is read from the device: the missing ones and what lies between them, or the whole block.
fn pages_to_read(
    guard: &Guard<'_>,
    segment: &Segment,
    absent: u64,
    sequential: bool,
) -> std::ops::Range<u32> {
    let nothing_there = guard.valid() | guard.dirty() == 0 || guard.frame().is_some();
    if segment.len >= FRAME_BYTES_MIN && nothing_there {
        return 0..crate::limits::BLOCK_PAGES as u32;
    }
    // What a stream has not come to yet, and what it had read before it was one stays.
    let absent = if sequential { !guard.valid() } else { absent };
    run_over(absent)
}

/// From the first to the last of some pages.
pub(super) fn run_over(pages: u64) -> std::ops::Range<u32> {
    pages.trailing_zeros()..64 - pages.leading_zeros()
}

/// Reads the span into the buffer at the place it has in the block; zeros where the device file does not reach.
pub(super) fn read_device(
    core: &Core,
    segment: &Segment,
    span: &std::ops::Range<u32>,
    buffer: &AlignedBytes,
    disk_end: u64,
) -> Result<(), Halt> {
    let start = span.start as usize * PAGE_BYTES;
    let len = span.len() * PAGE_BYTES;
    let offset = segment.block.start() + start as u64;
    let piece = buffer.part(start, len);
    let whole = Piece {
        ptr: piece.ptr,
        len,
    };
    let cached = core.device.read_cached(whole, offset).unwrap_or(0);
    let got = read_rest(core.device.as_ref(), whole, offset, cached, disk_end)
        .map_err(|error| Error::device("read from the device", &error))?;
    // SAFETY: the buffer is this thread's own.
    unsafe { copy::zero(piece.ptr.add(got), len - got) };
    Ok(())
}

/// Keeps what was read, if nothing has left the header since, and gives the segment to the caller.
///
/// # Safety
/// `target` is valid for the segment.
unsafe fn merge(
    core: &Core,
    operation: &Operation<'_>,
    segment: &Segment,
    span: &std::ops::Range<u32>,
    buffer: &AlignedBytes,
    seen: Seen,
    target: *mut u8,
) -> Result<(), Halt> {
    let guard = core.lock_any(operation.me, segment.block)?;
    if !seen.holds(&guard) {
        return Err(Halt::Busy);
    }
    // SAFETY: the buffer holds a block's pages at their places, read since.
    let kept = unsafe { fill::keep(&guard, core.entry(), span, buffer.piece().ptr) };
    // A file that has become shorter since the read began keeps nothing beyond its end.
    if kept.is_ok() && missing(&guard, segment) == 0 {
        // SAFETY: the caller's promise; nothing is missing now.
        return given(unsafe { copy_out(&guard, segment, target) });
    }
    // Nowhere to keep it all, or a direct write is over the block: the device's bytes, with newer ones from memory over them.
    let from = buffer.piece().ptr;
    for page in pages_of(segment.touched()) {
        let (start, end) = part_of(segment, page);
        let at = page * PAGE_BYTES + start;
        // SAFETY: the buffer holds a block; the target is the caller's.
        given(unsafe {
            let to = target.add(at - segment.start);
            let read = span.contains(&(page as u32));
            (!read || copy::try_copy(from.add(at), to, end - start))
                && overlay(&guard, page, start, end, to)
        })?;
    }
    Ok(())
}

/// What has come of a copy to the caller.
fn given(copied: bool) -> Result<(), Halt> {
    if copied { Ok(()) } else { Err(Halt::Fault) }
}

#[cfg(all(test, feature = "sim", not(feature = "shuttle")))]
mod tests;
