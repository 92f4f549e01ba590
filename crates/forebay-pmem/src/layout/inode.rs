//! Inodes as they lie in their table: 272 bytes each, encoded field by field.
//!
//! The number of an inode is its place in the table; 0 is none, 1 is the root. What the slides keep in a hash
//! table by number is an array here: a number needs no hashing, and a mount reads none of it.

use super::{get32, get64, put32, put64};
use crate::types::Time;

/// Bytes of an inode in the table.
pub const INODE_BYTES: usize = 272;
/// Pointers in an inode: the root of its map.
pub const ROOTS: usize = 12;

/// The types that an inode may have, as in `st_mode`.
pub const TYPES: [u32; 7] = [
    libc::S_IFREG,
    libc::S_IFDIR,
    libc::S_IFLNK,
    libc::S_IFIFO,
    libc::S_IFSOCK,
    libc::S_IFCHR,
    libc::S_IFBLK,
];

/// An inode, decoded.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Inode {
    /// Type and permissions, as `st_mode`. 0: not in use.
    pub mode: u32,
    /// Names that it has.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a device node, its number.
    pub device: u32,
    /// Levels of nodes between `root` and the pages.
    pub height: u32,
    /// Of a directory, the bits of a key that choose the bucket.
    pub depth: u32,
    /// Bytes of a file or a target; not used for directories.
    pub size: u64,
    /// Blocks that it has: pages, nodes, buckets, attributes.
    pub blocks: u64,
    /// How often the number was used.
    pub generation: u64,
    /// Block of its extended attributes, or 0.
    pub attributes: u64,
    /// Entries of a directory.
    pub entries: u64,
    /// Of a directory, the directory that has it.
    pub parent: u64,
    /// The next in the list of those without a name, or 0.
    pub orphan_next: u64,
    /// The one before, or 0 for the first.
    pub orphan_previous: u64,
    /// Last access that was told.
    pub accessed: Time,
    /// Last change of the bytes.
    pub modified: Time,
    /// Last change of the inode.
    pub changed: Time,
    /// When it was made.
    pub born: Time,
    /// Pages, or nodes where `height` is not 0.
    pub root: [u64; ROOTS],
}

/// Byte offset of the first pointer of `root`.
pub const ROOT_AT: usize = 176;

impl Inode {
    /// Type bits of the mode.
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// Whether it has bytes or a target in pages.
    pub fn has_pages(&self) -> bool {
        matches!(self.kind(), libc::S_IFREG | libc::S_IFLNK)
    }

    /// From the table.
    pub fn decode(bytes: &[u8; INODE_BYTES]) -> Self {
        let time = |at| Time {
            seconds: get64(bytes, at) as i64,
            nanoseconds: get32(bytes, at + 8),
        };
        let mut root = [0; ROOTS];
        for (index, pointer) in root.iter_mut().enumerate() {
            *pointer = get64(bytes, ROOT_AT + index * 8);
        }
        Self {
            mode: get32(bytes, 0),
            links: get32(bytes, 4),
            uid: get32(bytes, 8),
            gid: get32(bytes, 12),
            device: get32(bytes, 16),
            height: get32(bytes, 20),
            depth: get32(bytes, 24),
            size: get64(bytes, 32),
            blocks: get64(bytes, 40),
            generation: get64(bytes, 48),
            attributes: get64(bytes, 56),
            entries: get64(bytes, 64),
            parent: get64(bytes, 72),
            orphan_next: get64(bytes, 80),
            orphan_previous: get64(bytes, 88),
            accessed: time(96),
            modified: time(112),
            changed: time(128),
            born: time(144),
            root,
        }
    }

    /// For the table.
    pub fn encode(&self) -> [u8; INODE_BYTES] {
        let mut bytes = [0; INODE_BYTES];
        let words = [
            self.mode,
            self.links,
            self.uid,
            self.gid,
            self.device,
            self.height,
            self.depth,
        ];
        for (index, word) in words.into_iter().enumerate() {
            put32(&mut bytes, index * 4, word);
        }
        let longs = [
            self.size,
            self.blocks,
            self.generation,
            self.attributes,
            self.entries,
            self.parent,
            self.orphan_next,
            self.orphan_previous,
        ];
        for (index, long) in longs.into_iter().enumerate() {
            put64(&mut bytes, 32 + index * 8, long);
        }
        let times = [self.accessed, self.modified, self.changed, self.born];
        for (index, time) in times.into_iter().enumerate() {
            put64(&mut bytes, 96 + index * 16, time.seconds as u64);
            put32(&mut bytes, 104 + index * 16, time.nanoseconds);
        }
        for (index, pointer) in self.root.into_iter().enumerate() {
            put64(&mut bytes, ROOT_AT + index * 8, pointer);
        }
        bytes
    }
}

const _: () = assert!(ROOT_AT + ROOTS * 8 == INODE_BYTES);

#[cfg(test)]
mod tests {
    use super::{INODE_BYTES, Inode};

    #[test]
    fn every_byte_that_is_decoded_is_encoded_again() {
        let mut bytes = [0u8; INODE_BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = (index * 7 + 1) as u8;
        }
        let inode = Inode::decode(&bytes);
        assert_eq!(Inode::decode(&inode.encode()), inode);
        let mut differing = 0;
        for at in 0..INODE_BYTES {
            let mut changed = bytes;
            changed[at] ^= 0x40;
            differing += usize::from(Inode::decode(&changed) != inode);
        }
        // All but the unused word at 28, those behind the nanoseconds and the gap before the pointers.
        assert_eq!(differing, INODE_BYTES - 4 - 16 - 16);
    }
}
