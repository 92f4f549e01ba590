//! Which processes and threads are in a session.

use serde::Serialize;

use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use crate::memory::threads;
use crate::sync::Ordering;

/// The processes in a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Members {
    /// Processes with at least one living thread in the session, as they number themselves.
    pub processes: Vec<u32>,
    /// Threads that live.
    pub threads: u32,
    /// Threads that have died and whose slots nobody has repaired yet.
    pub dead_threads: u32,
    /// The process that keeps the session.
    pub keeper: Option<u32>,
}

pub(crate) fn members_of(arena: &Arena) -> Members {
    let mut members = Members::default();
    let keeper = ThreadId(arena.superblock().keeper.load(Ordering::Acquire));
    for id in (1..arena.counts().threads).map(ThreadId) {
        if threads::is_dead(arena, id) {
            members.dead_threads += 1;
        }
        if !threads::is_there(arena, id) {
            continue;
        }
        let pid = arena
            .thread(id)
            .map_or(0, |slot| slot.pid.load(Ordering::Relaxed));
        members.threads += 1;
        members.processes.push(pid);
        if id == keeper {
            members.keeper = Some(pid);
        }
    }
    members.processes.sort_unstable();
    members.processes.dedup();
    members
}
