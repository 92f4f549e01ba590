//! What is known of file systems by name, before any probe.
//!
//! A table, so that a new one is a line. What is not in it may be managed if it passes the probes of
//! `file`; the table exists for the properties that no probe can see: that a file lies in memory,
//! that other machines change it, that overwriting needs new space.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::KernelReason;
use crate::sys::stat::{FLAG_EXTENTS, FLAG_NO_COPY_ON_WRITE, FUSE_MAGIC, STORE_MAGIC};

/// The name of stores.
pub const STORE: &str = "a store";

/// Whether files of mounted stores are managed, in this process: as its sessions' configuration says, and without a session yes, for what
/// has been managed has to be recovered.
static STORES: AtomicBool = AtomicBool::new(true);

/// Says whether files of mounted stores are managed from now on.
pub fn manage_stores(yes: bool) {
    STORES.store(yes, Relaxed);
}

/// A property of a file system that decides how its files are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// Overwrites in place, reserves space.
    InPlace,
    /// As `InPlace` for files with extents only, which a flag of the inode tells.
    InPlaceWithExtents,
    /// Writes every change to new space, unless a flag of the inode forbids it.
    CopyOnWriteUnlessFlagged,
    /// Writes every change to new space.
    CopyOnWrite,
    /// In memory.
    Memory,
    /// Shared with other machines.
    Network,
    /// A store in persistent memory, mounted: served by a process, changed by nobody but the kernel's calls. Overwrites need no
    /// further space, since the store keeps a reserve. It has no `FIEMAP`, and no clones.
    Store,
    /// Served by another process, which may change files at any time.
    Fuse,
    /// Not in the table: the probes decide.
    Unknown,
}

/// A file system by its `statfs` magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// `f_type`.
    pub magic: u32,
    /// For messages.
    pub name: &'static str,
    /// How its files are treated.
    pub nature: Nature,
}

const fn row(magic: u32, name: &'static str, nature: Nature) -> FileSystem {
    FileSystem {
        magic,
        name,
        nature,
    }
}

/// ext2, ext3 and ext4 share a number; the first two have no extents.
const TABLE: &[FileSystem] = &[
    row(0x0000_ef53, "ext4", Nature::InPlaceWithExtents),
    row(0x5846_5342, "xfs", Nature::InPlace),
    row(0x9123_683e, "btrfs", Nature::CopyOnWriteUnlessFlagged),
    row(0xca45_1a4e, "bcachefs", Nature::CopyOnWrite),
    row(0x2fc1_2fc1, "zfs", Nature::CopyOnWrite),
    row(0x0000_3434, "nilfs2", Nature::CopyOnWrite),
    row(0xf2f5_2010, "f2fs", Nature::CopyOnWrite),
    row(0x0102_1994, "tmpfs", Nature::Memory),
    row(0x8584_58f6, "ramfs", Nature::Memory),
    row(0x9584_58f6, "hugetlbfs", Nature::Memory),
    row(0x0000_9fa0, "proc", Nature::Memory),
    row(0x6265_6572, "sysfs", Nature::Memory),
    row(0x0027_e0eb, "cgroup", Nature::Memory),
    row(0x6367_7270, "cgroup2", Nature::Memory),
    row(0x6462_6720, "debugfs", Nature::Memory),
    row(0x0000_6969, "nfs", Nature::Network),
    row(0x0000_517b, "smb", Nature::Network),
    row(0xff53_4d42, "cifs", Nature::Network),
    row(0xfe53_4d42, "smb2", Nature::Network),
    row(0x00c3_6400, "ceph", Nature::Network),
    row(0x0bd0_0bd0, "lustre", Nature::Network),
    row(0x4750_4653, "gpfs", Nature::Network),
    row(0x0102_1997, "9p", Nature::Network),
    row(0x5346_414f, "afs", Nature::Network),
    row(0x6b41_4653, "kafs", Nature::Network),
    row(0x7375_7245, "coda", Nature::Network),
    row(0x1924_0125, "orangefs", Nature::Network),
    row(0x2003_0528, "orangefs", Nature::Network),
    row(0x1983_0326, "beegfs", Nature::Network),
    row(0x7461_636f, "ocfs2", Nature::Network),
    row(0x0116_1970, "gfs2", Nature::Network),
    row(0x786f_4256, "vboxsf", Nature::Network),
    row(FUSE_MAGIC, "fuse", Nature::Fuse),
    row(STORE_MAGIC, STORE, Nature::Store),
    row(0x794c_7630, "overlay", Nature::Unknown),
];

/// The row of a magic number; one named "unknown" when there is none.
pub fn lookup(magic: u32) -> FileSystem {
    let known = TABLE.iter().find(|row| row.magic == magic);
    *known.unwrap_or(&row(magic, "unknown", Nature::Unknown))
}

impl FileSystem {
    /// Whether files here may be managed as far as the table knows, or the reason why not. The
    /// inode's flags are asked for only where they matter.
    pub fn admit(
        &self,
        flags: impl FnOnce() -> Result<u32, KernelReason>,
    ) -> Result<(), KernelReason> {
        let file_system = self.name;
        match self.nature {
            Nature::InPlace | Nature::Unknown => Ok(()),
            Nature::Store if STORES.load(Relaxed) => Ok(()),
            Nature::InPlaceWithExtents => match flags()? & FLAG_EXTENTS {
                0 => Err(KernelReason::NoReserve { file_system }),
                _ => Ok(()),
            },
            Nature::CopyOnWriteUnlessFlagged => match flags()? & FLAG_NO_COPY_ON_WRITE {
                0 => Err(KernelReason::CopyOnWrite { file_system }),
                _ => Ok(()),
            },
            Nature::CopyOnWrite => Err(KernelReason::CopyOnWrite { file_system }),
            Nature::Memory => Err(KernelReason::InMemory { file_system }),
            Nature::Network => Err(KernelReason::Network { file_system }),
            Nature::Store | Nature::Fuse => Err(KernelReason::Fuse),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique() {
        for (at, row) in TABLE.iter().enumerate() {
            assert!(
                TABLE[at + 1..].iter().all(|other| other.magic != row.magic),
                "{row:?}"
            );
        }
    }

    #[test]
    fn flags_decide_for_ext4_and_btrfs() {
        let (ext4, btrfs) = (lookup(0xef53), lookup(0x9123_683e));
        assert_eq!(ext4.admit(|| Ok(FLAG_EXTENTS)), Ok(()));
        assert!(matches!(
            ext4.admit(|| Ok(0)),
            Err(KernelReason::NoReserve { .. })
        ));
        assert_eq!(btrfs.admit(|| Ok(FLAG_NO_COPY_ON_WRITE)), Ok(()));
        assert!(matches!(
            btrfs.admit(|| Ok(0)),
            Err(KernelReason::CopyOnWrite { .. })
        ));
        assert_eq!(
            ext4.admit(|| Err(KernelReason::Fuse)),
            Err(KernelReason::Fuse)
        );
    }

    #[test]
    fn unknown_ones_are_left_to_the_probes() {
        assert_eq!(lookup(0x1234_5678).admit(|| unreachable!()), Ok(()));
    }
}
