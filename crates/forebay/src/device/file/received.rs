//! Descriptions that another process has opened and sent: nothing about them is believed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::RealFile;
use super::opening::{TWO_FILES, admit, ask};
use crate::device::KernelReason;
use crate::sys::file;
use crate::sys::stat::Stat;

impl RealFile {
    /// Takes over two descriptions of one file, as [`RealFile::reopen`] made them, perhaps in
    /// another process. Nothing about them is believed.
    pub fn from_descriptors(direct: OwnedFd, buffered: OwnedFd) -> Result<Self, KernelReason> {
        Self::received(direct, buffered, true)
    }

    /// The same for two descriptions as [`RealFile::reopen_known`] makes them for reading.
    pub fn from_descriptors_for_reading(
        direct: OwnedFd,
        buffered: OwnedFd,
    ) -> Result<Self, KernelReason> {
        Self::received(direct, buffered, false)
    }

    fn received(direct: OwnedFd, buffered: OwnedFd, writable: bool) -> Result<Self, KernelReason> {
        let stat = check(direct.as_fd(), buffered.as_fd(), writable)?;
        let file_system = admit(direct.as_fd(), &stat)?;
        Self::over(direct, buffered, (&stat, file_system), writable)
    }
}

/// One inode, open in the way that is asked for, not appending, the first of them direct. What is known of it.
fn check(
    direct: BorrowedFd<'_>,
    buffered: BorrowedFd<'_>,
    writable: bool,
) -> Result<Stat, KernelReason> {
    let wrong = |what| Err(KernelReason::WrongDescriptors { what });
    let (stat, other) = (ask(direct)?, ask(buffered)?);
    if (stat.device, stat.inode) != (other.device, other.inode) {
        return wrong(TWO_FILES);
    }
    let flags = |fd| file::flags(fd).map_err(|error| KernelReason::of_probe("fcntl", &error));
    let (a, b) = (flags(direct)?, flags(buffered)?);
    let (access, mistake) = match writable {
        true => (libc::O_RDWR, "not open for reading and writing"),
        false => (libc::O_RDONLY, "not open for reading alone"),
    };
    if [a, b].iter().any(|flags| flags & libc::O_ACCMODE != access) {
        return wrong(mistake);
    }
    if (a | b) & libc::O_APPEND != 0 {
        return wrong("open for appending");
    }
    if a & libc::O_DIRECT == 0 || b & libc::O_DIRECT != 0 {
        return wrong("not one direct and one buffered");
    }
    Ok(stat)
}
