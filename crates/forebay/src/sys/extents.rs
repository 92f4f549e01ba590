//! `FIEMAP`: which parts of a file have space, and of what kind; and the same question to a mounted store, which has no `FIEMAP`.
//!
//! The answer is a snapshot: a caller that needs it to stay true holds the file's range. Extents come in
//! file order; what lies between them is a hole.

use super::{check, retry};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Extents fetched by one call.
pub const EXTENTS_PER_CALL: usize = 32;

/// `_IOWR('f', 11, struct fiemap)`; the struct's head is 32 bytes.
const FS_IOC_FIEMAP: u64 = 0xc020_660b;

const EXTENT_LAST: u32 = 0x1;
const EXTENT_ENCODED: u32 = 0x8;
const EXTENT_INLINE: u32 = 0x200;
const EXTENT_SHARED: u32 = 0x2000;

/// One run of space of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Extent {
    /// First byte in the file.
    pub start: u64,
    /// Where it lies on the device; 0 when that is not decided yet.
    pub physical: u64,
    /// Length in bytes.
    pub len: u64,
    reserved: [u64; 2],
    /// `FIEMAP_EXTENT_*`.
    pub flags: u32,
    reserved_end: [u32; 3],
}

impl Extent {
    /// One past its last byte.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Whether other files share the space (reflink, snapshot): the next write needs new space.
    pub fn is_shared(&self) -> bool {
        self.flags & EXTENT_SHARED != 0
    }

    /// Whether a write into the extent needs no further space. Space that is reserved but not yet
    /// written, or not yet placed, counts; shared, compressed and inline extents do not.
    pub fn is_settled(&self) -> bool {
        self.flags & (EXTENT_SHARED | EXTENT_ENCODED | EXTENT_INLINE) == 0
    }
}

/// The question of [`space_in_store`]: `_IOWR(0xfb, 1, u64[2])`. Two numbers go there, where a range begins and ends; the first one comes back
/// as how far all of it has space, the second one as which store it is. The mount's process answers it (`forebay-fuse`).
pub const STORE_SPACE: u32 = 0xc010_fb01;

/// Bytes that one question is about at most: more are asked for again.
pub const STORE_SPACE_MAX: u64 = 1 << 30;

/// The question of [`sync_in_store`]: `_IOR(0xfb, 2, u64[5])`.
pub const STORE_SYNC: u32 = 0x8028_fb02;

/// `fsync` of a file of a mounted store, and what the file is like then: size and space in bytes, the times of the last modification and of the last
/// change in nanoseconds since 1970 (earlier ones as 1970), and the number of its names. One request, where `fsync` and `statx` are two; and after a
/// `statx` that has come to the mount the kernel asks once more, before the next write, whether the file has capabilities.
pub fn sync_in_store(fd: BorrowedFd<'_>) -> io::Result<[u64; 5]> {
    let mut found = [0_u64; 5];
    // SAFETY: the kernel writes 40 bytes, as the request's number says; they are ours, and live during the call.
    retry(|| check(unsafe { libc::ioctl(fd.as_raw_fd(), STORE_SYNC as _, found.as_mut_ptr()) }))?;
    Ok(found)
}

/// Which store an open file or directory is of: a number that no other store has, and never 0. What is of none answers with an error.
pub fn store_of(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let [_, store] = ask_store(fd, [0, 0])?;
    Ok(store.max(1))
}

/// How far a file of a mounted store has space from `start` on, written or not; `end` at most.
pub fn space_in_store(fd: BorrowedFd<'_>, start: u64, end: u64) -> io::Result<u64> {
    let mut at = start;
    loop {
        let part = end.min(at.saturating_add(STORE_SPACE_MAX));
        let covered = part_in_store(fd, at, part)?;
        if covered < part || part == end {
            return Ok(covered);
        }
        at = part;
    }
}

fn part_in_store(fd: BorrowedFd<'_>, start: u64, end: u64) -> io::Result<u64> {
    let [covered, _] = ask_store(fd, [start, end])?;
    Ok(covered.clamp(start, end))
}

fn ask_store(fd: BorrowedFd<'_>, mut range: [u64; 2]) -> io::Result<[u64; 2]> {
    // SAFETY: the kernel reads and writes 16 bytes, as the request's number says; they are ours, initialised, and live during the call.
    retry(|| check(unsafe { libc::ioctl(fd.as_raw_fd(), STORE_SPACE as _, range.as_mut_ptr()) }))?;
    Ok(range)
}

/// The kernel's `struct fiemap` with room for the extents behind it.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [Extent; EXTENTS_PER_CALL],
}

const _: () = assert!(size_of::<Extent>() == 56);
const _: () = assert!(std::mem::offset_of!(Map, extents) == 32);

/// Calls `visit` with each extent that touches the range, in file order, until it returns `false` or
/// there are no more. Space beyond the end of the file is reported like any other.
pub fn visit_extents(
    fd: BorrowedFd<'_>,
    start: u64,
    end: u64,
    mut visit: impl FnMut(&Extent) -> bool,
) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let map = map_range(fd, at, end - at)?;
        let extents = &map.extents[..(map.mapped as usize).min(EXTENTS_PER_CALL)];
        for extent in extents {
            if !visit(extent) {
                return Ok(());
            }
        }
        match extents.last() {
            Some(last) if last.flags & EXTENT_LAST == 0 && last.end() > at => at = last.end(),
            _ => break,
        }
    }
    Ok(())
}

fn map_range(fd: BorrowedFd<'_>, start: u64, length: u64) -> io::Result<Map> {
    let mut map = Map {
        start,
        length,
        flags: 0,
        mapped: 0,
        room: EXTENTS_PER_CALL as u32,
        reserved: 0,
        extents: [Extent::default(); EXTENTS_PER_CALL],
    };
    // SAFETY: `map` is ours, initialised and alive during the call, and says how many extents it
    // has room for; the kernel writes no further.
    retry(|| check(unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut map) }))?;
    Ok(map)
}
