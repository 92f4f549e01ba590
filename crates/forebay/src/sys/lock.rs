//! Locks on single bytes of a file that belong to an open description: the kernel takes them away with its last
//! descriptor, however its process ends. Nothing here waits.

use super::{check, offset_of, retry};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

fn at(byte: u64, kind: libc::c_int) -> io::Result<libc::flock> {
    // SAFETY: plain numbers, for which zero is a value; the kernel demands it of the process id.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset_of(byte)?;
    lock.l_len = 1;
    Ok(lock)
}

fn set(fd: BorrowedFd<'_>, byte: u64, kind: libc::c_int) -> io::Result<()> {
    let lock = at(byte, kind)?;
    // SAFETY: our own variable, initialised, alive during the call.
    retry(|| check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }))
}

/// Takes a byte's lock, which others may hold as well.
pub fn share(fd: BorrowedFd<'_>, byte: u64) -> io::Result<()> {
    set(fd, byte, libc::F_RDLCK)
}

/// Gives it back.
pub fn let_go(fd: BorrowedFd<'_>, byte: u64) -> io::Result<()> {
    set(fd, byte, libc::F_UNLCK)
}

/// Whether another open description holds it.
pub fn is_held_elsewhere(fd: BorrowedFd<'_>, byte: u64) -> io::Result<bool> {
    is_any_held_elsewhere(fd, byte, 1)
}

/// Whether other open descriptions hold any of so many bytes.
pub fn is_any_held_elsewhere(fd: BorrowedFd<'_>, byte: u64, count: u64) -> io::Result<bool> {
    if count == 0 {
        return Ok(false);
    }
    let mut lock = at(byte, libc::F_WRLCK)?;
    lock.l_len = offset_of(count)?;
    // SAFETY: our own variable, which the kernel alone writes during the call.
    retry(|| check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) }))?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}
