//! Repairing the session after a death, by whoever notices it first (`docs/locking.md`, "Death of a holder").

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::frame::header::State;
use crate::ids::{FileId, HeaderId, ThreadId};
use crate::keeper::rebuild::{Dead, Findings, rebuild};
use crate::memory::arena::Arena;
use crate::memory::files::LIVE;
use crate::memory::threads::{self, Me};
use crate::session::shared::Shared;
use crate::sync::Ordering;

/// Looks for the dead, and repairs what they left. The caller is idle or parked.
pub fn if_needed(shared: &Shared, me: Me<'_>) -> Option<Findings> {
    repair(shared, me, false)
}

/// As [`if_needed`]. Where the caller has waited for `long`, and nobody has died, locks that nobody has are opened as well, which says that
/// words of the arena are wrong: a recovery will not believe it.
fn repair(shared: &Shared, me: Me<'_>, long: bool) -> Option<Findings> {
    let arena = me.arena;
    let rebuilds = arena.superblock().rebuilds.load(Ordering::Acquire);
    let mut owed = threads::gate_is_abandoned(arena)
        || arena.superblock().orphans.load(Ordering::Acquire) != 0
            && has_orphans_of_ours(shared, arena);
    for id in threads::dead(arena) {
        if threads::died_working(arena, id) || threads::is_named(arena, id) {
            owed = true;
        } else {
            // It died between operations and owned nothing.
            threads::bury(me, id);
        }
    }
    if !owed && long && threads::has_lock_of_nobody(arena) {
        // Read before anybody is buried here: who has died since the look above has the lock, and nothing is wrong.
        let explained = is_death_under_way(arena, rebuilds);
        let findings = after_death(shared, me)?;
        if !explained {
            let corruptions = &arena.superblock().corruptions;
            corruptions.fetch_add(1, Ordering::Relaxed);
        }
        return Some(findings);
    }
    if owed { after_death(shared, me) } else { None }
}

/// Whether anybody has died and is not repaired after, or has been repaired after since the session had been rebuilt so often.
fn is_death_under_way(arena: &Arena, rebuilds: u32) -> bool {
    let superblock = arena.superblock();
    // In the order in which a death goes through these.
    !threads::dead(arena).is_empty()
        || superblock.orphans.load(Ordering::Acquire) != 0
        || superblock.gate.load(Ordering::Acquire) != 0
        || superblock.rebuilds.load(Ordering::Acquire) != rebuilds
}

/// Stops the session and rebuilds. `None`: somebody else is at it, or a thread did not stop in time; the caller goes on
/// waiting and comes back.
pub fn after_death(shared: &Shared, me: Me<'_>) -> Option<Findings> {
    let arena = me.arena;
    let _stop = threads::stop_session_for_rebuild(me)?;
    // Once, after the stop: who dies from here on is the next repair's.
    let gone: Vec<bool> = (0..arena.counts().threads)
        .map(|id| ThreadId(id) != me.id && threads::is_gone(arena, ThreadId(id)))
        .collect();
    // A slot that was free may be taken meanwhile; whoever has it can be in no operation, but can hold a lock or a gate.
    let is_gone =
        |id: ThreadId| gone.get(id.index()).copied().unwrap_or(true) && threads::is_gone(arena, id);
    let landed = land(shared, me, &is_gone);
    let findings = rebuild(
        me,
        &Dead {
            threads: &is_gone,
            landed: &|file| landed.contains(&file),
        },
    );
    settle_intents(shared, me, &is_gone);
    for id in (1..arena.counts().threads).map(ThreadId) {
        if is_gone(id) && threads::is_dead(arena, id) {
            threads::bury(me, id);
        }
    }
    Some(findings)
}

/// Asks the devices of files with flights of the dead to finish what is under way. Returns the files that have.
fn land(shared: &Shared, me: Me<'_>, is_gone: &dyn Fn(ThreadId) -> bool) -> BTreeSet<FileId> {
    let arena = me.arena;
    let mut flying = BTreeSet::new();
    let backed = arena.superblock().headers_backed.load(Ordering::Acquire);
    for header in (0..backed).filter_map(|id| arena.header(HeaderId(id))) {
        let superseded = matches!(header.state(), State::Superseded(by) if is_gone(by));
        let in_flight = header.inflight() != 0 && is_gone(header.flusher());
        if (superseded || in_flight)
            && let Some(identity) = header.identity()
        {
            flying.insert(identity.file);
        }
    }
    flying.retain(|&file| {
        let Some(device) = shared.device(file) else {
            return false;
        };
        // Waiting may change the file's times.
        shared
            .change(me, file, &device, || device.wait_in_flight())
            .is_ok()
    });
    flying
}

/// What the dead were changing is as they left it: remembered, where this process has the file open. Elsewhere the note
/// stays, which makes a recovery look at times instead.
fn settle_intents(shared: &Shared, me: Me<'_>, is_gone: &dyn Fn(ThreadId) -> bool) {
    let threads = me.arena.counts().threads;
    for file in (0..me.arena.counts().files).map(FileId) {
        let entry = me.arena.file_unchecked(file);
        if entry.state.load(Ordering::Acquire) != LIVE || !entry.is_changing(threads) {
            continue;
        }
        let Some(device) = shared.device(file) else {
            continue;
        };
        for dead in (1..threads).map(ThreadId).filter(|&id| is_gone(id)) {
            if entry.has_intent(dead) {
                shared.end_intent(Me { id: dead, ..me }, file, &device);
            }
        }
    }
}

/// Whether flights that an earlier repair could not wait for are in files that this process has open.
fn has_orphans_of_ours(shared: &Shared, arena: &Arena) -> bool {
    let backed = arena.superblock().headers_backed.load(Ordering::Acquire);
    (0..backed)
        .filter_map(|id| arena.header(HeaderId(id)))
        .any(|header| {
            header.inflight() != 0
                && header.flusher() == ThreadId(u32::MAX)
                && header
                    .identity()
                    .is_some_and(|i| shared.device(i.file).is_some())
        })
}

/// Makes waits anywhere in the engine look for the dead.
pub fn install(shared: &Arc<Shared>) {
    let session = Arc::downgrade(shared);
    shared.arena.set_rescue(Box::new(move |me, long| {
        if let Some(shared) = session.upgrade() {
            repair(&shared, me, long);
        }
    }));
}
