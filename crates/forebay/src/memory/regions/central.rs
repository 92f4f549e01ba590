//! The allocator `system`: one list under one lock, as the papers' baseline has it.
//!
//! The lock is there to cost what such a lock costs. What it guards is safe without it, so nobody waits for a holder that has
//! died or does not run: after a while the work is done without the lock, and a rebuild opens it.

use super::Allocator;
use crate::memory::threads::Me;
use crate::sync::{AtomicU32, Ordering, patience, relax};

/// Looks at the lock before it is passed by.
const ROUNDS_MAX: u32 = 300;

/// The lock, where there is one to have.
pub(super) struct Central<'a>(Option<&'a AtomicU32>);

impl<'a> Central<'a> {
    #[inline]
    pub(super) fn lock(me: Me<'a>) -> Self {
        if me.arena.allocator() == Allocator::System {
            Self::lock_slowly(me)
        } else {
            Central(None)
        }
    }

    fn lock_slowly(me: Me<'a>) -> Self {
        let word = &me.arena.superblock().central_lock;
        for round in 0..patience(ROUNDS_MAX) {
            match word.compare_exchange(0, me.id.0, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Central(Some(word)),
                // A frame is given back, or taken, while a part is.
                Err(holder) if holder == me.id.0 => break,
                Err(_) => relax(round.min(255)),
            }
        }
        Central(None)
    }
}

impl Drop for Central<'_> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        if let Some(word) = self.0 {
            word.store(0, Ordering::Release);
        }
    }
}
