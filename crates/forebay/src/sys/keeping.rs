//! An open description that outlives its descriptors.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Keeps an open description for as long as this lives, whatever becomes of its descriptors: memory that nobody may touch. A forked child
/// does not have it.
#[derive(Debug)]
pub struct Keeping {
    address: usize,
}

impl Keeping {
    /// So much of the file is mapped: as little as there is.
    const LEN: usize = 4096;

    /// `None`: it cannot be had, with huge pages below for one.
    pub fn of(file: BorrowedFd<'_>) -> Option<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: new memory, which nobody may touch.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::LEN,
                libc::PROT_NONE,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return None;
        }
        let keeping = Keeping {
            address: memory.addr(),
        };
        // SAFETY: this mapping and no other.
        let alone = unsafe { libc::madvise(memory, Self::LEN, libc::MADV_DONTFORK) } == 0;
        alone.then_some(keeping)
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        let memory = std::ptr::without_provenance_mut(self.address);
        // SAFETY: this mapping and no other; nobody has ever touched it.
        unsafe { libc::munmap(memory, Self::LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::lock;
    use std::os::fd::AsFd;

    #[test]
    fn locks_stay_without_their_descriptor() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(4096).expect("a length");
        let again = file.reopen().expect("another description");
        lock::share(again.as_fd(), 5).expect("a lock");
        let keeping = Keeping::of(again.as_fd()).expect("memory");
        drop(again);
        let is_held = || lock::is_held_elsewhere(file.as_file().as_fd(), 5).expect("an answer");
        assert!(is_held());
        drop(keeping);
        assert!(!is_held());
    }
}
