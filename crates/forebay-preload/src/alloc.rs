//! The library's own memory, over `mmap`.
//!
//! The program's `malloc` may be anybody's, may be in the middle of something when a hook is called out of a signal handler
//! or by a forked child, and may itself write files. So nothing of it is used here. Free blocks of each size lie in a list
//! whose head is one word, changed by compare-and-swap: no lock can be left taken. Lists get their blocks by the page from a
//! chunk that all share: most processes need a few blocks of a few sizes, and every page that is touched costs them time.
//! Large requests are mappings of their own. What a list has been given is not unmapped again; the library asks for little.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

// No hook of ours is on its way, and it changes no `errno`.
use forebay::sys::raw::call;

/// Smallest block; every block is a power of two, aligned to itself up to a page.
const BLOCK_BYTES_MIN: usize = 16;
/// Larger requests are mappings of their own.
const BLOCK_BYTES_MAX: usize = 64 * 1024;
const CLASSES: usize = (BLOCK_BYTES_MAX / BLOCK_BYTES_MIN).trailing_zeros() as usize + 1;
/// Mapped at once for blocks of all sizes.
const CHUNK_BYTES: usize = 256 * 1024;
/// Of the first one: as much as a process needs that joins no session.
const FIRST_BYTES: usize = 64 * 1024;
const PAGE_BYTES: usize = 4096;

/// Heads of the lists: the address / 16 of the first free block in the lower 44 bits, above it a count of the changes, so that
/// a head that was taken and put back meanwhile is not mistaken for an unchanged one.
const ADDRESS_BITS: u32 = 44;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;

/// What no list has yet of the chunk: the address of its first page in units of pages, above it how many are left. A chunk's
/// pages are taken in their order and never come back, so that no two values are the same.
const SPARE_BITS: u32 = 48;
const SPARE_MASK: u64 = (1 << SPARE_BITS) - 1;

/// The first chunk, which needs no mapping.
#[repr(align(4096))]
struct First(UnsafeCell<[u8; FIRST_BYTES]>);

// SAFETY: its pages are handed out once each, as those of a mapping are.
unsafe impl Sync for First {}

/// The allocator.
pub struct Allocator {
    heads: [AtomicU64; CLASSES],
    spare: AtomicU64,
    first: First,
}

impl Allocator {
    /// One with nothing in it.
    pub const fn new() -> Self {
        Allocator {
            heads: [const { AtomicU64::new(0) }; CLASSES],
            spare: AtomicU64::new(0),
            first: First(UnsafeCell::new([0; FIRST_BYTES])),
        }
    }

    fn take(&self, class: usize) -> *mut u8 {
        let head = &self.heads[class];
        let mut seen = head.load(Ordering::Acquire);
        loop {
            let block = address_of(seen);
            if block.is_null() {
                return self.refill(class);
            }
            // SAFETY: a block is never unmapped. If another thread has taken it meanwhile, what is read is garbage, and the
            // count in the head has changed.
            let next = unsafe { (*block.cast::<AtomicU64>()).load(Ordering::Relaxed) };
            match head.compare_exchange_weak(
                seen,
                after(seen, next),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return block,
                Err(now) => seen = now,
            }
        }
    }

    /// Puts a chain of free blocks in front of a list: `last` gets the link to what was first.
    fn put(&self, class: usize, first: *mut u8, last: *mut u8) {
        let head = &self.heads[class];
        let mut seen = head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the block is the caller's until the exchange below has succeeded; another thread may be reading this word
            // in `take`, atomically.
            unsafe {
                (*last.cast::<AtomicU64>()).store(seen & ADDRESS_MASK, Ordering::Relaxed);
            }
            let new = after(seen, first.addr() as u64 >> 4);
            match head.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Takes a page, or as many as a block has, keeps the first block for the caller and gives the others to the list.
    #[cold]
    fn refill(&self, class: usize) -> *mut u8 {
        let bytes = BLOCK_BYTES_MIN << class;
        let run = bytes.max(PAGE_BYTES);
        let start = self.take_pages(run / PAGE_BYTES);
        let count = run / bytes;
        if start.is_null() || count == 1 {
            return start;
        }
        for index in 1..count - 1 {
            // SAFETY: blocks of pages that only this thread knows.
            unsafe {
                let next = start.add((index + 1) * bytes).addr() as u64 >> 4;
                (*start.add(index * bytes).cast::<AtomicU64>()).store(next, Ordering::Relaxed);
            }
        }
        // SAFETY: the second and the last block of the pages.
        let (first, last) = unsafe { (start.add(bytes), start.add((count - 1) * bytes)) };
        self.put(class, first, last);
        start
    }

    /// Pages of the chunk, or of a new one where that has too few left. What is left of the old one is lost, as is a new one
    /// that another thread has been quicker with.
    fn take_pages(&self, count: usize) -> *mut u8 {
        let count = count as u64;
        let mut seen = self.spare.load(Ordering::Acquire);
        loop {
            let (page, left) = match seen {
                0 => (
                    (self.first.0.get().expose_provenance() / PAGE_BYTES) as u64,
                    (FIRST_BYTES / PAGE_BYTES) as u64,
                ),
                seen => (seen & SPARE_MASK, seen >> SPARE_BITS),
            };
            if left < count {
                break;
            }
            let rest = spare(page + count, left - count);
            match self
                .spare
                .compare_exchange_weak(seen, rest, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return ptr::with_exposed_provenance_mut(page as usize * PAGE_BYTES),
                Err(now) => seen = now,
            }
        }
        let chunk = map(CHUNK_BYTES);
        if chunk.is_null() {
            return chunk;
        }
        let pages = (CHUNK_BYTES / PAGE_BYTES) as u64;
        let rest = spare((chunk.addr() / PAGE_BYTES) as u64 + count, pages - count);
        // Where it fails the chunk serves this call alone; its other pages are never touched.
        let _ = self
            .spare
            .compare_exchange(seen, rest, Ordering::AcqRel, Ordering::Relaxed);
        chunk
    }
}

/// What no list has: the first page, and how many there are.
fn spare(page: u64, left: u64) -> u64 {
    page | (left << SPARE_BITS)
}

/// The list's next head: another first block, one more change.
fn after(head: u64, first: u64) -> u64 {
    (head & !ADDRESS_MASK).wrapping_add(1 << ADDRESS_BITS) | first & ADDRESS_MASK
}

fn address_of(head: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(((head & ADDRESS_MASK) << 4) as usize)
}

/// The list that serves a layout; `None`: a mapping of its own.
fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(BLOCK_BYTES_MIN);
    if bytes > BLOCK_BYTES_MAX || layout.align() > PAGE_BYTES {
        return None;
    }
    let power = bytes.next_power_of_two();
    Some((power / BLOCK_BYTES_MIN).trailing_zeros() as usize)
}

/// New zeroed memory, null if there is none.
fn map(bytes: usize) -> *mut u8 {
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping, wherever the kernel likes.
    let at = unsafe {
        call(
            libc::SYS_mmap,
            [0, bytes, access as usize, kind as usize, usize::MAX, 0],
        )
    };
    if at < 0 {
        return ptr::null_mut();
    }
    ptr::with_exposed_provenance_mut(at as usize)
}

/// # Safety
/// The range is a mapping of [`map`]'s, or a part of one, that nobody uses.
unsafe fn unmap(at: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller's promise.
        unsafe { call(libc::SYS_munmap, [at.addr(), bytes, 0, 0, 0, 0]) };
    }
}

fn pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}

/// A mapping of its own for a layout.
fn map_aligned(layout: Layout) -> *mut u8 {
    let bytes = pages(layout.size());
    if layout.align() <= PAGE_BYTES {
        return map(bytes);
    }
    let whole = map(bytes + layout.align());
    if whole.is_null() {
        return whole;
    }
    let before = whole.addr().next_multiple_of(layout.align()) - whole.addr();
    // SAFETY: the parts before and behind the aligned one lie in the mapping, which nobody knows yet.
    unsafe {
        unmap(whole, before);
        unmap(whole.add(before + bytes), layout.align() - before);
        whole.add(before)
    }
}

// SAFETY: blocks are as long and as aligned as their class says, which is no less than the layout; none is in two hands, since
// one exchange of the head takes it.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some(class) => self.take(class),
            None => map_aligned(layout),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some(class) => self.put(class, block, block),
            // SAFETY: it was mapped with this length, and is not used any more.
            None => unsafe { unmap(block, pages(layout.size())) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            return map_aligned(layout);
        };
        let block = self.take(class);
        if !block.is_null() {
            // SAFETY: a block is no shorter than the layout.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size fits the alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let (is, becomes) = (class_of(layout), class_of(wanted));
        let stays = match (is, becomes) {
            (Some(is), Some(becomes)) => is == becomes,
            (None, None) => pages(layout.size()) == pages(size),
            _ => false,
        };
        if stays {
            return block;
        }
        if is.is_none() && becomes.is_none() && layout.align() <= PAGE_BYTES {
            return remap(block, pages(layout.size()), pages(size));
        }
        // SAFETY: the caller's promise; the shorter of both lengths lies in both blocks.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                ptr::copy_nonoverlapping(block, new, layout.size().min(size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

/// Makes a mapping longer or shorter, wherever there is room.
fn remap(block: *mut u8, from: usize, to: usize) -> *mut u8 {
    let may_move = libc::MREMAP_MAYMOVE as usize;
    // SAFETY: a whole mapping of ours, which only its owner uses.
    let at = unsafe { call(libc::SYS_mremap, [block.addr(), from, to, may_move, 0, 0]) };
    if at < 0 {
        return ptr::null_mut();
    }
    ptr::with_exposed_provenance_mut(at as usize)
}
