//! When somebody is to stand in for a keeper ([`crate::sys::stand_in`]): outsiders may wait for it, for answers or for the end of a lease.
//!
//! The one that stands in is a copy of the process, with all that a program has that hosts a keeper. So a keeper without a gate has none before its
//! first lease, and a thread that wants that lease waits for it: stopped in between, the keeper would have nobody to end the lease.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::locked;

/// How long is waited for it; the guard's thread, which makes it, comes round much sooner.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether it is wanted, and there.
#[derive(Default)]
pub(super) struct Standing {
    is_wanted: AtomicBool,
    /// It is there, or cannot be had.
    is_settled: Mutex<bool>,
    settled: Condvar,
}

impl Standing {
    /// Before a lease is taken.
    pub fn want(&self) {
        self.is_wanted.store(true, Relaxed);
        let is_settled = locked(&self.is_settled);
        let _ = (self.settled).wait_timeout_while(is_settled, PATIENCE, |is| !*is);
    }

    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Relaxed)
    }

    pub fn settle(&self) {
        *locked(&self.is_settled) = true;
        self.settled.notify_all();
    }
}
