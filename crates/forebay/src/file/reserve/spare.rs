//! Taking back what other files have reserved ahead and do not use, before a write is told that the disk is full.
//!
//! The space lies beyond a file's end, and so do bytes that have been acknowledged and not written yet, as the device file
//! sees it. So a file is flushed first, and gives its space back only if, once it is stopped, it owes nothing. A file
//! that is open elsewhere only is found by its path; where that does not lead to it, it keeps what it has.

use std::sync::Arc;
use std::time::Duration;

use crate::device::DeviceFile;
use crate::file::core::Core;
use crate::file::settle;
use crate::flush::Scope;
use crate::ids::FileId;
use crate::member::reopen::reopen;
use crate::memory::files::{FileEntry, LIVE};
use crate::memory::threads::Me;
use crate::sync::Ordering;

/// Takes back what other files have reserved beyond their ends on this file's device. Whether any had. The caller is in
/// no operation.
pub fn release(core: &Core, me: Me<'_>) -> bool {
    let mut any = false;
    for id in (0..me.arena.counts().files).map(FileId) {
        let entry = me.arena.file_unchecked(id);
        if id == core.id || !has_spare(entry, core.device.caps().device) {
            continue;
        }
        let open = core.shared.device(id);
        let again = || {
            // The process that has a lease on it may be waiting for us: it gives the space back itself.
            let placed = |fd| core.shared.placed(fd);
            let again = reopen(entry, &placed, Some(Duration::ZERO)).ok()?;
            Some(Arc::new(again) as Arc<dyn DeviceFile>)
        };
        if let Some(device) = open.or_else(again) {
            let other = Core {
                shared: Arc::clone(&core.shared),
                id,
                device,
            };
            settle::flush(&other, me, Scope::SYNC);
            any |= settle::trim(&other, me, is_managed);
        }
    }
    any
}

fn has_spare(entry: &FileEntry, device: u64) -> bool {
    entry.state.load(Ordering::Acquire) == LIVE
        && entry.device.load(Ordering::Acquire) == device
        && is_managed(entry)
        && entry.reserved_end.load(Ordering::Acquire) > entry.size.load(Ordering::Acquire)
}

fn is_managed(entry: &FileEntry) -> bool {
    entry.kernel_reason.load(Ordering::Acquire) == 0
}
