//! Forking. A child of `vfork` would share our memory, so it is given a real fork.

use libc::pid_t;

use crate::attach;
use crate::real;

export! {
    /// `fork`.
    fn fork | __fork | vfork | __vfork() -> pid_t {
        // SAFETY: the caller's call.
        forked(|| unsafe { real::fork() })
    }

    /// `_Fork`: without the handlers of `pthread_atfork`.
    fn _Fork() -> pid_t {
        // SAFETY: the caller's call.
        forked(|| unsafe { real::_Fork() })
    }
}

fn forked(fork: impl FnOnce() -> pid_t) -> pid_t {
    if !attach::is_on() {
        return fork();
    }
    attach::before_fork();
    let child = fork();
    match child {
        0 => attach::in_child(),
        -1 => attach::fork_failed(),
        _ => {}
    }
    child
}
