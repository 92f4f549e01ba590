//! System calls by an instruction of our own: no function of libc's comes in between, and none that a library has put in its place.
//!
//! For calls that a process may make at its start or just after a fork, where each part of a library's text that is touched costs 2 us, and in the
//! preload library where libc's functions are hooks. It knows nothing of `errno`.

/// A system call. Returns what the kernel does: a negated error number for a failure.
///
/// # Safety
/// The arguments are what the call takes.
#[inline(always)]
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub unsafe fn call(number: libc::c_long, args: [usize; 6]) -> isize {
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

/// A system call, by libc where this is written for no instruction of the machine's. Returns what the kernel does: a negated error number for a
/// failure.
///
/// # Safety
/// The arguments are what the call takes.
#[cfg(any(miri, not(target_arch = "x86_64")))]
pub unsafe fn call(number: libc::c_long, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    match result {
        -1 => {
            let errno = std::io::Error::last_os_error().raw_os_error();
            -(errno.unwrap_or(libc::EIO) as isize)
        }
        _ => result as isize,
    }
}
