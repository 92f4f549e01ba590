//! Taking what lies beyond an end out of memory.

use crate::frame::header::{Guard, Identity};
use crate::frame::slots;
use crate::ids::{BlockIndex, FileId, HeaderId};
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::memory::files::FileEntry;
use crate::memory::threads::Operation;
use crate::scrap::absorb::{cut_page, drop_pages, free_header};
use crate::scrap::split::mask;
use crate::stream::tracking;

/// Locks a header found in the tree, while alone on the file: only flushers look at it, for moments.
pub fn lock_found<'a>(
    file: FileId,
    operation: &Operation<'a>,
    block: BlockIndex,
    id: HeaderId,
) -> Option<Guard<'a>> {
    let header = operation.me.arena.header(id)?;
    let mut round = 0;
    loop {
        if let Some(guard) = header.lock(operation.me, id) {
            return guard.is_for(Identity { file, block }).then_some(guard);
        }
        round += 1;
        operation.wait(round);
    }
}

/// Takes everything from `len` on out of memory, for a caller that is alone on the file.
pub fn drop_beyond(file: FileId, operation: &Operation<'_>, len: u64) {
    let arena = operation.me.arena;
    let entry = arena.file_unchecked(file);
    let mut at = u64::from(BlockIndex::of(len).0);
    while let Some((block, id)) = slots::next_linked(arena, entry, at) {
        at = u64::from(block.0) + 1;
        let Some(guard) = lock_found(file, operation, block, id) else {
            continue;
        };
        if block.start() >= len {
            free_header(guard, entry, file);
        } else {
            cut(&guard, entry, (len - block.start()) as usize);
        }
    }
    let first_gone = len.next_multiple_of(BLOCK_BYTES as u64);
    tracking::cut(operation.me, file, BlockIndex::of(first_gone));
}

/// Takes everything from byte `end` of a block on out of memory. Pages wholly beyond go; the page with the end keeps its bytes below it.
pub fn cut(guard: &Guard<'_>, entry: &FileEntry, end: usize) {
    let first_gone = end.div_ceil(PAGE_BYTES) as u32;
    if first_gone < 64 {
        drop_pages(guard, entry, mask(first_gone..64));
    } else {
        guard.next_epoch();
    }
    if !end.is_multiple_of(PAGE_BYTES) {
        cut_page(guard, end / PAGE_BYTES, end % PAGE_BYTES);
    }
}
