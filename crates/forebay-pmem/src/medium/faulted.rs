//! Which blocks of a mapping this process has faulted in for writing.
//!
//! To fault in what is there costs an eighth of a microsecond for each page, since the kernel looks at each: for 2 MiB that is as long as to
//! copy them. So it is asked for each block once, where nothing takes the right to write away again.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::BLOCK;

/// A bit for each block, or nothing where none would be true for long.
pub(super) struct Faulted(Vec<AtomicU64>);

impl Faulted {
    /// For a file that is mapped. Writeback makes mapped pages read-only, so a file system with a disk, or with DAX, is never taken at its word.
    pub(super) fn of(file: &File, is_device: bool, length: usize) -> Self {
        let words = match is_device || is_in_memory(file) {
            true => length.div_ceil(BLOCK * 64),
            false => 0,
        };
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// The blocks from the first that has not been faulted in to the end of the range.
    pub(super) fn missing(&self, blocks: Range<u64>) -> Range<u64> {
        let is_there = |block: &u64| {
            let word = self.0.get((block / 64) as usize);
            // Relaxed: a bit says only that a fault is not worth asking for.
            word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (block % 64)) != 0)
        };
        let end = blocks.end;
        let first = blocks.into_iter().find(|block| !is_there(block));
        first.unwrap_or(end)..end
    }

    /// These are.
    pub(super) fn note(&self, blocks: Range<u64>) {
        for block in blocks {
            if let Some(word) = self.0.get((block / 64) as usize) {
                // Relaxed: as above.
                word.fetch_or(1 << (block % 64), Ordering::Relaxed);
            }
        }
    }
}

/// Whether nothing is ever written back: a file of tmpfs.
fn is_in_memory(file: &File) -> bool {
    // SAFETY: all zeros are a `statfs`; the call fills what is its own.
    let (mut about, file) = (
        unsafe { std::mem::zeroed::<libc::statfs>() },
        file.as_raw_fd(),
    );
    // SAFETY: a plain call on an open descriptor, with a place for its answer.
    let told = unsafe { libc::fstatfs(file, &raw mut about) } == 0;
    told && about.f_type == libc::TMPFS_MAGIC
}

#[cfg(test)]
mod tests {
    use super::Faulted;
    use crate::layout::BLOCK;

    #[test]
    fn each_block_is_missing_once() {
        let file = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
        let faulted = Faulted::of(&file, false, 200 * BLOCK + 1);
        assert_eq!(faulted.missing(60..201), 60..201);
        faulted.note(60..100);
        assert_eq!(faulted.missing(60..100), 100..100);
        assert_eq!(faulted.missing(59..100), 59..100);
        assert_eq!(faulted.missing(60..201), 100..201);
        faulted.note(100..201);
        assert!(faulted.missing(60..201).is_empty());
    }

    #[test]
    fn what_writeback_makes_read_only_is_always_missing() {
        let process = std::fs::File::open("/proc/self/stat").expect("no file of tmpfs");
        let faulted = Faulted::of(&process, false, 200 * BLOCK);
        faulted.note(0..200);
        assert_eq!(faulted.missing(0..200), 0..200);
        let faulted = Faulted::of(&process, true, 200 * BLOCK);
        faulted.note(0..200);
        assert!(faulted.missing(0..200).is_empty());
    }
}
