//! Whether the holder of a lock that relatives share has ended. Asked by a thread that waits for it, without memory, locks or descriptors: the
//! answer may be wanted in a forked child or in a signal handler.

use std::ffi::CStr;
use std::io::Write;

use crate::raw;

/// Whether a lock's holder has ended, as the kernel sees it. A process that has died and has not been waited for has ended as well: it may be
/// the caller's child, or the child of a process that waits for the caller.
pub(super) fn is_gone(holder: u64) -> bool {
    let args = [(holder >> 32) as usize, holder as u32 as usize, 0, 0, 0, 0];
    // SAFETY: no signal is sent, only asked whether one could be.
    let has_no_number = unsafe { raw::call(libc::SYS_tgkill, args) == -(libc::ESRCH as isize) };
    has_no_number || is_zombie(holder)
}

/// Whether a thread that has a number has nothing else any more: no program. Asked without a descriptor. Where `/proc` is not there, or is
/// that of other numbers, nobody is taken for one.
fn is_zombie(thread: u64) -> bool {
    let mut own = [0u8; 24];
    let len = link(c"/proc/self", &mut own);
    let own = usize::try_from(len).ok().and_then(|len| own.get(..len));
    let own = own.and_then(|own| std::str::from_utf8(own).ok()?.parse().ok());
    if own != Some(raw::process_id()) {
        return false;
    }
    let mut path = [0u8; 64];
    let mut rest = &mut path[..];
    let written = write!(rest, "/proc/{}/task/{}/exe\0", thread >> 32, thread as u32);
    let path = CStr::from_bytes_until_nul(&path);
    let (Ok(()), Ok(path)) = (written, path) else {
        return false;
    };
    link(path, &mut [0]) == -(libc::ENOENT as isize)
}

/// Reads where a link leads.
fn link(path: &CStr, to: &mut [u8]) -> isize {
    let args = [
        path.as_ptr().addr(),
        to.as_mut_ptr().addr(),
        to.len(),
        0,
        0,
        0,
    ];
    // SAFETY: a string that ends, and memory of the caller's.
    unsafe { raw::call(libc::SYS_readlink, args) }
}
