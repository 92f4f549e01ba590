//! System calls without libc, for as long as libc's functions have not been found, and `errno`.

use libc::{c_int, c_long};

/// A system call. Returns what the kernel does: a negative error number for a failure.
///
/// # Safety
/// The arguments are what the call takes.
#[inline(always)]
pub unsafe fn call(number: c_long, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; memory is touched as the caller has promised.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

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
