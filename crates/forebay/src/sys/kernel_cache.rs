//! What the kernel has of a file in its own page cache (`cachestat`, Linux 6.5), and what it is told about that.

use super::{check, retry};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The same on every 64-bit architecture; the C library's bindings do not have it everywhere.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`; a length of 0 is to the end.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// Pages of a file in the kernel's cache (`struct cachestat`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// Pages in the cache.
    pub pages: u64,
    /// Of these, dirty.
    pub dirty: u64,
    /// Of these, being written back.
    pub writeback: u64,
    /// Pages that were evicted.
    pub evicted: u64,
    /// Pages that were evicted not long ago.
    pub recently_evicted: u64,
}

/// How much of the file the kernel has in memory. `ENOSYS` before Linux 6.5, `EOPNOTSUPP` on
/// hugetlbfs.
pub fn cached(fd: BorrowedFd<'_>) -> io::Result<Cached> {
    cached_within(fd, 0, 0)
}

/// As [`cached`], of `len` bytes from `offset` on.
pub fn cached_within(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Cached> {
    let range = Range { offset, len };
    let mut out = Cached::default();
    retry(|| {
        // SAFETY: both structures are ours, initialised, laid out as the kernel's, and live during the call.
        let result =
            unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), &range, &raw mut out, 0) };
        check(result as libc::c_int)
    })?;
    Ok(out)
}

/// `posix_fadvise`.
pub fn advise(fd: BorrowedFd<'_>, offset: u64, len: u64, advice: libc::c_int) -> io::Result<()> {
    let (offset, len) = (offset as libc::off_t, len as libc::off_t);
    // SAFETY: the descriptor is open; nothing of ours is handed over.
    match unsafe { libc::posix_fadvise(fd.as_raw_fd(), offset, len, advice) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn a_file_just_written_is_in_the_cache() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[7; 8192]).expect("written");
        match cached(file.as_fd()) {
            Ok(cached) => assert_eq!(cached.pages, 2),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOSYS)),
        }
    }
}
