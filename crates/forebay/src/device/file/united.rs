//! A file with one description instead of two: what a lease asks for (`DeviceFile::unite`).
//!
//! What has to go through the kernel's cache then goes through the direct description, which is no direct one for the moment
//! that takes. Direct requests of other threads at that moment go through the cache, too, and are written back with what
//! brought that about. Another process that shares the description may do the same at the same time: a request that finds it
//! direct again is refused (`EINVAL`) and made once more.

use super::RealFile;
use crate::device::may_fail;
use crate::sys::{file, lease, stat};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;

/// How often a request is made that another process gets in the way of.
const TRIES: u32 = 100;

impl RealFile {
    /// See `DeviceFile::unite`.
    pub(super) fn give_up_all_but_one(&self) -> io::Result<()> {
        let direct = self.direct.as_fd();
        if stat::stat(direct)?.executable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // What is under way in the other description ends first: it would keep it open.
        let mut united = self.united.write().unwrap_or_else(PoisonError::into_inner);
        lease::hear_of_waiters(direct)?;
        if !*united {
            file::replace(direct, self.buffered.as_fd())?;
            *united = true;
        }
        Ok(())
    }

    /// Carries out a request that is not direct.
    pub(super) fn through_cache<T>(
        &self,
        request: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        // Direct writes that have taken this way meanwhile are written back.
        self.by_cache(request, |fd| file::write_back(fd, 0, 0))
    }

    /// As [`RealFile::through_cache`], of a file whose bytes need not get any further.
    pub(super) fn only_to_cache<T>(
        &self,
        request: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.by_cache(request, |_| Ok(()))
    }

    fn by_cache<T>(
        &self,
        request: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
        then: impl Fn(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<T> {
        may_fail!(self, Cached);
        {
            let united = self.united.read().unwrap_or_else(PoisonError::into_inner);
            if !*united {
                return request(self.buffered.as_fd());
            }
        }
        let _alone = self.united.write().unwrap_or_else(PoisonError::into_inner);
        let fd = self.direct.as_fd();
        let mut tries = 0;
        loop {
            file::set_direct(fd, false)?;
            let result = request(fd);
            file::set_direct(fd, true)?;
            tries += 1;
            match result {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && tries < TRIES => {}
                Err(error) => return Err(error),
                Ok(done) => {
                    then(fd)?;
                    return Ok(done);
                }
            }
        }
    }
}
