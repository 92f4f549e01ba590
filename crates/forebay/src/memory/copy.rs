//! The only place where bytes of the arena are copied.
//!
//! Other processes may write the same bytes at any time, so they are never seen as slices
//! (architecture 4.4.9): addresses and lengths go in, bytes are moved. What a racing copy brings out is
//! thrown away by the caller, who checks the header's version afterwards; what it brings in is owed to the
//! device before the first byte moves. With `sim`, a copy can be cut in half by a simulated death.

/// Copies `len` bytes between arena memory and other memory, in either direction.
///
/// # Safety
/// Both ranges are mapped for the whole call and do not overlap. A range of the arena may be written by
/// others meanwhile: the caller then discards what it got. `source` is initialised.
#[inline(always)]
pub unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(feature = "sim")]
    {
        crate::sim::point();
        let half = len / 2;
        // SAFETY: the first half of the caller's ranges.
        unsafe { std::ptr::copy_nonoverlapping(source, target, half) };
        crate::sim::pause();
        // SAFETY: the other half.
        unsafe { std::ptr::copy_nonoverlapping(source.add(half), target.add(half), len - half) };
    }
    #[cfg(not(feature = "sim"))]
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, len)
    };
}

/// As [`copy`], for requests that follow one another: memory that the processor's prefetchers run ahead in. There a plain
/// loop of vector loads and stores is faster than the library's copy, which for a page is the processor's string
/// instruction; elsewhere it is slower.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub unsafe fn stream(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(feature = "sim"), not(miri)))]
    if len >= STREAM_BYTES_MIN && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise; the processor has the instructions.
        unsafe { stream_avx2(source, target, len) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { copy(source, target, len) };
}

/// Below this a copy is over before the prefetchers matter.
#[cfg(all(target_arch = "x86_64", not(feature = "sim"), not(miri)))]
const STREAM_BYTES_MIN: usize = 1024;

/// # Safety
/// As for [`copy`]; the processor has AVX2, and `len` is at least 128.
#[cfg(all(target_arch = "x86_64", not(feature = "sim"), not(miri)))]
#[target_feature(enable = "avx2")]
unsafe fn stream_avx2(source: *const u8, target: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};
    const STEP: usize = 128;
    // SAFETY: every step lies within the ranges; the last one ends where they end and may overlap the one before.
    let step = |at: usize| unsafe {
        let from = source.add(at).cast::<__m256i>();
        let to = target.add(at).cast::<__m256i>();
        let (a, b) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
        let (c, d) = (
            _mm256_loadu_si256(from.add(2)),
            _mm256_loadu_si256(from.add(3)),
        );
        _mm256_storeu_si256(to, a);
        _mm256_storeu_si256(to.add(1), b);
        _mm256_storeu_si256(to.add(2), c);
        _mm256_storeu_si256(to.add(3), d);
    };
    let mut at = 0;
    while at + STEP <= len {
        step(at);
        at += STEP;
    }
    if at < len {
        step(len - STEP);
    }
}

/// Sets `len` bytes of arena or other memory to zero.
///
/// # Safety
/// The range is mapped for the whole call, and no one else relies on its old bytes.
#[inline]
pub unsafe fn zero(target: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(target, 0, len) };
}
