//! Files that have lost their last name while bytes of them are owed: the kernel gets those, and drops them with the file.
//! What the entry says of one that is gone: [`crate::member::gone`].

use std::sync::Arc;

use crate::device::{Cached, DeviceFile};
use crate::file::core::Core;
use crate::file::settle;
use crate::flush::{Outcome, Scope};
use crate::ids::FileId;
use crate::member::gone::forget;
use crate::member::presence::has_keeper;
use crate::member::shared::Shared;
use crate::memory::files::{LEASED, LIVE, VANISHED};
use crate::memory::threads::Me;
use crate::stats::Counter;
use crate::sync::Ordering;

/// One round of a keeper's: notes which files have no name any more, and drops what is owed to those that are gone.
pub fn tend(shared: &Arc<Shared>, me: Me<'_>) {
    for id in (0..shared.arena.counts().files).map(FileId) {
        let entry = shared.arena.file_unchecked(id);
        if entry.state.load(Ordering::Acquire) != LIVE
            || entry.owed_pages.load(Ordering::Acquire) == 0
        {
            continue;
        }
        match shared.device(id) {
            Some(device) => note(shared, me, id, device),
            None => forget(shared, me, id),
        }
    }
}

/// As [`tend`], for a caller that has found no keeper.
pub fn tend_for_nobody(shared: &Arc<Shared>, me: Me<'_>) {
    if !has_keeper(&shared.arena) {
        tend(shared, me);
    }
}

/// A file under this keeper's lease, or that the guard has taken over from one, that nobody has open and no name leads to: it can get neither
/// again. A thread that had found it by its name before that went, and waits for the lease, is seen by the second look at the latest.
fn note(shared: &Arc<Shared>, me: Me<'_>, id: FileId, device: Arc<dyn DeviceFile>) {
    let flags = &shared.arena.file_unchecked(id).flags;
    let alone = flags.load(Ordering::Acquire) & LEASED != 0 && !shared.is_open(id);
    let nameless = || matches!(device.stat(), Ok(stat) if stat.links == 0);
    if !alone || !nameless() || device.is_lease_wanted() && !shared.is_alone(id) {
        flags.fetch_and(!VANISHED, Ordering::AcqRel);
        return;
    }
    if flags.fetch_or(VANISHED, Ordering::AcqRel) & VANISHED != 0 {
        // Where that fails the bytes are written.
        drop_owed(shared, me, id, &device, Scope::SYNC);
    }
}

/// A file under this keeper's lease is about to be written: one that no name leads to is dropped instead, and its space is free the sooner. As much of
/// it as `scope` says: others wait for the thread. `None`: it has a name, or it has to be written.
pub fn drop_if_nameless(
    shared: &Arc<Shared>,
    me: Me<'_>,
    id: FileId,
    device: &Arc<dyn DeviceFile>,
    scope: Scope,
) -> Option<Outcome> {
    let entry = shared.arena.file_unchecked(id);
    let is_nameless = entry.owed_pages.load(Ordering::Acquire) != 0
        && matches!(device.stat(), Ok(stat) if stat.links == 0);
    let outcome = is_nameless.then(|| drop_owed(shared, me, id, device, scope))?;
    outcome.errno.is_none().then_some(outcome)
}

fn drop_owed(
    shared: &Arc<Shared>,
    me: Me<'_>,
    id: FileId,
    device: &Arc<dyn DeviceFile>,
    scope: Scope,
) -> Outcome {
    let core = Core {
        shared: Arc::clone(shared),
        id,
        device: Arc::clone(device),
    };
    let outcome = into_cache(&core, me, scope);
    if outcome.errno.is_none() && core.entry().owed_pages.load(Ordering::Acquire) == 0 {
        me.count(Counter::FilesVanished as usize, 1);
    }
    outcome
}

/// Nobody has the file open, as a lease says, and no name leads to it; yet somebody may come to it, by a descriptor that only names
/// it (`O_PATH`), or because it is mounted somewhere. The kernel knows: it is given what is owed, and drops it with the file.
/// Whether nothing is owed any more.
pub fn put_into_cache(core: &Core, me: Me<'_>) -> bool {
    let flushed = into_cache(core, me, Scope::SYNC).errno.is_none();
    flushed && core.entry().owed_pages.load(Ordering::Acquire) == 0
}

fn into_cache(core: &Core, me: Me<'_>, scope: Scope) -> Outcome {
    let core = Core {
        shared: Arc::clone(&core.shared),
        id: core.id,
        device: Arc::new(Cached::new(&core.device)),
    };
    settle::flush(&core, me, scope)
}
