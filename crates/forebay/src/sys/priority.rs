//! How much a thread gets of a core that others want, too.

/// About a tenth of what others get.
const NICE: libc::c_int = 10;

/// Makes the calling thread give way to others. Where that is refused, it goes on as it is.
pub fn be_nice() {
    // All threads of a simulation are one.
    #[cfg(feature = "sim")]
    if crate::sim::tasks::is_on() {
        return;
    }
    // SAFETY: concerns the calling thread alone (0), and no memory.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}
