//! The dead: who they are, and freeing their slots. What they had at their end a repair sees to first (`keeper::repair`).

use super::{LIFE_MASK, Me, TAKEN, is_gone};
use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use crate::sync::Ordering;
use crate::sys::liveness::{self, Holder};

/// A thread that has died, in one life of its slot: the thread that has the slot next is another, though it dies as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dead {
    /// Its slot.
    pub id: ThreadId,
    life: u32,
}

/// Frees the slot of a thread that has died. Of several that try, one does; should it die at that, another.
pub(crate) fn bury(me: Me<'_>, dead: Dead) {
    let (arena, id) = (me.arena, dead.id);
    let Some(slot) = arena.thread(id) else { return };
    // What the dead has left was looked at in that life.
    let state = dead.life | TAKEN;
    let holder = if liveness::is_simulated(&me.slot().mutex) {
        Holder::Simulated
    } else {
        Holder::Thread
    };
    if slot.ended_life() != Some(state) {
        return;
    }
    let Ok(claimed) = slot.claim(state, holder) else {
        return;
    };
    let delta = slot.owed_delta.swap(0, Ordering::Relaxed);
    arena
        .superblock()
        .owed_pages
        .fetch_add(delta, Ordering::Relaxed);
    arena.superblock().resign(id);
    claimed.free();
}

/// The thread of a slot, if the slot is taken and its thread has died.
pub fn dead_of(arena: &Arena, id: ThreadId) -> Option<Dead> {
    let life = arena.thread(id)?.ended_life()? & LIFE_MASK;
    Some(Dead { id, life })
}

/// Taken slots whose threads have died.
pub fn dead(arena: &Arena) -> Vec<Dead> {
    let all = (1..arena.counts().threads).map(ThreadId);
    all.filter_map(|id| dead_of(arena, id)).collect()
}

/// Whether a thread has died in the middle of something, and what it has left is not seen to.
pub fn is_rebuild_owed(arena: &Arena) -> bool {
    let mut all = dead(arena).into_iter();
    all.any(|dead| super::died_working(arena, dead.id))
}

/// The life of a slot whose thread is gone: the thread that comes next has another.
pub fn last_life(arena: &Arena, id: ThreadId) -> Option<u32> {
    let now = || Some(arena.thread(id)?.state.load(Ordering::Acquire) & LIFE_MASK);
    let life = now()?;
    (is_gone(arena, id) && now() == Some(life)).then_some(life)
}
