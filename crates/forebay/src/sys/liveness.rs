//! Evidence of life that the kernel keeps: a robust, process-shared mutex held for as long as a thread lives.
//!
//! When the thread ends without letting go, in whatever way, the kernel walks its list of robust mutexes and marks the
//! word: the owner has died. Anyone who maps the word sees it, in any process and any pid namespace, and no
//! time-out is involved (architecture 4.4.4). The mark comes after the thread's last instruction.

use std::sync::atomic::{AtomicU64, Ordering};

// Elsewhere the lock word may lie at another place in the mutex, or be no futex of the robust list's form.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
compile_error!("whether a thread lives is read from the robust mutexes of Linux with glibc");

/// Room for a `pthread_mutex_t` in shared memory.
#[repr(C, align(8))]
#[derive(Debug, Default)]
pub struct Word([AtomicU64; 5]);

const _: () = assert!(size_of::<libc::pthread_mutex_t>() == size_of::<Word>());

/// The kernel's mark in a futex word whose owner has died (`linux/futex.h`).
const OWNER_DIED: u32 = 0x4000_0000;

/// Makes the mutex anew and locks it for the calling thread's life. The caller owns the slot that the word is in, so nobody
/// else touches the mutex.
pub fn hold(word: &Word) {
    let mutex = word.0.as_ptr().cast::<libc::pthread_mutex_t>().cast_mut();
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    // SAFETY: the attributes are initialised by the first call and used by this thread alone; the mutex's memory is
    // shared, mapped as long as the arena, all zeros or an old mutex, and no other thread uses it but to load its
    // first word; `UnsafeCell` inside the atomics allows the writes.
    unsafe {
        let attributes = attributes.as_mut_ptr();
        libc::pthread_mutexattr_init(attributes);
        libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutex_init(mutex, attributes);
        libc::pthread_mutexattr_destroy(attributes);
        libc::pthread_mutex_lock(mutex);
    }
}

/// Lets go: the thread leaves in good order. Only the thread that holds the word may call this.
pub fn let_go(word: &Word) {
    let mutex = word.0.as_ptr().cast::<libc::pthread_mutex_t>().cast_mut();
    // SAFETY: initialised by `hold`, locked by this thread.
    unsafe { libc::pthread_mutex_unlock(mutex) };
}

/// Whether a process is stopped, by a signal or a debugger. One that cannot be seen from here is not, as far as is known.
pub fn is_stopped(process: u32) -> bool {
    process != 0
        && std::fs::read(format!("/proc/{process}/stat")).is_ok_and(|text| tells_of_a_stop(&text))
}

/// The same, by what `/proc/PID/stat` says, or its first bytes.
pub(super) fn tells_of_a_stop(stat: &[u8]) -> bool {
    // `PID (NAME) STATE ...`; the name may have parentheses of its own.
    let end = stat.iter().rposition(|&byte| byte == b')');
    end.is_some_and(|end| matches!(stat.get(end + 2), Some(b'T' | b't')))
}

/// Whether the kernel has marked the owner as dead.
pub fn owner_died(word: &Word) -> bool {
    // The lock word is the first 32 bits of glibc's mutex.
    word.0[0].load(Ordering::Acquire) as u32 & OWNER_DIED != 0
}
