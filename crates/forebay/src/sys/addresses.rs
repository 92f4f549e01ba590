//! Addresses that stand for parts of a file, side by side, read-only.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

/// A range of addresses of its own; unmapped when dropped.
#[derive(Debug)]
pub struct Addresses {
    start: *mut u8,
    len: usize,
    /// Where the parts begin.
    first: usize,
}

// SAFETY: addresses are the process's, not a thread's, and what they stand for is only read.
unsafe impl Send for Addresses {}
// SAFETY: as above; the type offers no access of its own.
unsafe impl Sync for Addresses {}

impl Addresses {
    /// `len` bytes of addresses that stand for nothing yet, the first of which is `like` modulo `align`, a power of two.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve(len: usize, align: usize, like: usize) -> io::Result<Self> {
        let all = len
            .checked_add(align)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new addresses, chosen by the kernel; nobody else can have them.
        let raw = unsafe { libc::mmap(null_mut(), all, libc::PROT_NONE, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = like.wrapping_sub(raw.addr()) & (align - 1);
        Ok(Addresses {
            start: raw.cast(),
            len: all,
            first,
        })
    }

    /// The first byte of the first part.
    pub fn first(&self) -> *const u8 {
        self.start.wrapping_add(self.first)
    }

    /// Has `len` bytes at `at` stand for those of a file at `offset`, all whole pages.
    ///
    /// # Errors
    /// The system's: too many mappings, or an offset that its pages do not allow.
    pub fn show(
        &self,
        at: usize,
        len: usize,
        file: BorrowedFd<'_>,
        offset: usize,
    ) -> io::Result<()> {
        let room = self.len - self.first;
        if at > room || len > room - at {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let target = self.start.wrapping_add(self.first + at);
        // SAFETY: within the addresses that are ours, at which nobody looks yet.
        let mapped = unsafe {
            libc::mmap(
                target.cast(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file.as_raw_fd(),
                offset as i64,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: mapped in `reserve`, unmapped once; whoever lends the addresses out ends that before.
        let rc = unsafe { libc::munmap(self.start.cast(), self.len) };
        debug_assert_eq!(rc, 0, "unmapping what was mapped cannot fail");
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn parts_lie_side_by_side_at_the_place_asked_for() {
        let mut file = tempfile::tempfile().expect("a file");
        for byte in 0..4u8 {
            file.write_all(&[byte; 4096]).expect("written");
        }
        let addresses = Addresses::reserve(3 * 4096, 1 << 21, 5 * 4096).expect("addresses");
        assert_eq!(addresses.first().addr() & ((1 << 21) - 1), 5 * 4096);
        for (part, page) in [2usize, 0, 3].into_iter().enumerate() {
            let shown = addresses.show(part * 4096, 4096, file.as_fd(), page * 4096);
            shown.expect("a mapping");
        }
        // SAFETY: three pages that were mapped above.
        let bytes = unsafe { std::slice::from_raw_parts(addresses.first(), 3 * 4096) };
        let seen: Vec<u8> = bytes.iter().step_by(2048).copied().collect();
        assert_eq!(seen, [2, 2, 0, 0, 3, 3]);
        assert!(addresses.show(1 << 22, 4096, file.as_fd(), 0).is_err());
        assert!(addresses.show(0, 4096, file.as_fd(), 100).is_err());
    }
}
