//! What may be done with a dead session's files.
//!
//! That is said of all of them at first, before anything is changed ([`Found::judge_all`]); the turn of the last one may come minutes later, and other programs
//! run meanwhile. So how a file looked is remembered with what was said of it. The thread that is about to change the file looks once more: before waiting
//! for what the dead had under way in it ([`Found::land`]), and before it is saved ([`Alone::on`]). For the time of that a lease of the kernel's, where one
//! is to be had, keeps everybody else from opening it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::doubtful;
use crate::device::{DeviceFile, DeviceStat, KernelReason};
use crate::ids::{FileId, ThreadId};
use crate::keeper::repair;
use crate::member::lacks;
use crate::member::reopen::{Absent, path_of, reopen};
use crate::member::shared::Shared;
use crate::member::table;
use crate::memory::files::{FOREIGN, FileEntry, LIVE, TRUNCATING};
use crate::memory::threads::{self, Me};
use crate::sync::{Ordering, planted};

/// How long a request that has been given to the kernel may take to reach the file, for its time alone to be enough. What takes
/// longer, because the file was locked, is decided by what the file holds.
const LATE_NS: u64 = 10_000_000;

/// Why a file is not written that the session may have changed last, or somebody else.
const IN_DOUBT: &str = "the file was changed after the session had ended in the middle of a change of its own, so that nobody can tell \
                        what is newer";
/// Why one is not written that somebody else has changed.
const BY_OTHERS: &str =
    "the file was changed by another program after the session's last write to it";

/// Why one has to wait that another session has marked, or that cannot be told from those that it has marked (`member::claims`).
const MAYBE_MANAGED: &str = "another session manages it now, or has so many files of its directory open that nobody can tell; \
                             close them there and try again";

/// How a device file looks: length and times.
type Look = [u64; 3];

fn has_look(device: &dyn DeviceFile, look: Look) -> bool {
    let is_same = |stat: DeviceStat| table::as_witness(&stat) == look;
    device.stat().is_ok_and(is_same) || planted!(BlindWitness)
}

/// What may be done with a file.
pub(super) enum Standing {
    /// It is as the session left it, and may be written as long as it looks as it did then.
    Ours(Look),
    /// A change was under way when the session ended, and somebody has changed the file later than it was last seen to be.
    Doubtful(Arc<dyn DeviceFile>),
    /// Its bytes are for keeping aside, for this reason.
    Foreign(String),
    /// It cannot be reached now; its bytes stay in the arena.
    Unreachable(String),
}

/// Notes that somebody else has changed a file, or may have, for the process that recovers it after us. Returns why it is kept aside.
fn note_foreign(entry: &FileEntry, reason: impl Into<String>) -> String {
    entry.flags.fetch_or(FOREIGN, Ordering::AcqRel);
    reason.into()
}

impl Standing {
    /// By how the file looks now.
    fn of(shared: &Shared, id: FileId, device: &Arc<dyn DeviceFile>) -> Standing {
        let entry = shared.arena.file_unchecked(id);
        let stat = match device.stat() {
            Ok(stat) => stat,
            Err(error) => {
                return Standing::Foreign(note_foreign(
                    entry,
                    format!("its state cannot be read: {error}"),
                ));
            }
        };
        match changed_by(shared, entry, &stat) {
            ChangedBy::Others(reason) => Standing::Foreign(note_foreign(entry, reason)),
            ChangedBy::Somebody => Standing::Doubtful(Arc::clone(device)),
            ChangedBy::NobodyElse => {
                shared.keep_device(id, Arc::clone(device));
                Standing::Ours(table::as_witness(&stat))
            }
        }
    }

    /// What is done with the file now that its turn has come.
    pub(super) fn turn(self, shared: &Shared, id: FileId) -> Turn {
        let entry = shared.arena.file_unchecked(id);
        match self {
            Standing::Ours(look) => {
                let alone = shared.device(id).and_then(|device| Alone::on(device, look));
                let foreign = || Turn::KeepAside(note_foreign(entry, BY_OTHERS));
                alone.map_or_else(foreign, Turn::Save)
            }
            Standing::Doubtful(_) => Turn::KeepAside(note_foreign(entry, IN_DOUBT)),
            Standing::Foreign(reason) => Turn::KeepAside(reason),
            Standing::Unreachable(reason) => Turn::Wait(reason),
        }
    }
}

/// What is done with a file.
pub(super) enum Turn {
    /// It is saved.
    Save(Alone),
    /// Its bytes are kept aside, for this reason.
    KeepAside(String),
    /// They stay in the arena, for this one.
    Wait(String),
}

/// The device of a file that is being saved. Nobody else opens the file meanwhile where the kernel has given a lease: to its owner, if nobody has it open, and for
/// as long as the kernel has others wait.
pub(super) struct Alone(pub(super) Arc<dyn DeviceFile>);

impl Alone {
    /// `None`: the file does not look as it did.
    fn on(device: Arc<dyn DeviceFile>, look: Look) -> Option<Alone> {
        if device.unite().is_ok() {
            let _ = device.lease();
        }
        let alone = Alone(device);
        // Last: a program that has come before the lease is seen by what it has done.
        has_look(alone.0.as_ref(), look).then_some(alone)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.give_lease_up();
    }
}

/// All files that something may have to be done for.
pub(super) struct Found(RefCell<HashMap<FileId, Standing>>);

impl Found {
    /// Finds them, and says what may be done.
    pub(super) fn judge_all(shared: &Shared) -> Found {
        // What is derived, as what a file owes, may not be right yet where somebody died at work.
        let at_work: Vec<FileId> = (1..shared.arena.counts().threads)
            .filter_map(|id| threads::works_on(&shared.arena, ThreadId(id)))
            .collect();
        let mut found = HashMap::new();
        for id in (0..shared.arena.counts().files).map(FileId) {
            let entry = shared.arena.file_unchecked(id);
            let wanted = at_work.contains(&id) || lacks::is_unfinished(shared, entry);
            if entry.state.load(Ordering::Acquire) != LIVE || !wanted {
                continue;
            }
            let standing = match reopen(entry, &|fd| fd, None) {
                Err(Absent::Gone(reason) | Absent::Replaced(reason)) => Standing::Foreign(reason),
                Err(Absent::Unreachable(reason)) => Standing::Unreachable(reason),
                Ok(device) => match shared.claim(&device, &path_of(entry)) {
                    Ok(()) => Standing::of(shared, id, &(Arc::new(device) as Arc<dyn DeviceFile>)),
                    Err(KernelReason::Claimed) => Standing::Unreachable(MAYBE_MANAGED.into()),
                    Err(reason) => Standing::Unreachable(reason.to_string()),
                },
            };
            found.insert(id, standing);
        }
        Found(RefCell::new(found))
    }

    /// Waits for what the dead had under way in a file of ours, which changes its times. Whether all of it has landed.
    pub(super) fn land(
        &self,
        shared: &Shared,
        me: Me<'_>,
        id: FileId,
        device: &Arc<dyn DeviceFile>,
    ) -> bool {
        let mut found = self.0.borrow_mut();
        let Some(standing @ Standing::Ours(_)) = found.get_mut(&id) else {
            return false;
        };
        if let Standing::Ours(look) = standing
            && !has_look(device.as_ref(), *look)
        {
            // What was under way may have come in since, or somebody else.
            *standing = Standing::of(shared, id, device);
        }
        let Standing::Ours(look) = standing else {
            return false;
        };
        let landed = repair::wait_for_flights(shared, me, id, device);
        if let Ok(stat) = device.stat() {
            *look = table::as_witness(&stat);
        }
        landed
    }

    /// Once the arena is rebuilt, what files hold tells whose those are that times do not tell of.
    pub(super) fn decide_doubtful(&self, shared: &Shared, me: Me<'_>) {
        let mut ours = false;
        for (&id, standing) in self.0.borrow_mut().iter_mut() {
            let Standing::Doubtful(device) = standing else {
                continue;
            };
            let entry = shared.arena.file_unchecked(id);
            // Before what it holds is looked at.
            let look = device.stat().map(|stat| table::as_witness(&stat));
            *standing = match look {
                Ok(look) if doubtful::harms_nobody(shared, me, id, device.as_ref()) => {
                    shared.keep_device(id, Arc::clone(device));
                    ours = true;
                    Standing::Ours(look)
                }
                _ => Standing::Foreign(note_foreign(entry, IN_DOUBT)),
            };
        }
        if ours {
            // For what the dead had under way in files that were not open before.
            repair::if_needed_with(shared, me, &|id, device| self.land(shared, me, id, device));
        }
    }

    /// Nothing of a damaged arena is written where it may not belong.
    pub(super) fn distrust(&self, why: &str) {
        for standing in self.0.borrow_mut().values_mut() {
            if matches!(standing, Standing::Ours(_) | Standing::Doubtful(_)) {
                *standing = Standing::Foreign(format!("the arena is damaged ({why})"));
            }
        }
    }

    /// What was found of a file, once.
    pub(super) fn take(&self, id: FileId) -> Standing {
        let unknown = || Standing::Foreign("it was not known before the rebuild".into());
        let found = self.0.borrow_mut().remove(&id);
        found.unwrap_or_else(unknown)
    }
}

/// What has changed a device file since the session's last change that was seen to end.
enum ChangedBy {
    /// Nobody, or the session, which was at it when it ended.
    NobodyElse,
    /// The session, or somebody else.
    Somebody,
    /// Somebody else.
    Others(&'static str),
}

fn changed_by(shared: &Shared, entry: &FileEntry, stat: &DeviceStat) -> ChangedBy {
    if planted!(BlindWitness) {
        return ChangedBy::NobodyElse;
    }
    let threads = shared.arena.counts().threads;
    let unwitnessed = entry.is_unwitnessed(threads);
    let flags = entry.flags.load(Ordering::Acquire);
    if flags & FOREIGN != 0 {
        let why = if unwitnessed { IN_DOUBT } else { BY_OTHERS };
        return ChangedBy::Others(why);
    }
    if table::is_as_witnessed(entry, stat) {
        return ChangedBy::NobodyElse;
    }
    let shrunk = entry.is_changing(threads)
        && stat.len < entry.witness[0].load(Ordering::Acquire)
        && flags & TRUNCATING == 0;
    if !unwitnessed || shrunk {
        return ChangedBy::Others(BY_OTHERS);
    }
    // A change of ours was under way at the end: what it left is dated when it was last seen to be, or moments later.
    // Nor earlier than what was seen before it, unless the clock was set back since: then no time tells. (A program sets the time of a
    // modification, and nobody that of a change.)
    let last_ns = entry.changed_ns.load(Ordering::Relaxed);
    let is_later = stat.ctime_ns >= entry.witness[2].load(Ordering::Acquire);
    if is_later && stat.mtime_ns.max(stat.ctime_ns) <= last_ns.saturating_add(LATE_NS) {
        ChangedBy::NobodyElse
    } else {
        ChangedBy::Somebody
    }
}
