//! Space before acknowledgement: a full disk is an error of the write that asked for the space (promise 2).
//!
//! A growing file's space is reserved ahead, without changing its size, in steps that double while it grows; overwriting
//! what is allocated needs nothing. A file that may have holes asks the file system for each write, and remembers one range of
//! blocks that have space throughout (`FileEntry::solid`). A write into a hole goes through the kernel, whose own delayed
//! allocation answers for it; a hole that is filled in order gets space ahead, as a file that grows. A file most of whose
//! writes go into holes is better left to the kernel ([`too_many_holes`]).
//!
//! Space ahead is nobody's need: where there is little, steps shrink to what the write needs, and before a write fails,
//! the other files of the session give theirs back (`spare`). So a write looks again, in its operation, whether its space is
//! still reserved.

mod spare;

use crate::error::Error;
use crate::file::core::{Core, Halt};
use crate::file::resize;
use crate::ids::BlockIndex;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::memory::files::{ASKED, EXCEEDING, HOLEY};
use crate::memory::threads::{Me, Operation};
use crate::sync::{Ordering, planted};
use crate::sys::limits;

/// First step, and the largest, bytes.
const STEP_MIN: u64 = 4 * BLOCK_BYTES as u64;
const STEP_MAX: u64 = 256 * 1024 * 1024;
/// Of what is free on the disk a longer step than this is that part at most. XFS takes up to 40 us to say what is free.
const STEP_UNASKED: u64 = 4 * 1024 * 1024;
const AHEAD_OF_FREE: u64 = 16;
/// The largest step within a hole, bytes: what is not written then stays the file's.
const FILL_MAX: u64 = 16 * 1024 * 1024;
const PAGE: u64 = PAGE_BYTES as u64;

/// Sees to it that space for `offset..end` is promised. `Ok(true)`: the range touches a hole, or the file has too many, and must go through
/// the kernel. `sequential`: it goes on where others have ended, which have filled some pages.
#[inline]
pub fn ahead(
    core: &Core,
    me: Me<'_>,
    offset: u64,
    end: u64,
    sequential: bool,
) -> Result<bool, Halt> {
    let entry = core.entry();
    let flags = entry.flags.load(Ordering::Relaxed) & (HOLEY | EXCEEDING);
    if end <= entry.reserved_end.load(Ordering::Acquire) && flags == 0 {
        return Ok(false);
    }
    if flags & EXCEEDING != 0 && end > entry.size.load(Ordering::Acquire) {
        resize::fit_length(core, me, 0)?;
    }
    slowly(core, me, offset, end, sequential)
}

#[cold]
fn slowly(core: &Core, me: Me<'_>, offset: u64, end: u64, sequential: bool) -> Result<bool, Halt> {
    let entry = core.entry();
    loop {
        // In this order: a thread that raises the end over a gap has marked the file before.
        let reserved = entry.reserved_end.load(Ordering::Acquire);
        let is_holey = entry.flags.load(Ordering::Acquire) & HOLEY != 0;
        let below = end.min(reserved);
        if is_holey && offset < below && !entry.is_solid(offset, below) {
            let is_there = has_space(core, me, offset, below, reserved)?
                || sequential && fill(core, me, offset, below)?;
            entry.count_look(!is_there || !entry.is_solid(offset, below));
            if !is_there || too_many_holes(core) {
                return Ok(true);
            }
        }
        if end <= reserved || grow(core, me, offset, end, reserved)? {
            return Ok(false);
        }
    }
}

/// Whether all of a range below `reserved` has space. What is found out beyond is remembered.
fn has_space(
    core: &Core,
    me: Me<'_>,
    offset: u64,
    below: u64,
    reserved: u64,
) -> Result<bool, Halt> {
    let entry = core.entry();
    let look = |from: u64, to: u64| {
        let found = core.device.allocated_to(from, to);
        found.map_err(|e| Error::device("look at a file's extents", &e))
    };
    let holes = entry.holes.load(Ordering::Acquire);
    let block = BlockIndex::of(offset).start();
    let known = look(block, reserved)?;
    if known < below {
        let whole_pages = offset / PAGE * PAGE;
        return Ok(whole_pages > block && look(whole_pages, below)? >= below);
    }
    core.operate(me, |_operation| {
        // In this order: a thread that raises the end over a gap has counted the gap before. A thread that takes space away is alone on the
        // file, so that it has counted the hole, or lowered the end, by now.
        let reserved = entry.reserved_end.load(Ordering::Acquire);
        if entry.holes.load(Ordering::Acquire) == holes || planted!(SolidHoles) {
            entry.note_solid(block, known.min(reserved));
        }
        Ok(())
    })?;
    Ok(true)
}

/// Gives a hole that is filled in order space from `offset` on: to the end of what is written at least, and twice as much as has been filled
/// before. `false`: there is none, or the file has been cut.
fn fill(core: &Core, me: Me<'_>, offset: u64, below: u64) -> Result<bool, Halt> {
    let entry = core.entry();
    let from = offset / PAGE * PAGE;
    let step = (2 * entry.solid_before(offset)).clamp(STEP_MIN, FILL_MAX);
    let until = below.max((from + step).next_multiple_of(BLOCK_BYTES as u64));
    core.operate(me, |operation| {
        let reserved = entry.reserved_end.load(Ordering::Acquire);
        let until = until.min(reserved);
        if until < below {
            return Ok(false);
        }
        let done = ask_device(core, operation, from, until);
        if done.is_ok() {
            entry.note_solid(from, until);
        }
        Ok(done.is_ok())
    })
}

/// Whether so many writes have looked for space in vain that the file is better left to the kernel. One into a hole costs the kernel's call,
/// and more; one into space between holes, a look or two at the extents, which is more than the kernel's call as well.
pub fn too_many_holes(core: &Core) -> bool {
    let most = core.shared.config.kernel_after_holes;
    most != 0 && core.entry().vain_looks.load(Ordering::Relaxed) >= most
}

/// Reserves to at least `end`: a step ahead if there is space for that, else less, at least what is needed. `false`: somebody
/// else has reserved meanwhile, from `reserved` on or beyond a gap.
fn grow(core: &Core, me: Me<'_>, offset: u64, end: u64, reserved: u64) -> Result<bool, Halt> {
    // The limit may have been set since the file was opened.
    if end > limits::look_at_file_bytes() {
        return Err(Error::device("write", &std::io::Error::from_raw_os_error(libc::EFBIG)).into());
    }
    let entry = core.entry();
    let last = entry.reserve_step.load(Ordering::Relaxed);
    let exact = end.next_multiple_of(PAGE);
    let likely = core.shared.likely.pages_bytes();
    // A file that is just beginning gets just what it needs: most stay small.
    let mut ahead = match (BLOCK_BYTES as u64).checked_sub(exact) {
        Some(_) if last == 0 && (exact..=BLOCK_BYTES as u64).contains(&likely) => likely - exact,
        Some(rest) => rest,
        None => step_after(core, last),
    };
    let mut others_asked = false;
    loop {
        let error = match reserve(core, me, offset, reserved, exact + ahead)? {
            None => return Ok(false),
            Some(Ok(())) => break,
            Some(Err(error)) => error,
        };
        let is_full = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
        if ahead > 0 {
            ahead = if is_full { ahead / 2 / PAGE * PAGE } else { 0 };
        } else if is_full && has_been_asked(core, me, offset, reserved, exact)? {
            return Ok(true);
        } else if is_full && !others_asked && spare::release(core, me) {
            others_asked = true;
        } else {
            return Err(Error::device("reserve space", &error).into());
        }
    }
    // Not 0, which says that nothing has ever been reserved.
    entry.reserve_step.store(ahead.max(1), Ordering::Relaxed);
    Ok(true)
}

/// How much more than needed is reserved, once the last such step was `last`: little where little is free, since others need it, too.
fn step_after(core: &Core, last: u64) -> u64 {
    let step = last.saturating_mul(2).clamp(STEP_MIN, STEP_MAX);
    if step <= STEP_UNASKED {
        return step;
    }
    let free = core.device.free_bytes().unwrap_or(u64::MAX);
    step.min(free / AHEAD_OF_FREE / PAGE * PAGE)
}

/// Reserves up to `until`, unless other than up to `before` is reserved by now. In an operation, so that no thread that has
/// stopped the file gives space back between its being reserved and that being noted.
fn reserve(
    core: &Core,
    me: Me<'_>,
    offset: u64,
    before: u64,
    until: u64,
) -> Result<Option<std::io::Result<()>>, Halt> {
    let entry = core.entry();
    core.operate(me, |operation| {
        let reserved = entry.reserved_end.load(Ordering::Acquire);
        if reserved != before {
            return Ok(planted!(BorrowedSpace).then_some(Ok(())));
        }
        if offset > reserved {
            // A gap stays behind that nothing is reserved for, within the file, too, where it has been made longer.
            super::write::mark_holey(core);
        }
        let from = reserved.max(offset / PAGE * PAGE);
        let done = ask_device(core, operation, from, until);
        if done.is_ok() {
            entry.reserved_end.fetch_max(until, Ordering::AcqRel);
        }
        Ok(Some(done))
    })
}

/// Whether a program has asked for the space up to `until` before (`fallocate`), and the file has it: XFS wants free blocks before
/// it looks whether there is anything to do. All of it that is found is noted.
fn has_been_asked(
    core: &Core,
    me: Me<'_>,
    offset: u64,
    before: u64,
    until: u64,
) -> Result<bool, Halt> {
    let entry = core.entry();
    core.operate(me, |operation| {
        // What the file system has taken ahead beyond a file's end by itself it takes back.
        let is_asked = entry.flags.load(Ordering::Acquire) & ASKED != 0;
        let size = entry.size.load(Ordering::Acquire);
        let end = match is_asked {
            true => u64::MAX,
            false => size.next_multiple_of(PAGE),
        };
        let reserved = entry.reserved_end.load(Ordering::Acquire);
        if reserved != before || until > end {
            return Ok(false);
        }
        let from = reserved.max(offset / PAGE * PAGE);
        operation.park();
        let found = core.device.allocated_to(from, end.min(from + STEP_MAX));
        operation.unpark();
        let found = found.map_err(|e| Error::device("look at a file's extents", &e))?;
        let is_there = found >= until;
        if is_there {
            entry.reserved_end.fetch_max(found, Ordering::AcqRel);
        }
        Ok(is_there)
    })
}

/// Reserves a range of the device file, parked.
fn ask_device(
    core: &Core,
    operation: &Operation<'_>,
    from: u64,
    until: u64,
) -> std::io::Result<()> {
    operation.park();
    let done = if planted!(SkipReserve) {
        Ok(())
    } else {
        core.change(operation.me, |device| device.reserve(from, until - from))
    };
    operation.unpark();
    done
}
