//! Whether a slot's thread is there, also where the kernel leaves no mark of its end.
//!
//! A thread that executes another program ends for the session, and the kernel marks what it holds. But if it is not its process's first one, the
//! kernel gives it that one's number first, and does not find it in the mutex then: the slot looks alive for ever. It has nothing in the arena at
//! that moment, so nobody waits for it; but a process that asks who is in the session has to know. So a slot says which thread of which process
//! has it, and in which pid namespace these are numbers. The kernel says whether there is such a thread.
//!
//! The preload library hears of it when a program executes another one, and gives the slot back: its slots have no namespace.

use super::{ThreadSlot, is_gone};
use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use crate::sync::Ordering;
use crate::sys::liveness;

/// Whether the thread that has the slot lives, and still is in the session.
pub fn is_there(arena: &Arena, id: ThreadId) -> bool {
    !is_gone(arena, id)
        && arena
            .thread(id)
            .is_some_and(|slot| executed(slot).is_none())
}

/// Marks the slots of threads that have executed other programs, as the kernel marks those of the dead. For the keeper's thread alone: nobody else
/// frees such a slot meanwhile, so that it could be a living thread's of the same number by now.
pub fn mark_who_executed(arena: &Arena) {
    for id in (1..arena.counts().threads).map(ThreadId) {
        if let Some(slot) = arena.thread(id)
            && let Some(thread) = executed(slot)
        {
            liveness::mark_if_of(&slot.mutex, thread);
        }
    }
}

/// The thread that has the mutex, as far as the kernel has marked, if there is none of this number.
fn executed(slot: &ThreadSlot) -> Option<u32> {
    let state = slot.state.load(Ordering::Acquire);
    let namespace = slot.namespace.load(Ordering::Relaxed);
    let process = slot.pid.load(Ordering::Relaxed);
    let thread = liveness::holder(&slot.mutex);
    let is_known = slot.is_taken() && slot.is_held_in(state) && namespace != 0;
    let is_no_more = is_known
        && namespace == liveness::namespace()
        && liveness::is_no_thread_of(process, thread)
        // It has not ended meanwhile, in good order or with the kernel's mark.
        && slot.is_held_in(state)
        && slot.state.load(Ordering::Acquire) == state;
    is_no_more.then_some(thread)
}
