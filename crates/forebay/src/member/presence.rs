//! Whether somebody keeps the session, and who.

use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use crate::memory::threads;
use crate::sync::Ordering;

/// Whether some thread lives that keeps the session.
pub fn has_keeper(arena: &Arena) -> bool {
    let keeper = arena.superblock().keeper.load(Ordering::Acquire);
    keeper != 0 && !threads::is_gone(arena, ThreadId(keeper))
}

/// The process of the thread that keeps the session, or did last. 0: none is known.
pub fn keeper_process(arena: &Arena) -> u32 {
    let keeper = ThreadId(arena.superblock().keeper.load(Ordering::Acquire));
    arena
        .thread(keeper)
        .map_or(0, |slot| slot.pid.load(Ordering::Relaxed))
}
