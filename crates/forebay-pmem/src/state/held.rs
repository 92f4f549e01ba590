//! Files that somebody holds: they stay when their last name goes.
//!
//! Whoever looks a name up and holds what it leads to does so under the state's lock for reading, so that no name goes
//! in between: taking names away needs the lock alone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often each inode is held.
#[derive(Default)]
pub(crate) struct Held(Mutex<HashMap<u64, u64>>);

impl Held {
    fn counts(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Once more.
    pub(crate) fn hold(&self, number: u64) {
        *self.counts().entry(number).or_insert(0) += 1;
    }

    /// So many times less. Whether that was the last.
    pub(crate) fn release(&self, number: u64, times: u64) -> bool {
        let mut counts = self.counts();
        let Some(count) = counts.get_mut(&number) else {
            return false;
        };
        *count = count.saturating_sub(times);
        let is_last = *count == 0;
        if is_last {
            counts.remove(&number);
        }
        is_last
    }

    /// Whether anybody holds it.
    pub(crate) fn holds(&self, number: u64) -> bool {
        self.counts().contains_key(&number)
    }

    /// Nobody holds it any more.
    pub(crate) fn forget(&self, number: u64) {
        self.counts().remove(&number);
    }
}
