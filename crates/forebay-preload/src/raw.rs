//! System calls without libc, for as long as libc's functions have not been found, and `errno`.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use forebay::sys::raw::call;
use libc::{c_int, c_long};

/// As libc wraps it: -1 and `errno`.
///
/// # Safety
/// As for [`call`].
pub unsafe fn call_errno(number: c_long, args: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let result = unsafe { call(number, args) };
    if (-4095..0).contains(&result) {
        set_errno(-result as c_int);
        return -1;
    }
    result
}

/// The calling thread's `errno`.
#[inline]
pub fn errno() -> c_int {
    // SAFETY: the thread's own word, always there.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
#[inline]
pub fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno }
}

/// Keeps `errno` as it was, whatever happens meanwhile.
pub struct KeepErrno(c_int);

impl KeepErrno {
    /// From here until it is dropped.
    pub fn new() -> Self {
        KeepErrno(errno())
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

/// The calling thread's number.
pub fn thread_id() -> u32 {
    // SAFETY: the call takes nothing.
    unsafe { call(libc::SYS_gettid, [0; 6]) as u32 }
}

/// The calling process's number.
pub fn process_id() -> u32 {
    // SAFETY: the call takes nothing.
    unsafe { call(libc::SYS_getpid, [0; 6]) as u32 }
}

/// The process's pid namespace, once it has been asked for.
static PID_NAMESPACE: AtomicU64 = AtomicU64::new(0);

/// The pid namespace of this process, by its inode, which stays the same for its life; 0: the system does not tell.
pub fn pid_namespace() -> u64 {
    let known = PID_NAMESPACE.load(Relaxed);
    if known != 0 {
        return known;
    }
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    let args = [
        libc::AT_FDCWD as isize as usize,
        c"/proc/self/ns/pid".as_ptr().expose_provenance(),
        stat.as_mut_ptr().expose_provenance(),
        0,
        0,
        0,
    ];
    // SAFETY: a string that ends in a null byte, and a target of ours, which is filled where the call succeeds.
    let namespace = unsafe {
        match call(libc::SYS_newfstatat, args) {
            0 => stat.assume_init().st_ino,
            _ => 0,
        }
    };
    PID_NAMESPACE.store(namespace, Relaxed);
    namespace
}

/// A child may be in another one.
pub fn forget_pid_namespace() {
    if PID_NAMESPACE.load(Relaxed) != 0 {
        PID_NAMESPACE.store(0, Relaxed);
    }
}
