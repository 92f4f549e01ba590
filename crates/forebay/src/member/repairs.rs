//! What a process remembers of repairs: how long it has waited for one, and when one was in vain.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::sync::time::Instant;

/// How long after a device has failed to say that nothing is under way it is asked again.
const LAND_PAUSE: Duration = Duration::from_millis(100);

/// How long a process has waited for the next repair. Without a lock, which a child that is forked meanwhile would find taken for ever.
pub struct Waited {
    base: Instant,
    /// Which repair it waits for, in the high half, and since when: milliseconds from `base` + 1, or 0.
    begun: AtomicU64,
}

impl Default for Waited {
    fn default() -> Self {
        Waited {
            base: Instant::now(),
            begun: AtomicU64::new(0),
        }
    }
}

impl Waited {
    /// It waits now, after so many repairs. For how long it has.
    pub fn since(&self, repairs: u32) -> Duration {
        let now = self.base.elapsed().as_millis() as u32 + 1;
        let begun = self.begun.load(Relaxed);
        if begun as u32 == 0 || (begun >> 32) as u32 != repairs {
            self.begun
                .store(u64::from(repairs) << 32 | u64::from(now), Relaxed);
            return Duration::ZERO;
        }
        Duration::from_millis(now.saturating_sub(begun as u32).into())
    }
}

/// When this process could last not wait for what the dead have under way, because the device said no: the whole session stops for each
/// try, and the next one is not likely to fare better.
pub struct Unlanded {
    base: Instant,
    /// Milliseconds from `base` until which only a new death is a reason to try again.
    until: AtomicU64,
}

impl Default for Unlanded {
    fn default() -> Self {
        Unlanded {
            base: Instant::now(),
            until: AtomicU64::new(0),
        }
    }
}

impl Unlanded {
    pub fn note(&self) {
        let until = self.base.elapsed() + LAND_PAUSE;
        self.until.store(until.as_millis() as u64, Relaxed);
    }

    pub fn may_try(&self) -> bool {
        self.base.elapsed().as_millis() as u64 >= self.until.load(Relaxed)
    }
}
