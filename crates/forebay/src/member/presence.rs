//! Whether somebody keeps the session, and who.

use std::os::unix::fs::MetadataExt;

use crate::ids::ThreadId;
use crate::member::shared::Shared;
use crate::member::table;
use crate::memory::arena::Arena;
use crate::memory::threads;
use crate::sync::Ordering;

/// Whether some thread lives that keeps the session.
pub fn has_keeper(arena: &Arena) -> bool {
    let keeper = arena.superblock().keeper.load(Ordering::Acquire);
    keeper != 0 && !threads::is_gone(arena, ThreadId(keeper))
}

/// Whether the arena's file has lost its name though the session has not ended: no recovery would find it.
pub fn is_nameless(shared: &Shared) -> bool {
    let file = shared.arena.mapping().file();
    let file = file.filter(|_| shared.arena_path.is_some());
    let is_unlinked =
        |file: &std::fs::File| matches!(file.metadata(), Ok(seen) if seen.nlink() == 0);
    file.is_some_and(is_unlinked) && !table::has_ended(&shared.arena)
}

/// The process of the thread that keeps the session, or did last. 0: none is known.
pub fn keeper_process(arena: &Arena) -> u32 {
    let keeper = ThreadId(arena.superblock().keeper.load(Ordering::Acquire));
    arena
        .thread(keeper)
        .map_or(0, |slot| slot.pid.load(Ordering::Relaxed))
}
