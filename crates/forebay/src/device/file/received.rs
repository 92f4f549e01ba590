//! Descriptions that another process has opened and sent: nothing about them is believed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::RealFile;
use super::opening::{TWO_FILES, admit, ask};
use super::united::Together;
use crate::device::KernelReason;
use crate::sys::file::{self, is_one_description};
use crate::sys::stat::Stat;

impl RealFile {
    /// Takes over descriptors of one file, direct and buffered, as [`RealFile::reopen`] made them, perhaps in another process; while there
    /// is one description so far, both are direct. Nothing about them is believed.
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

    /// Takes over descriptors of a description that a program has, as [`RealFile::borrow`] does in another process, and opens the file for itself at
    /// once: the program's description is not to stay open here. Where it cannot be opened now, it is tried again with each request.
    pub fn from_borrowed(direct: OwnedFd, buffered: OwnedFd) -> Result<Self, KernelReason> {
        // Its sender may have opened it meanwhile.
        if file::flags(direct.as_fd()).is_ok_and(|flags| flags & libc::O_DIRECT != 0) {
            return Self::from_descriptors(direct, buffered);
        }
        let (stat, other) = (ask(direct.as_fd())?, ask(buffered.as_fd())?);
        let wrong = |what| Err(KernelReason::WrongDescriptors { what });
        if (stat.device, stat.inode) != (other.device, other.inode) {
            return wrong(TWO_FILES);
        }
        for fd in [&direct, &buffered] {
            let flags = file::flags(fd.as_fd());
            let flags = flags.map_err(|error| KernelReason::of_probe("fcntl", &error))?;
            if flags & libc::O_ACCMODE == libc::O_RDONLY {
                return wrong("not open for writing");
            }
        }
        let file_system = admit(direct.as_fd(), &stat)?;
        // So that it takes no number more than what was received: there may be none.
        drop(buffered);
        let own = file::open_again(direct.as_fd(), true, true);
        let own = own.and_then(|own| file::replace(own.as_fd(), direct.as_fd()).map(|()| own));
        let (buffered, together) = match own {
            Ok(own) => (own, Together::SoFar),
            Err(_) => {
                let copy = direct.try_clone();
                let failed = |error| KernelReason::of_open(&error, file_system.name);
                (copy.map_err(failed)?, Together::Borrowed)
            }
        };
        Self::over((direct, buffered, together), (&stat, file_system), true)
    }

    /// See `DeviceFile::share`.
    pub(super) fn share_received(&self, direct: BorrowedFd<'_>) -> io::Result<()> {
        let foreign = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let (stat, _) = check(direct, direct, self.writable).map_err(foreign)?;
        if (stat.device, stat.inode) != (self.caps.device, self.caps.inode) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.take_instead(direct)
    }

    fn received(direct: OwnedFd, buffered: OwnedFd, writable: bool) -> Result<Self, KernelReason> {
        let (stat, together) = check(direct.as_fd(), buffered.as_fd(), writable)?;
        let file_system = admit(direct.as_fd(), &stat)?;
        Self::over((direct, buffered, together), (&stat, file_system), writable)
    }
}

/// One inode, open in the way that is asked for, not appending, the first of them direct. What is known of it, and whether there is one
/// description so far.
fn check(
    direct: BorrowedFd<'_>,
    buffered: BorrowedFd<'_>,
    writable: bool,
) -> Result<(Stat, Together), KernelReason> {
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
    match (a & libc::O_DIRECT != 0, b & libc::O_DIRECT != 0) {
        (true, false) => Ok((stat, Together::No)),
        (true, true) => Ok((stat, Together::SoFar)),
        // Of one description that its sender uses for a request by way of the cache just now.
        (false, false) if is_one_description(direct, buffered) => Ok((stat, Together::SoFar)),
        (false, _) => wrong("the first is not direct"),
    }
}
