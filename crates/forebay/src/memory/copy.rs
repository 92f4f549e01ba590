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

/// Sets `len` bytes of arena or other memory to zero.
///
/// # Safety
/// The range is mapped for the whole call, and no one else relies on its old bytes.
#[inline]
pub unsafe fn zero(target: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(target, 0, len) };
}
