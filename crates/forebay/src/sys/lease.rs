//! Leases of the kernel (`fcntl`). A write lease: while one is held, whoever opens the file waits until it has been given up, or until
//! `/proc/sys/fs/lease-break-time` seconds have passed. It can be had while its description is the only one of the file, by the
//! file's owner, and belongs to that description: to all who share it, and to nobody once all have closed it.

use super::{check, retry};
use crate::sync::planted;
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

/// Sees to it that who takes a lease later is not told of those who wait for it by a signal that ends programs: this process
/// is told in the taker's place, by one that is ignored unless asked for.
pub fn hear_of_waiters(fd: BorrowedFd<'_>) -> io::Result<()> {
    control(fd, F_SETSIG, libc::SIGURG)?;
    control(fd, libc::F_SETOWN, std::process::id() as libc::c_int).map(drop)
}

/// Takes a lease for reading, of a description that only reads: nobody has the file open for writing, and whoever opens it so, or cuts it by its
/// name, waits until the lease has been given up. `EAGAIN`: somebody has it open for writing, or waits to. Others may have such leases as well.
pub fn take_to_read(fd: BorrowedFd<'_>) -> io::Result<()> {
    if planted!(UnheardWriter) {
        return Ok(());
    }
    control(fd, libc::F_SETLEASE, libc::F_RDLCK).map(drop)
}

/// Whether it is held and nobody waits for its end.
pub fn is_held_to_read(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(planted!(UnheardWriter) || control(fd, libc::F_GETLEASE, 0)? == libc::F_RDLCK)
}

/// As [`hear_of_waiters`]; a thread of this process's is told, which has the signal blocked and waits for it.
pub fn tell_thread(fd: BorrowedFd<'_>, thread: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
    const F_SETOWN_EX: libc::c_int = 15;
    const F_OWNER_TID: libc::c_int = 0;
    control(fd, F_SETSIG, signal)?;
    let owner: [libc::c_int; 2] = [F_OWNER_TID, thread];
    // SAFETY: our own memory, two numbers as the kernel's structure has them, alive during the call.
    retry(|| check(unsafe { libc::fcntl(fd.as_raw_fd(), F_SETOWN_EX, owner.as_ptr()) }))
}
