//! Descriptions that another process has opened and sent: nothing about them is believed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::RealFile;
use crate::device::KernelReason;
use crate::sys::{file, stat};

impl RealFile {
    /// Takes over two descriptions of one file, as [`RealFile::reopen`] made them, perhaps in
    /// another process. Nothing about them is believed.
    pub fn from_descriptors(direct: OwnedFd, buffered: OwnedFd) -> Result<Self, KernelReason> {
        check(direct.as_fd(), buffered.as_fd(), libc::O_RDWR)?;
        let file = Self::over(direct, buffered, true)?;
        file.probe()?;
        Ok(file)
    }

    /// The same for two descriptions as [`RealFile::reopen_for_reading`] made them.
    pub fn from_descriptors_for_reading(
        direct: OwnedFd,
        buffered: OwnedFd,
    ) -> Result<Self, KernelReason> {
        check(direct.as_fd(), buffered.as_fd(), libc::O_RDONLY)?;
        let file = Self::over(direct, buffered, false)?;
        file.probe_reading()?;
        Ok(file)
    }
}

/// One inode, open in the way that is asked for, not appending, the first of them direct.
fn check(
    direct: BorrowedFd<'_>,
    buffered: BorrowedFd<'_>,
    access: libc::c_int,
) -> Result<(), KernelReason> {
    let wrong = |what| Err(KernelReason::WrongDescriptors { what });
    let probe = |error: io::Error| KernelReason::of_probe("statx", &error);
    let (a, b) = (
        stat::stat(direct).map_err(probe)?,
        stat::stat(buffered).map_err(probe)?,
    );
    if (a.device, a.inode) != (b.device, b.inode) {
        return wrong("they are of two files");
    }
    let flags = |fd| file::flags(fd).map_err(|error| KernelReason::of_probe("fcntl", &error));
    let (a, b) = (flags(direct)?, flags(buffered)?);
    if [a, b].iter().any(|flags| flags & libc::O_ACCMODE != access) {
        return wrong(match access {
            libc::O_RDWR => "not open for reading and writing",
            _ => "not open for reading alone",
        });
    }
    if (a | b) & libc::O_APPEND != 0 {
        return wrong("open for appending");
    }
    if a & libc::O_DIRECT == 0 || b & libc::O_DIRECT != 0 {
        return wrong("not one direct and one buffered");
    }
    Ok(())
}
