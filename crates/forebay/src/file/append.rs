//! Appending: the offset is chosen and the bytes are written under the file's append lock, so that appends of several
//! threads and processes do not overlap, and neither a truncation nor a switch to kernel mode comes between the two.
//!
//! A write beyond the end at an offset takes no lock. So each step of an append looks, where it has its block for itself,
//! whether the file still ends where the step begins ([`Halt::Outgrown`]): it begins anew at the new end, or ends with what it has.

use crate::error::Error;
use crate::file::core::{Core, Halt};
use crate::file::write::{self, Intent};
use crate::ids::{FileId, ThreadId};
use crate::memory::copy;
use crate::memory::files::FileEntry;
use crate::memory::threads::{self, Me};
use crate::sync::{Ordering, patience, planted};

/// Looks at an append lock that others have, by a thread that does not wait for ever: long enough to come between appends without a pause.
const ROUNDS: u32 = 300;

/// Holds a file's append lock: nobody else appends, sets the length, or gives the file to the kernel.
pub(super) struct AppendLock<'a> {
    entry: &'a FileEntry,
}

impl<'a> AppendLock<'a> {
    pub(super) fn take(core: &'a Core, me: Me<'a>) -> Self {
        let mut round = 0;
        loop {
            if let Some(lock) = Self::try_take(core.entry(), me) {
                return lock;
            }
            round += 1;
            me.wait(round);
        }
    }

    /// As [`AppendLock::take`], without waiting for a holder that does not go on.
    pub(super) fn take_soon(me: Me<'a>, file: FileId) -> Option<Self> {
        let entry = me.arena.file_unchecked(file);
        (1..=patience(ROUNDS)).find_map(|round| {
            let lock = Self::try_take(entry, me);
            if lock.is_none() {
                me.wait(round);
            }
            lock
        })
    }

    fn try_take(entry: &'a FileEntry, me: Me<'_>) -> Option<Self> {
        match Self::try_word(entry, me) {
            Ok(lock) => return Some(lock),
            // What it had not acknowledged is dropped by the repair that its death calls for, which opens the lock.
            Err(holder) if threads::is_gone(me.arena, holder) => me.arena.rescue(me),
            Err(_) => {}
        }
        None
    }

    /// One look, and nothing else. `Err`: who has it.
    fn try_word(entry: &'a FileEntry, me: Me<'_>) -> Result<Self, ThreadId> {
        let word = &entry.append_lock;
        let taken = word.compare_exchange(0, me.id.0, Ordering::AcqRel, Ordering::Acquire);
        taken.map(|_| AppendLock { entry }).map_err(ThreadId)
    }
}

impl Drop for AppendLock<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.entry.append_lock.store(0, Ordering::Release);
    }
}

/// The file's end, where nobody else appends as long as the lock is held.
fn take_end<'a>(core: &'a Core, me: Me<'a>) -> Result<(AppendLock<'a>, u64), Halt> {
    let early = early_end(core);
    let lock = AppendLock::take(core, me);
    let offset = match early {
        Some(early) => early,
        None => core.size(me)?,
    };
    Ok((lock, offset))
}

/// As [`take_end`], without waiting, and without a repair, which makes system calls: the end of a moment ago, for a caller that looks again
/// once it has the block for itself.
#[inline]
pub(super) fn try_take_end<'a>(core: &'a Core, me: Me<'a>) -> Option<(AppendLock<'a>, u64)> {
    let early = early_end(core);
    let lock = AppendLock::try_word(core.entry(), me).ok()?;
    let end = early.unwrap_or_else(|| core.entry().size.load(Ordering::Acquire));
    Some((lock, end))
}

/// A planted mistake: the end is looked at before the lock is had.
#[inline(always)]
fn early_end(core: &Core) -> Option<u64> {
    planted!(EarlyEnd).then(|| core.entry().size.load(Ordering::Acquire))
}

/// What became of an append.
pub struct Appended {
    /// Where it begins.
    pub offset: u64,
    /// Bytes written.
    pub written: usize,
    /// Why those are not all.
    pub stopped: Option<Halt>,
}

/// Writes at the file's end, all bytes unless something is in the way.
///
/// # Safety
/// `source` is valid for `len` bytes for the whole call.
pub unsafe fn append_all(
    core: &Core,
    me: Me<'_>,
    source: *const u8,
    len: usize,
    intent: Intent<'_>,
) -> Result<Appended, Halt> {
    let intent = Intent {
        at_end: !planted!(BlindToGrowth),
        ..intent
    };
    // SAFETY: the caller's promise.
    unsafe { copy::fault_in(source, len) };
    let (_lock, offset) = take_end(core, me)?;
    let (mut offset, mut at) = (offset, offset);
    let (mut written, mut stopped) = (0, None);
    while written < len {
        // SAFETY: the caller's promise, for what is left of it.
        match unsafe { write::write(core, me, source.add(written), len - written, at, intent) } {
            Ok(more) if more > 0 => {
                written += more;
                at += more as u64;
            }
            Ok(_) => {
                stopped = Some(Error::NoSpace { what: "append" }.into());
                break;
            }
            Err(Halt::Outgrown) => {
                at = core.size(me)?;
                if written == 0 {
                    offset = at;
                }
            }
            Err(halt) if written == 0 => return Err(halt),
            Err(halt) => {
                stopped = Some(halt);
                break;
            }
        }
    }
    Ok(Appended {
        offset,
        written,
        stopped,
    })
}

/// Writes at the file's end. Returns where, and how many bytes: fewer than asked for if an error came after some.
///
/// # Safety
/// `source` is valid for `len` bytes for the whole call.
pub unsafe fn append(
    core: &Core,
    me: Me<'_>,
    source: *const u8,
    len: usize,
    intent: Intent<'_>,
) -> Result<(u64, usize), Halt> {
    let intent = Intent {
        at_end: !planted!(BlindToGrowth),
        ..intent
    };
    // SAFETY: the caller's promise.
    unsafe { copy::fault_in(source, len) };
    let (_lock, mut offset) = take_end(core, me)?;
    loop {
        // SAFETY: the caller's promise.
        match unsafe { write::write(core, me, source, len, offset, intent) } {
            Err(Halt::Outgrown) => offset = core.size(me)?,
            written => return Ok((offset, written?)),
        }
    }
}
