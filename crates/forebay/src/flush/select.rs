//! What of one header may go to the device now, and moving it in flight.
//!
//! Called with the header locked, inside an operation; does no I/O. Order of stores: `docs/states.md`.

use crate::flush::cost::{self, Fill};
use crate::frame::header::{Guard, State};
use crate::limits::{BLOCK_PAGES, PAGE_BYTES};
use crate::memory::copy;
use crate::memory::files::{FileEntry, HOLEY};
use crate::scrap::absorb::{make_whole, pages_of, recharge};
use crate::scrap::give::{bytes_within_size, covered, fill_page};
use crate::scrap::own::own_frame;
use crate::scrap::split::mask;
use crate::sync::{Ordering, planted};

/// A page of zeros, for pages that the device file does not reach.
#[repr(align(4096))]
struct ZeroPage([u8; PAGE_BYTES]);
static ZEROS: ZeroPage = ZeroPage([0; PAGE_BYTES]);

/// What can be done for a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It owes nothing.
    Nothing,
    /// A write of it is in flight, or a direct write is over it: come back.
    Busy,
    /// Pages must be read from the device first.
    Fill {
        /// Those that are read: not whole in memory.
        pages: u64,
        /// Those of them without which nothing of theirs can be written.
        ragged: u64,
        /// The header's epoch before the read.
        epoch: u32,
    },
    /// These pages are in flight now and must be written.
    Write {
        /// Whole pages, for a direct write.
        pages: u64,
        /// The page that holds the file's end and how many of its bytes lie below it, for a buffered write.
        tail: Option<(usize, usize)>,
    },
}

/// Decides, and for [`Ready::Write`] begins the flight. `fills`: nothing is written before all pages that are dirty are whole; otherwise those
/// that are.
pub fn prepare(guard: &Guard<'_>, file: &FileEntry, fills: bool) -> Ready {
    if guard.inflight() != 0 || matches!(guard.state(), State::Superseded(_)) {
        return if guard.dirty() | guard.inflight() == 0 {
            Ready::Nothing
        } else {
            Ready::Busy
        };
    }
    if guard.dirty() == 0 {
        return Ready::Nothing;
    }
    forget_empty(guard, file);
    finish_what_needs_no_read(guard, file);
    let ragged = guard.ragged();
    if ragged != 0 && fills {
        return Ready::Fill {
            pages: pages_to_fill(guard, file, ragged),
            ragged,
            epoch: guard.epoch(),
        };
    }
    begin(guard, file)
}

/// Drops the mark of pages that a writer announced and did not live to fill.
fn forget_empty(guard: &Guard<'_>, file: &FileEntry) {
    let empty = guard.dirty() & !guard.valid() & !guard.ragged();
    if empty != 0 {
        guard.set_dirty(guard.dirty() & !empty);
        recharge(guard, file);
    }
}

/// Makes ragged pages whole whose missing bytes are known: beyond the file's end, or beyond the device's.
fn finish_what_needs_no_read(guard: &Guard<'_>, file: &FileEntry) {
    let Some(identity) = guard.identity() else {
        return;
    };
    for page in pages_of(guard.ragged()) {
        let live = bytes_within_size(guard, file, page);
        if live > 0 && live < PAGE_BYTES && covered(guard, page, 0, live) {
            if own_frame(guard).is_ok()
                && let Some(bytes) = guard.page_bytes(page)
            {
                // SAFETY: within the page, under the header's lock; bytes beyond the end are nobody's.
                unsafe { copy::zero(bytes.add(live), PAGE_BYTES - live) };
                make_whole(guard, page);
            }
            continue;
        }
        let start = identity.block.start() + (page * PAGE_BYTES) as u64;
        if start >= file.disk_end.load(Ordering::Acquire) {
            // SAFETY: a static page of zeros; the device has no byte of this page, so zeros are what it holds.
            let _ = unsafe { fill_page(guard, file, page, ZEROS.0.as_ptr()) };
        }
    }
}

fn pages_to_fill(guard: &Guard<'_>, file: &FileEntry, ragged: u64) -> u64 {
    let in_frame = guard.frame().is_some();
    if in_frame && cost::choose(ragged, guard.dirty(), guard.valid()) == Fill::Block {
        return !guard.valid() & pages_within_size(guard, file);
    }
    ragged
}

/// Pages of the block with at least one byte below the file's size.
pub fn pages_within_size(guard: &Guard<'_>, file: &FileEntry) -> u64 {
    let Some(identity) = guard.identity() else {
        return 0;
    };
    let size = file.size.load(Ordering::Acquire);
    let bytes = size.saturating_sub(identity.block.start());
    mask(0..bytes.div_ceil(PAGE_BYTES as u64).min(BLOCK_PAGES as u64) as u32)
}

fn begin(guard: &Guard<'_>, file: &FileEntry) -> Ready {
    let within = pages_within_size(guard, file);
    let wanted = guard.dirty() & guard.valid() & within;
    if wanted == 0 {
        return Ready::Nothing;
    }
    let last = 63 - within.leading_zeros() as usize;
    let live = bytes_within_size(guard, file, last);
    let tail_bit = if live < PAGE_BYTES { 1u64 << last } else { 0 };
    let tail = (wanted & tail_bit != 0).then_some((last, live));
    // Clean pages between dirty ones are written with them, unless they may be holes: those would need space.
    let is_holey = file.flags.load(Ordering::Acquire) & HOLEY != 0;
    let between = if is_holey && !planted!(FillHoles) {
        0
    } else {
        guard.valid() & within & !tail_bit
    };
    let pages = cost::bridge(wanted & !tail_bit, between);
    guard.begin_flight(pages | (wanted & tail_bit));
    if planted!(CleanAtSubmit) {
        guard.end_flight(guard.inflight(), true);
    }
    recharge(guard, file);
    Ready::Write { pages, tail }
}

/// Ends the flight of pages. `end` is how far the device file reaches now at least; it is noted before the pages can be
/// evicted, so that nobody takes them for zeros.
pub fn finish(guard: &Guard<'_>, file: &FileEntry, pages: u64, end: u64, written: bool) {
    if written {
        file.disk_end.fetch_max(end, Ordering::AcqRel);
    }
    guard.end_flight(pages & guard.inflight(), written);
    recharge(guard, file);
}
