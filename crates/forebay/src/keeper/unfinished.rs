//! Files that are not as they should be on their devices: which ones, who opens them, and what is done once nobody else will.

use std::sync::Arc;

use crate::device::DeviceFile;
use crate::file::core::Core;
use crate::file::settle;
use crate::flush::Scope;
use crate::ids::FileId;
use crate::keeper::closing;
use crate::member::lacks::lacks_anything;
use crate::member::shared::Shared;
use crate::member::table;
use crate::memory::files::LEASED;
use crate::memory::threads::Me;
use crate::sync::Ordering;

/// Writable descriptors are closed after a file's last close: while one is open, `execve` of the file fails. A dead process has
/// closed nothing, so what a last close does is done first.
pub fn finish_unused_files(shared: &Arc<Shared>, me: Me<'_>) {
    for id in (0..shared.arena.counts().files).map(FileId) {
        table::recount(shared, me, id);
    }
    shared.give_all_lent_back();
    closing::forget_lost(shared);
    for (id, device) in shared.open_devices() {
        finish_if_unused(shared, me, id, device);
    }
}

/// Writes what processes owe that have died, before a keeper ends: its descriptor may be the last way to a file that has no name any more.
pub fn write_what_the_dead_owe(shared: &Arc<Shared>, me: Me<'_>) {
    for (id, device) in shared.open_devices() {
        table::recount(shared, me, id);
        if device.is_writable() && shared.arena.file_unchecked(id).writers() == 0 {
            let shared = Arc::clone(shared);
            settle::flush(&Core { shared, id, device }, me, Scope::SYNC);
        }
    }
}

/// As [`finish_unused_files`], for one file of which it is counted already who has it open.
pub fn finish_if_unused(shared: &Arc<Shared>, me: Me<'_>, id: FileId, device: Arc<dyn DeviceFile>) {
    let entry = shared.arena.file_unchecked(id);
    let leased = entry.flags.load(Ordering::Acquire) & LEASED != 0;
    if leased || entry.owed_pages.load(Ordering::Acquire) != 0 || entry.writers() != 0 {
        return;
    }
    let core = Core {
        shared: Arc::clone(shared),
        id,
        device,
    };
    // Where something is in the way, it is tried again.
    if !lacks_anything(entry) || settle::finish(&core, me).is_ok() && !lacks_anything(entry) {
        shared.drop_unwritten(id, &core.device);
    }
}

/// Files whose names are looked at in one round.
const NAMES_AT_ONCE: usize = 256;

/// Files, and directories above them, are renamed while they are open, or once they have been closed and still owe bytes. A keeper's
/// successor finds them by their names: a process that has them open asks the kernel for those now and then. Begins after `last`, and
/// returns where it has stopped.
pub fn follow_names(shared: &Shared, me: Me<'_>, last: Option<FileId>) -> Option<FileId> {
    let mut open = shared.open_files();
    open.sort_unstable_by_key(|id| (last.is_some_and(|last| id.0 <= last.0), id.0));
    open.truncate(NAMES_AT_ONCE);
    for &id in &open {
        if let Some(device) = shared.device(id) {
            table::follow_name(me, id, device.as_ref());
        }
    }
    open.last().copied()
}
