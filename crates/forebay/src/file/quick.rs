//! The short way: a request within one block whose bytes have memory, done in one look at one header.
//!
//! Everything else, and whatever is in the way, is left to [`super::write`](mod@super::write) and [`super::read`](mod@super::read),
//! which do the same by the same steps: the short way changes nothing before it knows that it will succeed. The order of its
//! stores is that of `docs/states.md`; what each step costs is in `docs/performance.md`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::file::append;
use crate::file::core::Core;
use crate::file::read::follow::Ahead;
use crate::file::write::is_outgrown;
use crate::frame::header::{Guard, Header, Identity, State};
use crate::frame::slots;
use crate::ids::{BlockIndex, HeaderId};
use crate::limits::{BLOCK_BYTES, BLOCK_PAGES, PAGE_BYTES};
use crate::memory::copy;
use crate::memory::files::{FileEntry, HOLEY, STABLE, TRUNCATING};
use crate::memory::pins;
use crate::memory::threads::{Me, Operation};
use crate::scrap::absorb::{publish, run_apart, take_back};
use crate::scrap::page::{Merge, Ragged, merge};
use crate::scrap::split::{PagePart, PageSpan, Segment};
use crate::stats::Counter;
use crate::sync::{Ordering, planted};
use crate::sys::limits;

/// Sequential bytes after which a stream of small requests is given whole frames.
const SEQUENTIAL_BYTES: u64 = BLOCK_BYTES as u64 / 4;
/// Longest gap between requests of one sequence: such a sequence touches every page.
const GAP_MAX: u64 = PAGE_BYTES as u64;
/// Streams that an open file tells apart, by the caller's thread slot.
const STREAMS: usize = 8;
/// Marks that a thread's stream has room for.
const MARKS: usize = 4;

/// What an open file remembers of each thread's requests. All of it is hints: threads that share a place, and torn
/// values, cost speed and nothing else.
#[derive(Default)]
pub struct Recent {
    streams: [Stream; STREAMS],
    /// What is known of its reads.
    pub ahead: Ahead,
}

/// A cache line of its own: threads that share an open file do not fetch each other's.
#[repr(align(64))]
pub struct Stream {
    /// Where the last request ended.
    last_end: AtomicU64,
    /// Where its sequence began.
    run_start: AtomicU64,
    /// Block of the last request in the upper half, its header + 1 in the lower.
    header: AtomicU64,
    /// Blocks + 1 at which whoever follows streams of reads wants to be told; each is hit once.
    marks: [AtomicU32; MARKS],
    /// The one that the next mark takes the place of.
    next_mark: AtomicU32,
    /// 1 where what it reads will not be read again.
    passes_by: AtomicU32,
}

impl Default for Stream {
    fn default() -> Self {
        let none = AtomicU64::new(u64::MAX);
        Stream {
            last_end: none,
            run_start: AtomicU64::new(0),
            header: AtomicU64::new(0),
            marks: Default::default(),
            next_mark: AtomicU32::new(0),
            passes_by: AtomicU32::new(0),
        }
    }
}

impl Recent {
    /// The calling thread's stream.
    #[inline]
    pub fn stream(&self, me: Me<'_>) -> &Stream {
        &self.streams[me.id.index() % STREAMS]
    }

    /// Whether what is read from now on counts as used once, however often it is.
    pub fn pass_by(&self, passes: bool) {
        for stream in &self.streams {
            stream.passes_by.store(u32::from(passes), Relaxed);
        }
    }
}

impl Stream {
    /// Whether a request at `offset` goes on about where the last ended, and has done so for a while.
    #[inline]
    pub fn is_sequential(&self, offset: u64, len: usize) -> bool {
        let follows = offset.wrapping_sub(self.last_end.load(Relaxed)) <= GAP_MAX;
        self.last_end
            .store(offset.wrapping_add(len as u64), Relaxed);
        if !follows {
            self.run_start.store(offset, Relaxed);
            return false;
        }
        offset.wrapping_sub(self.run_start.load(Relaxed)) >= SEQUENTIAL_BYTES
    }

    /// Whether what it reads will not be read again.
    pub fn passes_by(&self) -> bool {
        self.passes_by.load(Relaxed) != 0
    }

    /// The next read that comes to this block takes the slow way, where streams are followed.
    pub fn mark(&self, block: u32) {
        let at = self.next_mark.load(Relaxed) as usize % MARKS;
        self.next_mark.store(at as u32 + 1, Relaxed);
        self.marks[at].store(block.wrapping_add(1), Relaxed);
    }

    /// Whether a read comes to a block that was marked.
    #[inline]
    fn meets_mark(&self, block: BlockIndex) -> bool {
        let comes = (self.header.load(Relaxed) >> 32) as u32 != block.0;
        comes && self.takes_mark(block)
    }

    fn takes_mark(&self, block: BlockIndex) -> bool {
        let mark = block.0.wrapping_add(1);
        let found = self.marks.iter().find(|word| word.load(Relaxed) == mark);
        found.inspect(|word| word.store(0, Relaxed)).is_some()
    }

    /// The header that the block probably has: the last request's if it was for the same block, without a walk down the
    /// tree. Who gets it checks its identity.
    #[inline]
    fn header_of<'a>(
        &self,
        core: &Core,
        me: Me<'a>,
        block: BlockIndex,
    ) -> Option<(HeaderId, &'a Header)> {
        let known = self.header.load(Relaxed);
        let id = if (known >> 32) as u32 == block.0 && known as u32 != 0 {
            HeaderId(known as u32 - 1)
        } else {
            let id = slots::lookup(me.arena, core.entry(), block)?;
            self.header
                .store(u64::from(block.0) << 32 | u64::from(id.0 + 1), Relaxed);
            id
        };
        Some((id, me.arena.header(id)?))
    }
}

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
    /// At the file's end, which was here a moment ago. Who asks has the append lock.
    End(u64),
}

/// Writes at the file's end, as [`write`] does. Returns where; `None`: nothing was done, perhaps because somebody else appends.
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
    sequential: bool,
) -> Option<u64> {
    // Before the lock: nobody waits for another program's memory.
    // SAFETY: the caller's promise.
    unsafe { copy::fault_in(source, len) };
    let (_lock, end) = append::try_take_end(core, me)?;
    if !is_in_one_block(end, len) {
        return None;
    }
    let place = if planted!(BlindToGrowth) {
        Place::At(end)
    } else {
        Place::End(end)
    };
    // SAFETY: the caller's promise.
    unsafe { put(core, me, stream, source, len, place, sequential) }.then_some(end)
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
    // First: whoever raises it over a gap has marked the file before.
    if end > entry.reserved_end.load(Ordering::Acquire) {
        return false;
    }
    let flags = entry.flags.load(Ordering::Relaxed);
    if flags & (HOLEY | TRUNCATING) != 0
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
