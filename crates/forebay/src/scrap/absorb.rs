//! Taking a write into a header's memory, without reading anything first (WSBuffer 3.2).
//!
//! The order is that of `docs/states.md`: memory is found, pages are announced as dirty, bytes are copied, pages are
//! published as valid or as runs, the file's size is raised: all under the header's lock, each one store.

use crate::frame::header::Guard;
use crate::frame::slots;
use crate::ids::{FileId, SmallId};
use crate::limits::{BLOCK_BYTES, BLOCK_PAGES, PAGE_BYTES};
use crate::memory::arena::Arena;
use crate::memory::files::FileEntry;
use crate::memory::{copy, pins, regions};
use crate::scrap::map::ByteMap;
use crate::scrap::own::{frame_beside, is_shared, own_frame};
use crate::scrap::page::{Merge, PageWord, Ragged, merge};
use crate::scrap::split::{PagePart, PageSpan, Segment, mask};
use crate::stream::tracking;
use crate::sync::{Ordering, planted};

/// A header whose block has this many small frames moves into a frame: a quarter of the block, so a frame
/// is never less than a quarter used, and the copy is at most 64 KiB.
const SMALL_PAGES_MAX: u32 = 16;

/// Where the bytes of a block without memory should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// A frame: the request is large, or one of a sequence.
    Frame,
    /// Small frames: the request is small and alone.
    Small,
}

/// There is no free memory; leave the operation, make room, come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// Why a write was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// As [`NoMemory`].
    NoMemory,
    /// The source is not there. Valid pages may have some of its bytes, below the file's size; nothing is newly valid.
    Fault,
}

impl From<NoMemory> for Refusal {
    fn from(_: NoMemory) -> Self {
        Refusal::NoMemory
    }
}

/// Copies a segment into the block. `source` is the segment's first byte; `size_end` is the least size that the file
/// has once these bytes are in it. `long`: so much is written at once that its first bytes leave the processor's caches before the last ones are written.
///
/// The guard's header describes the segment's block and is not superseded.
///
/// # Safety
/// `source` is valid for `segment.len` bytes for the whole call and is not in the block's own memory.
pub unsafe fn absorb(
    guard: &Guard<'_>,
    file: &FileEntry,
    segment: &Segment,
    source: *const u8,
    home: Home,
    size_end: u64,
    long: bool,
) -> Result<(), Refusal> {
    let touched = segment.touched();
    find_home(guard, touched, home)?;
    let span = segment.pages();
    if let Some(part) = &span.head {
        make_room_for_run(guard, part)?;
    }
    if let Some(part) = &span.tail {
        make_room_for_run(guard, part)?;
    }
    let whole = mask(span.whole.clone());
    let owed = guard.dirty();
    if planted!(SizeFirst) {
        file.size.fetch_max(size_end, Ordering::AcqRel);
    }
    if !planted!(DirtyLast) {
        announce(guard, file, touched);
    }
    if planted!(ValidFirst) {
        guard.set_valid(guard.valid() | whole);
    }
    // SAFETY: the caller's promise; the block's memory was found above.
    if !unsafe { copy_in(guard, segment, source, long) } {
        take_back(guard, file, segment.start, segment.end(), owed);
        return Err(Refusal::Fault);
    }
    if planted!(DirtyLast) {
        announce(guard, file, touched);
    }
    publish(guard, &span);
    if file.size.load(Ordering::Relaxed) < size_end {
        file.size.fetch_max(size_end, Ordering::AcqRel);
    }
    guard.touch();
    Ok(())
}

/// Says that the bytes of a segment's pages have arrived.
#[inline]
pub fn publish(guard: &Guard<'_>, span: &PageSpan) {
    let whole = mask(span.whole.clone());
    let newly = whole & !guard.valid();
    if newly != 0 {
        guard.set_valid(guard.valid() | whole);
        forget_runs(guard, newly);
    }
    for part in span.head.iter().chain(&span.tail) {
        publish_part(guard, part);
    }
}

/// Marks pages as owed and counts them, before their bytes change.
#[inline]
pub fn announce(guard: &Guard<'_>, file: &FileEntry, pages: u64) {
    let dirty = guard.dirty();
    if dirty & pages != pages {
        guard.set_dirty(dirty | pages);
    }
    recharge(guard, file);
}

/// Brings what is counted as owed up to date with what the header owes.
#[inline]
pub fn recharge(guard: &Guard<'_>, file: &FileEntry) {
    let (was, due) = (guard.charged(), guard.charge_due());
    if was != due {
        change_charge(guard, file, was, due);
    }
}

#[cold]
fn change_charge(guard: &Guard<'_>, file: &FileEntry, was: u32, due: u32) {
    guard.set_charged(due);
    let change = i64::from(due) - i64::from(was);
    guard.me.owe(change);
    file.owed_pages.fetch_add(change as u64, Ordering::AcqRel);
    let Some(identity) = guard.identity() else {
        return;
    };
    if was == 0 {
        slots::mark_owed(guard.arena(), file, identity.block);
        tracking::owed(guard.me, identity.file, identity.block);
    } else if due == 0 {
        slots::clear_owed(guard.arena(), file, identity.block);
        tracking::paid(guard.me, identity.file, file, identity.block);
    }
}

/// Sees to it that all `pages` have memory, which no view holds.
#[inline]
pub fn find_home(guard: &Guard<'_>, pages: u64, home: Home) -> Result<(), NoMemory> {
    if guard.frame().is_some() {
        // What has a home is about to change there.
        return if pages == 0 { Ok(()) } else { own_frame(guard) };
    }
    find_home_slowly(guard, pages, home)
}

#[cold]
fn find_home_slowly(guard: &Guard<'_>, pages: u64, home: Home) -> Result<(), NoMemory> {
    // Every page with bytes has a small frame; looking at all 64 words would fetch the header's other lines.
    let used = guard.valid() | guard.dirty() | pages;
    let many = used.count_ones() >= SMALL_PAGES_MAX;
    if (home == Home::Frame || many) && guard.inflight() == 0 {
        match move_into_frame(guard) {
            Ok(()) => return Ok(()),
            // A whole frame is not to be had; small ones may be, or are there already.
            Err(NoMemory) if many && lacks_small(guard, pages) => return Err(NoMemory),
            Err(NoMemory) => {}
        }
    }
    for page in pages_of(pages) {
        let word = guard.page(page);
        if word.small().is_some() {
            continue;
        }
        let frame = regions::take_small(guard.me, guard.stock()).ok_or(NoMemory)?;
        guard.set_page(page, word.with_small(Some(frame)));
        regions::link_small(guard.arena(), frame, guard.id);
    }
    Ok(())
}

/// Whether a page of these has no small frame yet.
fn lacks_small(guard: &Guard<'_>, pages: u64) -> bool {
    pages_of(pages).any(|page| guard.page(page).small().is_none())
}

/// Gives the block a frame and moves what lies in small frames there. Nothing is in flight.
pub fn move_into_frame(guard: &Guard<'_>) -> Result<(), NoMemory> {
    let arena = guard.arena();
    let small = guard.small_pages();
    let frame = frame_beside(guard).or_else(|| regions::take_frame(guard.me));
    let frame = frame.ok_or(NoMemory)?;
    let Some(bytes) = arena.frame_bytes(frame) else {
        return Err(NoMemory);
    };
    if planted!(EarlyFree) {
        let early = pages_of(small).filter_map(|page| guard.page(page).small());
        early.for_each(|small| regions::free_small(guard.me, guard.stock(), small));
    }
    for page in pages_of(small) {
        if let Some(from) = guard.page_bytes(page) {
            // SAFETY: `from` is a small frame of this header, whose lock we hold; the target is a page of a
            // frame that only we hold; both are mapped as long as the arena.
            unsafe { copy::copy(from, bytes.add(page * PAGE_BYTES), PAGE_BYTES) };
        }
    }
    // From this store on the frame is where the bytes are; small frames still named beside it are left over.
    guard.set_frame(Some(frame));
    regions::link_frame(arena, frame, guard.id);
    for page in pages_of(small) {
        let word = guard.page(page);
        guard.set_page(page, word.with_small(None));
        if let Some(left) = word.small().filter(|_| !planted!(EarlyFree)) {
            regions::free_small(guard.me, guard.stock(), left);
        }
    }
    // A frame is charged whole.
    if let Some(file) = guard.identity().and_then(|i| arena.file(i.file)) {
        recharge(guard, file);
    }
    Ok(())
}

/// The pages of a mask, ascending.
pub fn pages_of(mask: u64) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let page = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            page
        })
    })
}

/// If this part would leave two runs in its page, gives the page a map that says what the run says now.
#[inline]
fn make_room_for_run(guard: &Guard<'_>, part: &PagePart) -> Result<(), NoMemory> {
    match run_apart(guard, part) {
        None => Ok(()),
        Some((from, len)) => turn_into_map(guard, part.0 as usize, from, len),
    }
}

/// The run of a page, first byte and length, that this part would not join.
#[inline]
pub fn run_apart(guard: &Guard<'_>, part: &PagePart) -> Option<(usize, usize)> {
    let &(page, start, end) = part;
    let page = page as usize;
    if guard.valid() & (1 << page) != 0 {
        return None;
    }
    let word = guard.page(page);
    let Ragged::Run { start: from, len } = word.ragged() else {
        return None;
    };
    (merge(word.ragged(), start, end) == Merge::NeedsMap)
        .then_some((usize::from(from), usize::from(len)))
}

#[cold]
fn turn_into_map(guard: &Guard<'_>, page: usize, from: usize, len: usize) -> Result<(), NoMemory> {
    let small = regions::take_small(guard.me, guard.stock()).ok_or(NoMemory)?;
    let map = map_at(guard.arena(), small).ok_or(NoMemory)?;
    map.clear();
    map.set(from, from + len);
    let word = guard.page(page);
    guard.set_page(page, word.with_ragged(Ragged::Map(small)));
    regions::link_small(guard.arena(), small, guard.id);
    Ok(())
}

/// The map in a small frame.
pub fn map_at(arena: &Arena, small: SmallId) -> Option<ByteMap> {
    // SAFETY: a small frame is 4 KiB of the arena, aligned, mapped as long as the arena; a map is 512 bytes of
    // atomics, changed only under the lock of the header that names it.
    arena
        .small_bytes(small)
        .map(|bytes| unsafe { ByteMap::new(bytes) })
}

/// # Safety
/// As for [`absorb`]; all touched pages have memory.
unsafe fn copy_in(guard: &Guard<'_>, segment: &Segment, source: *const u8, long: bool) -> bool {
    for_each_piece(guard, segment, |bytes, done, len| {
        // SAFETY: `bytes` is memory of the block, under its lock; the source is the caller's.
        unsafe {
            match long {
                true => copy::try_pass(source.add(done), bytes, len),
                false => copy::try_copy(source.add(done), bytes, len),
            }
        }
    })
}

/// After a copy from memory that is not there: pages of the block's bytes `start..end` that hold nothing owe nothing again, and
/// bytes beyond the file's size are zeros again in valid pages. `owed`: the dirty pages before.
#[cold]
pub fn take_back(guard: &Guard<'_>, file: &FileEntry, start: usize, end: usize, owed: u64) {
    let Some(identity) = guard.identity() else {
        return;
    };
    // Bytes of this block are written under its lock only: whatever the size becomes meanwhile, these were zeros.
    let size = file.size.load(Ordering::Acquire);
    let beyond = size.saturating_sub(identity.block.start());
    let beyond = beyond.clamp(start as u64, end as u64) as usize;
    for page in pages_of(guard.valid()) {
        let first = page * PAGE_BYTES;
        let (from, to) = (beyond.max(first), end.min(first + PAGE_BYTES));
        if from < to
            && let Some(bytes) = guard.page_bytes(page)
        {
            // SAFETY: within the page, under the header's lock; nobody relies on bytes beyond the end.
            unsafe { copy::zero(bytes.add(from - first), to - from) };
        }
    }
    guard.set_dirty(guard.dirty() & (owed | guard.valid()));
    recharge(guard, file);
}

/// Calls `f(address, done, len)` for each contiguous part of the segment that has memory, until it says `false`.
#[inline]
pub fn for_each_piece(
    guard: &Guard<'_>,
    segment: &Segment,
    mut f: impl FnMut(*mut u8, usize, usize) -> bool,
) -> bool {
    if let Some(frame) = guard.frame() {
        return match guard.arena().frame_bytes(frame) {
            // SAFETY: a segment lies within its block.
            Some(bytes) => f(unsafe { bytes.add(segment.start) }, 0, segment.len),
            None => true,
        };
    }
    let mut at = segment.start;
    while at < segment.end() {
        let (page, within) = (at / PAGE_BYTES, at % PAGE_BYTES);
        let len = (PAGE_BYTES - within).min(segment.end() - at);
        if let Some(bytes) = guard.page_bytes(page) {
            // SAFETY: `within` is less than a page.
            if !f(unsafe { bytes.add(within) }, at - segment.start, len) {
                return false;
            }
        }
        at += len;
    }
    true
}

/// Says that bytes of a page have arrived.
fn publish_part(guard: &Guard<'_>, part: &PagePart) {
    let &(page, start, end) = part;
    let page = page as usize;
    if guard.valid() & (1 << page) != 0 {
        return;
    }
    let word = guard.page(page);
    match merge(word.ragged(), start, end) {
        Merge::Run { start, len } => {
            guard.set_page(page, word.with_ragged(Ragged::Run { start, len }));
        }
        Merge::Whole => make_whole(guard, page),
        Merge::NeedsMap => {
            if let Ragged::Map(small) = word.ragged()
                && let Some(map) = map_at(guard.arena(), small)
                && map.set(start, end)
            {
                make_whole(guard, page);
            }
        }
    }
}

/// A page has become whole: valid first, then its run is forgotten.
pub fn make_whole(guard: &Guard<'_>, page: usize) {
    guard.set_valid(guard.valid() | 1 << page);
    forget_runs(guard, 1 << page);
}

/// Forgets the runs of pages and frees their maps.
pub fn forget_runs(guard: &Guard<'_>, pages: u64) {
    for page in pages_of(pages) {
        let word = guard.page(page);
        match word.ragged() {
            Ragged::None => {}
            Ragged::Run { .. } => guard.set_page(page, word.with_ragged(Ragged::None)),
            Ragged::Map(small) => {
                guard.set_page(page, word.with_ragged(Ragged::None));
                regions::free_small(guard.me, guard.stock(), small);
            }
        }
    }
}

/// Takes pages out of memory, dirty or not: truncation, punching, a direct write over them. Nothing is in flight.
/// Counts in the epoch, so that no fill under way brings older bytes.
pub fn drop_pages(guard: &Guard<'_>, file: &FileEntry, pages: u64) {
    debug_assert_eq!(guard.inflight() & pages, 0, "pages in flight are dropped");
    if !planted!(SameEpoch) {
        guard.next_epoch();
    }
    guard.set_valid(guard.valid() & !pages);
    // Runs go before the dirty bits: a page with a run and no dirty bit is not a state.
    forget_runs(guard, pages);
    guard.set_dirty(guard.dirty() & !pages);
    if guard.frame().is_none() {
        for page in pages_of(pages) {
            if let Some(small) = guard.page(page).small() {
                guard.set_page(page, PageWord::EMPTY);
                regions::free_small(guard.me, guard.stock(), small);
            }
        }
    }
    recharge(guard, file);
}

/// Frees a header and its memory: nothing is in flight, and whatever was dirty is given up.
pub fn free_header(guard: Guard<'_>, file: &FileEntry, file_id: FileId) {
    use crate::frame::header::State;
    let arena = guard.arena();
    let Some(identity) = guard.identity() else {
        return;
    };
    debug_assert_eq!(identity.file, file_id);
    guard.count_unused();
    drop_pages_before_freeing(&guard, file);
    guard.set_state(State::Doomed);
    slots::remove(arena, file, identity.block, guard.id);
    if let Some(frame) = guard.frame() {
        guard.set_frame(None);
        pins::let_go(guard.me, frame);
    }
    guard.clear_identity();
    guard.set_state(State::Free);
    let id = guard.id;
    // What was freed last is likeliest to be in the processor's caches still.
    let hint = &guard.me.slot().header_hint;
    let last = hint.load(Ordering::Relaxed);
    hint.store(last.min(id.0 / u64::BITS), Ordering::Relaxed);
    let me = guard.me;
    drop(guard);
    arena.header_hints().set(id.0);
    tracking::dropped(me, file_id, file, identity.block);
}

fn drop_pages_before_freeing(guard: &Guard<'_>, file: &FileEntry) {
    drop_pages(guard, file, u64::MAX);
}

/// Puts zeros into the part of a page from `from` on, if the page is valid; cuts its run if it is not. For the page
/// that holds the end of the file: a valid page's bytes beyond the size are zeros, always.
pub fn cut_page(guard: &Guard<'_>, page: usize, from: usize) {
    let bit = 1u64 << page;
    if is_shared(guard) {
        // The thread that makes the file shorter has seen to it that views do not hold what it cuts: these bytes are zeros already.
        return;
    }
    if guard.valid() & bit != 0 {
        if let Some(bytes) = guard.page_bytes(page) {
            // SAFETY: within the page; we hold the header's lock, and nobody relies on bytes beyond the end.
            unsafe { copy::zero(bytes.add(from), PAGE_BYTES - from) };
        }
        return;
    }
    let word = guard.page(page);
    match word.ragged() {
        Ragged::None => {}
        Ragged::Run { .. } => {
            guard.set_page(
                page,
                word.with_ragged(crate::scrap::page::clip(word.ragged(), from)),
            );
        }
        Ragged::Map(small) => {
            if let Some(map) = map_at(guard.arena(), small) {
                map.clear_from(from);
            }
        }
    }
}

const _: () = assert!(BLOCK_BYTES / PAGE_BYTES == BLOCK_PAGES);
