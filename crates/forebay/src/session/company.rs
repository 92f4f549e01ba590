//! Who else is in a session. A process tells itself from others by the slots that its threads have, since two processes may have one
//! number: it is one of a namespace.

use super::Session;
use crate::ids::ThreadId;
use crate::member::{members, presence};
use crate::memory::threads;
use crate::sync::Ordering;

impl Session {
    /// Whether another process keeps it.
    pub fn is_kept_elsewhere(&self) -> bool {
        let keeper = &self.shared.arena.superblock().keeper;
        let keeper = ThreadId(keeper.load(Ordering::Acquire));
        self.has_keeper() && !members::is_ours(&self.shared, keeper)
    }

    /// The processes that are in it beside this one, as they number themselves.
    pub fn others(&self) -> Vec<u32> {
        let arena = &self.shared.arena;
        let slots = (1..arena.counts().threads).map(ThreadId);
        let living =
            slots.filter(|&id| !members::is_ours(&self.shared, id) && threads::is_there(arena, id));
        let mut processes: Vec<_> = living
            .filter_map(|id| Some(arena.thread(id)?.pid.load(Ordering::Relaxed)))
            .collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// Whether the arena's file has been removed below it; see `keeper::nameless`.
    pub fn has_lost_its_name(&self) -> bool {
        presence::is_nameless(&self.shared)
    }
}
