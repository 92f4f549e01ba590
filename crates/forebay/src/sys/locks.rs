//! Read locks on bytes (`F_OFD_SETLK`), as marks: they belong to a description, the kernel takes them back when the last
//! descriptor of it is closed, and they can be had on anything that is open for reading, directories included.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{check, offset_of, retry};

fn range(kind: libc::c_int, start: u64, len: u64) -> io::Result<libc::flock> {
    Ok(libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset_of(start)?,
        l_len: offset_of(len)?,
        l_pid: 0,
    })
}

fn set(fd: BorrowedFd<'_>, kind: libc::c_int, byte: u64) -> io::Result<()> {
    let lock = range(kind, byte, 1)?;
    // SAFETY: the lock's words are ours, initialised, and only read.
    retry(|| check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }))
}

/// Puts a mark on a byte. Marks of several descriptions do not mind each other.
pub fn mark(fd: BorrowedFd<'_>, byte: u64) -> io::Result<()> {
    set(fd, libc::F_RDLCK, byte)
}

/// Takes the mark of this description away.
pub fn unmark(fd: BorrowedFd<'_>, byte: u64) -> io::Result<()> {
    set(fd, libc::F_UNLCK, byte)
}

/// Whether any other description has a mark in a range.
pub fn is_marked(fd: BorrowedFd<'_>, start: u64, len: u64) -> io::Result<bool> {
    if len == 0 {
        return Ok(false);
    }
    let mut lock = range(libc::F_WRLCK, start, len)?;
    // SAFETY: the lock's words are ours, initialised, and written by the call alone.
    retry(|| check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) }))?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}
