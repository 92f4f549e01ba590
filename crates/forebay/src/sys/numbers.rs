//! Numbers for descriptors, where the process is short of them.
//!
//! The kernel drops descriptors of a message that it has no numbers for, and refuses those who open a watched file where it has none for the event.
//! So some threads keep numbers for that, and give them up just before. Whoever does, and whoever takes numbers to keep them, does it in turn:
//! else one of these threads would take what another one has just given up. What the rest of the program takes is not kept from it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::limits;

/// The turn. It guards nothing but the order.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for the turn, which lasts for a few calls that do not wait.
pub fn in_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a number that was free is one of the last `few` that there may be: others of the process may take all of those at once. The kernel gives
/// the lowest first.
pub fn is_of_the_last(taken: &OwnedFd, few: u64) -> bool {
    taken.as_raw_fd() as u64 + few >= limits::descriptors()
}
