//! A frame of a block's own, before its bytes change: where views hold the one that it has, the block gets a new one.
//!
//! Source: FLAC, page versions. What views hold stays as it is and is no header's any more (`memory::pins`).

use crate::frame::header::Guard;
use crate::limits::PAGE_BYTES;
use crate::memory::{copy, pins, regions};
use crate::scrap::absorb::{NoMemory, pages_of};
use crate::sync::planted;

/// Whether views hold the block's frame.
#[inline]
pub fn is_shared(guard: &Guard<'_>) -> bool {
    guard
        .frame()
        .is_some_and(|frame| pins::is_pinned(guard.arena(), frame))
}

/// Sees to it that no view holds the block's frame. [`NoMemory`] also while the device reads from it: what has been written ends soon.
#[inline]
pub fn own_frame(guard: &Guard<'_>) -> Result<(), NoMemory> {
    if is_shared(guard) && !planted!(WriteInPlace) {
        return next_version(guard);
    }
    Ok(())
}

#[cold]
fn next_version(guard: &Guard<'_>) -> Result<(), NoMemory> {
    let arena = guard.arena();
    let old = guard.frame().ok_or(NoMemory)?;
    if guard.inflight() != 0 {
        return Err(NoMemory);
    }
    let frame = regions::take_frame(guard.me).ok_or(NoMemory)?;
    let (Some(from), Some(to)) = (arena.frame_bytes(old), arena.frame_bytes(frame)) else {
        return Err(NoMemory);
    };
    for page in pages_of(guard.valid() | guard.ragged()) {
        let at = page * PAGE_BYTES;
        // SAFETY: a page of this header's frame, whose lock we hold, so that nobody changes it; the target is a page of a frame that
        // only we hold; both are mapped as long as the arena.
        unsafe { copy::copy(from.add(at), to.add(at), PAGE_BYTES) };
    }
    // From this store on the new frame is where the bytes are.
    guard.set_frame(Some(frame));
    regions::link_frame(arena, frame, guard.id);
    pins::let_go(guard.me, old);
    Ok(())
}
