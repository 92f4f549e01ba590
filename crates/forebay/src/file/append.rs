//! Appending: the offset is chosen and the bytes are written under the file's append lock, so that appends of several
//! threads and processes do not overlap, and no truncation comes between the two.

use crate::error::Error;
use crate::file::core::{Core, Halt};
use crate::file::write::{self, Intent};
use crate::ids::ThreadId;
use crate::memory::threads::{self, Me};
use crate::sync::{Ordering, planted};

/// Holds a file's append lock: nobody else appends, or sets the length.
pub(super) struct AppendLock<'a> {
    core: &'a Core,
}

impl<'a> AppendLock<'a> {
    pub(super) fn take(core: &'a Core, me: Me<'a>) -> Self {
        let word = &core.entry().append_lock;
        let mut round = 0;
        loop {
            match word.compare_exchange(0, me.id.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return AppendLock { core },
                // What it had not acknowledged is dropped by the repair that its death calls for, which opens the lock.
                Err(holder) if threads::is_gone(me.arena, ThreadId(holder)) => me.arena.rescue(me),
                Err(_) => {}
            }
            round += 1;
            me.wait(round);
        }
    }
}

impl Drop for AppendLock<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.core.entry().append_lock.store(0, Ordering::Release);
    }
}

/// The file's end, where nobody else appends as long as the lock is held.
fn take_end<'a>(core: &'a Core, me: Me<'a>) -> Result<(AppendLock<'a>, u64), Halt> {
    let early = planted!(EarlyEnd).then(|| core.entry().size.load(Ordering::Acquire));
    let lock = AppendLock::take(core, me);
    let offset = match early {
        Some(early) => early,
        None => core.size(me)?,
    };
    Ok((lock, offset))
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
    let (_lock, offset) = take_end(core, me)?;
    let (mut written, mut stopped) = (0, None);
    while written < len {
        let (at, rest) = (offset + written as u64, len - written);
        // SAFETY: the caller's promise, for what is left of it.
        match unsafe { write::write(core, me, source.add(written), rest, at, intent) } {
            Ok(more) if more > 0 => written += more,
            Ok(_) => {
                stopped = Some(Error::NoSpace { what: "append" }.into());
                break;
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
    let (_lock, offset) = take_end(core, me)?;
    // SAFETY: the caller's promise.
    let written = unsafe { write::write(core, me, source, len, offset, intent)? };
    Ok((offset, written))
}
