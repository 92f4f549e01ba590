//! Bringing bytes of the device into memory without the lock (`docs/locking.md`, "Fills"): for readers, and for threads that
//! read ahead.
//!
//! [`Seen`] is taken under the header's lock before the device is read. Afterwards, under the lock again, bytes are kept only if
//! it still holds: then nothing has left the header since, so that nothing that the device has been given meanwhile is
//! missing from what was read.

use std::ops::Range;

use crate::frame::header::{Guard, State};
use crate::ids::{FrameId, HeaderId};
use crate::limits::{BLOCK_BYTES, BLOCK_PAGES, PAGE_BYTES};
use crate::memory::files::FileEntry;
use crate::memory::{copy, regions};
use crate::scrap::absorb::{Home, NoMemory, find_home, pages_of};
use crate::scrap::give::fill_page;
use crate::scrap::split::{mask, runs_of};
use crate::sync::{Ordering, planted};

/// What described a block before the device was read.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    header: HeaderId,
    epoch: u32,
    /// How far the device file reached: beyond are zeros.
    pub disk_end: u64,
}

impl Seen {
    /// As it is now. The slot was looked at first: whatever is flushed and evicted from here on changes the epoch.
    pub fn of(guard: &Guard<'_>, entry: &FileEntry) -> Self {
        Seen {
            header: guard.id,
            epoch: guard.epoch(),
            disk_end: entry.disk_end.load(Ordering::Acquire),
        }
    }

    /// Whether nothing has left the header since. Another header's epoch says nothing.
    pub fn holds(&self, guard: &Guard<'_>) -> bool {
        let same = guard.id == self.header || planted!(AnyHeader);
        same && guard.epoch() == self.epoch
    }

    /// The header.
    pub fn header(&self) -> HeaderId {
        self.header
    }
}

/// Keeps those pages of a frame that memory has nothing of and that lie wholly before the file's end. Which those are.
///
/// # Safety
/// As for [`keep`].
unsafe fn keep_whole_pages(
    guard: &Guard<'_>,
    entry: &FileEntry,
    wanted: u64,
    block: *const u8,
) -> u64 {
    let frame = guard
        .frame()
        .and_then(|frame| guard.arena().frame_bytes(frame));
    let (Some(frame), Some(identity)) = (frame, guard.identity()) else {
        return 0;
    };
    let size = entry.size.load(Ordering::Acquire);
    let pages = size.saturating_sub(identity.block.start()) / PAGE_BYTES as u64;
    let below = mask(0..pages.min(BLOCK_PAGES as u64) as u32);
    let mut kept = 0;
    for run in runs_of(wanted & below & !guard.dirty()) {
        let (start, len) = (run.start as usize * PAGE_BYTES, run.len() * PAGE_BYTES);
        // SAFETY: within the frame, under its header's lock, and within the caller's memory.
        if unsafe { copy::try_stream(block.add(start), frame.add(start), len) } {
            kept |= mask(run);
        }
    }
    guard.set_valid(guard.valid() | kept);
    kept
}

/// Makes a frame the block's own into which all of the block was read, after a [`Seen`] that holds, without a copy. It is held by the
/// calling thread, and nobody else knows it. `false`: memory has something of the block, or a frame for it.
///
/// The order is that of a header that gets memory (`docs/states.md`): bytes beyond the file's size are zeros, the frame is where the bytes
/// are, they are valid.
pub fn adopt(guard: &Guard<'_>, entry: &FileEntry, frame: FrameId) -> bool {
    let is_bare = guard.state() == State::Linked
        && guard.frame().is_none()
        && guard.valid() | guard.dirty() | guard.inflight() == 0
        && guard.small_pages() == 0;
    let (Some(bytes), Some(identity)) = (guard.arena().frame_bytes(frame), guard.identity()) else {
        return false;
    };
    if !is_bare && !planted!(AdoptOver) {
        return false;
    }
    let size = entry.size.load(Ordering::Acquire);
    let live = size
        .saturating_sub(identity.block.start())
        .min(BLOCK_BYTES as u64) as usize;
    // SAFETY: within a frame that only this thread has, which is mapped as long as the arena.
    unsafe { copy::zero(bytes.add(live), BLOCK_BYTES - live) };
    let pages = live.div_ceil(PAGE_BYTES) as u32;
    guard.set_frame(Some(frame));
    regions::link_frame(guard.arena(), frame, guard.id);
    guard.set_valid(mask(0..pages));
    true
}

/// Keeps pages that were read from the device, where memory has nothing newer, if there is memory to spare: reading ahead
/// of room would evict what is in use. Returns the pages that are valid now and were not.
///
/// # Safety
/// `block` is where the block's first byte would be in memory that has the pages of `span` at their places, read after a
/// [`Seen`] that holds; zeros where the device file does not reach.
pub unsafe fn keep(
    guard: &Guard<'_>,
    entry: &FileEntry,
    span: &Range<u32>,
    block: *const u8,
) -> Result<u64, NoMemory> {
    if guard.state() != State::Linked {
        // A direct write is over the block, and what it brings is newer.
        return Ok(0);
    }
    let within = crate::flush::select::pages_within_size(guard, entry);
    let wanted = mask(span.clone()) & !guard.valid() & within;
    let home = if span.len() == BLOCK_PAGES {
        Home::Frame
    } else {
        Home::Small
    };
    find_home(guard, wanted, home)?;
    // SAFETY: the caller's promise.
    let at_once = unsafe { keep_whole_pages(guard, entry, wanted, block) };
    for page in pages_of(wanted & !at_once) {
        // SAFETY: the caller's promise; the page is one of the span.
        unsafe { fill_page(guard, entry, page, block.add(page * PAGE_BYTES))? };
    }
    Ok(wanted)
}
