//! One bit for each byte of a page, in shared memory: for pages whose bytes are several runs.
//!
//! The bitmap is the first 512 bytes of a small frame. Its life: taken from the free small frames
//! (its bytes are anything), [`ByteMap::clear`], the runs so far and the new one are set, the page's
//! word is stored and names it; more bits are set; the page becomes whole or is dropped, the word
//! names it no more, the frame is free. Bits are only set in between, except by truncation.
//!
//! Only a thread that holds the header's lock, or the small frame before it is linked, calls
//! anything here, so a load and a store do where a shared word would need a locked instruction.
//! Every bit pattern is a bitmap, so bits that another program has damaged make wrong answers and
//! nothing worse: all positions that come out are in the page, ascending, and finitely many.

use crate::limits::PAGE_BYTES;
use crate::sync::{AtomicU64, Ordering};

const WORD_BITS: usize = 64;
const WORDS: usize = PAGE_BYTES / WORD_BITS;

/// Bytes at the start of a small frame that the bitmap takes.
pub const MAP_BYTES: usize = PAGE_BYTES / 8;

const _: () = assert!(PAGE_BYTES.is_multiple_of(WORD_BITS));
const _: () = assert!(size_of::<[AtomicU64; WORDS]>() == MAP_BYTES);

/// A page's bitmap: bit `i` is set when byte `i` of the page is in memory.
///
/// Not `Copy`, so that the owner of the memory can lend the map without its outliving the memory.
#[derive(Debug)]
pub struct ByteMap {
    words: *const AtomicU64,
}

impl ByteMap {
    /// The bitmap at `ptr`, the first byte of a small frame.
    ///
    /// # Safety
    ///
    /// `ptr` is aligned to 8 bytes, and the [`MAP_BYTES`] from there on are mapped, readable and
    /// writable, for as long as the result is used. Meanwhile every thread and
    /// process that touches these bytes does so with atomic operations.
    #[inline]
    pub unsafe fn new(ptr: *mut u8) -> Self {
        debug_assert!(!ptr.is_null() && ptr.cast::<AtomicU64>().is_aligned());
        Self {
            words: ptr.cast::<AtomicU64>().cast_const(),
        }
    }

    /// Clears every bit.
    #[inline]
    pub fn clear(&self) {
        for word in self.words() {
            // Published by the store of the page's word that names this map.
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Sets the bits of bytes `start..end`, which have been copied. Returns whether all are set now.
    #[inline]
    pub fn set(&self, start: usize, end: usize) -> bool {
        debug_assert!(
            start < end && end <= PAGE_BYTES,
            "{start}..{end} is not in a page"
        );
        let words = self.words();
        for (index, bits) in word_bits(start, end) {
            let old = words[index].load(Ordering::Relaxed);
            // Release: a death right after this must not leave a bit without its byte. Pairs with
            // the loads in `edge` and `is_whole` by the thread that holds the lock next, or rebuilds.
            words[index].store(old | bits, Ordering::Release);
        }
        self.is_whole()
    }

    /// Clears the bits of the bytes at and beyond `end` (truncation).
    #[inline]
    pub fn clear_from(&self, end: usize) {
        debug_assert!(end <= PAGE_BYTES);
        let words = self.words();
        for (index, bits) in word_bits(end, PAGE_BYTES) {
            let old = words[index].load(Ordering::Relaxed);
            // Release: not before the stores that decided on the truncation. Pairs as in `set`.
            words[index].store(old & !bits, Ordering::Release);
        }
    }

    /// Whether every bit is set.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.words()
            .iter()
            .all(|word| word.load(Ordering::Acquire) == u64::MAX)
    }

    /// Whether no bit is set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words()
            .iter()
            .all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// The first run of set bits that lies at or after `from`, as `(start, end)`; a run that began
    /// before `from` is cut there.
    #[inline]
    pub fn first_run(&self, from: usize) -> Option<(usize, usize)> {
        self.first(from, 0)
    }

    /// The first run of clear bits that lies at or after `from`, as `(start, end)`; cut at `from`.
    #[inline]
    pub fn first_hole(&self, from: usize) -> Option<(usize, usize)> {
        self.first(from, u64::MAX)
    }

    /// Calls `f(start, end)` for each maximal run of set bits, in ascending order.
    #[inline]
    pub fn runs(&self, mut f: impl FnMut(usize, usize)) {
        let mut from = 0;
        while let Some((start, end)) = self.first_run(from) {
            f(start, end);
            from = end;
        }
    }

    /// Calls `f(start, end)` for each maximal run of clear bits, in ascending order.
    #[inline]
    pub fn holes(&self, mut f: impl FnMut(usize, usize)) {
        let mut from = 0;
        while let Some((start, end)) = self.first_hole(from) {
            f(start, end);
            from = end;
        }
    }

    /// The first run at or after `from` of bits that differ from those of `flip`. Never empty, also
    /// where the bits change between the two looks.
    #[inline]
    fn first(&self, from: usize, flip: u64) -> Option<(usize, usize)> {
        let start = self.edge(from, flip);
        (start < PAGE_BYTES).then(|| (start, self.edge(start + 1, !flip)))
    }

    /// The first position at or after `from` whose bit, flipped by `flip`, is set; the page's end
    /// where there is none.
    #[inline]
    fn edge(&self, from: usize, flip: u64) -> usize {
        let words = self.words();
        let mut keep = u64::MAX << (from % WORD_BITS);
        for (index, word) in words.iter().enumerate().skip(from / WORD_BITS) {
            // Acquire: pairs with the store in `set`; a thread that sees the bit sees the byte.
            let bits = (word.load(Ordering::Acquire) ^ flip) & keep;
            if bits != 0 {
                return index * WORD_BITS + bits.trailing_zeros() as usize;
            }
            keep = u64::MAX;
        }
        PAGE_BYTES
    }

    #[inline]
    fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: the maker of this map promised that the bytes are mapped and aligned while it is
        // used, and that everyone touches them with atomic operations only. The arena's memory is
        // initialised by the kernel, and every bit pattern is an AtomicU64.
        unsafe { &*self.words.cast::<[AtomicU64; WORDS]>() }
    }
}

/// The words that hold bits `start..end`, each with those of its bits that are in the range.
#[inline]
fn word_bits(start: usize, end: usize) -> impl Iterator<Item = (usize, u64)> {
    (start / WORD_BITS..end.div_ceil(WORD_BITS)).map(move |index| {
        let base = index * WORD_BITS;
        let low = start.saturating_sub(base);
        let high = (end - base).min(WORD_BITS);
        (index, u64::MAX << low & u64::MAX >> (WORD_BITS - high))
    })
}
