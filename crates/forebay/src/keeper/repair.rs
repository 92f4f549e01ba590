//! Repairing the session after a death, by whoever notices it first (`docs/locking.md`, "Death of a holder").

use std::collections::HashSet;
use std::sync::Arc;

use crate::frame::header::State;
use crate::ids::{FileId, HeaderId, ThreadId};
use crate::keeper::rebuild::{Dead, Findings, rebuild};
use crate::memory::arena::Arena;
use crate::memory::threads::{self, Me};
use crate::session::shared::Shared;
use crate::sync::Ordering;

/// Looks for the dead, and repairs what they left. The caller is idle or parked.
pub fn if_needed(shared: &Shared, me: Me<'_>) -> Option<Findings> {
    let arena = me.arena;
    let mut owed = threads::gate_is_abandoned(arena)
        || arena.superblock().orphans.load(Ordering::Acquire) != 0
            && has_orphans_of_ours(shared, arena);
    for id in threads::dead(arena) {
        if threads::died_working(arena, id) || threads::is_named(arena, id) {
            owed = true;
        } else {
            // It died between operations and owned nothing.
            threads::bury(arena, id);
        }
    }
    if owed { after_death(shared, me) } else { None }
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
    let is_gone = |id: ThreadId| gone.get(id.index()).copied().unwrap_or(true);
    let landed = land(shared, arena, &is_gone);
    let findings = rebuild(
        me,
        &Dead {
            threads: &is_gone,
            landed: &|file| landed.contains(&file),
        },
    );
    for id in (1..arena.counts().threads).map(ThreadId) {
        if is_gone(id) && threads::is_dead(arena, id) {
            threads::bury(arena, id);
        }
    }
    Some(findings)
}

/// Asks the devices of files with flights of the dead to finish what is under way. Returns the files that have.
fn land(shared: &Shared, arena: &Arena, is_gone: &dyn Fn(ThreadId) -> bool) -> HashSet<FileId> {
    let mut flying = HashSet::new();
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
        shared
            .device(file)
            .is_some_and(|d| d.wait_in_flight().is_ok())
    });
    flying
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

/// Makes waits anywhere in the engine call [`if_needed`].
pub fn install(shared: &Arc<Shared>) {
    let session = Arc::downgrade(shared);
    shared.arena.set_rescue(Box::new(move |me| {
        if let Some(shared) = session.upgrade() {
            if_needed(&shared, me);
        }
    }));
}
