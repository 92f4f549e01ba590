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

use crate::device::{DeviceFile, Done, Queue, Request, RequestKind, read_rest};
use crate::evict;
use crate::file::core::Core;
use crate::file::read::fill::{self, Seen};
use crate::flush::select::pages_within_size;
use crate::flush::{busy, ring};
use crate::frame::header::Identity;
use crate::ids::FileId;
use crate::keeper::provision;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::memory::asks::Ask;
use crate::memory::copy;
use crate::memory::files::{LIVE, TRUNCATING};
use crate::memory::threads::{Me, is_gone};
use crate::session::shared::Shared;
use crate::stats::Counter;
use crate::sync::Ordering;
use crate::sys::futex;
use crate::sys::memory::AlignedBytes;

/// Reads under way at most, and while writes keep their device busy. A block each.
pub const REQUESTS_MAX: usize = 8;
const REQUESTS_BUSY: usize = 2;
/// Frames that are free at least before one more is read ahead, where memory has so many: what a reader or writer
/// needs next is there.
const FRAMES_SPARE: u32 = 8;
/// Memory that is backed at once when free frames run out and the budget allows, bytes.
const MORE_BYTES: u64 = 16 * 1024 * 1024;
/// Ticks for which clean pages must have been left alone before they give way to what is read ahead.
const IDLE_TICKS: u32 = 2;
/// How often it looks around without being woken.
const TICK: Duration = Duration::from_millis(500);
/// How often a process that does not keep looks whether it does by now.
const STAND_BY: Duration = Duration::from_millis(50);

struct Job {
    file: FileId,
    device: Arc<dyn DeviceFile>,
    slot: usize,
    ask: Ask,
    seen: Seen,
    /// Pages that are read.
    span: Range<u32>,
    /// The block's memory; the span is at its place.
    bytes: AlignedBytes,
}

impl Job {
    fn start(&self) -> usize {
        self.span.start as usize * PAGE_BYTES
    }

    fn offset(&self) -> u64 {
        self.ask.block.start() + self.start() as u64
    }

    fn len(&self) -> usize {
        self.span.len() * PAGE_BYTES
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
        let mut begun = false;
        while self.queue.in_flight() < self.depth {
            let Some(file) = self.files.pop_front() else {
                break;
            };
            let Some(device) = shared.device(file) else {
                let epoch = me.arena.superblock().keeper_epoch.load(Ordering::Relaxed);
                me.arena.file_unchecked(file).asks.refuse(epoch);
                continue;
            };
            let busy = busy::inflight_bytes(me.arena.superblock(), device.caps().device)
                > shared.config.busy_bytes;
            if busy && self.queue.in_flight() >= REQUESTS_BUSY {
                self.files.push_front(file);
                break;
            }
            let asks = &me.arena.file_unchecked(file).asks;
            if let Some((slot, ask)) = asks.take(me.id) {
                begun = true;
                self.files.push_back(file);
                if !self.begin(shared, me, file, &device, slot, ask) {
                    asks.end(slot, ask, me.id);
                }
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
        let under_way = self.jobs.iter().flatten();
        if under_way
            .clone()
            .any(|job| job.file == file && job.ask.block == ask.block)
            || !find_room(shared, me, under_way.count() as u32 + 1)
        {
            return false;
        }
        let Some((seen, span)) = look(shared, me, file, device, ask) else {
            return false;
        };
        let bytes = self.spare.pop();
        let bytes = bytes.unwrap_or_else(|| AlignedBytes::new(BLOCK_BYTES, PAGE_BYTES));
        let job = Job {
            file,
            device: Arc::clone(device),
            slot,
            ask,
            seen,
            span,
            bytes,
        };
        self.submit(job);
        true
    }

    fn submit(&mut self, job: Job) {
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
            pieces: vec![job.bytes.part(job.start(), job.len())],
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
            if let Ok(read) = end.result
                && let Some(kept) = keep(shared, me, &job, read)
            {
                let bytes = u64::from(kept.count_ones()) * PAGE_BYTES as u64;
                me.count(Counter::AheadBytes as usize, bytes);
            }
            let asks = &me.arena.file_unchecked(job.file).asks;
            asks.end(job.slot, job.ask, me.id);
            self.spare.push(job.bytes);
        }
        self.done = done;
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
    if entry.kernel_reason.load(Ordering::Acquire) != 0
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

/// Keeps what has been read, if nothing has left the header since. Which pages are new.
fn keep(shared: &Shared, me: Me<'_>, job: &Job, read: usize) -> Option<u64> {
    let piece = job.bytes.part(job.start(), job.len());
    let device = job.device.as_ref();
    let read = read_rest(device, piece, job.offset(), read, job.seen.disk_end).ok()?;
    me.count(Counter::DeviceReadBytes as usize, read as u64);
    // SAFETY: the memory is this thread's own, and nothing is under way in it any more.
    unsafe { copy::zero(piece.ptr.add(read), job.len().saturating_sub(read)) };
    let _operation = me.enter(job.file).ok()?;
    let entry = shared.arena.file_unchecked(job.file);
    let id = job.seen.header();
    let guard = me.arena.header(id)?.lock(me, id)?;
    let identity = Identity {
        file: job.file,
        block: job.ask.block,
    };
    if !guard.is_for(identity) || !job.seen.holds(&guard) {
        return None;
    }
    let block = job.bytes.piece().ptr;
    // SAFETY: the job's memory is a block, with the span at its place, read since.
    let kept = unsafe { fill::keep(&guard, entry, &job.span, block) }.ok()?;
    if kept != 0 {
        guard.set_ahead();
    }
    Some(kept)
}

/// Whether there is memory for `frames` frames more, or can be.
fn find_room(shared: &Shared, me: Me<'_>, frames: u32) -> bool {
    let superblock = me.arena.superblock();
    let spare = FRAMES_SPARE.min(superblock.frames_max.load(Ordering::Relaxed) / 4);
    let wanted = frames + spare;
    let free = || match superblock.frames_free.load(Ordering::Relaxed) {
        // Counted down by somebody before it was counted up.
        free if free > u32::MAX / 2 => 0,
        free => free,
    };
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
            std::thread::sleep(STAND_BY);
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
