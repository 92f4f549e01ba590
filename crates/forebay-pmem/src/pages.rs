//! Metadata blocks as the store sees them: what the running batch has changed, over what is being committed,
//! over what lies in the medium.
//!
//! A changed block is copied to DRAM whole and remembers which of its 64 lines differ. *Collecting* a batch
//! moves the running blocks aside under the store's lock; from then on a change copies a block anew (it takes
//! its next version), so that the batch can be made durable without the lock. When its lines are where they
//! belong, the batch is dropped.
//!
//! Every operation can be undone: [`Pages::write`] keeps what it overwrites until the operation ends, well or
//! not. A block of the medium is verified when it is read first.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::errno::{Errno, Result};
use crate::layout::{self, BLOCK, Kind, PAYLOAD};
use crate::medium::{LINE, Medium};

/// Bytes of a metadata block.
pub type Bytes = [u8; BLOCK];

/// The line that has the trailer: it is logged with every block that changed.
pub const TRAILER_LINE: u64 = 1 << 63;

/// Blocks whose memory is kept for the next batch.
const SPARE_MAX: usize = 64;

/// A changed block.
#[derive(Clone)]
pub struct Page {
    /// What it holds; the checksum is made when it is logged.
    pub bytes: Box<Bytes>,
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
}

/// The metadata blocks of a store.
pub struct Pages {
    medium: Arc<dyn Medium>,
    id: u64,
    running: PageMap,
    committing: Option<Arc<PageMap>>,
    /// Lines that a record of the running batch has for pages, without its head and descriptors.
    lines: u64,
    undo: Vec<Undo>,
    undone: Vec<u8>,
    /// Blocks that this operation added to `running`.
    added: Vec<u64>,
    /// A bit for each block of the medium that was read and found whole.
    verified: Vec<AtomicU64>,
    /// Memory of small batches that are done, for blocks that are changed next; what it holds means nothing.
    spare: Vec<Box<Bytes>>,
    /// The map of such a batch, empty.
    spare_map: PageMap,
}

impl Pages {
    /// The blocks of a medium; `recovered` lies over it until it is committed.
    pub fn new(medium: Arc<dyn Medium>, id: u64, blocks: u64, recovered: PageMap) -> Self {
        let words = blocks.div_ceil(64) as usize;
        Self {
            medium,
            id,
            running: PageMap::default(),
            committing: (!recovered.is_empty()).then(|| Arc::new(recovered)),
            lines: 0,
            undo: Vec::new(),
            undone: Vec::new(),
            added: Vec::new(),
            verified: (0..words).map(|_| AtomicU64::new(0)).collect(),
            spare: Vec::new(),
            spare_map: PageMap::default(),
        }
    }

    /// Hands a block to `see`.
    pub fn with<R>(&self, block: u64, kind: Kind, see: impl FnOnce(&Bytes) -> R) -> Result<R> {
        if let Some(page) = self.changed(block) {
            return match layout::is_labelled(&page.bytes, block, kind) {
                true => Ok(see(&page.bytes)),
                false => Err(Errno::EIO),
            };
        }
        let mut bytes = [0; BLOCK];
        self.load(block, kind, &mut bytes)?;
        Ok(see(&bytes))
    }

    /// Copies a part of a block's payload out.
    pub fn read(&self, block: u64, kind: Kind, at: usize, into: &mut [u8]) -> Result<()> {
        assert!(at + into.len() <= PAYLOAD, "{at}: outside the payload");
        if self.changed(block).is_none() && self.is_verified(block) {
            let mut trailer = [0; BLOCK - PAYLOAD];
            let start = block * BLOCK as u64;
            self.medium.read(start + PAYLOAD as u64, &mut trailer);
            if !layout::is_label(&trailer, block, kind) {
                return Err(Errno::EIO);
            }
            self.medium.read(start + at as u64, into);
            return Ok(());
        }
        let end = at + into.len();
        self.with(block, kind, |bytes| into.copy_from_slice(&bytes[at..end]))
    }

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

    fn changed(&self, block: u64) -> Option<&Page> {
        let running = self.running.get(&block);
        running.or_else(|| self.committing.as_ref()?.get(&block))
    }

    /// Changes a part of a block's payload; lines whose bytes stay the same are not logged.
    pub fn write(&mut self, block: u64, kind: Kind, at: usize, bytes: &[u8]) -> Result<()> {
        let end = at + bytes.len();
        assert!(end <= PAYLOAD, "{at}: outside the payload");
        self.bring(block, kind)?;
        let page = self.running.get_mut(&block).ok_or(Errno::EIO)?;
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
                });
                self.undone.extend_from_slice(old);
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
            lines: u64::MAX,
        };
        let before = self.running.insert(block, page);
        let lines = before.map_or(0, |page| page.lines.count_ones());
        self.lines += u64::from(64 - lines);
        self.added.push(block);
    }

    /// Has a block among the running ones.
    fn bring(&mut self, block: u64, kind: Kind) -> Result<()> {
        if let Some(page) = self.running.get(&block) {
            return match layout::is_labelled(&page.bytes, block, kind) {
                true => Ok(()),
                false => Err(Errno::EIO),
            };
        }
        let spare = self.spare.pop();
        let mut bytes = spare.unwrap_or_else(|| Box::new([0; BLOCK]));
        match self.changed(block) {
            Some(page) if layout::is_labelled(&page.bytes, block, kind) => {
                bytes.copy_from_slice(&*page.bytes);
            }
            Some(_) => return Err(Errno::EIO),
            None => self.load(block, kind, &mut bytes)?,
        }
        let page = Page {
            bytes,
            lines: TRAILER_LINE,
        };
        self.running.insert(block, page);
        self.lines += 1;
        self.added.push(block);
        Ok(())
    }

    /// The block is free again: it is not logged any more.
    pub fn forget(&mut self, block: u64) {
        if let Some(page) = self.running.remove(&block) {
            self.lines -= u64::from(page.lines.count_ones());
        }
        self.set_verified(block, false);
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
            self.committing.is_none(),
            "one batch is committed at a time"
        );
        let next = std::mem::take(&mut self.spare_map);
        let batch = Arc::new(std::mem::replace(&mut self.running, next));
        self.lines = 0;
        self.committing = Some(Arc::clone(&batch));
        batch
    }

    /// The batch lies where it belongs. Memory of a small one is kept for the next; a large one is left for the caller to free, without
    /// the lock.
    pub fn dropped(&mut self, batch: &mut Arc<PageMap>) {
        self.committing = None;
        if let Some(map) = Arc::get_mut(batch)
            && map.capacity() <= SPARE_MAX
        {
            let room = SPARE_MAX.saturating_sub(self.spare.len());
            let pages = map.drain().map(|(_, page)| page.bytes);
            self.spare.extend(pages.take(room));
            self.spare_map = std::mem::take(map);
        }
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

#[cfg(test)]
mod tests {
    use super::{PageMap, Pages};
    use crate::layout::Kind;
    use crate::medium::Durability;
    use crate::tests::sim::Simulated;

    #[test]
    fn what_is_undone_takes_no_room_in_a_record() {
        let medium = Simulated::new(vec![0; 100 * 4096], Durability::Dax);
        let mut pages = Pages::new(medium, 1, 100, PageMap::default());
        pages.make(50, Kind::Table);
        pages.keep();
        let mut batch = pages.collect();
        assert_eq!(pages.write(50, Kind::Table, 0, &[1; 64]), Ok(()));
        pages.keep();
        let lines = pages.record_lines();
        // Another line twice, the same line again, and a block that is new to the batch.
        assert_eq!(pages.write(50, Kind::Table, 200, &[2; 8]), Ok(()));
        assert_eq!(pages.write(50, Kind::Table, 200, &[3; 8]), Ok(()));
        assert_eq!(pages.write(50, Kind::Table, 8, &[4; 8]), Ok(()));
        pages.make(51, Kind::Table);
        assert_eq!(pages.write(51, Kind::Table, 8, &[5; 8]), Ok(()));
        assert!(pages.record_lines() > lines);
        pages.undo();
        assert_eq!(pages.record_lines(), lines);
        pages.dropped(&mut batch);
        let batch = pages.collect();
        let counted = batch
            .values()
            .map(|page| u64::from(page.lines.count_ones()));
        assert_eq!(1 + 1 + counted.sum::<u64>(), lines);
    }
}
