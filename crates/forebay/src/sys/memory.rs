//! Memory of requests: pieces of anyone's, and aligned memory of this process alone, for bounce
//! buffers of direct I/O and for tests.
//!
//! Frames of the arena are aligned by construction and never come from here. The bytes are reached
//! through raw copies only, so that handing out a [`Piece`] of them is never aliasing a reference.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::limits::HUGE_BYTES;

/// A piece of memory to read into or write from. The bytes may be changed by other processes at any
/// time, so this never becomes a slice (arena rule 9). Laid out as the kernel's `iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Piece {
    /// First byte.
    pub ptr: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

// SAFETY: a piece is an address and a length; the maker of one promises that the memory stays
// mapped until the request that carries it has completed.
unsafe impl Send for Piece {}
// SAFETY: as above; the type offers no access of its own.
unsafe impl Sync for Piece {}

impl Piece {
    /// A copy of the bytes, torn where another process writes them meanwhile.
    ///
    /// # Safety
    /// The memory is mapped, readable and initialised.
    pub unsafe fn copy_out(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the caller promises the source; the target is fresh, ours and as long.
        unsafe {
            self.ptr
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), self.len)
        };
        bytes
    }

    /// Writes `bytes` at the piece's beginning. Panics if they do not fit.
    ///
    /// # Safety
    /// The memory is mapped and writable, and `bytes` is not part of it.
    pub unsafe fn copy_in(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "more bytes than the piece holds");
        // SAFETY: the caller promises the target, and that the two do not overlap.
        unsafe {
            self.ptr
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
}

/// A zeroed, aligned run of bytes, freed when dropped. The owner that hands out its pieces must not drop it
/// before the requests that carry them have completed.
#[derive(Debug)]
pub struct AlignedBytes {
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: the memory is owned by this value alone; moving it to another thread moves the ownership.
unsafe impl Send for AlignedBytes {}

impl AlignedBytes {
    /// `len` zero bytes at a multiple of `align`, which must be a power of two. `len` is not 0.
    pub fn new(len: usize, align: usize) -> Self {
        let layout = Layout::from_size_align(len, align).expect("a power of two, a sane length");
        Self::with(layout).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// As [`AlignedBytes::new`], of a length that somebody else has chosen. `None`: there is not so much memory.
    pub fn try_new(len: usize, align: usize) -> Option<Self> {
        Self::with(Layout::from_size_align(len, align).ok()?)
    }

    fn with(layout: Layout) -> Option<Self> {
        assert!(layout.size() > 0, "no empty allocations");
        // SAFETY: the layout is not empty; the memory is fresh and unshared.
        let ptr = unsafe { alloc_zeroed(layout) };
        (!ptr.is_null()).then(|| Self { ptr, layout })
    }

    /// `len` zero bytes, a multiple of a huge page, on huge pages where they can be had: a device takes such memory in few pieces.
    pub fn huge(len: usize) -> Self {
        assert!(len > 0, "no empty allocations");
        let layout = Layout::from_size_align(len, HUGE_BYTES).expect("a sane length");
        // SAFETY: the layout is not empty.
        let ptr = unsafe { alloc(layout) };
        if ptr.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: the memory is fresh and unshared, and as long; advice changes nothing that is in it.
        unsafe {
            libc::madvise(ptr.cast(), len, libc::MADV_HUGEPAGE);
            ptr.write_bytes(0, len);
        }
        Self { ptr, layout }
    }

    /// Aligned memory that holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8], align: usize) -> Self {
        let memory = Self::new(bytes.len(), align);
        // SAFETY: the memory was made just now, as long as `bytes`, and nobody else knows it.
        unsafe {
            memory
                .ptr
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        memory
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Never true; an empty one cannot be made.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it.
    pub fn piece(&self) -> Piece {
        Piece {
            ptr: self.ptr,
            len: self.len(),
        }
    }

    /// Part of it. Panics if the part is not inside.
    pub fn part(&self, start: usize, len: usize) -> Piece {
        assert!(
            start <= self.len() && len <= self.len() - start,
            "part outside the memory"
        );
        Piece {
            ptr: self.ptr.wrapping_add(start),
            len,
        }
    }

    /// A copy of the bytes as they are now. No request on them may be in flight.
    pub fn to_vec(&self) -> Vec<u8> {
        // SAFETY: ours, mapped until dropped, zeroed at birth and so initialised; the caller has no
        // request in flight that would write it meanwhile.
        unsafe { self.piece().copy_out() }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, freed only here; no request is in flight, as
        // the type's documentation asks.
        unsafe { dealloc(self.ptr, self.layout) };
    }
}

/// Buffers of one size that nobody uses just now, for all threads of the process. No thread keeps one of its own: that would
/// be a thread-local with a destructor, which a library in somebody else's program must not have.
#[derive(Debug)]
pub struct Spare([AtomicPtr<AlignedBytes>; SPARES]);

const SPARES: usize = 16;

impl Spare {
    /// None yet.
    pub const fn new() -> Self {
        Spare([const { AtomicPtr::new(null_mut()) }; SPARES])
    }

    /// A buffer; its bytes are anything.
    pub fn take(&self, len: usize, align: usize) -> AlignedBytes {
        for place in &self.0 {
            let found = place.swap(null_mut(), Ordering::Acquire);
            if !found.is_null() {
                // SAFETY: `put` has made it of a box, and the swap has made it ours alone.
                return *unsafe { Box::from_raw(found) };
            }
        }
        AlignedBytes::new(len, align)
    }

    /// Keeps a buffer for the next, or frees it where enough are kept.
    pub fn put(&self, buffer: AlignedBytes) {
        let buffer = Box::into_raw(Box::new(buffer));
        for place in &self.0 {
            let free =
                place.compare_exchange(null_mut(), buffer, Ordering::Release, Ordering::Relaxed);
            if free.is_ok() {
                return;
            }
        }
        // SAFETY: made of a box above, and given to nobody.
        drop(unsafe { Box::from_raw(buffer) });
    }
}

impl Default for Spare {
    fn default() -> Self {
        Self::new()
    }
}
