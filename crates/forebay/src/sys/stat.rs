//! `statx`, `statfs` and the inode flags, as plain values.
//!
//! `STATX_DIOALIGN` came with Linux 6.1 and each file system answers on its own: where it is not
//! answered the alignment is `None`, which is not the same as "no direct I/O" (alignment 0).

use super::{check, extents, retry};
use crate::limits::PAGE_BYTES;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// `FS_IOC_GETFLAGS`: each write is durable when it returns (`chattr +S`).
pub const FLAG_SYNCHRONOUS: u32 = 0x0000_0008;
/// `FS_IOC_GETFLAGS`: the file's blocks are mapped by extents (ext4).
pub const FLAG_EXTENTS: u32 = 0x0008_0000;
/// `FS_IOC_GETFLAGS`: the file is never copied on write (btrfs, `chattr +C`).
pub const FLAG_NO_COPY_ON_WRITE: u32 = 0x0080_0000;

/// Attributes and times of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Names of the file.
    pub links: u32,
    /// A regular file.
    pub regular: bool,
    /// Inode number.
    pub inode: u64,
    /// Device number of the file system, as `makedev` packs it.
    pub device: u64,
    /// Its two halves.
    pub device_major: u32,
    /// See `device_major`.
    pub device_minor: u32,
    /// Size in bytes.
    pub len: u64,
    /// Bytes of space allocated.
    pub allocated: u64,
    /// Block size of the file system in bytes (`stx_blksize`), the unit of allocation or more.
    pub block_bytes: u32,
    /// Modification time, ns since 1970, before it negative.
    pub mtime_ns: i128,
    /// Change time, likewise.
    pub ctime_ns: i128,
    /// Birth time, likewise; `None` where the file system keeps none.
    pub birth_ns: Option<i128>,
    /// (memory, offset) alignment of direct I/O in bytes; (0, 0) when there is none.
    pub direct_align: Option<(u32, u32)>,
    /// Runs with its owner's or group's rights: writing to it would take that away, unless the writer may keep it.
    pub set_id: bool,
    /// Somebody may execute it.
    pub executable: bool,
    /// May only be appended to (`chattr +a`).
    pub append_only: bool,
    /// May not be changed (`chattr +i`).
    pub immutable: bool,
    /// Compressed by the file system.
    pub compressed: bool,
    /// The mount that the file was reached by: a number that no other mount ever has (Linux 6.8).
    pub mount: Option<u64>,
}

/// `STATX_MNT_ID_UNIQUE`.
const MOUNT_ID_UNIQUE: libc::c_uint = 0x4000;

/// `statx` of an open file.
pub fn stat(fd: BorrowedFd<'_>) -> io::Result<Stat> {
    stat_at(fd.as_raw_fd(), c"", true)
}

/// `statx` of the file at a path, or where a symbolic link there leads; of `dir` itself where the path is empty.
pub fn stat_at(dir: RawFd, path: &CStr, follow: bool) -> io::Result<Stat> {
    ask_at(dir, path, follow, 0)
}

/// As [`stat_at`], as the kernel has it in memory: the process that serves the file system, which may be stopped, is not asked. Numbers and times of
/// birth do not change.
pub fn seen_at(dir: RawFd, path: &CStr, follow: bool) -> io::Result<Stat> {
    ask_at(dir, path, follow, libc::AT_STATX_DONT_SYNC)
}

fn ask_at(dir: RawFd, path: &CStr, follow: bool, how: libc::c_int) -> io::Result<Stat> {
    let follow = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    let flags = libc::AT_EMPTY_PATH | follow | how;
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_DIOALIGN | MOUNT_ID_UNIQUE;
    let mut out = MaybeUninit::<libc::statx>::zeroed();
    retry(|| {
        // SAFETY: the path ends in a null byte and is only read; `out` is ours and lives during the call.
        check(unsafe { libc::statx(dir, path.as_ptr(), flags, mask, out.as_mut_ptr()) })
    })?;
    // SAFETY: zeroed at birth and filled by the kernel; all bit patterns of it are valid.
    Ok(from_statx(&unsafe { out.assume_init() }))
}

/// Device and inode of what a path leads to, as the kernel has them in memory: nobody elsewhere is asked.
pub fn inode_of(path: &CStr) -> io::Result<(u64, u64)> {
    inode_at(libc::AT_FDCWD, path)
}

/// Device and inode of an open file, likewise.
pub fn inode(fd: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    inode_at(fd.as_raw_fd(), c"")
}

fn inode_at(dir: RawFd, path: &CStr) -> io::Result<(u64, u64)> {
    let mut out = MaybeUninit::<libc::statx>::zeroed();
    let empty = if path.is_empty() {
        libc::AT_EMPTY_PATH
    } else {
        0
    };
    let flags = libc::AT_STATX_DONT_SYNC | empty;
    retry(|| {
        let mask = libc::STATX_INO;
        // SAFETY: the path ends in a null byte and is only read; `out` is ours and lives during the call.
        check(unsafe { libc::statx(dir, path.as_ptr(), flags, mask, out.as_mut_ptr()) })
    })?;
    // SAFETY: as above.
    let found = from_statx(&unsafe { out.assume_init() });
    Ok((found.device, found.inode))
}

fn from_statx(x: &libc::statx) -> Stat {
    let answered = |bit: libc::c_uint| x.stx_mask & bit != 0;
    let attribute = |bit: libc::c_int| x.stx_attributes & bit as u64 != 0;
    let mode = u32::from(x.stx_mode);
    // Without the right to run, the bit means another thing.
    let group_set_id = libc::S_ISGID | libc::S_IXGRP;
    let aligns = (x.stx_dio_mem_align, x.stx_dio_offset_align);
    Stat {
        regular: mode & libc::S_IFMT == libc::S_IFREG,
        inode: x.stx_ino,
        links: x.stx_nlink,
        device: libc::makedev(x.stx_dev_major, x.stx_dev_minor),
        device_major: x.stx_dev_major,
        device_minor: x.stx_dev_minor,
        len: x.stx_size,
        allocated: x.stx_blocks * 512,
        block_bytes: x.stx_blksize,
        mtime_ns: nanoseconds(&x.stx_mtime),
        ctime_ns: nanoseconds(&x.stx_ctime),
        birth_ns: answered(libc::STATX_BTIME).then(|| nanoseconds(&x.stx_btime)),
        direct_align: answered(libc::STATX_DIOALIGN).then_some(aligns),
        executable: mode & (libc::S_IXUSR | libc::S_IXGRP | libc::S_IXOTH) != 0,
        set_id: mode & libc::S_ISUID != 0 || mode & group_set_id == group_set_id,
        append_only: attribute(libc::STATX_ATTR_APPEND),
        immutable: attribute(libc::STATX_ATTR_IMMUTABLE),
        compressed: attribute(libc::STATX_ATTR_COMPRESSED),
        mount: answered(MOUNT_ID_UNIQUE).then_some(x.stx_mnt_id),
    }
}

fn nanoseconds(time: &libc::statx_timestamp) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// The magic number of a store in persistent memory that is mounted. The kernel says of it what it says of every file system that a process
/// serves ([`FUSE_MAGIC`]), so the mount's process is asked ([`extents::store_of`]).
pub const STORE_MAGIC: u32 = 0x466f_7265;
/// The magic number of file systems that a process serves.
pub const FUSE_MAGIC: u32 = 0x6573_5546;

/// What a file lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemKind {
    /// `f_type`, [`STORE_MAGIC`] for a mounted store.
    pub magic: u32,
    /// Whether a page is several of its blocks.
    pub has_small_blocks: bool,
    /// Each write to it is durable when it returns (`mount -o sync`).
    pub is_synchronous: bool,
}

/// The file system that a file lies on. Asked once for each mount, as far as mounts can be told apart: XFS answers in 2 to 40 µs, as it tidies up its
/// inodes before it counts them.
pub fn file_system_of(fd: BorrowedFd<'_>, stat: &Stat) -> io::Result<FileSystemKind> {
    /// The lower 30 bits of a mount's number, whether each write is durable, whether its blocks are small, and its file system's number; 0: none. Threads may ask at the same time.
    static LAST: AtomicU64 = AtomicU64::new(0);
    const SMALL: u64 = 1 << 32;
    const SYNCHRONOUS: u64 = 1 << 33;
    let Some(mount) = stat.mount else {
        return file_system_now(fd);
    };
    let last = LAST.load(Relaxed);
    if last >> 34 == mount & u64::from(u32::MAX >> 2) && last != 0 {
        return Ok(FileSystemKind {
            magic: last as u32,
            has_small_blocks: last & SMALL != 0,
            is_synchronous: last & SYNCHRONOUS != 0,
        });
    }
    let kind = file_system_now(fd)?;
    let bit = |is: bool, bit| if is { bit } else { 0 };
    let bits = bit(kind.has_small_blocks, SMALL) | bit(kind.is_synchronous, SYNCHRONOUS);
    LAST.store(mount << 34 | bits | u64::from(kind.magic), Relaxed);
    Ok(kind)
}

/// The same, asked now (`statfs` `f_type`).
pub fn file_system_magic(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(file_system_now(fd)?.magic)
}

fn file_system_now(fd: BorrowedFd<'_>) -> io::Result<FileSystemKind> {
    let found = statfs(fd)?;
    let kind = |magic| FileSystemKind {
        magic,
        has_small_blocks: (found.f_bsize as usize) < PAGE_BYTES,
        is_synchronous: found.f_flags as libc::c_ulong & libc::ST_SYNCHRONOUS != 0,
    };
    let magic = found.f_type as u32;
    if magic != FUSE_MAGIC {
        return Ok(kind(magic));
    }
    match extents::store_of(fd) {
        Ok(_) => Ok(kind(STORE_MAGIC)),
        // One that passes requests on, to a store beneath it, does not pass on this one.
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOTTY | libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP) => Ok(kind(magic)),
            _ => Err(error),
        },
    }
}

/// Bytes that anybody may still take on the file system of a file, which may only be named.
pub fn free_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let found = statfs(fd)?;
    Ok(found.f_bavail.saturating_mul(found.f_bsize as u64))
}

fn statfs(fd: BorrowedFd<'_>) -> io::Result<libc::statfs64> {
    let mut out = MaybeUninit::<libc::statfs64>::zeroed();
    // SAFETY: `out` is ours and lives during the call.
    retry(|| check(unsafe { libc::fstatfs64(fd.as_raw_fd(), out.as_mut_ptr()) }))?;
    // SAFETY: zeroed at birth and filled by the kernel; all bit patterns of it are valid.
    Ok(unsafe { out.assume_init() })
}

/// Which store a file of one is of ([`extents::store_of`]). Asked once for each mount in a row, as far as mounts can be told apart: a mount shows one
/// store for as long as it is there.
pub fn store_of(fd: BorrowedFd<'_>, stat: &Stat) -> io::Result<u64> {
    /// The last store, and its mount's number mixed with it. Threads may ask at the same time: two words that do not belong together give no
    /// mount's number.
    static LAST: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    let Some(mount) = stat.mount else {
        return extents::store_of(fd);
    };
    // Knuth's multiplier of MMIX.
    let mixed = |store: u64| store.wrapping_mul(6_364_136_223_846_793_005) ^ mount;
    let store = LAST[0].load(Relaxed);
    if store != 0 && LAST[1].load(Relaxed) == mixed(store) {
        return Ok(store);
    }
    let store = extents::store_of(fd)?;
    LAST[0].store(store, Relaxed);
    LAST[1].store(mixed(store), Relaxed);
    Ok(store)
}

/// The inode's flags (`FS_IOC_GETFLAGS`). File systems without any answer `ENOTTY` or `EOPNOTSUPP`.
pub fn inode_flags(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // The request's number says `long`, but every file system reads and writes an `int`.
    let mut flags: libc::c_long = 0;
    retry(|| {
        let request = libc::FS_IOC_GETFLAGS;
        // SAFETY: `flags` is ours, initialised, and at least as large as what the kernel writes.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, &mut flags) })
    })?;
    Ok(flags as u32)
}
