//! What a thread says of itself: which signals it has blocked, whether it may be cancelled at any instruction, and that it makes
//! another.

use super::Args;
use crate::attach;
use crate::inside;

/// `pthread_sigmask`, `sigprocmask` and their forerunners: what is blocked is asked of the kernel before the next copy.
pub fn mask(_args: &Args) {
    inside::ask_again();
}

/// `pthread_create`, `thrd_create`: there is to be another thread.
pub fn create(_args: &Args) {
    attach::while_alone();
}

/// `pthread_setcanceltype(type, before)`.
pub fn cancel_type(args: &Args) {
    const AT_ANY_TIME: u64 = 1;
    if args[0] & 0xffff_ffff == AT_ANY_TIME {
        inside::cancelled_at_any_time();
    }
}
