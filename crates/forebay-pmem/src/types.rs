//! What callers of a store hand in and get.

use std::time::Duration;

/// Inode number of the root directory.
pub const ROOT: u64 = 1;
/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Most names that a file may have.
pub const LINKS_MAX: u32 = 0x7fff_ffff;
/// Largest file, in bytes.
pub const SIZE_MAX: u64 = 1 << 50;

/// A time, as `timespec` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, PartialOrd, Ord)]
pub struct Time {
    /// Since 1970; may be negative.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanoseconds: u32,
}

/// What `stat` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Number.
    pub inode: u64,
    /// How often the number was used.
    pub generation: u64,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Names; of a directory 2 and one for each directory in it.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a device node, its number.
    pub device: u32,
    /// Bytes; of a directory those of its blocks.
    pub size: u64,
    /// In units of 512 bytes, as `st_blocks`.
    pub blocks: u64,
    /// Last access that was told; reads do not change it.
    pub accessed: Time,
    /// Last change of the bytes.
    pub modified: Time,
    /// Last change of the inode.
    pub changed: Time,
    /// When it was made.
    pub born: Time,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The store's clock.
    Now,
    /// This one.
    To(Time),
}

/// What `setattr` changes; `None` leaves it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes: cuts or extends.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change.
    pub modified: Option<SetTime>,
}

/// The maker of a file, and its mode; the umask is the caller's. A parent with `S_ISGID` gives its
/// group, and to directories the bit.
#[derive(Clone, Copy, Debug)]
pub struct Creator {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// As `st_mode`; the type counts for `mknod` only.
    pub mode: u32,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: Vec<u8>,
    /// Whom it names.
    pub inode: u64,
    /// Type bits of the mode.
    pub kind: u32,
    /// To go on after this entry.
    pub cookie: u64,
}

/// What `statfs` tells; blocks are of [`crate::BLOCK`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks for files.
    pub blocks: u64,
    /// Of those, free.
    pub blocks_free: u64,
    /// Of those, free for new bytes; the others are kept for writing over old ones.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Of those, free.
    pub inodes_free: u64,
    /// Longest name.
    pub name_length_max: u32,
}

/// What `rename` does when the new name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExisting {
    /// It replaces what is there.
    Replace,
    /// It fails (`RENAME_NOREPLACE`).
    Fail,
    /// The two change names (`RENAME_EXCHANGE`).
    Exchange,
}

/// What `seek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// Bytes that were written.
    Data,
    /// Bytes that were not; the end of the file is one.
    Hole,
}

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// What was done is durable after this long at the latest; `None`: after `sync` and `fsync` only. Shorter
    /// than 10 ms is 10 ms.
    pub flush_interval: Option<Duration>,
    /// Changes nothing, not even after a crash: what the log has is taken from there.
    pub read_only: bool,
}

/// Shortest flush interval.
pub const FLUSH_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Flush interval where nothing else is asked for.
pub const FLUSH_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

impl Default for OpenOptions {
    fn default() -> Self {
        let flush_interval = Some(FLUSH_INTERVAL_DEFAULT);
        Self {
            flush_interval,
            read_only: false,
        }
    }
}

/// How a store is made; `Default` is right for most.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// Bytes; `None`: as many as the file or device has.
    pub size: Option<u64>,
    /// Leaves the file sparse: a full disk below then ends whoever has the store open (SIGBUS).
    pub sparse: bool,
    /// Overwrites a store that is there, or another file's content.
    pub force: bool,
    /// Inodes; `None`: one for each 16 KiB.
    pub inodes: Option<u64>,
    /// Blocks of the log; `None`: a 64th of the store, 64 MiB at most.
    pub log_blocks: Option<u64>,
}
