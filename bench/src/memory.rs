//! The harness's own memory: huge-page mappings, the bytes to write, and warming.
//!
//! The file's bytes are a function of (generation, offset): a random pattern of 61 pages, repeated,
//! and shifted by the generation. 61 is prime and near no size the engine uses, so a page, block or
//! frame that lands in the wrong place shows. Each run has generations of its own, so that bytes left
//! on the device by an earlier run show as well.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

/// A file page.
pub const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;
const PATTERN_PAGES: u64 = 61;
const PATTERN: u64 = PATTERN_PAGES * PAGE as u64;

/// Anonymous zeroed memory, on huge pages where the system gives them, page-aligned for direct I/O.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes (at least one page) without touching them.
    pub fn new(len: usize) -> io::Result<Self> {
        let len = len.max(PAGE).next_multiple_of(HUGE_PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing of ours.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range is the mapping just made. A refusal only means small pages.
        unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
        let start = NonNull::new(start.cast()).expect("mmap never maps address zero unasked");
        Ok(Mapping { start, len })
    }

    /// Writes a byte to every page, so that all of it is backed by memory.
    pub fn touch(&mut self) {
        for byte in self.iter_mut().step_by(PAGE) {
            // Volatile by way of black_box: a plain store to memory that is soon unmapped may go.
            *std::hint::black_box(byte) = 1;
        }
    }
}

impl Deref for Mapping {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and zeroed by the kernel, private to this value, unmapped only by its drop.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nothing borrows any more. Failure would only leak.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Touches `bytes` of fresh memory and frees it, so that what follows meets memory the host has
/// already given to this machine. Every side is warmed so, before every timed region.
pub fn warm(bytes: u64) -> io::Result<()> {
    Mapping::new(bytes as usize)?.touch();
    Ok(())
}

/// Which version of the file's bytes: one number per write pass, new in each run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(pub u64);

impl Generation {
    fn shift(self) -> u64 {
        // 17 shares no factor with 61, so 61 generations in a row are all different.
        self.0 % PATTERN_PAGES * 17 * PAGE as u64
    }
}

/// The bytes that all sides write.
pub struct Source {
    bytes: Mapping,
    /// The part of the memory that requests begin in: a multiple of the pattern.
    sweep: u64,
    /// Bytes of the memory before the first.
    skew: usize,
}

impl Source {
    /// A source for requests of up to `request_bytes_max` that takes its bytes from at least
    /// `sweep_min` of memory, one part after the other as the file offset grows: how much of it a
    /// processor's caches hold is part of what a copy costs. The bytes do not depend on it.
    pub fn new(request_bytes_max: usize, sweep_min: u64) -> io::Result<Self> {
        Self::skewed(request_bytes_max, sweep_min, 0)
    }

    /// The same bytes, `skew` bytes further on in memory: what `malloc` gives for large buffers begins 16 bytes after a page.
    pub fn skewed(request_bytes_max: usize, sweep_min: u64, skew: usize) -> io::Result<Self> {
        let sweep = sweep_min.max(1).next_multiple_of(PATTERN);
        let mut bytes = Mapping::new(skew + sweep as usize + request_bytes_max)?;
        let mut random = Random::new(0x0F0E_BA11);
        let used = &mut bytes[skew..];
        for word in used[..PATTERN as usize].chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        let (pattern, rest) = used.split_at_mut(PATTERN as usize);
        for part in rest.chunks_mut(PATTERN as usize) {
            part.copy_from_slice(&pattern[..part.len()]);
        }
        Ok(Source { bytes, sweep, skew })
    }

    /// What the file holds at `offset` once `generation` has been written there. Page-aligned in
    /// memory where `offset` is page-aligned, but for the skew.
    #[inline]
    pub fn at(&self, generation: Generation, offset: u64, len: usize) -> &[u8] {
        let position = self.skew + ((offset + generation.shift()) % self.sweep) as usize;
        &self.bytes[position..position + len]
    }
}

/// SplitMix64: enough for patterns and shuffles, the same on every machine.
pub struct Random(u64);

impl Random {
    /// A generator that gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, evenly enough for bounds far below 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_the_offset_whatever_the_request() {
        let source = Source::new(1 << 20, 0).unwrap();
        let generation = Generation(3);
        let long = source.at(generation, 5000, 1 << 20);
        for start in [0usize, 1, 4095, 200_000, 900_000] {
            assert_eq!(
                &long[start..start + 100],
                source.at(generation, 5000 + start as u64, 100)
            );
        }
    }

    #[test]
    fn bytes_do_not_depend_on_the_memory_they_come_from() {
        let small = Source::new(PAGE, 0).unwrap();
        let large = Source::new(PAGE, 3 * PATTERN + 1).unwrap();
        let skewed = Source::skewed(PAGE, 3 * PATTERN + 1, 16).unwrap();
        assert_eq!(skewed.at(Generation(5), 0, PAGE).as_ptr().addr() % PAGE, 16);
        for offset in (0..10 * PATTERN).step_by(77_777) {
            let bytes = |source: &Source| source.at(Generation(5), offset, PAGE).to_vec();
            assert_eq!(bytes(&small), bytes(&large), "{offset}");
            assert_eq!(bytes(&small), bytes(&skewed), "{offset}");
        }
    }

    #[test]
    fn misplaced_blocks_and_old_generations_show() {
        let source = Source::new(PAGE, 0).unwrap();
        let page = |generation, offset| source.at(Generation(generation), offset, PAGE);
        for generation in 1..61 {
            assert_ne!(page(0, 0), page(generation, 0));
        }
        for block in 1..61 {
            assert_ne!(page(0, 0), page(0, block * 256 * 1024));
        }
    }
}
