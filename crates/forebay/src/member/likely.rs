//! How long the next file is likely to be, by the last ones.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::limits::PAGE_BYTES;

const PAGE: u64 = PAGE_BYTES as u64;

/// How long the files are that this process closes. Where two in a row had as many pages, the next one gets space for so many: what is
/// set aside ahead and not used takes two changes of the file system to give back, which are most of the price of a small file.
#[derive(Default)]
pub struct Likely {
    /// Of the last file, bytes of whole pages.
    last: AtomicU64,
    /// Of the last two, where they are equal; else 0.
    both: AtomicU64,
}

impl Likely {
    /// A file of this size has been closed. Threads that close at once may miss that two were equal.
    pub fn note(&self, size: u64) {
        let pages = size.next_multiple_of(PAGE);
        let same = self.last.swap(pages, Relaxed) == pages;
        self.both.store(if same { pages } else { 0 }, Relaxed);
    }

    /// Bytes of whole pages; 0: nothing is known.
    pub fn pages_bytes(&self) -> u64 {
        self.both.load(Relaxed)
    }
}
