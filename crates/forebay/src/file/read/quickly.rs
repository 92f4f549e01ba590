//! Reads of what is whole in memory, without the header's lock: its version says whether what was copied is good.

use crate::file::core::Core;
use crate::frame::header::{Header, Identity};
use crate::frame::slots;
use crate::limits::PAGE_BYTES;
use crate::memory::copy;
use crate::memory::threads::Operation;
use crate::scrap::absorb::pages_of;
use crate::scrap::give::part_of;
use crate::scrap::split::Segment;
use crate::stats::Counter;
use crate::sync::Ordering;

/// Copies pages that are whole in memory, without the lock. `false`: something is missing or changing.
///
/// # Safety
/// `target` is valid for the segment.
#[inline]
pub(super) unsafe fn read_quickly(
    core: &Core,
    operation: &Operation<'_>,
    segment: &Segment,
    target: *mut u8,
    passes_by: bool,
) -> bool {
    let arena = operation.me.arena;
    let identity = Identity {
        file: core.id,
        block: segment.block,
    };
    let Some(id) = slots::lookup(arena, core.entry(), segment.block) else {
        return false;
    };
    let Some(header) = arena.header(id) else {
        return false;
    };
    let Some(peek) = header.peek(identity) else {
        return false;
    };
    let touched = segment.touched();
    if peek.valid & touched != touched {
        return false;
    }
    let copied = match peek.frame.and_then(|frame| arena.frame_bytes(frame)) {
        // SAFETY: within the frame, which stays mapped; if it is given away meanwhile the version tells. The target is
        // the caller's.
        Some(bytes) => unsafe { copy::try_copy(bytes.add(segment.start), target, segment.len) },
        // SAFETY: as above, by pages.
        None => unsafe { copy_small(operation, header, segment, target) },
    };
    let good = copied && header.unchanged(&peek);
    if good {
        let tick = arena.superblock().tick.load(Ordering::Relaxed);
        let first = if passes_by {
            header.pass(tick)
        } else {
            header.touch(tick)
        };
        if first {
            header.count_ahead(operation.me, Counter::AheadUsedBytes);
        }
    }
    good
}

/// # Safety
/// `target` is valid for the segment.
unsafe fn copy_small(
    operation: &Operation<'_>,
    header: &Header,
    segment: &Segment,
    target: *mut u8,
) -> bool {
    for page in pages_of(segment.touched()) {
        let (start, end) = part_of(segment, page);
        let bytes = header
            .peek_small(page)
            .and_then(|s| operation.me.arena.small_bytes(s));
        let Some(bytes) = bytes else { return false };
        let at = page * PAGE_BYTES + start - segment.start;
        // SAFETY: within the small frame, which stays mapped; the target is the caller's.
        if !unsafe { copy::try_copy(bytes.add(start), target.add(at), end - start) } {
            return false;
        }
    }
    true
}
