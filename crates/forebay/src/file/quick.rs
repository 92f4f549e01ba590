//! The short way: a request within one block whose bytes have memory, done in one look at one header.
//!
//! Everything else, and whatever is in the way, is left to [`super::write`](mod@super::write) and [`super::read`](mod@super::read),
//! which do the same by the same steps: the short way changes nothing before it knows that it will succeed. The order of its
//! stores is that of `docs/states.md`; what each step costs is in `docs/performance.md`.

mod recent;

pub use self::recent::{Recent, Stream};
use crate::file::append;
use crate::file::core::Core;
use crate::file::write::is_outgrown;
use crate::frame::header::{Guard, Header, Identity, State};
use crate::ids::BlockIndex;
use crate::limits::{BLOCK_BYTES, BLOCK_PAGES, PAGE_BYTES};
use crate::memory::copy;
use crate::memory::files::{EXCEEDING, FileEntry, HOLEY, STABLE, TRUNCATING};
use crate::memory::pins;
use crate::memory::threads::{Me, Operation};
use crate::scrap::absorb::{publish, run_apart, take_back};
use crate::scrap::page::{Merge, Ragged, merge};
use crate::scrap::split::{PagePart, PageSpan, Segment};
use crate::stats::Counter;
use crate::sync::{Ordering, planted};
use crate::sys::limits;

/// Pages of a block that the bytes from `start` on touch; at least one byte, all in the block.
#[inline]
fn touched(start: usize, len: usize) -> u64 {
    let (first, last) = (start / PAGE_BYTES, (start + len - 1) / PAGE_BYTES);
    u64::MAX >> (BLOCK_PAGES - 1 - (last - first)) << first
}

/// Whether the bytes begin and end on pages.
#[inline]
fn is_whole(start: usize, len: usize) -> bool {
    (start | len).is_multiple_of(PAGE_BYTES)
}

/// # Safety
/// As for [`copy::try_copy`].
#[inline(always)]
unsafe fn copy_as(source: *const u8, target: *mut u8, len: usize, sequential: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if sequential {
            copy::try_stream(source, target, len)
        } else {
            copy::try_copy(source, target, len)
        }
    }
}

/// Writes into memory that the block has, where that adds nothing to what is owed as the limits count it: so it never
/// waits for them. `false`: nothing was done.
///
/// # Safety
/// `source` is valid for `len` bytes for the whole call.
#[inline]
pub unsafe fn write(
    core: &Core,
    me: Me<'_>,
    stream: &Stream,
    source: *const u8,
    len: usize,
    offset: u64,
    sequential: bool,
) -> bool {
    if !is_in_one_block(offset, len) {
        return false;
    }
    let place = Place::At(offset);
    // SAFETY: the caller's promise.
    unsafe {
        copy::fault_in(source, len);
        put(core, me, stream, source, len, place, sequential)
    }
}

/// Whether a request has bytes, and all of them in one block.
#[inline(always)]
fn is_in_one_block(offset: u64, len: usize) -> bool {
    let start = (offset % BLOCK_BYTES as u64) as usize;
    len != 0 && len <= BLOCK_BYTES - start && offset.checked_add(len as u64).is_some()
}

/// Where bytes go.
#[derive(Clone, Copy)]
enum Place {
    /// At an offset.
    At(u64),
    /// At the file's end, which was here a moment ago. The thread that asks has the append lock.
    End(u64),
}

/// Writes at the file's end, as [`write`] does, if it `may`. Returns where; `Err`: nothing was done, perhaps because somebody else appends, and
/// this is whether the request follows others.
///
/// # Safety
/// As for [`write`].
#[inline]
pub unsafe fn append(
    core: &Core,
    me: Me<'_>,
    stream: &Stream,
    source: *const u8,
    len: usize,
    may: bool,
) -> Result<u64, bool> {
    let about = core.entry().size.load(Ordering::Relaxed);
    let sequential = stream.is_sequential(about, len);
    if !may {
        return Err(sequential);
    }
    // Before the lock: nobody waits for another program's memory.
    // SAFETY: the caller's promise.
    unsafe { copy::fault_in(source, len) };
    let Some((_lock, end)) = append::try_take_end(core, me) else {
        return Err(sequential);
    };
    let place = if planted!(BlindToGrowth) {
        Place::At(end)
    } else {
        Place::End(end)
    };
    // SAFETY: the caller's promise.
    let done = is_in_one_block(end, len)
        && unsafe { put(core, me, stream, source, len, place, sequential) };
    if done { Ok(end) } else { Err(sequential) }
}

/// # Safety
/// `source` is valid for `len` bytes, which lie in one block.
#[inline(always)]
unsafe fn put(
    core: &Core,
    me: Me<'_>,
    stream: &Stream,
    source: *const u8,
    len: usize,
    place: Place,
    sequential: bool,
) -> bool {
    let (Place::At(offset) | Place::End(offset)) = place;
    let (block, start) = (
        BlockIndex::of(offset),
        (offset % BLOCK_BYTES as u64) as usize,
    );
    let end = offset + len as u64;
    let Ok(operation) = me.enter(core.id) else {
        return false;
    };
    let entry = core.entry();
    // First: a thread that raises it over a gap has marked the file before.
    if end > entry.reserved_end.load(Ordering::Acquire) {
        return false;
    }
    let flags = entry.flags.load(Ordering::Relaxed);
    // What the device file has beyond the end goes before the file grows over it: the long way sees to that.
    let grows_over = flags & EXCEEDING != 0 && end > entry.size.load(Ordering::Acquire);
    if flags & TRUNCATING != 0
        || grows_over
        || flags & HOLEY != 0 && !entry.is_solid(offset, end)
        || end > limits::file_bytes()
        || entry.kernel_reason.load(Ordering::Acquire) != 0
    {
        return false;
    }
    let Some((id, header)) = stream.header_of(core, me, block) else {
        return false;
    };
    let Some(guard) = header.try_lock(me, id) else {
        return false;
    };
    if matches!(place, Place::End(end) if is_outgrown(entry, end)) {
        return false;
    }
    let identity = Identity {
        file: core.id,
        block,
    };
    // SAFETY: the caller's promise; the bytes lie within the block.
    if !unsafe { into_memory(&guard, entry, identity, start, source, len, sequential) } {
        return false;
    }
    if entry.size.load(Ordering::Relaxed) < end {
        entry.size.fetch_max(end, Ordering::AcqRel);
    }
    drop(guard);
    drop(operation);
    me.count(Counter::ScrapBytes as usize, len as u64);
    true
}

/// # Safety
/// `source` is valid for `len` bytes; `start + len` is at most a block.
#[inline(always)]
unsafe fn into_memory(
    guard: &Guard<'_>,
    entry: &FileEntry,
    identity: Identity,
    start: usize,
    source: *const u8,
    len: usize,
    sequential: bool,
) -> bool {
    if !guard.is_for(identity) || guard.state() != State::Linked {
        return false;
    }
    let pages = touched(start, len);
    let (valid, dirty, inflight) = (guard.valid(), guard.dirty(), guard.inflight());
    let stable = entry.flags.load(Ordering::Relaxed) & STABLE != 0;
    if stable && !planted!(UnstablePages) && inflight & pages != 0 {
        return false;
    }
    // What is counted as owed must stay right: a frame that owes anything is counted whole, small frames by the page.
    let owed = dirty | inflight;
    let target = match guard.frame() {
        Some(frame) if owed != 0 && !pins::is_pinned(guard.arena(), frame) => {
            guard.arena().frame_bytes(frame)
        }
        None if owed & pages == pages && pages.is_power_of_two() => {
            let small = guard.page(start / PAGE_BYTES).small();
            small.and_then(|small| guard.arena().small_bytes(small))
        }
        _ => {
            // The long way comes here next, and needs the word.
            guard.fetch_page(start / PAGE_BYTES);
            return false;
        }
    };
    let whole_frame = guard.frame().is_some();
    let within = start % if whole_frame { BLOCK_BYTES } else { PAGE_BYTES };
    let Some(target) = target else { return false };
    let newly = pages & !valid;
    let Some(arrival) = Arrival::of(guard, newly, start, len, newly & dirty == 0) else {
        return false;
    };
    if dirty & pages != pages {
        guard.set_dirty(dirty | pages);
    }
    // SAFETY: within the frame or small frame, under its header's lock; the source is the caller's.
    let copied = unsafe { copy_as(source, target.add(within), len, sequential) };
    if !copied {
        // The long way finds out how far the source goes.
        take_back(guard, entry, start, start + len, dirty);
        return false;
    }
    match arrival {
        Arrival::Known => {}
        Arrival::Whole => guard.set_valid(valid | newly),
        Arrival::Run(run) => {
            let page = start / PAGE_BYTES;
            guard.set_page(page, guard.page(page).with_ragged(run));
        }
        Arrival::Span(span) => publish(guard, &span),
    }
    guard.touch();
    true
}

/// How what a request brings is published once it is there.
enum Arrival {
    /// The pages were valid before.
    Known,
    /// They are whole pages, and none had a run.
    Whole,
    /// It is within one page, which has this run then.
    Run(Ragged),
    /// In a frame: page by page.
    Span(PageSpan),
}

impl Arrival {
    /// `None`: something needs memory. `clean`: nothing is owed of the pages that are not valid.
    #[inline]
    fn of(guard: &Guard<'_>, newly: u64, start: usize, len: usize, clean: bool) -> Option<Self> {
        if newly == 0 {
            return Some(Arrival::Known);
        }
        // A page without dirty bytes has no run, so whole pages that have none need no look at their words.
        if clean && is_whole(start, len) {
            return Some(Arrival::Whole);
        }
        if let Some(run) = run_after(guard, start, len) {
            return Some(Arrival::Run(run));
        }
        guard.frame()?;
        let segment = Segment {
            block: BlockIndex(0),
            start,
            len,
            done: 0,
        };
        let span = segment.pages();
        let apart = |part: &Option<PagePart>| part.as_ref().and_then(|part| run_apart(guard, part));
        (apart(&span.head).is_none() && apart(&span.tail).is_none()).then_some(Arrival::Span(span))
    }
}

/// The run that a page has once `start..start + len` has been written into it, if it is in one page and one run says
/// it, and the page does not become whole.
#[inline]
fn run_after(guard: &Guard<'_>, start: usize, len: usize) -> Option<Ragged> {
    let (page, from) = (start / PAGE_BYTES, start % PAGE_BYTES);
    if from + len > PAGE_BYTES {
        return None;
    }
    match merge(guard.page(page).ragged(), from, from + len) {
        Merge::Run { start, len } => Some(Ragged::Run { start, len }),
        Merge::Whole | Merge::NeedsMap => None,
    }
}

/// Reads bytes that are whole in memory, without a lock. `false`: nothing of use was read.
///
/// # Safety
/// `target` is valid for `len` bytes for the whole call.
#[inline]
pub unsafe fn read(
    core: &Core,
    me: Me<'_>,
    stream: &Stream,
    target: *mut u8,
    len: usize,
    offset: u64,
    sequential: bool,
) -> bool {
    let start = (offset % BLOCK_BYTES as u64) as usize;
    let Some(end) = offset.checked_add(len as u64) else {
        return false;
    };
    let entry = core.entry();
    if len == 0 || start + len > BLOCK_BYTES || end > entry.size.load(Ordering::Relaxed) {
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe { copy::fault_in_to_write(target, len) };
    let Ok(operation) = me.enter(core.id) else {
        return false;
    };
    if entry.flags.load(Ordering::Relaxed) & TRUNCATING != 0
        || end > entry.size.load(Ordering::Acquire)
        || entry.kernel_reason.load(Ordering::Acquire) != 0
    {
        return false;
    }
    let identity = Identity {
        file: core.id,
        block: BlockIndex::of(offset),
    };
    if stream.meets_mark(identity.block) {
        return false;
    }
    let Some((_, header)) = stream.header_of(core, me, identity.block) else {
        return false;
    };
    // SAFETY: the caller's promise; the bytes lie within the block.
    if !unsafe { from_memory(&operation, header, identity, start, target, len, sequential) } {
        return false;
    }
    let tick = me.arena.superblock().tick.load(Ordering::Relaxed);
    let first = if stream.passes_by() {
        header.pass(tick)
    } else if sequential {
        header.touch(tick)
    } else {
        header.visit(tick)
    };
    if first {
        header.count_ahead(me, Counter::AheadUsedBytes);
    }
    drop(operation);
    me.count(Counter::ReadBytes as usize, len as u64);
    true
}

/// # Safety
/// `target` is valid for `len` bytes; `start + len` is at most a block.
#[inline(always)]
unsafe fn from_memory(
    operation: &Operation<'_>,
    header: &Header,
    identity: Identity,
    start: usize,
    target: *mut u8,
    len: usize,
    sequential: bool,
) -> bool {
    let arena = operation.me.arena;
    let Some(peek) = header.peek(identity) else {
        return false;
    };
    let pages = touched(start, len);
    if pages & !peek.valid != 0 {
        return false;
    }
    let (source, within) = match peek.frame {
        Some(frame) => (arena.frame_bytes(frame), start),
        None if pages.is_power_of_two() => {
            let small = header.peek_small(start / PAGE_BYTES);
            (
                small.and_then(|small| arena.small_bytes(small)),
                start % PAGE_BYTES,
            )
        }
        None => return false,
    };
    let Some(source) = source else { return false };
    // SAFETY: within the frame or small frame, which stays mapped; if it is given away meanwhile the version tells. The
    // target is the caller's.
    let copied = unsafe { copy_as(source.add(within), target, len, sequential) };
    if !copied {
        return false;
    }
    header.unchanged(&peek)
}
