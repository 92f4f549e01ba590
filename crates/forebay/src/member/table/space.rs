//! Whether overwriting a file may need space: that is asked when it is opened, and noted in its entry. What it needs is asked for by writes
//! ([`crate::file::reserve`]).

use crate::device::{DeviceFile, DeviceStat};
use crate::memory::files::{FileEntry, HOLEY};
use crate::sync::Ordering;

/// Whether overwriting the file may need space: it has holes, space that it shares with a clone, or bytes in its inode. How
/// much space it has does not tell: some may lie beyond its end.
pub(super) fn may_have_holes(device: &dyn DeviceFile, stat: &DeviceStat) -> bool {
    stat.allocated < stat.len || stat.len > 0 && !device.is_allocated(0, stat.len).unwrap_or(false)
}

/// A clone that somebody has made since has its space in common with the file, and changes none of its times: the first to write to the file
/// looks, by one call for each 32 extents. Where that does not tell, writes ask for theirs.
pub(super) fn note_clones(entry: &FileEntry, device: &dyn DeviceFile) {
    entry.solid.store(0, Ordering::Release);
    let is_known = entry.flags.load(Ordering::Acquire) & HOLEY != 0;
    let is_first = device.is_writable() && entry.writers() == 1;
    let end = entry.disk_end.load(Ordering::Acquire);
    if is_known || !is_first || end == 0 || !device.may_share_space() {
        return;
    }
    if !device.is_allocated(0, end).unwrap_or(false) {
        entry.flags.fetch_or(HOLEY, Ordering::AcqRel);
    }
}
