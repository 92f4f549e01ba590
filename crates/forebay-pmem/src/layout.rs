//! Where things lie in a store, and how each metadata block proves that it is whole.
//!
//! ```text
//! block 0, 1   superblock, twice the same; written once
//! block 2, 3   where the log begins, twice
//! ...          log: a ring of lines
//! ...          bitmap of blocks      metadata blocks: 4,080 bytes and a trailer of 16
//! ...          bitmap of inodes      metadata blocks
//! ...          table of inodes       metadata blocks of 15 inodes
//! ...          data: bytes of files, and metadata blocks (nodes, buckets, attributes)
//! ```
//!
//! [`Geometry`] follows from three numbers of the superblock. A trailer holds the block's number, its [`Kind`]
//! and a CRC-32C that begins with the store's identity: a block that went astray, belongs to an older store
//! or was damaged is found when it is read first. Blocks of file data carry no checksum.

pub mod inode;
pub mod superblock;

use crate::medium::machine::crc32c;

/// Bytes of a block, and of a page of a file.
pub const BLOCK: usize = 4096;
/// Bytes of a metadata block before its trailer.
pub const PAYLOAD: usize = BLOCK - 16;
/// Blocks that one block of a bitmap stands for.
pub const BITS: u64 = PAYLOAD as u64 * 8;
/// Inodes in a block of their table.
pub const INODES_PER_BLOCK: u64 = (PAYLOAD / inode::INODE_BYTES) as u64;
/// Pointers in a node of a file's map.
pub const POINTERS: u64 = PAYLOAD as u64 / 8;
/// First block of the log.
pub const LOG_START: u64 = 4;
/// Fewest blocks of a log: the largest single operation on a small store needs a third of it.
pub const LOG_BLOCKS_MIN: u64 = 24;
/// Fewest blocks of a store: its own, and some for files.
pub const BLOCKS_MIN: u64 = 64;
/// Bytes of the store for each inode, where nothing else is asked for.
pub const BYTES_PER_INODE: u64 = 16 * 1024;

/// What a metadata block is; in its trailer, so that one kind is never taken for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Bits of blocks.
    Blocks,
    /// Bits of inodes.
    Inodes,
    /// Inodes.
    Table,
    /// Names and values of attributes.
    Attributes,
    /// Entries of a directory.
    Bucket,
    /// Pointers of a file's map, so many levels above the pages (1 and up).
    Node(u8),
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::Blocks => 1,
            Self::Inodes => 2,
            Self::Table => 3,
            Self::Attributes => 4,
            Self::Bucket => 5,
            Self::Node(level) => 0x100 + u32::from(level),
        }
    }
}

/// Blocks of a store, area by area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// All blocks.
    pub blocks: u64,
    /// Blocks of the log, from [`LOG_START`].
    pub log_blocks: u64,
    /// Inode numbers are below this, and above 0.
    pub inodes: u64,
    /// First block of the bitmap of blocks.
    pub bitmap: u64,
    /// First block of the bitmap of inodes.
    pub inode_bitmap: u64,
    /// First block of the table of inodes.
    pub table: u64,
    /// First block of data.
    pub data: u64,
}

impl Geometry {
    /// The areas of a store of so many blocks, if they fit and leave something for files.
    pub fn new(blocks: u64, log_blocks: u64, inodes: u64) -> Option<Self> {
        if log_blocks < LOG_BLOCKS_MIN || inodes < INODES_PER_BLOCK || blocks > 1 << 48 {
            return None;
        }
        let bitmap = LOG_START.checked_add(log_blocks)?;
        let inode_bitmap = bitmap.checked_add(blocks.div_ceil(BITS))?;
        let table = inode_bitmap.checked_add(inodes.div_ceil(BITS))?;
        let data = table.checked_add(inodes.div_ceil(INODES_PER_BLOCK))?;
        let fits = data.checked_add(8)? <= blocks;
        fits.then_some(Self {
            blocks,
            log_blocks,
            inodes,
            bitmap,
            inode_bitmap,
            table,
            data,
        })
    }

    /// What a store of so many blocks gets where nothing is asked for: a 64th for the log, from 256 KiB (less
    /// in a store below 4 MiB) to 64 MiB, and always room for an operation that touches all bitmaps.
    pub fn default_for(blocks: u64) -> Option<Self> {
        let bitmaps = blocks.div_ceil(BITS);
        let least = if blocks < 1024 { LOG_BLOCKS_MIN } else { 64 };
        let log_blocks = (blocks / 64).clamp(least, 16384).max(bitmaps * 4 + 16);
        let inodes = (blocks * BLOCK as u64 / BYTES_PER_INODE).max(64);
        Self::new(
            blocks,
            log_blocks,
            inodes.next_multiple_of(INODES_PER_BLOCK),
        )
    }

    /// Lines of the log.
    pub fn log_lines(&self) -> u64 {
        self.log_blocks * (BLOCK / crate::medium::LINE) as u64
    }

    /// Whether pointers of files may name this block.
    pub fn is_data(&self, block: u64) -> bool {
        (self.data..self.blocks).contains(&block)
    }

    /// Whether the log may change this block.
    pub fn is_logged(&self, block: u64) -> bool {
        (self.bitmap..self.blocks).contains(&block)
    }
}

/// Bytes before the checksum in a metadata block.
pub const SEALED: usize = BLOCK - 4;

/// The trailer's checksum of a metadata block whose other bytes are final.
pub fn checksum(id: u64, bytes: &[u8; BLOCK]) -> u32 {
    crc32c(id as u32, &bytes[..SEALED])
}

/// Writes number and kind into a trailer; the checksum is added when the block is logged.
pub fn label(bytes: &mut [u8; BLOCK], block: u64, kind: Kind) {
    put64(bytes, PAYLOAD, block);
    put32(bytes, PAYLOAD + 8, kind.number());
}

/// Whether the trailer says that this is the block and the kind.
pub fn is_labelled(bytes: &[u8; BLOCK], block: u64, kind: Kind) -> bool {
    is_label(&bytes[PAYLOAD..], block, kind)
}

/// The same of a trailer alone.
pub fn is_label(trailer: &[u8], block: u64, kind: Kind) -> bool {
    get64(trailer, 0) == block && get32(trailer, 8) == kind.number()
}

/// Writes the checksum.
pub fn seal(id: u64, bytes: &mut [u8; BLOCK]) {
    let sum = checksum(id, bytes);
    put32(bytes, SEALED, sum);
}

/// Whether the checksum is right.
pub fn is_sealed(id: u64, bytes: &[u8; BLOCK]) -> bool {
    get32(bytes, SEALED) == checksum(id, bytes)
}

/// Little-endian number at a byte offset.
pub fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Little-endian number at a byte offset.
pub fn get32(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

/// Little-endian number at a byte offset.
pub fn get64(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// Little-endian number at a byte offset.
pub fn put32(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

/// Little-endian number at a byte offset.
pub fn put64(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}
