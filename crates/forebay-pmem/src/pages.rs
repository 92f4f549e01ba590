//! Metadata blocks as the store sees them: what the running batch has changed, over what is being committed,
//! over what lies in the medium.
//!
//! A changed block is copied to DRAM whole and remembers which of its 64 lines differ. *Collecting* a batch
//! moves the running blocks aside under the store's lock; from then on a change copies a block anew (it takes
//! its next version), so that the batch can be made durable without the lock. When its lines are where they
//! belong, the batch is dropped. A few of its blocks stay in DRAM: whoever syncs small writes changes the same ones again.
//!
//! Every operation can be undone: [`Pages::write`] keeps what it overwrites until the operation ends, well or
//! not. A block of the medium is verified when it is read first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::errno::{Errno, Result};
use crate::layout::{self, BLOCK, Kind, PAYLOAD, SEALED, get32};
use crate::medium::{LINE, Medium, changes};

/// Bytes of a metadata block.
pub type Bytes = [u8; BLOCK];

/// The line that has the trailer: it is logged with every block that changed.
pub const TRAILER_LINE: u64 = 1 << 63;

/// Blocks of batches that are done which stay in DRAM.
const CLEAN_MAX: usize = 64;

/// A changed block.
#[derive(Clone)]
pub struct Page {
    /// What it holds, but for the checksum.
    pub bytes: Box<Bytes>,
    /// The checksum, if it is known: then it goes along with every change. Otherwise it is made when the block is logged.
    pub sum: Option<u32>,
    /// A bit for each line that differs from what was committed before.
    pub lines: u64,
}

/// Changed blocks by their number.
pub type PageMap = HashMap<u64, Page, BuildHasherDefault<BlockHasher>>;

/// Block numbers need mixing only.
#[derive(Default)]
pub struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
}

/// What an operation overwrote.
struct Undo {
    block: u64,
    at: usize,
    /// Where the old bytes begin in `Pages::undone`; they reach to the next one's.
    from: usize,
    /// The block's lines that differed before.
    lines: u64,
    /// Its checksum before.
    sum: Option<u32>,
}

/// What lies below the running batch.
struct Below {
    medium: Arc<dyn Medium>,
    id: u64,
    committing: Option<Arc<PageMap>>,
    /// A bit for each block of the medium that was read and found whole.
    verified: Vec<AtomicU64>,
    /// Blocks as they lie in the medium, which neither the running batch nor the one that is being committed has: some of those that
    /// were changed last.
    clean: PageMap,
}

/// The metadata blocks of a store.
pub struct Pages {
    below: Below,
    running: PageMap,
    /// Lines that a record of the running batch has for pages, without its head and descriptors.
    lines: u64,
    undo: Vec<Undo>,
    undone: Vec<u8>,
    /// Blocks that this operation added to `running`.
    added: Vec<u64>,
    /// The map of a small batch that is done, empty.
    spare_map: PageMap,
}

impl Below {
    /// The block as it lies in the medium, if it is whole; otherwise what is in `bytes` afterwards means nothing.
    fn load(&self, block: u64, kind: Kind, bytes: &mut Bytes) -> Result<()> {
        self.medium.read(block * BLOCK as u64, bytes);
        let whole = self.is_verified(block) || layout::is_sealed(self.id, bytes);
        if !whole || !layout::is_labelled(bytes, block, kind) {
            return Err(Errno::EIO);
        }
        self.set_verified(block, true);
        Ok(())
    }

    /// The block for the running batch to change. Its label has not been looked at, unless it came from the medium.
    fn take(&mut self, block: u64, kind: Kind) -> Result<Page> {
        let lines = TRAILER_LINE;
        if let Some(page) = self.clean.remove(&block) {
            return Ok(Page { lines, ..page });
        }
        let mut bytes = self.memory();
        let committing = self.committing.as_ref().and_then(|batch| batch.get(&block));
        let sum = match committing {
            Some(page) => {
                bytes.copy_from_slice(&page.bytes[..]);
                page.sum
            }
            None => {
                self.load(block, kind, &mut bytes)?;
                Some(get32(&bytes[..], SEALED))
            }
        };
        Ok(Page { bytes, sum, lines })
    }

    /// Memory for a block: that of another one, where as many are kept as may be.
    fn memory(&mut self) -> Box<Bytes> {
        let other = self.make_room(1);
        other.map_or_else(|| Box::new([0; BLOCK]), |page| page.bytes)
    }

    /// Lets go of blocks, whichever, until so many more may be kept. Returns the last of them.
    fn make_room(&mut self, count: usize) -> Option<Page> {
        let excess = (self.clean.len() + count).saturating_sub(CLEAN_MAX);
        let gone = self.clean.extract_if(|_, _| true).take(excess);
        gone.map(|(_, page)| page).last()
    }

    fn is_verified(&self, block: u64) -> bool {
        // Relaxed: a bit says something of bytes in the medium that do not change while the lock is held.
        let word = self.verified[(block / 64) as usize].load(Ordering::Relaxed);
        word & (1 << (block % 64)) != 0
    }

    fn set_verified(&self, block: u64, whole: bool) {
        let word = &self.verified[(block / 64) as usize];
        let bit = 1 << (block % 64);
        // Relaxed: as above.
        match whole {
            true => word.fetch_or(bit, Ordering::Relaxed),
            false => word.fetch_and(!bit, Ordering::Relaxed),
        };
    }
}

impl Pages {
    /// The blocks of a medium; `recovered` lies over it until it is committed.
    pub fn new(medium: Arc<dyn Medium>, id: u64, blocks: u64, recovered: PageMap) -> Self {
        let words = blocks.div_ceil(64) as usize;
        Self {
            below: Below {
                medium,
                id,
                committing: (!recovered.is_empty()).then(|| Arc::new(recovered)),
                verified: (0..words).map(|_| AtomicU64::new(0)).collect(),
                clean: PageMap::default(),
            },
            running: PageMap::default(),
            lines: 0,
            undo: Vec::new(),
            undone: Vec::new(),
            added: Vec::new(),
            spare_map: PageMap::default(),
        }
    }

    /// Hands a block to `see`.
    pub fn with<R>(&self, block: u64, kind: Kind, see: impl FnOnce(&Bytes) -> R) -> Result<R> {
        if let Some(page) = self.in_memory(block) {
            return match layout::is_labelled(&page.bytes, block, kind) {
                true => Ok(see(&page.bytes)),
                false => Err(Errno::EIO),
            };
        }
        let mut bytes = [0; BLOCK];
        self.below.load(block, kind, &mut bytes)?;
        Ok(see(&bytes))
    }

    /// Copies a part of a block's payload out.
    pub fn read(&self, block: u64, kind: Kind, at: usize, into: &mut [u8]) -> Result<()> {
        assert!(at + into.len() <= PAYLOAD, "{at}: outside the payload");
        let end = at + into.len();
        if let Some(page) = self.in_memory(block) {
            if !layout::is_labelled(&page.bytes, block, kind) {
                return Err(Errno::EIO);
            }
            into.copy_from_slice(&page.bytes[at..end]);
            return Ok(());
        }
        if self.below.is_verified(block) {
            let mut trailer = [0; BLOCK - PAYLOAD];
            let start = block * BLOCK as u64;
            let medium = &self.below.medium;
            medium.read(start + PAYLOAD as u64, &mut trailer);
            if !layout::is_label(&trailer, block, kind) {
                return Err(Errno::EIO);
            }
            medium.read(start + at as u64, into);
            return Ok(());
        }
        self.with(block, kind, |bytes| into.copy_from_slice(&bytes[at..end]))
    }

    /// The block, if it has changed or was kept. All must see it so, as `write` does: what the medium has may have rotted since it was verified.
    fn in_memory(&self, block: u64) -> Option<&Page> {
        let below = &self.below;
        let running = self.running.get(&block);
        let changed = running.or_else(|| below.committing.as_ref()?.get(&block));
        changed.or_else(|| below.clean.get(&block))
    }

    /// Changes a part of a block's payload; lines whose bytes stay the same are not logged.
    pub fn write(&mut self, block: u64, kind: Kind, at: usize, bytes: &[u8]) -> Result<()> {
        let end = at + bytes.len();
        assert!(end <= PAYLOAD, "{at}: outside the payload");
        let page = match self.running.entry(block) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let page = self.below.take(block, kind)?;
                self.lines += 1;
                self.added.push(block);
                entry.insert(page)
            }
        };
        if !layout::is_labelled(&page.bytes, block, kind) {
            return Err(Errno::EIO);
        }
        let mut from = at;
        while from < end {
            let line = from / LINE;
            let until = ((line + 1) * LINE).min(end);
            let (old, new) = (&mut page.bytes[from..until], &bytes[from - at..until - at]);
            if old != new {
                self.undo.push(Undo {
                    block,
                    at: from,
                    from: self.undone.len(),
                    lines: page.lines,
                    sum: page.sum,
                });
                self.undone.extend_from_slice(old);
                page.sum = page
                    .sum
                    .and_then(|sum| Some(sum ^ changes::of(from, old, new)?));
                old.copy_from_slice(new);
                self.lines += u64::from(page.lines & (1 << line) == 0);
                page.lines |= 1 << line;
            }
            from = until;
        }
        Ok(())
    }

    /// Makes a new, empty block; what was there before does not matter.
    pub fn make(&mut self, block: u64, kind: Kind) {
        let mut bytes = Box::new([0; BLOCK]);
        layout::label(&mut bytes, block, kind);
        let page = Page {
            bytes,
            sum: None,
            lines: u64::MAX,
        };
        self.below.clean.remove(&block);
        let before = self.running.insert(block, page);
        let lines = before.map_or(0, |page| page.lines.count_ones());
        self.lines += u64::from(64 - lines);
        self.added.push(block);
    }

    /// The block is free again: it is not logged any more.
    pub fn forget(&mut self, block: u64) {
        if let Some(page) = self.running.remove(&block) {
            self.lines -= u64::from(page.lines.count_ones());
        }
        self.below.clean.remove(&block);
        self.below.set_verified(block, false);
    }

    /// The operation stays.
    pub fn keep(&mut self) {
        self.undo.clear();
        self.undone.clear();
        self.added.clear();
    }

    /// The operation has not been.
    pub fn undo(&mut self) {
        let mut end = self.undone.len();
        while let Some(undo) = self.undo.pop() {
            let old = &self.undone[undo.from..end];
            if let Some(page) = self.running.get_mut(&undo.block) {
                page.bytes[undo.at..undo.at + old.len()].copy_from_slice(old);
                self.lines -= u64::from((page.lines & !undo.lines).count_ones());
                page.lines = undo.lines;
                page.sum = undo.sum;
            }
            end = undo.from;
        }
        self.undone.clear();
        for block in std::mem::take(&mut self.added) {
            if let Some(page) = self.running.remove(&block) {
                self.lines -= u64::from(page.lines.count_ones());
            }
        }
    }

    /// Lines of the record that the running batch would be: its head, descriptors of 16 bytes, lines.
    pub fn record_lines(&self) -> u64 {
        1 + (self.running.len() as u64).div_ceil(4) + self.lines
    }

    /// Whether the running batch has nothing.
    pub fn is_clean(&self) -> bool {
        self.running.is_empty()
    }

    /// Moves the running batch aside: it is seen below the next one until [`Pages::dropped`].
    pub fn collect(&mut self) -> Arc<PageMap> {
        assert!(
            self.below.committing.is_none(),
            "one batch is committed at a time"
        );
        let next = std::mem::take(&mut self.spare_map);
        let batch = Arc::new(std::mem::replace(&mut self.running, next));
        self.lines = 0;
        self.below.committing = Some(Arc::clone(&batch));
        batch
    }

    /// The batch lies where it belongs. Blocks of a small one are kept; a large one is left for the caller to free, without the lock.
    pub fn dropped(&mut self, batch: &mut Arc<PageMap>) {
        self.below.committing = None;
        if let Some(map) = Arc::get_mut(batch)
            && map.capacity() <= CLEAN_MAX
        {
            let below = &mut self.below;
            // What was freed since is not verified any more, and a new block is not before it is read.
            map.retain(|block, _| below.is_verified(*block) && !self.running.contains_key(block));
            // Others go: these are the ones that change again, if any do.
            below.make_room(map.len());
            below.clean.extend(map.drain());
            self.spare_map = std::mem::take(map);
        }
    }
}

#[cfg(test)]
mod tests;
