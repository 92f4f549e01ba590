//! Numbers for descriptors, where the process is short of them.
//!
//! The kernel drops descriptors of a message that it has no numbers for, and refuses those that open a watched file where it has none for the event.
//! So some threads keep numbers for that, and give them up just before. A thread that gives some up, and one that takes some to keep them, do it in
//! turn: else one of these threads would take what another one has just given up. What the rest of the program takes is not kept from it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::MutexGuard;

use super::forks::Lock;
use super::limits;

/// The turn. It guards nothing but the order. A child that is forked in the middle of one has its own.
static TURN: Lock = Lock::new();

/// Waits for the turn, which lasts for a few calls that do not wait. `None`: there is no memory for it, and the caller goes on without.
pub fn in_turn() -> Option<MutexGuard<'static, ()>> {
    TURN.lock().ok()
}

/// Whether a number that was free is one of the last `few` that there may be: others of the process may take all of those at once. The kernel gives
/// the lowest first.
pub fn is_of_the_last(taken: &OwnedFd, few: u64) -> bool {
    taken.as_raw_fd() as u64 + few >= limits::descriptors()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::forks::in_child;

    #[test]
    fn a_child_has_a_turn_of_its_own() {
        let _turn = in_turn().expect("memory");
        let takes = in_child(|| in_turn().is_some());
        assert!(takes, "the child waits for its parent's thread");
    }
}
