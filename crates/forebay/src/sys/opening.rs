//! Openings of the engine's, which say that they are.
//!
//! The keeper's guard holds up each program that opens a managed file, and reads of a thread that waits which call it is in, and by which
//! instruction (`/proc/TID/syscall`). So the engine opens files by an instruction of its own, and has two registers, which the call takes no
//! argument in, say whose it is and where it lies. What is left in them for a later call names another place than that call's.
//!
//! Everything in the engine that opens a file which may be managed opens it here. A guard that has no descriptor left to read that with can still tell
//! openings of its own process: their threads are noted here ([`is_under_way_by`]).

use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether this machine has such an instruction; where not, nobody can tell whose an opening is.
pub const SAYS_SO: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

const MARK: u64 = u64::from_le_bytes(*b"Forebay\0");

/// Opens a file by one call, which a signal may end (`EINTR`).
pub fn open(path: &CStr, flags: libc::c_int, mode: u32) -> io::Result<OwnedFd> {
    let made = noting(|| call(path, flags | libc::O_CLOEXEC, mode));
    let raw = i32::try_from(made).map_err(|_| io::ErrorKind::InvalidData)?;
    if raw < 0 {
        return Err(io::Error::from_raw_os_error(-raw));
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Threads of this process that are in [`open`], as [`noted`] has them; 0: nobody. A forked child finds its parent's here, which are nobody's to it.
static UNDER_WAY: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// How a thread of this process is noted.
fn noted(thread: u32) -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(thread)
}

/// A place in [`UNDER_WAY`], until it is dropped. Not held where all are taken: then the guard has to look, as ever.
struct Note(Option<&'static AtomicU64>);

impl Note {
    fn take() -> Self {
        // SAFETY: asks for this thread's number; no memory of ours.
        let own = noted(unsafe { libc::gettid() } as u32);
        let is_free = |there| there >> 32 != own >> 32;
        let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        Note(UNDER_WAY.iter().find(|place| {
            let there = place.load(Ordering::Relaxed);
            is_free(there) && place.compare_exchange(there, own, done, failed).is_ok()
        }))
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::Release);
        }
    }
}

/// Makes a call that opens a file for the engine.
pub(crate) fn noting<T>(call: impl FnOnce() -> T) -> T {
    let _note = Note::take();
    call()
}

/// Whether a thread of this process, by the kernel's number for it, is in [`open`]. A handler of signals that runs just before the call, or just
/// after it, cannot be told from it; so this is for a guard that cannot look at the call.
pub fn is_under_way_by(thread: u32) -> bool {
    let its = noted(thread);
    UNDER_WAY
        .iter()
        .any(|place| place.load(Ordering::Acquire) == its)
}

/// `openat` at the working directory: a descriptor, or the negated number of an error.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn call(path: &CStr, flags: libc::c_int, mode: u32) -> i64 {
    let made: i64;
    // SAFETY: `path` is a C string, initialised, alive and unshared during the call, which takes no other memory; the registers that the
    // kernel changes are named.
    unsafe {
        std::arch::asm!(
            "lea r9, [rip + 2f]",
            "syscall",
            "2:",
            inlateout("rax") libc::SYS_openat => made,
            in("rdi") i64::from(libc::AT_FDCWD),
            in("rsi") path.as_ptr(),
            in("rdx") i64::from(flags),
            in("r10") u64::from(mode),
            in("r8") MARK,
            out("r9") _,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    made
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn call(path: &CStr, flags: libc::c_int, mode: u32) -> i64 {
    let made: i64;
    // SAFETY: `path` is a C string, initialised, alive and unshared during the call, which takes no other memory; the register that the
    // kernel changes is named.
    unsafe {
        std::arch::asm!(
            "adr x5, 2f",
            "svc 0",
            "2:",
            in("x8") libc::SYS_openat,
            inlateout("x0") i64::from(libc::AT_FDCWD) => made,
            in("x1") path.as_ptr(),
            in("x2") i64::from(flags),
            in("x3") u64::from(mode),
            in("x4") MARK,
            out("x5") _,
            options(nostack),
        );
    }
    made
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn call(path: &CStr, flags: libc::c_int, mode: u32) -> i64 {
    // SAFETY: `path` is a C string, initialised, alive and unshared during the call, which takes no other memory.
    let made = unsafe { libc::open(path.as_ptr(), flags, mode) };
    match made {
        0.. => i64::from(made),
        _ => -i64::from(
            io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        ),
    }
}

/// Whether the call that a thread waits in is an opening of the engine's: `NUMBER`, six registers, `STACK ADDRESS`, as the kernel tells it.
pub fn says_so(line: &str) -> bool {
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let mut words = line.split_ascii_whitespace().skip(5).map(number);
    let [mark, place, _, address] = [(); 4].map(|()| words.next().flatten());
    mark == Some(MARK) && place.is_some() && place == address
}

#[cfg(test)]
mod tests;
