//! A slot whose mutex was claimed: the thread that takes it next, or buries its dead, is alone with it.

use super::{LIFE, LIFE_MASK, ThreadSlot, seal};
use crate::sync::Ordering;
use crate::sys::liveness::{self, Claim, Holder};

/// Nobody else changes the slot while this lives. Should its thread die, others may claim the slot as before.
pub(super) struct Claimed<'a>(&'a ThreadSlot);

/// A thread that comes for a slot.
#[derive(Clone, Copy)]
pub(super) struct Comer {
    pub holder: Holder,
    /// See [`ThreadSlot::namespace`].
    pub namespace: u64,
}

impl ThreadSlot {
    /// Claims the mutex, if the slot is in this state.
    pub(super) fn claim(&self, state: u32, holder: Holder) -> Result<Claimed<'_>, Claim> {
        match liveness::claim(&self.mutex, holder) {
            Claim::Won => {}
            other => return Err(other),
        }
        let claimed = Claimed(self);
        if self.state.load(Ordering::Acquire) == state {
            return Ok(claimed);
        }
        // It is in another life by now. If that one's thread has died as well, it stays dead.
        if self.is_taken() {
            liveness::put_back(&self.mutex);
        } else {
            liveness::let_go(&self.mutex);
        }
        Err(Claim::Lost)
    }
}

impl Claimed<'_> {
    /// Leaves a free slot.
    pub fn free(self) {
        self.0.end_life();
        liveness::let_go(&self.0.mutex);
    }

    /// Begins the slot's next life, which is the caller's.
    pub fn begin(self, comer: Comer) {
        let slot = self.0;
        slot.end_life();
        let life = (slot.state.load(Ordering::Relaxed) & LIFE_MASK).wrapping_add(LIFE);
        slot.pid.store(std::process::id(), Ordering::Relaxed);
        slot.namespace.store(comer.namespace, Ordering::Relaxed);
        slot.opening.store(0, Ordering::Relaxed);
        let sealed = seal(life, liveness::holder(&slot.mutex));
        slot.seal.store(sealed, Ordering::Relaxed);
        liveness::bring_to_life(&slot.mutex);
        slot.state.store(life | super::TAKEN, Ordering::Release);
    }
}

/// What the kernel does for real threads, for a simulated one that has died.
#[cfg(feature = "sim")]
impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if crate::sim::crashed() && liveness::holder(&self.0.mutex) == liveness::SIMULATED {
            liveness::mark(&self.0.mutex);
        }
    }
}
