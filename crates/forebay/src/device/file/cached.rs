//! What the kernel has of a file in its own cache, and reading that (`DeviceFile::read_cached`): a file that was the kernel's until now, or
//! that others read.
//!
//! Whether it has a range costs a system call. So a file of which it had nothing so many times in a row is not asked about any more.

use super::RealFile;
use super::united::Together;
use crate::device::Piece;
use crate::limits::PAGE_BYTES;
use crate::sys::{file, kernel_cache, stat};
use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// Ranges in a row of which the kernel has not had everything, after which it is not asked any more.
const TRIES: u32 = 64;

impl RealFile {
    /// See `DeviceFile::is_cached`.
    pub(super) fn is_whole_in_cache(&self) -> bool {
        let fd = self.buffered.as_fd();
        let len = stat::stat(fd).map_or(u64::MAX, |stat| stat.len);
        let pages = len.div_ceil(PAGE_BYTES as u64);
        kernel_cache::cached(fd).is_ok_and(|has| has.pages >= pages)
    }

    /// See `DeviceFile::read_cached`.
    pub(super) fn read_what_is_cached(&self, piece: Piece, offset: u64) -> Option<usize> {
        if self.uncached.load(Relaxed) >= TRIES {
            return None;
        }
        // What is not direct is slow with one description.
        let together = || *self.together.read().unwrap_or_else(PoisonError::into_inner);
        if together() == Together::ForGood {
            return None;
        }
        // Before the first question: it may not be for reading.
        self.open_own().ok()?;
        let fd = self.buffered.as_fd();
        let has = kernel_cache::cached_within(fd, offset, piece.len as u64);
        if has.is_ok_and(|has| has.pages * PAGE_BYTES as u64 >= piece.len as u64) {
            self.uncached.store(0, Relaxed);
            self.part();
            // Held, so that nobody makes one of the two meanwhile.
            let parted = self.together.read().unwrap_or_else(PoisonError::into_inner);
            let has_two = *parted == Together::No;
            return has_two.then(|| file::read_at(fd, piece, offset).ok())?;
        }
        self.uncached.fetch_add(1, Relaxed);
        None
    }
}
