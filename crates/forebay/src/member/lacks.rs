//! What a file may lack on its device, by what its entry says.

use crate::member::shared::Shared;
use crate::memory::files::{CLOSING, EXCEEDING, FileEntry, TRUNCATING, UNSYNCED};
use crate::sync::Ordering;

/// Whether the file owes bytes, or the time of a close that did not wait for them.
pub fn owes_or_is_closing(entry: &FileEntry) -> bool {
    entry.owed_pages.load(Ordering::Acquire) != 0
        || entry.flags.load(Ordering::Acquire) & CLOSING != 0
}

/// Whether the device may not have made durable what it was given. The program that asked for it has heard of that, so only a
/// process that answers for the whole session has to go on for it.
pub fn lacks_sync(entry: &FileEntry) -> bool {
    entry.flags.load(Ordering::Acquire) & UNSYNCED != 0
        && entry.kernel_reason.load(Ordering::Acquire) == 0
}

/// Whether the file is not as it should be on its device, durably, or a thread has noted that it is changing it.
pub fn is_unfinished(shared: &Shared, entry: &FileEntry) -> bool {
    lacks_anything(entry) || lacks_sync(entry) || entry.is_changing(shared.arena.counts().threads)
}

/// Whether the arena alone knows what the file shall be: bytes, a length, the time of a close. Space beyond the end is no loss.
pub fn is_known_here_alone(entry: &FileEntry) -> bool {
    entry.owes() || entry.flags.load(Ordering::Acquire) & (EXCEEDING | TRUNCATING | CLOSING) != 0
}

/// Whether the file is not as it should be on its device: owed bytes, space reserved beyond the end, a length that was being
/// changed, or that memory alone knows.
pub fn lacks_anything(entry: &FileEntry) -> bool {
    if entry.kernel_reason.load(Ordering::Acquire) != 0 {
        return entry.owed_pages.load(Ordering::Acquire) != 0;
    }
    entry.owed_pages.load(Ordering::Acquire) != 0
        || entry.reserve_step.load(Ordering::Relaxed) != 0
        || entry.flags.load(Ordering::Acquire) & (EXCEEDING | TRUNCATING | CLOSING) != 0
        || entry.disk_end.load(Ordering::Acquire) < entry.size.load(Ordering::Acquire)
}
