//! Threads that open files for the engine. The keeper's guard holds up each program that opens a managed file, and lets a member in that comes by
//! its library. It asks the kernel by which code a thread came, which tells that of threads that sleep alone; the kernel wakes all that wait with
//! each answer to one of them. So the engine says of its own openings what they are.

use super::{Me, ThreadSlot};
use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use crate::sync::Ordering;
use crate::sys::liveness;

/// An opening of the engine's, until it is dropped. Its thread does nothing else meanwhile: handlers of signals wait.
pub struct Opening<'a>(&'a ThreadSlot);

impl<'a> Opening<'a> {
    /// It begins.
    pub fn begin(me: Me<'a>) -> Self {
        let slot = me.slot();
        slot.opening.store(1, Ordering::Release);
        Opening(slot)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.opening.store(0, Ordering::Release);
    }
}

/// Whether a thread, by the number that the kernel gives it, is at an opening of the engine's. Numbers of other pid namespaces may be others':
/// the caller knows that its process is a member.
pub fn opens_for_the_engine(arena: &Arena, thread: u32) -> bool {
    let mut ids = (1..arena.counts().threads).map(ThreadId);
    ids.any(|id| {
        let slot = arena.thread_unchecked(id);
        slot.opening.load(Ordering::Acquire) != 0 && liveness::is_held_by(&slot.mutex, thread)
    })
}
