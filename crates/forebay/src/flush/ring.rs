//! A ring of hints from writers to the keeper: blocks that are full and should go to the device at once.
//!
//! WSBuffer 3.4 keeps queues of pages; ours are hints only: the keeper sweeps what is
//! owed as well, so a hint that is overwritten or lost in a death costs time and nothing else. Pushing is one
//! fetch-and-add and one store, and never waits.

use crate::frame::header::Identity;
use crate::ids::{BlockIndex, FileId};
use crate::memory::superblock::Ring;
use crate::sync::Ordering;

/// Leaves a hint.
pub fn push(ring: &Ring, identity: Identity) {
    let at = ring.head.fetch_add(1, Ordering::Relaxed) as usize % ring.slots.len();
    let word = ((u64::from(identity.file.0) + 1) << 32) | u64::from(identity.block.0);
    ring.slots[at].store(word, Ordering::Release);
}

/// Takes the hint at the reader's cursor, or none. There is one reader, the keeper's thread that writes back.
pub fn pop(ring: &Ring, cursor: &mut u64) -> Option<Identity> {
    let head = ring.head.load(Ordering::Acquire);
    let room = ring.slots.len() as u64;
    if head.wrapping_sub(*cursor) > room {
        *cursor = head.wrapping_sub(room);
    }
    while *cursor != head {
        let word = ring.slots[*cursor as usize % ring.slots.len()].swap(0, Ordering::AcqRel);
        *cursor = cursor.wrapping_add(1);
        if let Some(file) = (word >> 32).checked_sub(1) {
            return Some(Identity {
                file: FileId(file as u32),
                block: BlockIndex(word as u32),
            });
        }
    }
    None
}
