//! The bytes of one file, sparse: what a `Vec<u8>` would hold, for files of a terabyte too.
//!
//! Blocks that hold nothing but zeros need not be present. Bytes at and beyond the length are zero
//! in every block, so growing a file never shows old bytes. Clones share blocks until one changes,
//! which is what makes *what fsync promised* cheap to remember.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::BLOCK_BYTES;

/// Something that holds a file's bytes and can be looked at: what a test found after a crash.
pub trait Image {
    /// Length in bytes.
    fn image_len(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`; the range lies inside the image.
    fn image_read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

impl Image for Vec<u8> {
    fn image_len(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn image_read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.copy_from_slice(&self[offset as usize..][..buf.len()]);
        Ok(())
    }
}

impl Image for std::fs::File {
    fn image_len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn image_read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buf, offset)
    }
}

impl Image for Content {
    fn image_len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn image_read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.copy_to(offset, buf);
        Ok(())
    }
}

/// The bytes of one file.
#[derive(Clone, Debug, Default)]
pub struct Content {
    len: u64,
    blocks: BTreeMap<u64, Arc<Vec<u8>>>,
}

/// The parts of a range block by block: (block, offset in the block, offset in the range, length).
fn parts(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let block = at / BLOCK_BYTES;
        let n = ((block + 1) * BLOCK_BYTES).min(end) - at;
        let part = (
            block,
            (at % BLOCK_BYTES) as usize,
            (at - offset) as usize,
            n as usize,
        );
        at += n;
        Some(part)
    })
}

impl Content {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What a read of this range gives: cut at the end of the file.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut buf = vec![0; len.min(self.len.saturating_sub(offset)) as usize];
        self.copy_to(offset, &mut buf);
        buf
    }

    /// Fills `buf` from `offset`, with zeros beyond the end.
    pub fn copy_to(&self, offset: u64, buf: &mut [u8]) {
        for (block, within, at, n) in parts(offset, buf.len() as u64) {
            match self.blocks.get(&block) {
                Some(bytes) => buf[at..at + n].copy_from_slice(&bytes[within..within + n]),
                None => buf[at..at + n].fill(0),
            }
        }
    }

    /// The byte at `offset`; zero beyond the end.
    pub fn byte(&self, offset: u64) -> u8 {
        let block = self.blocks.get(&(offset / BLOCK_BYTES));
        block.map_or(0, |bytes| bytes[(offset % BLOCK_BYTES) as usize])
    }

    /// Puts bytes at `offset`; the file grows where they end beyond it.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (block, within, at, n) in parts(offset, bytes.len() as u64) {
            let empty = || Arc::new(vec![0; BLOCK_BYTES as usize]);
            let block = Arc::make_mut(self.blocks.entry(block).or_insert_with(empty));
            block[within..within + n].copy_from_slice(&bytes[at..at + n]);
        }
        if !bytes.is_empty() {
            self.len = self.len.max(offset + bytes.len() as u64);
        }
    }

    /// Makes the range read as zeros; the length stays.
    pub fn zero(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (first, last) = (start / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        let present: Vec<_> = self.blocks.range(first..last).map(|(&b, _)| b).collect();
        for block in present {
            let base = block * BLOCK_BYTES;
            let from = start.max(base) - base;
            let to = end.min(base + BLOCK_BYTES) - base;
            if (from, to) == (0, BLOCK_BYTES) {
                self.blocks.remove(&block);
            } else if let Some(bytes) = self.blocks.get_mut(&block) {
                Arc::make_mut(bytes)[from as usize..to as usize].fill(0);
            }
        }
    }

    /// Cuts the file or makes it longer with zeros.
    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len);
        }
        self.len = len;
    }

    /// Blocks that may hold something other than zeros, ascending.
    pub(crate) fn present(&self) -> impl Iterator<Item = u64> {
        self.blocks.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SplitMix64;

    #[test]
    fn behaves_as_a_vector_does() {
        let mut random = SplitMix64::new(1);
        let mut content = Content::default();
        let mut plain: Vec<u8> = Vec::new();
        for step in 0..600u32 {
            let offset = random.below(3 * BLOCK_BYTES);
            let len = random.below(BLOCK_BYTES + 10);
            match random.below(3) {
                0 => {
                    let bytes = crate::bytes::filled(step, offset, len as usize);
                    content.write(offset, &bytes);
                    let end = (offset + len) as usize;
                    if len > 0 && plain.len() < end {
                        plain.resize(end, 0);
                    }
                    if len > 0 {
                        plain[offset as usize..end].copy_from_slice(&bytes);
                    }
                }
                1 => {
                    let end = (offset + len).min(plain.len() as u64);
                    content.zero(offset, end);
                    if offset < end {
                        plain[offset as usize..end as usize].fill(0);
                    }
                }
                _ => {
                    content.set_len(offset);
                    plain.resize(offset as usize, 0);
                }
            }
            assert_eq!(content.len(), plain.len() as u64);
            assert!(
                content.read(0, u64::MAX) == plain,
                "differs after step {step}"
            );
        }
    }
}
