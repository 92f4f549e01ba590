//! Appending: the offset is chosen and the bytes are written under the file's append lock, so that appends of several
//! threads and processes do not overlap.

use crate::file::core::{Core, Halt};
use crate::file::write::{self, Intent};
use crate::ids::ThreadId;
use crate::memory::threads::{self, Me};
use crate::sync::{Ordering, planted};

/// Holds a file's append lock.
struct AppendLock<'a> {
    core: &'a Core,
}

impl<'a> AppendLock<'a> {
    fn take(core: &'a Core, me: Me<'a>) -> Self {
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

/// Writes at the file's end. Returns where, and how many bytes.
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
    let early = planted!(EarlyEnd).then(|| core.entry().size.load(Ordering::Acquire));
    let _lock = AppendLock::take(core, me);
    let offset = match early {
        Some(early) => early,
        None => core.size(me)?,
    };
    // SAFETY: the caller's promise.
    let written = unsafe { write::write(core, me, source, len, offset, intent)? };
    Ok((offset, written))
}
