//! Reading a block's bytes out of memory, and merging bytes of the device into its holes.
//!
//! A page is given if it is valid, or if the runs in it cover what is asked for. Bytes of the device go only into
//! holes: what is in memory is newer.

use std::cell::Cell;

use crate::frame::header::Guard;
use crate::ids::SmallId;
use crate::limits::PAGE_BYTES;
use crate::memory::copy;
use crate::memory::files::FileEntry;
use crate::scrap::absorb::{
    Home, NoMemory, find_home, for_each_piece, make_whole, map_at, pages_of,
};
use crate::scrap::map::ByteMap;
use crate::scrap::page::{Ragged, holes, runs};
use crate::scrap::split::Segment;
use crate::sync::Ordering;

/// Pages of the segment that must come from the device before it can be read.
pub fn missing(guard: &Guard<'_>, segment: &Segment) -> u64 {
    let mut missing = 0;
    for page in pages_of(segment.touched() & !guard.valid()) {
        let (start, end) = part_of(segment, page);
        if !covered(guard, page, start, end) {
            missing |= 1 << page;
        }
    }
    missing
}

/// The part of `page` that the segment asks for: start and end within the page.
pub fn part_of(segment: &Segment, page: usize) -> (usize, usize) {
    let first = page * PAGE_BYTES;
    let start = segment.start.max(first) - first;
    let end = segment.end().min(first + PAGE_BYTES) - first;
    (start, end)
}

fn map_of(guard: &Guard<'_>, ragged: &Ragged) -> Option<ByteMap> {
    let small: SmallId = match ragged {
        Ragged::Map(small) => *small,
        _ => return None,
    };
    map_at(guard.arena(), small)
}

/// Whether the runs of a page cover `start..end`.
pub fn covered(guard: &Guard<'_>, page: usize, start: usize, end: usize) -> bool {
    let ragged = guard.page(page).ragged();
    let mut is_covered = false;
    runs(&ragged, map_of(guard, &ragged).as_ref(), |from, to| {
        is_covered |= from <= start && end <= to;
    });
    is_covered
}

/// Copies the segment out; nothing of it is missing. `false`: the target is not there.
///
/// # Safety
/// `target` is valid for `segment.len` bytes for the whole call.
#[must_use]
pub unsafe fn copy_out(guard: &Guard<'_>, segment: &Segment, target: *mut u8) -> bool {
    let copied = for_each_piece(guard, segment, |bytes, done, len| {
        // SAFETY: `bytes` is memory of the block, under its lock; the target is the caller's.
        unsafe { copy::try_copy(bytes, target.add(done), len) }
    });
    guard.touch();
    copied
}

/// Brings a page's device bytes into its holes and makes it valid. `device` is the page as the device has it, zeros
/// beyond the device file's end; bytes beyond the file's size are made zeros here.
///
/// # Safety
/// `device` is valid for a page, and its bytes are no older than the header's epoch when they were read.
pub unsafe fn fill_page(
    guard: &Guard<'_>,
    file: &FileEntry,
    page: usize,
    device: *const u8,
) -> Result<(), NoMemory> {
    let bit = 1u64 << page;
    if guard.valid() & bit != 0 {
        return Ok(());
    }
    find_home(guard, bit, Home::Small)?;
    let Some(target) = guard.page_bytes(page) else {
        return Err(NoMemory);
    };
    let beyond = bytes_within_size(guard, file, page);
    let ragged = guard.page(page).ragged();
    holes(&ragged, map_of(guard, &ragged).as_ref(), |start, end| {
        let live = end.min(beyond).max(start);
        // SAFETY: holes lie within the page; the target is the block's memory, under its lock; the source is the
        // caller's page.
        unsafe {
            copy::copy(device.add(start), target.add(start), live - start);
            copy::zero(target.add(live), end - live);
        }
    });
    make_whole(guard, page);
    Ok(())
}

/// How many of a page's bytes lie below the file's size.
pub fn bytes_within_size(guard: &Guard<'_>, file: &FileEntry, page: usize) -> usize {
    let Some(identity) = guard.identity() else {
        return 0;
    };
    let start = identity.block.start() + (page * PAGE_BYTES) as u64;
    let size = file.size.load(Ordering::Acquire);
    size.saturating_sub(start).min(PAGE_BYTES as u64) as usize
}

/// Copies what is in memory of one page over a copy of the device's bytes, without keeping anything: for readers that
/// find no memory to keep the page in. `target` gets bytes `start..end` of the page. `false`: it is not there.
///
/// # Safety
/// `target` is valid for `end - start` bytes and holds the device's bytes of that part.
#[must_use]
pub unsafe fn overlay(
    guard: &Guard<'_>,
    page: usize,
    start: usize,
    end: usize,
    target: *mut u8,
) -> bool {
    let Some(bytes) = guard.page_bytes(page) else {
        return true;
    };
    let copied = Cell::new(true);
    let copy_part = |from: usize, to: usize| {
        let (from, to) = (from.max(start), to.min(end));
        if from < to {
            // SAFETY: within the page and within the caller's part.
            let there =
                unsafe { copy::try_copy(bytes.add(from), target.add(from - start), to - from) };
            copied.set(copied.get() && there);
        }
    };
    if guard.valid() & (1 << page) != 0 {
        copy_part(0, PAGE_BYTES);
    } else {
        let ragged = guard.page(page).ragged();
        runs(&ragged, map_of(guard, &ragged).as_ref(), copy_part);
    }
    copied.get()
}
