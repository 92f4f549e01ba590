//! A file with one description instead of two: as a file begins, and what a lease asks for (`DeviceFile::unite`).
//!
//! What has to go through the kernel's cache then goes through the direct description, which is no direct one for the moment
//! that takes. Direct requests of other threads at that moment go through the cache, too, and are written back with what
//! brought that about. Another process that shares the description may do the same at the same time: a request that finds it
//! direct again is refused (`EINVAL`) and made once more.
//!
//! A file begins with one, since most need no other. The first request that goes through the cache and on to the device opens the second one; the
//! bytes of a last close, which go no further than the cache, do not.

use super::RealFile;
use crate::device::may_fail;
use crate::sys::{file, lease, stat};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;

/// How often a request is made that another process gets in the way of.
const TRIES: u32 = 100;

/// Whether a file's two descriptors are of one description.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Together {
    /// There are two.
    No,
    /// Nothing has needed another one so far.
    SoFar,
    /// There was no other to be had, or a lease is wanted, or nobody would hear of an opening.
    ForGood,
}

impl RealFile {
    /// See `DeviceFile::unite`.
    pub(super) fn give_up_all_but_one(&self) -> io::Result<()> {
        let direct = self.direct.as_fd();
        if stat::stat(direct)?.executable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // What is under way in the other description ends first: it would keep it open.
        let mut together = self
            .together
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        lease::hear_of_waiters(direct)?;
        if *together == Together::No {
            file::replace(direct, self.buffered.as_fd())?;
        }
        *together = Together::ForGood;
        Ok(())
    }

    /// See `DeviceFile::open_no_more`.
    pub(super) fn stay_together(&self) {
        let mut together = self
            .together
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if *together == Together::SoFar {
            *together = Together::ForGood;
        }
    }

    /// Opens the second description, unless it is there or the file is to have one alone.
    pub(super) fn part(&self) {
        let is_one_so_far = |together: &Together| *together == Together::SoFar;
        if !is_one_so_far(&self.together.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        // Opened before the lock is taken: the guard may be asked about the opening.
        let opened = file::open_again(self.direct.as_fd(), false, self.writable);
        let mut together = self
            .together
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if is_one_so_far(&together) {
            let replaced = opened.and_then(|own| file::replace(own.as_fd(), self.buffered.as_fd()));
            *together = match replaced {
                Ok(()) => Together::No,
                // Without `/proc`, or a number, or the right to open it once more.
                Err(_) => Together::ForGood,
            };
        }
    }

    /// What a sync by the buffered description has come to. The direct one was opened before it, and the kernel may have told others meanwhile what it could
    /// not write back: those that are opened afterwards do not hear of it.
    pub(super) fn all_told(&self, synced: io::Result<()>) -> io::Result<()> {
        // Asked in any case: the sync's own error would come once more.
        let told = file::untold(self.direct.as_fd());
        synced.and(told)
    }

    /// Carries out a request that is not direct.
    pub(super) fn through_cache<T>(
        &self,
        request: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.part();
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
            let together = self.together.read().unwrap_or_else(PoisonError::into_inner);
            if *together == Together::No {
                return request(self.buffered.as_fd());
            }
        }
        let _alone = self
            .together
            .write()
            .unwrap_or_else(PoisonError::into_inner);
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
