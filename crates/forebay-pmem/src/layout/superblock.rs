//! The superblock, which makes memory a store, and the two places that say where its log begins.

use super::{BLOCK, Geometry, get32, get64, put32, put64};
use crate::medium::LINE;
use crate::medium::machine::crc32c;

/// First bytes of a store.
pub const MARK: &[u8; 8] = b"FOREPMEM";
/// Raised when the meaning of what is stored changes.
pub const VERSION: u32 = 2;
/// Bytes of a superblock that count.
const BYTES: usize = 128;
/// Blocks that hold the superblock.
pub const COPIES: [u64; 2] = [0, 1];
/// Blocks that say where the log begins.
pub const TAILS: [u64; 2] = [2, 3];

/// A superblock, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// A random number: logs and blocks of another store are told by it.
    pub id: u64,
    /// Where things lie.
    pub geometry: Geometry,
}

/// Why bytes are no superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSuperblock {
    /// The mark is not there.
    NoMark,
    /// Another version, or sizes of structures that this build does not have.
    OtherLayout(u32),
    /// The mark is there, the rest does not fit together.
    Damaged,
}

impl Superblock {
    /// As it lies in its block.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        bytes[..8].copy_from_slice(MARK);
        put32(&mut bytes, 8, VERSION);
        put64(&mut bytes, 16, layout_hash());
        put64(&mut bytes, 24, self.id);
        put64(&mut bytes, 32, self.geometry.blocks);
        put64(&mut bytes, 40, self.geometry.log_blocks);
        put64(&mut bytes, 48, self.geometry.inodes);
        let sum = crc32c(0, &bytes[..BYTES]);
        put32(&mut bytes, BYTES, sum);
        bytes
    }

    /// From a block.
    pub fn decode(bytes: &[u8; BLOCK]) -> Result<Self, NoSuperblock> {
        if &bytes[..8] != MARK {
            return Err(NoSuperblock::NoMark);
        }
        if get32(bytes, BYTES) != crc32c(0, &bytes[..BYTES]) {
            return Err(NoSuperblock::Damaged);
        }
        if get32(bytes, 8) != VERSION || get64(bytes, 16) != layout_hash() {
            return Err(NoSuperblock::OtherLayout(get32(bytes, 8)));
        }
        let geometry = Geometry::new(get64(bytes, 32), get64(bytes, 40), get64(bytes, 48));
        let geometry = geometry.ok_or(NoSuperblock::Damaged)?;
        Ok(Self {
            id: get64(bytes, 24),
            geometry,
        })
    }
}

/// What a store's structures look like, as a number: builds that differ in it do not open each other's stores.
pub fn layout_hash() -> u64 {
    let facts = [
        BLOCK as u64,
        LINE as u64,
        super::PAYLOAD as u64,
        super::inode::INODE_BYTES as u64,
        super::inode::ROOTS as u64,
        super::LOG_START,
        crate::directory::KEY_BITS.into(),
    ];
    facts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, fact| {
        (hash ^ fact).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Where the log begins: everything before is where it belongs. Lines are counted since the store was made;
/// the place is the count modulo the log's lines, and the number of a record is the count of its first line.
///
/// One word, so that a crash leaves the old or the new one: 48 bits, and 16 of a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct Tail(pub u64);

const LINE_BITS: u32 = 48;

impl Tail {
    /// As it lies in its word; `None` beyond what that has room for.
    pub fn encode(self, id: u64) -> Option<[u8; 8]> {
        let line = self.0;
        let word = line | tail_sum(id, line) << LINE_BITS;
        self.has_room().then(|| word.to_le_bytes())
    }

    /// Whether a log may begin here: so many lines are 16 PiB.
    pub fn has_room(self) -> bool {
        self.0 < 1 << LINE_BITS
    }

    /// From its word, if that is whole.
    pub fn decode(id: u64, bytes: [u8; 8]) -> Option<Self> {
        let word = u64::from_le_bytes(bytes);
        let line = word & ((1 << LINE_BITS) - 1);
        (word >> LINE_BITS == tail_sum(id, line)).then_some(Self(line))
    }
}

fn tail_sum(id: u64, line: u64) -> u64 {
    let sum = crc32c(id as u32, &line.to_le_bytes());
    u64::from((sum >> 16) ^ (sum & 0xffff))
}
