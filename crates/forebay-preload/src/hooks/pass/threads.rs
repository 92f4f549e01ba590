//! What a thread says of itself: which signals it has blocked, and whether it may be cancelled at any instruction.

use super::Args;
use crate::inside;

/// `pthread_sigmask`, `sigprocmask` and their forerunners: what is blocked is asked of the kernel before the next copy.
pub fn mask(_args: &Args) {
    inside::ask_again();
}

/// `pthread_setcanceltype(type, before)`.
pub fn cancel_type(args: &Args) {
    const AT_ANY_TIME: u64 = 1;
    if args[0] & 0xffff_ffff == AT_ANY_TIME {
        inside::cancelled_at_any_time();
    }
}
