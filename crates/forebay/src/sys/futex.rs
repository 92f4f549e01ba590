//! Sleeping on a shared word until somebody changes it (`futex(2)`), across processes.

use crate::sync::AtomicU32;
use std::time::Duration;

/// Sleeps while the word is `expected`, for at most `timeout`. Returns early at will.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    #[cfg(feature = "sim")]
    if crate::sim::tasks::is_on() {
        if word.load(crate::sync::Ordering::Acquire) == expected {
            crate::sim::tasks::wait_on_futex(timeout);
        }
        return;
    }
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the word is mapped for the whole call; others change it as an atomic; the time is ours.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &timeout,
            0,
            0,
        );
    }
}

/// Wakes all threads that sleep on the word.
pub fn wake(word: &AtomicU32) {
    #[cfg(feature = "sim")]
    if crate::sim::tasks::is_on() {
        crate::sim::tasks::wake_futexes();
        return;
    }
    // SAFETY: as above.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE,
            i32::MAX,
            0,
            0,
            0,
        );
    }
}
