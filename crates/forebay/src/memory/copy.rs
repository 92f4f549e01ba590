//! The only place where bytes of the arena are copied.
//!
//! Other processes may write the same bytes at any time, so they are never seen as slices
//! (arena rule 9): addresses and lengths go in, bytes are moved. What a racing copy brings out is
//! thrown away by the caller, which checks the header's version afterwards; what it brings in is owed to the
//! device before the first byte moves. With `sim`, a copy can be cut in half by a simulated death.

#[cfg(all(target_arch = "x86_64", not(feature = "sim"), not(miri)))]
mod guarded;
#[cfg(all(test, target_arch = "x86_64", not(feature = "sim"), not(miri)))]
mod tests;

/// Copies `len` bytes between arena memory and other memory of ours, in either direction.
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

/// As [`copy`], where one of the two is the program's memory: `false` if that is not there (or, where a file is mapped, can
/// not be read). Some of the bytes may have been copied then.
///
/// # Safety
/// The arena's range is mapped for the whole call, and the ranges do not overlap. What is said of the arena's bytes at
/// [`copy`] holds here too. The program's range may be anything only where a handler of SIGSEGV and SIGBUS uses [`fixup`];
/// elsewhere it is mapped for the whole call.
#[inline(always)]
#[must_use]
pub unsafe fn try_copy(source: *const u8, target: *mut u8, len: usize) -> bool {
    #[cfg(all(target_arch = "x86_64", not(feature = "sim"), not(miri)))]
    // SAFETY: the caller's promise.
    return unsafe { guarded::copy(source, target, len) };
    #[cfg(not(all(target_arch = "x86_64", not(feature = "sim"), not(miri))))]
    {
        // SAFETY: the caller's promise.
        unsafe { copy(source, target, len) };
        true
    }
}

/// As [`try_copy`], for requests that follow one another: memory that the processor's prefetchers run ahead in. There a plain
/// loop of vector loads and stores is faster than the processor's string instruction; elsewhere it is slower.
///
/// # Safety
/// As for [`try_copy`].
#[inline(always)]
#[must_use]
pub unsafe fn try_stream(source: *const u8, target: *mut u8, len: usize) -> bool {
    #[cfg(all(target_arch = "x86_64", not(feature = "sim"), not(miri)))]
    // SAFETY: the caller's promise.
    return unsafe { guarded::stream(source, target, len) };
    #[cfg(not(all(target_arch = "x86_64", not(feature = "sim"), not(miri))))]
    // SAFETY: the caller's promise.
    unsafe {
        try_copy(source, target, len)
    }
}

/// As [`try_copy`] into the arena, for bytes that would have left the processor's caches before anybody looks at them. They go past these, so that the lines
/// that they overwrite are not read first. Other processors see them before whatever this thread stores next, as after any copy.
///
/// # Safety
/// As for [`try_copy`].
#[inline]
#[must_use]
pub unsafe fn try_pass(source: *const u8, target: *mut u8, len: usize) -> bool {
    #[cfg(all(target_arch = "x86_64", not(feature = "sim"), not(miri)))]
    // SAFETY: the caller's promise.
    return unsafe { guarded::pass(source, target, len) };
    #[cfg(not(all(target_arch = "x86_64", not(feature = "sim"), not(miri))))]
    // SAFETY: the caller's promise.
    unsafe {
        try_copy(source, target, len)
    }
}

/// Looks at a byte of each page of the program's memory, so that what takes time there (a fault that a debugger, another thread or a
/// file system answers) takes it here, where the caller holds nothing. What cannot be looked at is left to the copy.
///
/// # Safety
/// The range may be anything only where a handler of SIGSEGV and SIGBUS uses [`fixup`]; elsewhere it is mapped for the whole call.
#[inline(always)]
pub unsafe fn fault_in(memory: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(feature = "sim"), not(miri)))]
    if len > 0 {
        // SAFETY: the caller's promise.
        let _ = unsafe { guarded::touch(memory, len) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(feature = "sim"), not(miri))))]
    let _ = (memory, len);
}

/// As [`fault_in`], for memory that is about to be written: by writing bytes as they are, in a way that no store of another thread
/// gets lost. So no more than what will be written in any case may be asked for.
///
/// # Safety
/// As for [`fault_in`]; the range is the caller's to write.
#[inline(always)]
pub unsafe fn fault_in_to_write(memory: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(feature = "sim"), not(miri)))]
    if len > 0 {
        // SAFETY: the caller's promise.
        let _ = unsafe { guarded::touch_to_write(memory, len) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(feature = "sim"), not(miri))))]
    let _ = (memory, len);
}

/// Where a thread goes on that has faulted at instruction `ip`, if that was in [`try_copy`] or [`try_stream`]: they then
/// return `false`. For handlers of SIGSEGV and SIGBUS.
pub fn fixup(ip: usize) -> Option<usize> {
    #[cfg(all(target_arch = "x86_64", not(feature = "sim"), not(miri)))]
    return guarded::fixup(ip);
    #[cfg(not(all(target_arch = "x86_64", not(feature = "sim"), not(miri))))]
    {
        let _ = ip;
        None
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
