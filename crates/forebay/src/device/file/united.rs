//! A file with one description instead of two: as a file begins, and what a lease asks for (`DeviceFile::unite`).
//!
//! What has to go through the kernel's cache then goes through the direct description, which is no direct one for the moment
//! that takes. Direct requests of other threads at that moment go through the cache, too, and are written back with what
//! brought that about. Another process that shares the description may do the same at the same time: a request that finds it
//! direct again is refused (`EINVAL`) and made once more.
//!
//! A file begins with one, since most need no other. The first request that goes through the cache and on to the device opens the second one; the
//! bytes of a last close, which go no further than the cache, do not.
//!
//! Where an opening waits for the guard a file begins with none of the engine's own: with the program's description, *borrowed*
//! (`docs/decisions/0065-a-borrowed-description.md`). That is good for questions, for space and for what goes into the kernel's cache and no further.
//! Whatever moves bytes to or from the device opens the engine's own description first ([`RealFile::open_own`]), and lets go of the program's.

use super::RealFile;
use crate::device::{Piece, may_fail};
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
    /// It is the program's.
    Borrowed,
    /// Nothing has needed another one so far.
    SoFar,
    /// There was no other to be had, or a lease is wanted.
    ForGood,
}

impl RealFile {
    /// See `DeviceFile::own`.
    pub(super) fn open_own(&self) -> io::Result<()> {
        if !self.is_borrowed() {
            return Ok(());
        }
        file::in_passing(|| self.open_instead())
    }

    fn open_instead(&self) -> io::Result<()> {
        // Opened before the lock is taken: the guard may be asked about the opening.
        let own = file::open_again(self.direct.as_fd(), true, self.writable)?;
        let mut together = self
            .together
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if *together == Together::Borrowed {
            file::replace(own.as_fd(), self.direct.as_fd())?;
            file::replace(own.as_fd(), self.buffered.as_fd())?;
            *together = Together::SoFar;
        }
        Ok(())
    }

    /// Whether the program's description is all that there is.
    pub(super) fn is_borrowed(&self) -> bool {
        *self.together.read().unwrap_or_else(PoisonError::into_inner) == Together::Borrowed
    }

    /// Writes into the kernel's cache by the program's description. `None`: it is not borrowed any more, or does not serve.
    pub(super) fn write_by_borrowed(
        &self,
        pieces: &[Piece],
        offset: u64,
    ) -> io::Result<Option<usize>> {
        // Held, so that nobody lets go of it meanwhile.
        let together = self.together.read().unwrap_or_else(PoisonError::into_inner);
        if *together != Together::Borrowed {
            return Ok(None);
        }
        may_fail!(self, Cached);
        // The program may have it append. What does not succeed is tried once more, by the engine's own.
        Ok(file::write_there(self.direct.as_fd(), pieces, offset).ok())
    }

    /// See `DeviceFile::share`.
    pub(super) fn take_instead(&self, direct: BorrowedFd<'_>) -> io::Result<()> {
        let mut together = self
            .together
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        file::replace(direct, self.direct.as_fd())?;
        file::replace(direct, self.buffered.as_fd())?;
        *together = Together::ForGood;
        Ok(())
    }

    /// See `DeviceFile::unite`.
    pub(super) fn give_up_all_but_one(&self) -> io::Result<()> {
        self.open_own()?;
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

    /// Opens the second description, unless it is there or the file is to have one alone.
    pub(super) fn part(&self) {
        if *self.together.read().unwrap_or_else(PoisonError::into_inner) != Together::SoFar {
            return;
        }
        file::in_passing(|| self.open_second());
    }

    fn open_second(&self) {
        // Opened before the lock is taken: the guard may be asked about the opening.
        let opened = file::open_again(self.direct.as_fd(), false, self.writable);
        let mut together = self
            .together
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if *together == Together::SoFar {
            let replaced = opened.and_then(|own| file::replace(own.as_fd(), self.buffered.as_fd()));
            *together = match replaced {
                Ok(()) => Together::No,
                // Without `/proc`, or a number, or the right to open it once more.
                Err(_) => Together::ForGood,
            };
        }
    }

    /// Carries out a request that is not direct.
    pub(super) fn through_cache<T>(
        &self,
        request: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.open_own()?;
        self.part();
        // Direct writes that have taken this way meanwhile are written back.
        self.by_cache(request, |fd| file::write_back(fd, 0, 0))
    }

    /// As [`RealFile::through_cache`], of a file whose bytes need not get any further.
    pub(super) fn only_to_cache<T>(
        &self,
        request: impl Fn(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.open_own()?;
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
