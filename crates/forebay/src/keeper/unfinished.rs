//! Files that are not as they should be on their devices: which ones, who opens them, and what is done once nobody else will.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use crate::device::file::Relocate;
use crate::device::{DeviceFile, RealFile};
use crate::file::core::Core;
use crate::file::{settle, table};
use crate::flush::Scope;
use crate::ids::FileId;
use crate::keeper::closing;
use crate::keeper::reopen::{self, Absent, Patience};
use crate::memory::arena::Arena;
use crate::memory::files::{CLOSING, EXCEEDING, FileEntry, LEASED, LIVE, TRUNCATING, UNSYNCED};
use crate::memory::threads::Me;
use crate::session::adopt::path_of;
use crate::session::shared::Shared;
use crate::sync::Ordering;
use crate::sync::time::Instant;

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

/// Writes what those owe who have died, before a keeper ends: its descriptor may be the last way to a file that has no name any more.
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
/// successor finds them by their names: who has them open asks the kernel for those now and then. Begins after `last`, and
/// returns where it has stopped.
pub fn follow_names(shared: &Shared, me: Me<'_>, last: Option<FileId>) -> Option<FileId> {
    let mut open = shared.open_files();
    open.sort_unstable_by_key(|id| (last.is_some_and(|last| id.0 <= last.0), id.0));
    open.truncate(NAMES_AT_ONCE);
    for &id in &open {
        if let Some(device) = shared.device(id) {
            follow_name(me, id, device.as_ref());
        }
    }
    open.last().copied()
}

/// As [`follow_names`], for one file.
pub fn follow_name(me: Me<'_>, id: FileId, device: &dyn DeviceFile) {
    if let Some((_, buffered)) = device.descriptors() {
        table::refresh_path(me, id, path_of(buffered).as_os_str().as_bytes());
    }
}

/// Gives a new keeper, or a recovery, the devices of files that are open or unfinished, and whose clients may be gone.
/// Those that have been renamed since are looked for, once: that means reading directories.
pub fn adopt_owed_files(shared: &Arc<Shared>, patience: Patience) {
    let is_wanted = |id, entry: &_| is_unfinished(shared, entry) || shared.is_open(id);
    adopt_by(shared, is_wanted, patience, reopen::reopen_renamed);
}

/// As [`adopt_owed_files`], for one file, by a process of the session that gets no answer from a keeper.
pub fn adopt_owed_file(shared: &Arc<Shared>, file: FileId, patience: Patience) {
    adopt_by(shared, |id, _| id == file, patience, reopen::reopen_renamed);
}

/// A file as [`adopt_owed_file`] opens it, for a process that has it open already and may not write by that.
pub fn open_again(shared: &Arc<Shared>, file: FileId) -> Option<Arc<dyn DeviceFile>> {
    opened(shared, file, None, reopen::reopen_renamed)
}

/// Opens files that are wanted and not open in this process. A keeper tries those that are under a lease another time: he is the one
/// who gives most of them up.
pub fn adopt(shared: &Arc<Shared>, is_wanted: impl Fn(FileId, &FileEntry) -> bool) {
    let by_name: Again = |_, entry, relocate, patience| reopen::reopen(entry, relocate, patience);
    adopt_by(shared, is_wanted, Some(Duration::ZERO), by_name);
}

/// How a file is found again.
type Again = fn(&Arena, &FileEntry, Relocate<'_>, Patience) -> Result<RealFile, Absent>;

/// `patience` is for all of them.
fn adopt_by(
    shared: &Arc<Shared>,
    is_wanted: impl Fn(FileId, &FileEntry) -> bool,
    patience: Patience,
    again: Again,
) {
    let begun = Instant::now();
    for id in (0..shared.arena.counts().files).map(FileId) {
        let entry = shared.arena.file_unchecked(id);
        // Whether it is wanted is asked first, since a keeper looks everywhere for a file that it does not have; and last: who closes a
        // file with its last byte written would have it opened again.
        if entry.state.load(Ordering::Acquire) == LIVE
            && is_wanted(id, entry)
            && shared.device(id).is_none()
            && is_wanted(id, entry)
            && let Some(device) = {
                let left = patience.map(|all| all.saturating_sub(begun.elapsed()));
                opened(shared, id, left, again)
            }
        {
            shared.keep_device(id, device);
        }
    }
}

fn opened(
    shared: &Arc<Shared>,
    id: FileId,
    patience: Patience,
    again: Again,
) -> Option<Arc<dyn DeviceFile>> {
    let entry = shared.arena.file_unchecked(id);
    let birth = entry.birth.load(Ordering::Acquire);
    #[cfg(feature = "sim")]
    if let Some(device) = shared.simulated(entry.inode.load(Ordering::Acquire), patience) {
        if device.caps().birth == birth {
            return Some(device);
        }
        table::retire(shared, shared.me().ok()?, id, birth);
        return None;
    }
    let device = match again(&shared.arena, entry, &|fd| shared.placed(fd), patience) {
        Ok(device) => device,
        Err(Absent::Replaced(_)) => {
            table::retire(shared, shared.me().ok()?, id, birth);
            return None;
        }
        Err(_) => return None,
    };
    shared.share_claim(&device, &reopen::path_of(entry));
    Some(Arc::new(device))
}

/// Whether the file owes bytes, or the time of a close that did not wait for them.
pub fn owes_or_is_closing(entry: &FileEntry) -> bool {
    entry.owed_pages.load(Ordering::Acquire) != 0
        || entry.flags.load(Ordering::Acquire) & CLOSING != 0
}

/// Whether the device may not have made durable what it was given. Who asked for it has heard of that, so nobody has to go on for it
/// but who answers for the whole session.
pub fn lacks_sync(entry: &FileEntry) -> bool {
    entry.flags.load(Ordering::Acquire) & UNSYNCED != 0
        && entry.kernel_reason.load(Ordering::Acquire) == 0
}

/// Whether the file is not as it should be on its device, durably, or somebody has noted that he is changing it.
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
