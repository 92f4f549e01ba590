//! Write leases of the kernel (`fcntl`): while one is held, a program that opens the file waits until it has been given up, or until
//! `/proc/sys/fs/lease-break-time` seconds have passed. It can be had while its description is the only one of the file, by the
//! file's owner, and belongs to that description: to all processes that share it, and to nobody once all have closed it.

use super::{check, retry};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Not among libc's names on every platform.
const F_SETSIG: libc::c_int = 10;

fn control(fd: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> io::Result<i32> {
    retry(|| {
        // SAFETY: these commands take a number, no memory.
        let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) };
        check(result)?;
        Ok(result)
    })
}

/// Takes it. `EAGAIN`: the file has another description; `EACCES`: it is somebody else's.
pub fn take(fd: BorrowedFd<'_>) -> io::Result<()> {
    control(fd, libc::F_SETLEASE, libc::F_WRLCK).map(drop)
}

/// Gives it up.
pub fn give_up(fd: BorrowedFd<'_>) -> io::Result<()> {
    control(fd, libc::F_SETLEASE, libc::F_UNLCK).map(drop)
}

/// Whether it is held and nobody waits for its end. To the kernel a lease that somebody waits for is as good as gone.
pub fn is_held_in_peace(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(control(fd, libc::F_GETLEASE, 0)? == libc::F_WRLCK)
}

/// Sees to it that a process that takes a lease later is not told of those that wait for it by a signal that ends programs:
/// this process is told in the taker's place, by one that is ignored unless asked for.
pub fn hear_of_waiters(fd: BorrowedFd<'_>) -> io::Result<()> {
    control(fd, F_SETSIG, libc::SIGURG)?;
    control(fd, libc::F_SETOWN, std::process::id() as libc::c_int).map(drop)
}
