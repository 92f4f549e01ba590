//! A block's file: what is in it, and whether a power cut may have torn it.
//!
//! ```text
//! MARK             8 bytes, the format
//! version          24 bytes
//! sum              8 bytes, of place, version and contents
//! contents
//! ```
//!
//! Its mode says whether it is known to be durable. A file of mode 0600 is: its bytes were synced before its name or its mode came to be. One of mode 0400
//! has not been synced, or nobody has said yet that it has. The mode comes with the file, before its name. So what a power cut leaves says of itself
//! whether it may be torn, and one that is durable and makes no sense is damaged.
//!
//! A file of the version before this one is a version and the contents. It is always durable, and of a life that a pool may come to.

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Mode, fchmod, fdatasync};

use super::{FILE_MODE, open_at, perhaps};
use crate::home::life_of;
use crate::ids::{Epoch, Version};
use crate::message::{Block, Place};
use crate::random::mix2;
use crate::wire::BLOCK_MAX;

/// Of a file that may not be durable.
pub(super) const UNSYNCED_MODE: u32 = 0o400;

const MARK: u64 = u64::from_le_bytes(*b"block-2\n");
const HEAD: usize = 40;
const OLD_HEAD: usize = 24;
/// A mark with a bit changed is no life below this.
const OLD_LIVES: u64 = 1 << 24;

/// A block's file that is there.
#[derive(Debug)]
pub(super) struct Found {
    file: fs::File,
    pub is_durable: bool,
    /// Which file it is.
    pub node: u64,
}

/// What comes before a block's contents.
pub(super) fn head(block: &Block) -> [[u8; 8]; 5] {
    let Version {
        epoch,
        stamp,
        change,
    } = block.version;
    let sum = sum_of(block.place, block.version, &block.bytes);
    [MARK, epoch, stamp, change, sum].map(u64::to_le_bytes)
}

/// Finds a block's file.
pub(super) fn find(at: impl AsFd, name: &str) -> io::Result<Option<Found>> {
    let Some(file) = perhaps(open_at(at, name))? else {
        return Ok(None);
    };
    let there = file.metadata()?;
    Ok(Some(Found {
        file,
        is_durable: there.mode() & 0o200 != 0,
        node: there.ino(),
    }))
}

impl Found {
    /// The version that the head says. Whether the rest belongs to it is not looked at.
    pub fn version(&mut self) -> io::Result<Option<Version>> {
        let mut bytes = Vec::with_capacity(HEAD);
        (&mut self.file).take(HEAD as u64).read_to_end(&mut bytes)?;
        Ok(version(&bytes, self.is_durable).map(|(version, _)| version))
    }

    /// All of it; nothing if it is no block, or not this one.
    pub fn read(&mut self, place: Place) -> io::Result<Option<(Version, Vec<u8>)>> {
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes)?;
        let Some((version, head)) = version(&bytes, self.is_durable) else {
            return Ok(None);
        };
        let sum = word(&bytes, HEAD - 8).filter(|_| head == HEAD);
        let contents = bytes.split_off(head);
        let is_whole = sum.is_none_or(|sum| sum == sum_of(place, version, &contents));
        Ok((is_whole && contents.len() <= BLOCK_MAX).then_some((version, contents)))
    }

    /// Makes it durable, and says so by its mode.
    pub fn settle(&self) -> io::Result<()> {
        fdatasync(&self.file)?;
        self.is_synced()
    }

    /// It is durable: from now on it says so.
    pub fn is_synced(&self) -> io::Result<()> {
        Ok(fchmod(&self.file, Mode::from_raw_mode(FILE_MODE))?)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The version in a head, and how long that is.
fn version(bytes: &[u8], is_durable: bool) -> Option<(Version, usize)> {
    let (at, head) = match word(bytes, 0)? {
        MARK => (8, HEAD),
        epoch if is_durable && (1..OLD_LIVES).contains(&life_of(Epoch(epoch))) => (0, OLD_HEAD),
        _ => return None,
    };
    bytes.get(..head)?;
    let version = Version {
        epoch: word(bytes, at)?,
        stamp: word(bytes, at + 8)?,
        change: word(bytes, at + 16)?,
    };
    Some((version, head))
}

/// A sum for what power cuts and disks do. Four of them, of every fourth word each, do not wait for one another.
fn sum_of((file, number): Place, version: Version, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b1_85eb_ca87;
    let mut sums = [
        file.0,
        number,
        version.epoch,
        version.stamp ^ version.change.rotate_left(32),
    ];
    let add = |sum: &mut u64, word: u64| *sum = (*sum ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut chunks = bytes.chunks_exact(32);
    for chunk in &mut chunks {
        for (sum, word) in sums.iter_mut().zip(chunk.as_chunks::<8>().0) {
            add(sum, u64::from_le_bytes(*word));
        }
    }
    for (at, byte) in chunks.remainder().iter().enumerate() {
        add(&mut sums[at % 4], u64::from(*byte));
    }
    sums.into_iter().fold(bytes.len() as u64, mix2)
}
