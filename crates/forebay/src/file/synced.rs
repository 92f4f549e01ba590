//! A flush whose last look at the device file is the sync as well.
//!
//! After each change of ours the session looks at the device file, so that a recovery knows the change for ours (`member::table::witness_end`). On a mounted
//! store that is a request to another process, the sync is the next one, and what a look by `statx` tells has the kernel ask for capabilities before the
//! next write. There both are one request (`DeviceFile::sync_and_stat`): a write and its sync are two, and not four.

use std::io;

use crate::device::DeviceStat;
use crate::error::errno_of;
use crate::file::core::Core;
use crate::flush::{Outcome, Scope, errors};
use crate::memory::threads::Me;
use crate::sync::{Ordering, planted};

/// A sync that was made at the end of a flush.
pub struct Early {
    /// Changes of the device file, and errors of the file, before it.
    changes: u32,
    errors: u32,
    ended: io::Result<()>,
}

impl Early {
    /// How the sync has ended, and the sequence of errors before it; `changes`: how many of the device file there have been by now. `None`: the session has
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
    let look = || look(core, me, &mut early);
    let outcome = core
        .shared
        .flush_seen(flusher, me, core.id, &core.device, Scope::SYNC, look);
    (outcome, early)
}

/// Syncs, and says what the device file is like. May be called more than once: somebody may have come between.
fn look(core: &Core, me: Me<'_>, early: &mut Option<Early>) -> Option<DeviceStat> {
    let entry = core.entry();
    let changes = entry.changes.load(Ordering::Acquire);
    let errors = errors::sequence(entry);
    let found = me.at_sync(core.id, || {
        if planted!(SkipDeviceSync) {
            return core.device.stat();
        }
        let found = core.device.sync_and_stat();
        if planted!(SwallowSyncError) {
            return found.or_else(|_| core.device.stat());
        }
        found.inspect_err(|error| errors::record_sync(entry, errno_of(error)))
    });
    let (found, ended) = match found {
        Ok(found) => (Some(found), Ok(())),
        Err(error) => (core.device.stat().ok(), Err(error)),
    };
    // The device tells an error once.
    let ended = early
        .take()
        .map_or(Ok(()), |before| before.ended)
        .and(ended);
    *early = Some(Early {
        changes,
        errors,
        ended,
    });
    found
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
