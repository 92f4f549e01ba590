//! Bits and their meanings, where they are used.

/// What the kernel can do, and what it is asked to do (`FUSE_...` of `fuse_init_in`); the upper half travels in a word of its own.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    /// Each read asks whether the file has changed, unless what is known of it is believed.
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// There is an upper half.
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests may come by io_uring.
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// What the kernel may do with a file that is open (`FOPEN_...`).
pub(crate) mod opened {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const NOFLUSH: u32 = 1 << 5;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// What the kernel is told without having asked (`FUSE_NOTIFY_...`).
pub(crate) mod notify {
    pub(crate) const INVAL_INODE: u32 = 2;
}

/// What is to be set (`FATTR_...`).
pub(crate) mod set {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    /// The bits that make a program somebody else are to go: the file is given away, or who cuts it has no right to keep them (`CAP_FSETID`).
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// About bytes to write (`FUSE_WRITE_...`).
pub(crate) mod write {
    /// They come from pages of the kernel's.
    pub(crate) const CACHE: u32 = 1 << 0;
    /// Whoever writes may not keep the bits that make a program somebody else.
    pub(crate) const KILL_SUIDGID: u32 = 1 << 2;
}

/// Of a sync (`FUSE_FSYNC_...`): the bytes and what is needed to read them.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;

/// Of an `ioctl` whose memory the file system would have to ask for.
pub(crate) const IOCTL_UNRESTRICTED: u32 = 1 << 1;
