//! A shared mapping of the arena's file, aligned to huge pages.
//!
//! Life cycle: [`Mapping::create`] sizes an empty file and maps it; every other process maps the same
//! file with [`Mapping::attach`]; the last `munmap` and the unlinking of the file, which is the
//! owner's business, free the memory. A fresh mapping has addresses and no memory: only the keeper
//! gives a range memory ([`Mapping::back`]) before anyone else may learn of it, and takes it back
//! ([`Mapping::release`]) after everyone has forgotten it. A client that touches only backed ranges
//! never takes SIGBUS, however small the file system is.
//!
//! The base is aligned to 2 MiB in every process, so that a huge page of the file is a huge page of
//! the address space. Addresses differ between processes; the arena holds indices, not pointers.
//!
//! [`Mapping::heap`] is the same thing without a file, for tests and for Miri.
//!
//! Not done here: no file is created or deleted ([`super::place`]), no byte is read or written
//! except by `release` on the heap, and nothing becomes a slice (arena rule 9).

mod giving_up;

use crate::limits::{HUGE_BYTES, PAGE_BYTES};
use std::alloc::Layout;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

/// What the mapped bytes come from.
#[derive(Debug)]
enum Backing {
    /// The allocator, under Miri; the layout that was asked for.
    Heap(Layout),
    /// Memory of this process's own.
    Anonymous,
    /// A file on tmpfs or hugetlbfs.
    File(File),
}

/// An owned range of addresses, shared with every process that maps the same file.
#[derive(Debug)]
pub struct Mapping {
    /// First byte, aligned to 2 MiB but where nobody copies out of it.
    base: NonNull<u8>,
    /// Bytes, a multiple of 2 MiB.
    len: usize,
    /// Smallest piece of memory that can be given or taken back, in bytes: 4 KiB, or 2 MiB on
    /// hugetlbfs.
    page_bytes: usize,
    backing: Backing,
}

// SAFETY: a mapping owns its addresses and hands out a raw pointer only; the user of the pointer
// answers for how the bytes are shared between threads and processes.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods change the kernel's tables, which the kernel serialises.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of at least `len` bytes that no other process sees, for tests and for sessions of
    /// one process. It may be touched from the start; memory is taken when it is touched or backed, in
    /// huge pages where the system gives them to those that ask.
    ///
    /// # Panics
    /// When `len` is 0 or there is no such memory.
    pub fn heap(len: usize) -> Self {
        assert!(len > 0, "a mapping holds at least one byte");
        let len = len.next_multiple_of(HUGE_BYTES);
        if cfg!(miri) {
            return Self::from_allocator(len);
        }
        let base = map_aligned(None, len).expect("addresses for a heap arena");
        let mapping = Self {
            base,
            len,
            page_bytes: PAGE_BYTES,
            backing: Backing::Anonymous,
        };
        mapping.ask_for_huge_pages();
        mapping
    }

    /// What Miri has instead of `mmap`.
    fn from_allocator(len: usize) -> Self {
        let layout = Layout::from_size_align(len, HUGE_BYTES).expect("a length below isize::MAX");
        // SAFETY: the layout is not empty. The bytes are zeroed, nobody else has them, and they live
        // until `drop` frees them with the same layout.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            std::alloc::handle_alloc_error(layout)
        };
        Self {
            base,
            len,
            page_bytes: PAGE_BYTES,
            backing: Backing::Heap(layout),
        }
    }

    /// Gives an empty file a size of at least `len` bytes (rounded up to 2 MiB) and maps it. No
    /// memory is taken yet, so this works with a file larger than what the file system has free.
    ///
    /// # Errors
    /// `InvalidInput` for an empty length; `EFBIG` above the process's file size limit, which would
    /// otherwise be a deadly signal; what `ftruncate` and `mmap` return.
    pub fn create(file: File, len: usize) -> io::Result<Self> {
        let len = len
            .checked_next_multiple_of(HUGE_BYTES)
            .filter(|&len| len > 0)
            .ok_or_else(|| invalid("an arena holds at least one byte"))?;
        if len as u64 > file_size_limit()? {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        file.set_len(len as u64)?;
        Self::attach(file)
    }

    /// Maps a file that [`Mapping::create`] has sized, at its full length.
    ///
    /// # Errors
    /// `InvalidInput` when the file's length is not a multiple of 2 MiB (it is no arena, or its
    /// maker died before sizing it); what `fstatfs` and `mmap` return.
    pub fn attach(file: File) -> io::Result<Self> {
        let len = arena_len(&file.metadata()?)?;
        let page_bytes = page_bytes(&file)?;
        if page_bytes > HUGE_BYTES {
            return Err(invalid("pages larger than 2 MiB cannot hold an arena"));
        }
        let base = map_aligned(Some(&file), len)?;
        let mapping = Self {
            base,
            len,
            page_bytes,
            backing: Backing::File(file),
        };
        mapping.ask_for_huge_pages();
        Ok(mapping)
    }

    /// Maps such a file for a few looks, and says what inode it has: without keeping the file open, so that it can be given no
    /// memory, and nobody holds its lock by this; nor at an address of any kind, for a caller that copies nothing out of it.
    ///
    /// # Errors
    /// As for [`Mapping::attach`].
    pub fn look(file: &File) -> io::Result<(Self, u64)> {
        let meta = file.metadata()?;
        let len = arena_len(&meta)?;
        let base = map_anywhere(file, len)?;
        let mapping = Self {
            base,
            len,
            page_bytes: PAGE_BYTES,
            backing: Backing::Anonymous,
        };
        Ok((mapping, meta.ino()))
    }

    /// First byte. Valid for [`Mapping::len`] bytes while the mapping lives; bytes that are not
    /// backed must not be touched.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes, a multiple of 2 MiB.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Smallest piece of memory that can be given or taken back, in bytes: 4 KiB, or 2 MiB on
    /// hugetlbfs.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The file, or `None` for a mapping on the heap.
    pub fn file(&self) -> Option<&File> {
        match &self.backing {
            Backing::Heap(_) | Backing::Anonymous => None,
            Backing::File(file) => Some(file),
        }
    }

    /// Gives the range memory and maps it, so that touching it cannot fail. The range is widened to
    /// whole pages; what has memory already keeps its bytes. New bytes are zero.
    ///
    /// The memory is charged to the caller's cgroup, and a cgroup at its limit does not make this
    /// fail: the kernel kills somebody. So ask [`headroom`](super::cgroup::headroom) first.
    ///
    /// # Errors
    /// `ENOSPC` when the file system is full or (hugetlbfs) no huge page is free. The range may then
    /// be backed in part: release it.
    pub fn back(&self, offset: usize, len: usize) -> io::Result<()> {
        let range = self.widen(offset, len)?;
        if matches!(self.backing, Backing::Heap(_)) {
            return Ok(());
        }
        self.make_huge(&range);
        // Not fallocate first: it does not know this mapping's wish for huge pages, so that on tmpfs
        // with huge=advise it would take small ones, for good.
        match self.populate_pages(&range) {
            // Before Linux 5.14. With the memory there, touching it maps it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => match self.file() {
                Some(file) => fallocate(file, libc::FALLOC_FL_KEEP_SIZE, &range),
                None => Ok(()),
            },
            result => result,
        }
    }

    /// Makes huge pages of the whole 2 MiB pieces of a range before it has memory: pieces of which one page is there are
    /// collapsed at once, for a fifth of what touching all pages first costs. In one call, because each waits for every
    /// processor for a moment. What cannot be had is left as it was.
    fn make_huge(&self, range: &Range<usize>) {
        if matches!(self.backing, Backing::Heap(_) | Backing::Anonymous)
            || self.page_bytes == HUGE_BYTES
        {
            return;
        }
        let start = range.start.next_multiple_of(HUGE_BYTES);
        let end = range.end / HUGE_BYTES * HUGE_BYTES;
        let touch = |piece| self.populate_pages(&(piece..piece + self.page_bytes));
        if start < end
            && (start..end)
                .step_by(HUGE_BYTES)
                .all(|piece| touch(piece).is_ok())
        {
            let _ = self.advise(&(start..end), libc::MADV_COLLAPSE);
        }
    }

    /// Maps memory that the range has already into this process, ahead of its first use: for a
    /// process that joins a session, a fraction of what touching page by page costs. A failure costs
    /// time later and nothing else, so it is no error.
    pub fn populate(&self, offset: usize, len: usize) {
        if let (Backing::File(_), Ok(range)) = (&self.backing, self.widen(offset, len)) {
            let _ = self.populate_pages(&range);
        }
    }

    /// Takes the range's memory back, in every process that maps it. The range must be whole pages
    /// ([`Mapping::page_bytes`]). Its bytes are lost, and read as zero once it is backed again.
    ///
    /// # Errors
    /// `InvalidInput` for parts of pages; what `fallocate` returns.
    pub fn release(&self, offset: usize, len: usize) -> io::Result<()> {
        let range = self.widen(offset, len)?;
        if range != (offset..offset + len) {
            return Err(invalid("memory is taken back in whole pages"));
        }
        match &self.backing {
            Backing::File(file) => fallocate(
                file,
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                &range,
            ),
            Backing::Anonymous => self.advise(&range, libc::MADV_DONTNEED),
            Backing::Heap(_) => {
                // SAFETY: the range lies in the mapping, which lives as long as `self`, and is
                // initialised; that nobody else uses it is what releasing it means.
                unsafe { self.base().add(offset).write_bytes(0, len) };
                Ok(())
            }
        }
    }

    /// Turns the whole 2 MiB pieces inside a backed range into huge pages, whatever the system's
    /// settings for transparent huge pages are. Bytes stay as they are, also under writers. Returns
    /// whether all of the range is huge pages now; a system that cannot is no error.
    ///
    /// # Errors
    /// `InvalidInput` for a range outside the mapping.
    pub fn collapse(&self, offset: usize, len: usize) -> io::Result<bool> {
        let range = self.widen(offset, len)?;
        if matches!(self.backing, Backing::Heap(_) | Backing::Anonymous) {
            // Huge pages were asked for before the first touch; what is not huge then stays small.
            return Ok(false);
        }
        if self.page_bytes == HUGE_BYTES {
            return Ok(true);
        }
        let start = range.start.next_multiple_of(HUGE_BYTES);
        let end = range.end / HUGE_BYTES * HUGE_BYTES;
        if start >= end {
            return Ok(false);
        }
        let done = self.advise(&(start..end), libc::MADV_COLLAPSE).is_ok();
        Ok(done && start == range.start && end == range.end)
    }

    /// tmpfs mounted with `huge=advise` gives huge pages only to mappings that ask. Elsewhere the
    /// advice is refused or changes nothing, so the answer is of no interest.
    fn ask_for_huge_pages(&self) {
        let _ = self.advise(&(0..self.len), libc::MADV_HUGEPAGE);
    }

    fn populate_pages(&self, range: &Range<usize>) -> io::Result<()> {
        loop {
            let Err(error) = self.advise(range, libc::MADV_POPULATE_WRITE) else {
                return Ok(());
            };
            match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => continue,
                // The kernel's word for "this touch would have been a SIGBUS".
                Some(libc::EFAULT) => return Err(io::Error::from_raw_os_error(libc::ENOSPC)),
                _ => return Err(error),
            }
        }
    }

    fn advise(&self, range: &Range<usize>, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range was bound-checked against this mapping, which is ours while `self`
        // lives. The only advice used here that changes bytes is that of `release`, whose caller
        // answers for nobody else using them.
        let rc = unsafe { libc::madvise(self.base().add(range.start).cast(), range.len(), advice) };
        check(rc)
    }

    /// The range in whole pages, or an error where it is empty or leaves the mapping.
    fn widen(&self, offset: usize, len: usize) -> io::Result<Range<usize>> {
        let end = offset
            .checked_add(len)
            .filter(|&end| len > 0 && end <= self.len)
            .ok_or_else(|| invalid("the range is empty or leaves the arena"))?;
        // The mapping's length is a multiple of every page size, so the end stays inside.
        let start = offset / self.page_bytes * self.page_bytes;
        Ok(start..end.next_multiple_of(self.page_bytes))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: allocated in `heap` with this layout; the holder of the pointer promised not
            // to use it longer than the mapping.
            Backing::Heap(layout) => unsafe { std::alloc::dealloc(self.base(), layout) },
            Backing::File(_) | Backing::Anonymous => {
                // SAFETY: the range was mapped in `map_aligned` and is unmapped once, here. Other
                // processes have mappings of their own, which stay.
                let rc = unsafe { libc::munmap(self.base().cast(), self.len) };
                debug_assert_eq!(rc, 0, "unmapping what was mapped cannot fail");
            }
        }
    }
}

/// Maps `len` bytes of the file, or of nothing, at an address aligned to 2 MiB: reserve more addresses
/// than needed, map over the aligned part, give the rest back.
fn map_aligned(file: Option<&File>, len: usize) -> io::Result<NonNull<u8>> {
    let reserved = len
        .checked_add(HUGE_BYTES)
        .ok_or_else(|| invalid("the arena is too long"))?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new addresses, chosen by the kernel; nobody else can have them.
    let raw = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            reserved,
            libc::PROT_NONE,
            flags,
            -1,
            0,
        )
    };
    if raw == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let raw: *mut u8 = raw.cast();
    let head = raw.align_offset(HUGE_BYTES);
    let base = raw.wrapping_add(head);
    // Without MAP_NORESERVE each process that maps a hugetlbfs file would set huge pages aside for
    // all of it, and the second would fail; `back` takes pages one range at a time instead.
    let kind = match file {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    };
    let flags = kind | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let descriptor = file.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: replaces addresses reserved above, of which nobody knows; `head + len` stays inside.
    let mapped = unsafe { libc::mmap(base.cast(), len, access, flags, descriptor, 0) };
    if mapped == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        unmap(raw, reserved);
        return Err(error);
    }
    unmap(raw, head);
    unmap(base.wrapping_add(len), reserved - head - len);
    NonNull::new(base).ok_or_else(|| invalid("the kernel mapped the zero page"))
}

/// Maps a file wherever the kernel likes.
fn map_anywhere(file: &File, len: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (any, descriptor) = (std::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: new addresses, chosen by the kernel; nobody else can have them.
    let raw = unsafe { libc::mmap(any, len, access, flags, descriptor, 0) };
    if raw == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(raw.cast()).ok_or_else(|| invalid("the kernel mapped the zero page"))
}

/// The length of an arena's file.
fn arena_len(meta: &Metadata) -> io::Result<usize> {
    usize::try_from(meta.len())
        .ok()
        .filter(|&len| len > 0 && len.is_multiple_of(HUGE_BYTES))
        .ok_or_else(|| invalid("an arena's length is a multiple of 2 MiB"))
}

/// Gives back reserved addresses that nobody has learned of.
fn unmap(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: part of the reservation made in `map_aligned`, which is the only one to know it.
        let rc = unsafe { libc::munmap(start.cast(), len) };
        debug_assert_eq!(rc, 0, "unmapping what was mapped cannot fail");
    }
}

/// The page size of the file's file system, in bytes.
fn page_bytes(file: &File) -> io::Result<usize> {
    // SAFETY: `statfs` is plain numbers, for which zero is a value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open while `file` is borrowed; the kernel fills our own variable.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) })?;
    Ok((stat.f_bsize as usize).max(PAGE_BYTES))
}

fn fallocate(file: &File, mode: libc::c_int, range: &Range<usize>) -> io::Result<()> {
    loop {
        // SAFETY: a call on an open descriptor; it names file offsets, no memory of ours. A
        // process that has a hole's bytes mapped sees zeros from then on: the caller's promise.
        let rc = unsafe {
            libc::fallocate(
                file.as_raw_fd(),
                mode,
                range.start as i64,
                range.len() as i64,
            )
        };
        match check(rc) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => return result,
        }
    }
}

/// The largest file this process may make, in bytes.
fn file_size_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel fills our own variable.
    check(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) })?;
    Ok(limit.rlim_cur)
}

fn check(rc: libc::c_int) -> io::Result<()> {
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests;
