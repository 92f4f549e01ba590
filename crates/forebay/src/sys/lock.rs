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

/// Takes a byte's lock for this open description alone. `false`: another one has it.
pub fn try_own(fd: BorrowedFd<'_>, byte: u64) -> io::Result<bool> {
    match set(fd, byte, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error),
        },
    }
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
    Ok(any_held_elsewhere(fd, byte, count)?.is_some())
}

/// The first byte of a lock on any of so many bytes that another open description holds: of some such lock, if there are several.
pub fn any_held_elsewhere(fd: BorrowedFd<'_>, byte: u64, count: u64) -> io::Result<Option<u64>> {
    if count == 0 {
        return Ok(None);
    }
    let mut lock = at(byte, libc::F_WRLCK)?;
    lock.l_len = offset_of(count)?;
    // SAFETY: our own variable, which the kernel alone writes during the call.
    retry(|| check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) }))?;
    let held = lock.l_type != libc::F_UNLCK as libc::c_short;
    Ok(held.then_some(lock.l_start as u64))
}

/// Whether a descriptor's open description is the only one that there is of its file, in any process, those that mappings and
/// messages under way hold included. `false` also where the kernel does not tell: to those that do not own the file, for one.
///
/// The kernel grants a lease for writing to the only one that has a file open. It is given back at once; should somebody
/// open the file in between, the signal about that is one that nobody dies of.
pub fn is_only_description(fd: BorrowedFd<'_>) -> bool {
    asked_whether_only(fd) == Some(true)
}

/// As [`is_only_description`]. `None`: the kernel does not tell.
pub fn asked_whether_only(fd: BorrowedFd<'_>) -> Option<bool> {
    const F_SETSIG: libc::c_int = 10;
    const F_GETSIG: libc::c_int = 11;
    let ask = |command, argument: libc::c_int| {
        // SAFETY: takes no memory.
        unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) }
    };
    // A program that has signals sent about the description keeps them.
    if ask(libc::F_GETOWN, 0) != 0 || ask(F_GETSIG, 0) != 0 || ask(F_SETSIG, libc::SIGURG) != 0 {
        return None;
    }
    let granted = check(ask(libc::F_SETLEASE, libc::F_WRLCK));
    if granted.is_ok() {
        // Takes the owner and the signal away as well.
        ask(libc::F_SETLEASE, libc::F_UNLCK);
    }
    ask(F_SETSIG, 0);
    match granted {
        Ok(()) => Some(true),
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Some(false),
        Err(_) => None,
    }
}
