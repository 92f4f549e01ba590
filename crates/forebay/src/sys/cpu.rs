//! The core that the calling thread runs on.

/// Its number; 0 where the kernel does not say. By the next instruction it may be another: a hint.
#[inline]
pub fn current() -> u32 {
    // SAFETY: reads a number of the calling thread's; no memory of ours.
    let core = unsafe { libc::sched_getcpu() };
    u32::try_from(core).unwrap_or(0)
}

/// How many the machine has at work; 1 where the kernel does not say.
pub fn count() -> usize {
    // SAFETY: asks for a number; no memory of ours.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(cores).unwrap_or(1).max(1)
}
