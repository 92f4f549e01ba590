//! Reading ahead of readers, in the keeper: asks of files (`memory::asks`) become device reads, several under way at once, and
//! their bytes clean pages.
//!
//! What is read goes into memory of the keeper's own and from there into frames by the protocol of fills: a read of a dead keeper
//! that the device still carries out then reaches nobody's frame. Whatever is in the way (a stopped file, a direct write,
//! a device that fails, no memory) ends an ask without a word: the reader reads by itself, and gets its own error.
//!
//! Bounded by free memory, and by what the device has to do: few requests at once, so that what a stream no longer wants can
//! still be taken back, and fewer while writes keep the device busy.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::device::{DeviceFile, Done, Piece, Queue, Request, RequestKind, read_rest};
use crate::evict;
use crate::file::core::Core;
use crate::file::read::fill::{self, Seen};
use crate::file::read::follow;
use crate::file::room;
use crate::flush::select::pages_within_size;
use crate::flush::{busy, ring};
use crate::frame::header::Identity;
use crate::ids::FileId;
use crate::limits::{BLOCK_BYTES, HUGE_BYTES, PAGE_BYTES};
use crate::member::provision;
use crate::member::shared::Shared;
use crate::memory::asks::Ask;
use crate::memory::copy;
use crate::memory::files::{LIVE, TRUNCATING};
use crate::memory::superblock::Superblock;
use crate::memory::threads::{Me, is_gone};
use crate::stats::Counter;
use crate::sync::Ordering;
use crate::sync::time::{Instant, sleep};
use crate::sys::futex;
use crate::sys::memory::AlignedBytes;

/// Reads under way at most, and while writes keep their device busy.
pub const REQUESTS_MAX: usize = 8;
const REQUESTS_BUSY: usize = 1;
/// Blocks in a row that one request brings at most: 1 MiB.
const BLOCKS_MAX: usize = 4;
/// Frames that are free at least before one more is read ahead, where memory has so many: what a reader or writer
/// needs next is there.
const FRAMES_SPARE: u32 = 8;
/// Memory that is backed at once when free frames run out and the budget allows, bytes.
const MORE_BYTES: u64 = 16 * 1024 * 1024;
/// Ticks for which clean pages must have been left alone before they give way to what is read ahead.
const IDLE_TICKS: u32 = 2;
/// How far behind the clock may be while something is read.
const CLOCK_STEP: Duration = Duration::from_millis(1);
/// How often it looks around without being woken.
const TICK: Duration = Duration::from_millis(500);
/// How often a process that does not keep looks whether it does by now.
const STAND_BY: Duration = Duration::from_millis(50);

/// What is read of one block.
struct Part {
    slot: usize,
    ask: Ask,
    seen: Seen,
    /// Pages that are read.
    span: Range<u32>,
}

impl Part {
    fn start(&self) -> u64 {
        self.ask.block.start() + u64::from(self.span.start) * PAGE_BYTES as u64
    }

    fn end(&self) -> u64 {
        self.ask.block.start() + u64::from(self.span.end) * PAGE_BYTES as u64
    }
}

/// One request: parts of a file, each going on where the one before ends.
struct Job {
    file: FileId,
    device: Arc<dyn DeviceFile>,
    parts: Vec<Part>,
    /// Begins with the first part's block; the bytes are at their places.
    bytes: AlignedBytes,
}

impl Job {
    fn base(&self) -> u64 {
        self.parts[0].ask.block.start()
    }

    fn offset(&self) -> u64 {
        self.parts[0].start()
    }

    /// The memory that is read into.
    fn piece(&self) -> Piece {
        let end = self.parts[self.parts.len() - 1].end();
        let start = (self.offset() - self.base()) as usize;
        self.bytes.part(start, (end - self.offset()) as usize)
    }

    /// The place of a part that goes on where this ends, or ends where this begins.
    fn place_of(&self, file: FileId, part: &Part) -> Option<usize> {
        if self.file != file || self.parts.len() >= BLOCKS_MAX {
            return None;
        }
        let last = self.parts.len() - 1;
        if self.parts[last].end() == part.start() {
            return Some(last + 1);
        }
        (part.end() == self.offset()).then_some(0)
    }
}

/// Drives the session's clock on while there is something to do: housekeeping sleeps for long where nothing is owed, and until the clock
/// goes on a fast stream has filled memory, of which nothing then has been left alone long enough to go.
struct Clock {
    seen: u32,
    since: Instant,
}

impl Clock {
    fn go_on(&mut self, superblock: &Superblock) {
        let tick = superblock.tick.load(Ordering::Relaxed);
        let passed = self.since.elapsed();
        if tick != self.seen {
            self.seen = tick;
            self.since = Instant::now();
        } else if passed >= CLOCK_STEP {
            superblock.advance_tick(tick.wrapping_add(passed.as_millis() as u32));
        }
    }
}

/// One thread's reading ahead.
pub struct Prefetcher {
    /// Dropped first: it waits for what it has under way in the jobs' memory.
    queue: Box<dyn Queue>,
    depth: usize,
    jobs: Vec<Option<Job>>,
    done: Vec<Done>,
    spare: Vec<AlignedBytes>,
    /// In the ring of files of which something is asked.
    cursor: u64,
    files: VecDeque<FileId>,
    /// Not submitted yet: what comes next may go on with it.
    batch: Option<Job>,
    clock: Clock,
}

impl Prefetcher {
    /// Over a queue that may have `depth` requests under way.
    pub fn new(queue: Box<dyn Queue>, depth: usize) -> Self {
        Prefetcher {
            queue,
            depth: depth.clamp(1, REQUESTS_MAX),
            jobs: Vec::new(),
            done: Vec::new(),
            spare: Vec::new(),
            cursor: 0,
            files: VecDeque::new(),
            batch: None,
            clock: Clock {
                seen: 0,
                since: Instant::now(),
            },
        }
    }

    /// From here on readers ask.
    pub fn take_office(&self, me: Me<'_>) {
        let word = &me.arena.superblock().ahead;
        if word.load(Ordering::Relaxed) == me.id.0 {
            return;
        }
        // What a keeper before had begun nobody ends.
        for id in (0..me.arena.counts().files).map(FileId) {
            let entry = me.arena.file_unchecked(id);
            if entry.state.load(Ordering::Acquire) == LIVE {
                entry.asks.forget(|by| by == me.id || is_gone(me.arena, by));
            }
        }
        word.store(me.id.0, Ordering::Release);
    }

    /// Nobody asks any more; what is under way ends.
    pub fn leave(&mut self, shared: &Arc<Shared>, me: Me<'_>) {
        let word = &me.arena.superblock().ahead;
        let _ = word.compare_exchange(me.id.0, 0, Ordering::AcqRel, Ordering::Relaxed);
        while self.queue.in_flight() > 0 {
            self.reap(shared, me, true);
        }
    }

    /// Begins what is asked and ends what has been read; with `wait`, waits for a read where none can be begun. `false`:
    /// there was nothing to do.
    pub fn round(&mut self, shared: &Arc<Shared>, me: Me<'_>, wait: bool) -> bool {
        let begun = self.begin_some(shared, me);
        if self.queue.in_flight() == 0 {
            return begun;
        }
        self.reap(shared, me, wait);
        true
    }

    /// Whether reads are under way.
    pub fn is_reading(&self) -> bool {
        self.queue.in_flight() > 0
    }

    fn hear(&mut self, me: Me<'_>) {
        while let Some(hint) = ring::pop(&me.arena.superblock().ahead_files, &mut self.cursor) {
            if me.arena.file(hint.file).is_some() && !self.files.contains(&hint.file) {
                self.files.push_back(hint.file);
            }
        }
    }

    /// Takes asks, from one file after the other.
    fn begin_some(&mut self, shared: &Arc<Shared>, me: Me<'_>) -> bool {
        self.hear(me);
        self.clock.go_on(me.arena.superblock());
        let mut begun = false;
        while self.queue.in_flight() < self.depth {
            let Some(file) = self.files.pop_front() else {
                break;
            };
            let Some(device) = shared.device_to_read(file) else {
                let epoch = me.arena.superblock().keeper_epoch.load(Ordering::Relaxed);
                me.arena.file_unchecked(file).asks.refuse(epoch);
                continue;
            };
            let busy = busy::inflight_bytes(me.arena.superblock(), device.caps().device)
                > shared.config.busy_bytes;
            let limit = if busy { REQUESTS_BUSY } else { self.depth };
            let asks = &me.arena.file_unchecked(file).asks;
            while self.queue.in_flight() < limit
                && let Some((slot, ask)) = asks.take(me.id)
            {
                begun = true;
                if !self.begin(shared, me, file, &device, slot, ask) {
                    asks.end(slot, ask, me.id);
                    follow::ended(me);
                }
            }
            self.submit_batch(shared, me);
            if self.queue.in_flight() >= limit {
                // There may be more of it.
                self.files.push_back(file);
                break;
            }
        }
        begun
    }

    /// Begins to read what an ask names and memory lacks. `false`: nothing, or it cannot be.
    fn begin(
        &mut self,
        shared: &Arc<Shared>,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        slot: usize,
        ask: Ask,
    ) -> bool {
        let jobs = self.jobs.iter().flatten().chain(&self.batch);
        let mut under_way = 0;
        for job in jobs {
            let same = |part: &Part| job.file == file && part.ask.block == ask.block;
            if job.parts.iter().any(same) {
                return false;
            }
            under_way += job.parts.len() as u32;
        }
        if !find_room(shared, me, under_way + 1) {
            return false;
        }
        let Some((seen, span)) = look(shared, me, file, device, ask) else {
            return false;
        };
        let part = Part {
            slot,
            ask,
            seen,
            span,
        };
        let place = self
            .batch
            .as_ref()
            .and_then(|job| job.place_of(file, &part));
        match (&mut self.batch, place) {
            (Some(job), Some(place)) => job.parts.insert(place, part),
            _ => {
                self.submit_batch(shared, me);
                let bytes = self.spare.pop();
                let new =
                    || AlignedBytes::huge((BLOCKS_MAX * BLOCK_BYTES).next_multiple_of(HUGE_BYTES));
                self.batch = Some(Job {
                    file,
                    device: Arc::clone(device),
                    parts: vec![part],
                    bytes: bytes.unwrap_or_else(new),
                });
            }
        }
        true
    }

    fn submit_batch(&mut self, shared: &Shared, me: Me<'_>) {
        let Some(job) = self.batch.take() else { return };
        if let Some(read) = job.device.read_cached(job.piece(), job.offset()) {
            let there = finish_read(me, &job, read);
            self.finish(shared, me, job, there);
            return;
        }
        let token = match self.jobs.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.jobs.push(None);
                self.jobs.len() - 1
            }
        };
        self.queue.submit(Request {
            file: Arc::clone(&job.device),
            kind: RequestKind::Read,
            pieces: vec![job.piece()],
            offset: job.offset(),
            token: token as u64,
        });
        self.jobs[token] = Some(job);
    }

    fn reap(&mut self, shared: &Arc<Shared>, me: Me<'_>, wait: bool) {
        let mut done = std::mem::take(&mut self.done);
        self.queue.poll(wait, &mut done);
        for end in done.drain(..) {
            let job = self.jobs.get_mut(end.token as usize).and_then(Option::take);
            let Some(job) = job else { continue };
            let there = end.result.is_ok_and(|read| finish_read(me, &job, read));
            self.finish(shared, me, job, there);
        }
        room::keep_clean_within(me);
        self.done = done;
    }

    /// Keeps what has been read, if it is `there`, and tells those that wait for it.
    fn finish(&mut self, shared: &Shared, me: Me<'_>, job: Job, there: bool) {
        let asks = &me.arena.file_unchecked(job.file).asks;
        for part in &job.parts {
            let kept = there.then(|| keep(shared, me, &job, part)).flatten();
            let bytes = u64::from(kept.unwrap_or(0).count_ones()) * PAGE_BYTES as u64;
            me.count(Counter::AheadBytes as usize, bytes);
            asks.end(part.slot, part.ask, me.id);
            follow::ended(me);
        }
        self.spare.push(job.bytes);
    }
}

/// What of an ask is missing in memory and there to be read, and how its block is described.
fn look(
    shared: &Arc<Shared>,
    me: Me<'_>,
    file: FileId,
    device: &Arc<dyn DeviceFile>,
    ask: Ask,
) -> Option<(Seen, Range<u32>)> {
    let core = Core {
        shared: Arc::clone(shared),
        id: file,
        device: Arc::clone(device),
    };
    let entry = core.entry();
    let _operation = me.enter(file).ok()?;
    // Nobody need have the file open for which is read ahead.
    if !entry.is_still_of(device.caps())
        || entry.kernel_reason.load(Ordering::Acquire) != 0
        || entry.flags.load(Ordering::Acquire) & TRUNCATING != 0
    {
        return None;
    }
    let guard = core.lock(me, ask.block).ok()?;
    let absent = ask.pages() & !guard.valid() & pages_within_size(&guard, entry);
    if absent == 0 {
        return None;
    }
    let span = absent.trailing_zeros()..u64::BITS - absent.leading_zeros();
    guard.await_bytes();
    let seen = Seen::of(&guard, entry);
    let start = ask.block.start() + u64::from(span.start) * PAGE_BYTES as u64;
    (start < seen.disk_end).then_some((seen, span))
}

/// Reads what a short read has left; zeros where the device file does not reach. `false`: it cannot be read.
fn finish_read(me: Me<'_>, job: &Job, read: usize) -> bool {
    let piece = job.piece();
    let disk_end = job.parts.iter().map(|part| part.seen.disk_end).max();
    let disk_end = disk_end.unwrap_or(0);
    let Ok(read) = read_rest(job.device.as_ref(), piece, job.offset(), read, disk_end) else {
        return false;
    };
    me.count(Counter::DeviceReadBytes as usize, read as u64);
    // SAFETY: the memory is this thread's own, and nothing is under way in it any more.
    unsafe { copy::zero(piece.ptr.add(read), piece.len.saturating_sub(read)) };
    true
}

/// Keeps what has been read of a block, if nothing has left the header since. Which pages are new.
fn keep(shared: &Shared, me: Me<'_>, job: &Job, part: &Part) -> Option<u64> {
    let _operation = me.enter(job.file).ok()?;
    let entry = shared.arena.file_unchecked(job.file);
    let id = part.seen.header();
    let guard = me.arena.header(id)?.lock(me, id)?;
    let identity = Identity {
        file: job.file,
        block: part.ask.block,
    };
    let is_ours = entry.is_still_of(job.device.caps()) && guard.is_for(identity);
    if !is_ours || !part.seen.holds(&guard) {
        return None;
    }
    let at = (part.ask.block.start() - job.base()) as usize;
    let block = job.bytes.part(at, BLOCK_BYTES).ptr;
    // SAFETY: a block of the job's memory, with the span at its place, read since.
    let kept = unsafe { fill::keep(&guard, entry, &part.span, block) }.ok()?;
    if kept != 0 {
        guard.set_ahead();
    }
    Some(kept)
}

/// Whether there is memory for `frames` frames more, or can be.
fn find_room(shared: &Shared, me: Me<'_>, frames: u32) -> bool {
    let superblock = me.arena.superblock();
    let excess = superblock.clean_excess(frames);
    if excess > 0 {
        evict::evict(me, excess, IDLE_TICKS);
        if superblock.clean_excess(frames) > 0 {
            return false;
        }
    }
    let spare = FRAMES_SPARE.min(superblock.frames_max.load(Ordering::Relaxed) / 4);
    let wanted = frames + spare;
    let free = || superblock.free_about();
    if free() >= wanted {
        return true;
    }
    let backed = superblock.frames_backed.load(Ordering::Relaxed);
    if backed < superblock.frames_max.load(Ordering::Relaxed) {
        provision::ahead(shared, me, MORE_BYTES);
    }
    if free() < wanted {
        evict::evict(me, wanted.saturating_sub(free()) + spare, IDLE_TICKS);
    }
    free() >= frames
}

/// The thread that reads ahead, until it is told to stop.
pub fn run(shared: &Arc<Shared>, stop: &AtomicBool, mut prefetcher: Prefetcher) {
    let Ok(me) = shared.me() else { return };
    let superblock = me.arena.superblock();
    while !stop.load(Relaxed) {
        if !shared.keeps.load(Relaxed) {
            sleep(STAND_BY);
            continue;
        }
        prefetcher.take_office(me);
        let seen = superblock.ahead_work.load(Ordering::Acquire);
        if !prefetcher.round(shared, me, true) && !stop.load(Relaxed) {
            superblock.ahead_sleeping.store(1, Ordering::Release);
            futex::wait(&superblock.ahead_work, seen, TICK);
            superblock.ahead_sleeping.store(0, Ordering::Release);
        }
    }
    prefetcher.leave(shared, me);
}

#[cfg(all(test, feature = "sim", not(feature = "shuttle")))]
mod tests;
