//! A frame of a block's own, before its bytes change: where views hold the one that it has, the block gets a new one ([`own_frame`]). A
//! frame that comes from a window with all of the block's bytes in it ([`attach`]). And which frame a block gets ([`frame_beside`]).
//!
//! Source: FLAC, page versions and page attaching. What views hold stays as it is and is no header's any more (`memory::pins`).

use crate::frame::header::{Guard, Identity};
use crate::frame::slots;
use crate::ids::{BlockIndex, FrameId};
use crate::limits::{HUGE_BYTES, HUGE_FRAMES, PAGE_BYTES};
use crate::memory::files::FileEntry;
use crate::memory::{copy, pins, regions};
use crate::scrap::absorb::{NoMemory, announce, forget_runs, pages_of, recharge};
use crate::sync::{Ordering, planted};

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

/// A frame that lies beside that of the block before, as the two lie in 2 MiB of the file: so long streams come to lie on huge pages, which
/// a view maps at once. A block that begins 2 MiB takes the beginning of a huge page, if the file goes that far or the block before is in
/// memory. `None`: it is not free, or the block is part of nothing long.
pub fn frame_beside(guard: &Guard<'_>) -> Option<FrameId> {
    let (arena, identity) = (guard.arena(), guard.identity()?);
    let file = arena.file(identity.file)?;
    let within = identity.block.0 % HUGE_FRAMES;
    let before = identity.block.0.checked_sub(1).and_then(|block| {
        let before = Identity {
            block: BlockIndex(block),
            ..identity
        };
        let header = slots::lookup(arena, file, before.block)?;
        arena.header(header)?.peek(before)?.frame
    });
    let next = before.map(|frame| FrameId(frame.0 + 1));
    if within == 0 {
        let end = identity.block.start() + HUGE_BYTES as u64;
        let is_long = next.is_some() || file.size.load(Ordering::Relaxed) >= end;
        if !is_long {
            return None;
        }
        return regions::take_first_of_run(guard.me, next.unwrap_or(FrameId(0)));
    }
    next.filter(|next| next.0 % HUGE_FRAMES == within && regions::take_frame_at(guard.me, *next))
}

/// Makes a window's frame the block's. It holds all of the block's bytes, and nobody changes them from before the call on. `size_end` is the
/// least size that the file has with these bytes. Nothing of the block is in flight: a device reads from the frame that it has had.
///
/// The order is that of `docs/states.md`: pages are announced as dirty, the frame is where their bytes are, they are valid, the file has its
/// length, and last the frame is as any that a view holds.
pub fn attach(guard: &Guard<'_>, file: &FileEntry, frame: FrameId, size_end: u64) {
    let (arena, old) = (guard.arena(), guard.frame());
    // Also of a block that has nothing: a writer may have found some small frames, and not all that it needed.
    let small = match old {
        None => guard.small_pages(),
        Some(_) => 0,
    };
    announce(guard, file, u64::MAX);
    guard.set_frame(Some(frame));
    regions::link_frame(arena, frame, guard.id);
    let newly = !guard.valid();
    guard.set_valid(u64::MAX);
    forget_runs(guard, newly);
    for page in pages_of(small) {
        let word = guard.page(page);
        guard.set_page(page, word.with_small(None));
        if let Some(left) = word.small() {
            regions::free_small(guard.me, guard.stock(), left);
        }
    }
    if file.size.load(Ordering::Relaxed) < size_end {
        file.size.fetch_max(size_end, Ordering::AcqRel);
    }
    pins::attached(arena, frame);
    if let Some(old) = old {
        pins::let_go(guard.me, old);
    }
    recharge(guard, file);
    guard.touch();
}

#[cfg(all(test, feature = "sim", not(feature = "shuttle")))]
mod tests;
