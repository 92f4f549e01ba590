//! Addresses that stand for parts of a file, side by side, or for memory of the process's own.

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

/// What may be done at a part, and who sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its bytes are read.
    Read,
    /// Its bytes are read and written, and are the file's. A child that is forked has nothing there.
    Shared,
    /// Its bytes are the file's until they are written: what is written is a copy of the process's. A child that is forked has nothing there.
    Private,
    /// As `Private`, but a child has it as well: what each of them writes is a copy of its own.
    Inherited,
}

// SAFETY: addresses are the process's, not a thread's, and the type offers no access of its own.
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

    /// Has `len` bytes at `at` stand for those of a file at `offset`, all whole pages. What they stood for before is gone.
    ///
    /// # Errors
    /// The system's: too many mappings, or an offset that its pages do not allow. They stand for what they stood for before.
    pub fn show(
        &self,
        at: usize,
        len: usize,
        file: BorrowedFd<'_>,
        offset: usize,
        access: Access,
    ) -> io::Result<()> {
        let (protection, flags) = match access {
            Access::Read => (libc::PROT_READ, libc::MAP_SHARED),
            Access::Shared => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
            Access::Private | Access::Inherited => {
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE)
            }
        };
        let source = (file.as_raw_fd(), offset as i64);
        self.map(at, len, protection, flags | libc::MAP_NORESERVE, source)?;
        if matches!(access, Access::Shared | Access::Private) {
            self.keep_from_children(at, len);
        }
        Ok(())
    }

    /// Has `len` bytes at `at`, whole pages, stand for zeros of the process's own. What they stood for before is gone.
    ///
    /// # Errors
    /// As for [`Addresses::show`].
    pub fn empty(&self, at: usize, len: usize) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        self.map(at, len, protection, flags, (-1, 0))?;
        self.keep_from_children(at, len);
        Ok(())
    }

    fn map(
        &self,
        at: usize,
        len: usize,
        protection: i32,
        flags: i32,
        (file, offset): (i32, i64),
    ) -> io::Result<()> {
        let room = self.len - self.first;
        if at > room || len > room - at {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let target = self.start.wrapping_add(self.first + at).cast();
        let flags = flags | libc::MAP_FIXED;
        // SAFETY: within the addresses that are ours; code that may look there is told what becomes of it (`show`, `empty`).
        let mapped = unsafe { libc::mmap(target, len, protection, flags, file, offset) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// A child would write into what is somebody else's once the parent has let go of it.
    fn keep_from_children(&self, at: usize, len: usize) {
        let target = self.start.wrapping_add(self.first + at).cast();
        // SAFETY: mapped just now, within the addresses that are ours; nothing changes for this process.
        unsafe { libc::madvise(target, len, libc::MADV_DONTFORK) };
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: mapped in `reserve`, unmapped once; the code that lends the addresses out ends that before.
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
            let shown = addresses.show(part * 4096, 4096, file.as_fd(), page * 4096, Access::Read);
            shown.expect("a mapping");
        }
        // SAFETY: three pages that were mapped above.
        let bytes = unsafe { std::slice::from_raw_parts(addresses.first(), 3 * 4096) };
        let seen: Vec<u8> = bytes.iter().step_by(2048).copied().collect();
        assert_eq!(seen, [2, 2, 0, 0, 3, 3]);
        let show = |at, offset| addresses.show(at, 4096, file.as_fd(), offset, Access::Read);
        assert!(show(1 << 22, 0).is_err());
        assert!(show(0, 100).is_err());
        assert!(addresses.empty(1 << 22, 4096).is_err());
    }

    #[test]
    fn what_is_written_is_the_files_or_not_as_was_asked_for() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().expect("a file");
        file.set_len(4096).expect("a length");
        let addresses = Addresses::reserve(4096, 4096, 0).expect("addresses");
        let first = addresses.first().cast_mut();
        let all = [
            (Access::Shared, 1u8),
            (Access::Private, 2),
            (Access::Inherited, 2),
        ];
        for (access, byte) in all {
            addresses
                .show(0, 4096, file.as_fd(), 0, access)
                .expect("shown");
            // SAFETY: mapped for writing just now.
            unsafe { first.write_volatile(byte) };
        }
        // SAFETY: as above.
        assert_eq!(unsafe { first.read_volatile() }, 2);
        addresses.empty(0, 4096).expect("emptied");
        // SAFETY: as above.
        assert_eq!(unsafe { first.read_volatile() }, 0);
        let mut byte = [9];
        file.read_exact_at(&mut byte, 0).expect("read");
        assert_eq!(byte, [1]);
    }
}
