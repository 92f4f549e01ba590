//! A flush whose last look at the device file is the sync as well.
//!
//! After each change of ours the session looks at the device file, so that a recovery knows the change for ours (`member::table::witness_end`). On a mounted
//! store that is a request to another process, the sync is the next one, and what a look by `statx` tells has the kernel ask for capabilities before the
//! next write. There both are one request (`DeviceFile::sync_and_stat`): a write and its sync are two, and not four.
//!
//! It is made once, while the change is still noted: should the program be killed in it, a repair looks at the file. Where others are at the file as well, or
//! come meanwhile, the file is looked at without a sync, however often, and the caller syncs once.

use std::io;

use crate::device::DeviceStat;
use crate::error::errno_of;
use crate::file::core::Core;
use crate::flush::{Outcome, Scope, errors};
use crate::member::table;
use crate::memory::threads::Me;
use crate::sync::{Ordering, planted};

/// A sync that was made at the end of a flush.
pub struct Early {
    /// Changes of the device file that had begun before it, all of which had ended, and errors of the file.
    changes: u32,
    errors: u32,
    ended: io::Result<()>,
}

impl Early {
    /// How the sync has ended, and the sequence of errors before it; `changes`: how many of the device file have begun by now. `None`: the session has
    /// changed it since, so that it has to be synced once more. A sync that has failed counts in any case: the next one might hear of no error.
    pub fn counts(self, changes: u32) -> Option<(io::Result<()>, u32)> {
        (changes == self.changes || self.ended.is_err()).then_some((self.ended, self.errors))
    }
}

/// Flushes everything that is owed, and syncs at the end where that spares a request. Without such a sync the caller makes one.
pub fn flush(core: &Core, me: Me<'_>) -> (Outcome, Option<Early>) {
    if core.entry().owed_pages.load(Ordering::Acquire) == 0 {
        return (Outcome::default(), None);
    }
    let mut early = None;
    let flusher = &mut core.shared.own_flusher();
    let look = || {
        let changes = table::changes_alone(me, core.id)?;
        let (synced, found) = sync(core, me, changes);
        early = Some(synced);
        Some((changes, found?))
    };
    let outcome = core
        .shared
        .flush_seen(flusher, me, core.id, &core.device, Scope::SYNC, look);
    (outcome, early)
}

/// Syncs, and says what the device file was like right before, if that is known.
fn sync(core: &Core, me: Me<'_>, changes: u32) -> (Early, Option<DeviceStat>) {
    let entry = core.entry();
    let errors = errors::sequence(entry);
    let (ended, found) = me.at_sync(core.id, || {
        if planted!(SkipDeviceSync) {
            return (Ok(()), core.device.stat().ok());
        }
        let (ended, found) = core.device.sync_and_stat();
        if planted!(SwallowSyncError) {
            return (Ok(()), found);
        }
        // The device has one description for all of ours, and tells it once.
        let ended = ended.inspect_err(|error| errors::record_sync(entry, errno_of(error)));
        (ended, found)
    });
    let early = Early {
        changes,
        errors,
        ended,
    };
    (early, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn early(ended: io::Result<()>) -> Early {
        Early {
            changes: 3,
            errors: 7,
            ended,
        }
    }

    #[test]
    fn a_sync_counts_if_nothing_was_done_after_it_or_if_it_failed() {
        assert!(matches!(early(Ok(())).counts(3), Some((Ok(()), 7))));
        assert!(early(Ok(())).counts(4).is_none());
        let failed = || io::Error::from_raw_os_error(libc::EIO);
        assert!(matches!(early(Err(failed())).counts(3), Some((Err(_), 7))));
        assert!(matches!(early(Err(failed())).counts(4), Some((Err(_), 7))));
    }
}
