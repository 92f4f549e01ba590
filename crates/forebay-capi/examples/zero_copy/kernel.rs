//! The kernel's ways: files, mappings, writes past its cache, and what a device has done.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use crate::{MIB, Place};

/// A file for reading and writing, which may be there.
pub fn open(path: &str, flags: i32) -> File {
    let mut how = std::fs::OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    how.custom_flags(flags).open(path).expect("a file")
}

/// A file anew, of `len` bytes that the device has, and its path.
pub fn made(place: &Place, name: &str, len: usize) -> (String, File) {
    let path = place.path(name);
    place.remove(name);
    let content = vec![3u8; 16 * MIB];
    let file = open(&path, 0);
    for at in (0..len as u64).step_by(content.len()) {
        file.write_all_at(&content, at).expect("written");
    }
    file.sync_all().expect("durable");
    (path, file)
}

/// Drops what the kernel has of a file in its cache.
pub fn let_go_of(path: &str) {
    let file = open(path, 0);
    file.sync_all().expect("durable");
    // SAFETY: takes no memory.
    let rc = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(rc, 0);
}

/// `pwritev2` with `RWF_DONTCACHE`; a plain write where the file system does not have it.
pub fn write_without_cache(file: &File, bytes: &[u8], at: u64) {
    const RWF_DONTCACHE: i32 = 0x80;
    let mut done = 0;
    while done < bytes.len() {
        let part = libc::iovec {
            iov_base: bytes[done..].as_ptr().cast_mut().cast(),
            iov_len: bytes.len() - done,
        };
        let at = (at + done as u64) as i64;
        // SAFETY: one part, of bytes that are ours.
        let written =
            unsafe { libc::pwritev2(file.as_raw_fd(), &raw const part, 1, at, RWF_DONTCACHE) };
        if written < 0 {
            file.write_all_at(&bytes[done..], at as u64)
                .expect("written");
            return;
        }
        done += written as usize;
    }
}

/// A file, or memory, mapped for reading until this is dropped.
pub struct Mapped(*mut u8, usize);

// SAFETY: addresses are the process's, not a thread's.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// `flags` beside `MAP_SHARED`, and advice, or 0.
    pub fn new(file: &File, at: u64, len: usize, flags: i32, advice: i32) -> Self {
        let (fd, flags) = (file.as_raw_fd(), libc::MAP_SHARED | flags);
        let null = std::ptr::null_mut();
        // SAFETY: new addresses, of a file that is as long.
        let first = unsafe { libc::mmap(null, len, libc::PROT_READ, flags, fd, at as i64) };
        assert!(first != libc::MAP_FAILED);
        if advice != 0 {
            // SAFETY: what was mapped just now.
            unsafe { libc::madvise(first, len, advice) };
        }
        Mapped(first.cast(), len)
    }

    /// Memory on huge pages, touched.
    pub fn huge(len: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new addresses, of memory of our own; it is touched as a whole.
        let first = unsafe {
            let first = libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0);
            assert!(first != libc::MAP_FAILED);
            libc::madvise(first, len, libc::MADV_HUGEPAGE);
            first.cast::<u8>().write_bytes(1, len);
            first
        };
        Mapped(first.cast(), len)
    }

    /// Fills a part of memory from [`Mapped::huge`] from a file.
    pub fn read(&self, file: &File, at: usize, len: usize) {
        assert!(at + len <= self.1);
        let mut done = 0;
        while done < len {
            let target = self.0.wrapping_add(at + done).cast();
            let offset = (at + done) as i64;
            // SAFETY: within memory that is ours, of which no reference is alive now; parts of several threads are apart.
            let read = unsafe { libc::pread(file.as_raw_fd(), target, len - done, offset) };
            assert!(read > 0, "{}", std::io::Error::last_os_error());
            done += read as usize;
        }
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped until it is dropped; nobody writes the file meanwhile.
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped when it was made.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// What a device has done, and what the process has had of page faults, since some moment.
#[derive(Clone, Copy)]
pub struct Counts {
    pub reads: u64,
    pub sectors: u64,
    pub faults: i64,
}

impl Counts {
    /// Of the device of a file.
    pub fn now(path: &str) -> Self {
        let device = std::fs::metadata(path).expect("a file").dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"));
        let stat = stat.unwrap_or_default();
        let numbers: Vec<u64> = stat.split_whitespace().flat_map(str::parse).collect();
        let number = |place: usize| numbers.get(place).copied().unwrap_or(0);
        // SAFETY: the call fills a structure of ours, for which zeros are a value.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
            usage
        };
        Counts {
            reads: number(0),
            sectors: number(2),
            faults: usage.ru_minflt,
        }
    }

    /// What came since.
    pub fn since(path: &str, before: Counts) -> String {
        let now = Counts::now(path);
        let reads = now.reads - before.reads;
        let kib = (now.sectors - before.sectors) / 2 / reads.max(1);
        let faults = now.faults - before.faults;
        format!("{reads} reads of {kib} KiB, {faults} page faults")
    }
}
