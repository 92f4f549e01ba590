//! Opening files again that are wanted and that this process has no descriptors of.

use std::sync::Arc;
use std::time::Duration;

use crate::device::file::Relocate;
use crate::device::{DeviceFile, RealFile};
use crate::ids::FileId;
use crate::member::lacks::is_unfinished;
use crate::member::reopen::{self, Absent, Patience};
use crate::member::shared::Shared;
use crate::member::table;
use crate::memory::arena::Arena;
use crate::memory::files::{FileEntry, LIVE};
use crate::sync::Ordering;
use crate::sync::time::Instant;

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

/// Opens files that are wanted and not open in this process. A keeper tries those that are under a lease another time: it is the one
/// that gives most of them up.
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
        // Whether it is wanted is asked first, since a keeper looks everywhere for a file that it does not have; and last: a thread
        // that closes a file with its last byte written would have it opened again.
        if entry.state.load(Ordering::Acquire) == LIVE
            && is_wanted(id, entry)
            && shared.device(id).is_none()
            // Opening it would take a number, too, and another one of the guard's, which may have none either.
            && !shared.lies_in_a_lane(id)
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
