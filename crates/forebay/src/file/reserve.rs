//! Space before acknowledgement: a full disk is an error of the write that asked for the space (promise 2).
//!
//! A growing file's space is reserved ahead, without changing its size, in steps that double while it grows; overwriting
//! what is allocated needs nothing. A file that may have holes asks the file system for each write; a write into a hole goes
//! through the kernel, whose own delayed allocation answers for it.

use crate::error::Error;
use crate::file::core::{Core, Halt};
use crate::file::resize;
use crate::limits::BLOCK_BYTES;
use crate::memory::files::{EXCEEDING, HOLEY};
use crate::memory::threads::Me;
use crate::sync::Ordering;

/// First step, and the largest, bytes.
const STEP_MIN: u64 = 4 * BLOCK_BYTES as u64;
const STEP_MAX: u64 = 64 * 1024 * 1024;

/// Sees to it that space for `offset..end` is promised. `Ok(true)`: the range touches a hole and must go through the
/// kernel.
#[inline]
pub fn ahead(core: &Core, me: Me<'_>, offset: u64, end: u64) -> Result<bool, Halt> {
    let entry = core.entry();
    let flags = entry.flags.load(Ordering::Relaxed) & (HOLEY | EXCEEDING);
    if end <= entry.reserved_end.load(Ordering::Acquire) && flags == 0 {
        return Ok(false);
    }
    if flags & EXCEEDING != 0 && end > entry.size.load(Ordering::Acquire) {
        resize::fit_length(core, me, 0)?;
    }
    Ok(slowly(core, me, offset, end, flags & HOLEY != 0)?)
}

#[cold]
fn slowly(core: &Core, me: Me<'_>, offset: u64, end: u64, holey: bool) -> Result<bool, Error> {
    let entry = core.entry();
    let size = entry.size.load(Ordering::Acquire);
    let reserved = entry.reserved_end.load(Ordering::Acquire);
    if offset > size && offset > reserved {
        // A gap stays behind that nothing is reserved for.
        super::write::mark_holey(core);
    }
    let below = end.min(reserved);
    if holey && offset < below {
        let whole_pages = offset / 4096 * 4096;
        let allocated = core.device.is_allocated(whole_pages, below - whole_pages);
        if !allocated.map_err(|e| Error::device("look at a file's extents", &e))? {
            return Ok(true);
        }
    }
    if end > reserved {
        grow(
            core,
            me,
            reserved.max(offset / 4096 * 4096).max(size.min(reserved)),
            end,
        )?;
    }
    Ok(false)
}

/// Reserves from `from` to at least `end`: a step ahead if there is space for that, else just what is needed.
fn grow(core: &Core, me: Me<'_>, from: u64, end: u64) -> Result<(), Error> {
    let entry = core.entry();
    let last = entry.reserve_step.load(Ordering::Relaxed);
    let step = (last * 2).clamp(STEP_MIN, STEP_MAX);
    // A file that is just beginning gets just what it needs, rounded to pages: most stay small.
    let ahead = if end <= BLOCK_BYTES as u64 {
        (BLOCK_BYTES as u64).max(end) - from
    } else {
        (end - from).next_multiple_of(4096) + step
    };
    let exact = (end - from).next_multiple_of(4096);
    let got = match core.change(me, |device| device.reserve(from, ahead)) {
        Ok(()) => ahead,
        Err(_) => {
            core.change(me, |device| device.reserve(from, exact))
                .map_err(|e| Error::device("reserve space", &e))?;
            exact
        }
    };
    entry.reserve_step.store(step, Ordering::Relaxed);
    entry.reserved_end.fetch_max(from + got, Ordering::AcqRel);
    Ok(())
}
