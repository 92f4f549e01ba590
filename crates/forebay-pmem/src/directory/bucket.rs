//! A bucket: the entries of a directory whose keys begin with the same bits.
//!
//! A head (depth, bytes in use, the directory), then entries without gaps: key, inode, length of the name,
//! type, name, padded to 8 bytes. Nothing that is read is trusted: what does not fit ends a scan with `EIO`.

use crate::errno::{Errno, Result};
use crate::layout::{PAYLOAD, get16, get32, get64, put32, put64};
use crate::pages::Bytes;
use crate::types::NAME_MAX;

/// Bytes of the head.
pub const HEAD: usize = 16;
/// Bytes of an entry before its name.
const FIXED: usize = 24;

/// An entry, in place.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Byte offset in the bucket.
    pub at: usize,
    /// Its key.
    pub key: u64,
    /// Whom it names.
    pub inode: u64,
    /// Type bits of the mode.
    pub kind: u32,
    /// Name.
    pub name: &'a [u8],
}

impl Record<'_> {
    /// Bytes of the entry.
    pub fn length(&self) -> usize {
        length_of(self.name)
    }
}

/// Bytes of an entry with this name.
pub fn length_of(name: &[u8]) -> usize {
    FIXED + name.len().next_multiple_of(8)
}

/// A bucket's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Bits that the keys of all its entries share.
    pub depth: u32,
    /// Bytes in use, the head included.
    pub used: usize,
    /// The directory.
    pub directory: u64,
}

impl Head {
    /// From a bucket.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let used = get32(bytes, 4) as usize;
        let depth = get32(bytes, 0);
        if !(HEAD..=PAYLOAD).contains(&used) || depth > super::DEPTH_MAX {
            return Err(Errno::EIO);
        }
        Ok(Self {
            depth,
            used,
            directory: get64(bytes, 8),
        })
    }

    /// For a bucket.
    pub fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        put32(&mut bytes, 0, self.depth);
        put32(&mut bytes, 4, self.used as u32);
        put64(&mut bytes, 8, self.directory);
        bytes
    }
}

/// All entries of a bucket.
pub fn records(bytes: &Bytes) -> Result<Vec<Record<'_>>> {
    let mut records = Vec::new();
    scan(bytes, |record| {
        records.push(record);
        true
    })?;
    Ok(records)
}

/// Calls `see` with each entry until it answers false.
pub fn scan<'a>(bytes: &'a Bytes, mut see: impl FnMut(Record<'a>) -> bool) -> Result<()> {
    let used = Head::decode(bytes)?.used;
    let mut at = HEAD;
    while at < used {
        if used - at < FIXED {
            return Err(Errno::EIO);
        }
        let length = usize::from(get16(bytes, at + 16));
        let name = at + FIXED..at + FIXED + length;
        if length == 0 || length > NAME_MAX || at + FIXED + length.next_multiple_of(8) > used {
            return Err(Errno::EIO);
        }
        let record = Record {
            at,
            key: get64(bytes, at),
            inode: get64(bytes, at + 8),
            kind: u32::from(get16(bytes, at + 18)),
            name: &bytes[name],
        };
        if !see(record) {
            return Ok(());
        }
        at += record.length();
    }
    Ok(())
}

/// An entry as it lies in a bucket.
pub fn encode(key: u64, inode: u64, kind: u32, name: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; length_of(name)];
    put64(&mut bytes, 0, key);
    put64(&mut bytes, 8, inode);
    bytes[16..18].copy_from_slice(&(name.len() as u16).to_le_bytes());
    bytes[18..20].copy_from_slice(&((kind & libc::S_IFMT) as u16).to_le_bytes());
    bytes[FIXED..FIXED + name.len()].copy_from_slice(name);
    bytes
}
