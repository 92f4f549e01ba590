//! Carrying out flushes: reads that fill, writes that follow, several under way at once.
//!
//! A [`Flusher`] belongs to one thread and has one queue. [`Flusher::flush`] walks the owed blocks of a file in
//! ascending order; blocks that touch become one request. It never waits while it has begun a flight that is not
//! submitted, and never waits inside an operation. Two flushers may work on one file: a header is in flight
//! by one of them at a time, and a flusher that has to be sure (a sync's) comes back to headers that the other has.

mod ends;
mod fills;
mod parts;
mod streams;
#[cfg(all(test, feature = "sim", not(feature = "shuttle")))]
mod tests;

pub(super) use ends::is_eligible;
use ends::{Gathered, end_write, gather};
use fills::{Fill, FillJob};
use std::sync::Arc;

use crate::device::{DeviceFile, Done, Inline, Piece, Queue, Request, RequestKind};
use crate::flush::select::{self, Ready};
use crate::flush::{busy, errors};
use crate::frame::header::Identity;
use crate::frame::slots;
use crate::ids::{BlockIndex, FileId, HeaderId};
use crate::limits::PAGE_BYTES;
use crate::memory::threads::Me;
use crate::stats::Counter;
use crate::stream::tracking;
use crate::sync::Ordering;
use crate::sync::time::Instant;
use crate::sys::memory::AlignedBytes;

/// Longest write that is put together from several blocks.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most pieces in one request; the kernel takes 1024.
const PIECES_MAX: usize = 1024;

/// What to flush.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Everything that is owed now, waiting for what others have in flight: a sync.
    pub all: bool,
    /// Stop after about this many pages.
    pub pages_max: u64,
    /// Only headers with something that has been dirty for this many ticks; 0 takes all, `u32::MAX` none for its age.
    pub dirty_ticks: u32,
    /// And full blocks that have not been used for this many ticks.
    pub full_idle_ticks: u32,
    /// Fill ragged pages first. Otherwise those of a block that are whole are written without them.
    pub fill: bool,
    /// Blocks before this one are left alone.
    pub from: u64,
    /// Blocks from this one on are left alone.
    pub until: u64,
}

impl Scope {
    /// Everything: for syncs.
    pub const SYNC: Scope = Scope {
        all: true,
        pages_max: u64::MAX,
        dirty_ticks: 0,
        full_idle_ticks: 0,
        fill: true,
        from: 0,
        until: u64::MAX,
    };

    /// About so many pages, whatever their age, without waiting for others.
    pub const fn some(pages_max: u64) -> Scope {
        Scope {
            all: false,
            pages_max,
            ..Scope::SYNC
        }
    }
}

/// What became of a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pages written.
    pub pages_written: u64,
    /// Bytes read to fill ragged pages.
    pub bytes_read: u64,
    /// First errno of a request that failed.
    pub errno: Option<i32>,
}

#[derive(Default)]
struct WriteJob {
    parts: Vec<(HeaderId, u64)>,
    pieces: Vec<Piece>,
    offset: u64,
    bytes: usize,
    flight: busy::Flight,
    /// When it was submitted, if the device had nothing else to do: then its time tells the device's speed.
    begun: Option<Instant>,
}

enum Job {
    Fill(FillJob),
    Write(WriteJob),
}

/// One thread's flushing.
pub struct Flusher {
    queue: Box<dyn Queue>,
    depth: usize,
    jobs: Vec<Option<Job>>,
    done: Vec<Done>,
    spare: Vec<AlignedBytes>,
    batch: WriteJob,
    gathered: Gathered,
    /// It is a keeper's: writers at their limit wait for it while it gets on.
    keeps: bool,
}

struct Work<'a, 'b> {
    me: Me<'a>,
    file: FileId,
    device: &'b Arc<dyn DeviceFile>,
    outcome: Outcome,
    /// Headers to come back to.
    later: Vec<(BlockIndex, HeaderId)>,
    /// To be read page by page, since a request for more has failed.
    apart: Vec<Fill>,
    /// Headers with a page that cannot be read.
    unfilled: Vec<(BlockIndex, HeaderId)>,
    /// The device gives no page that it is asked for: no more is filled.
    reads_nothing: bool,
    /// The device does not take what it is given: nothing more is begun. A page that cannot be read concerns its own block only.
    is_refused: bool,
    /// All that streams know of has been gone over.
    verifies: bool,
}

impl Flusher {
    /// A flusher over a queue that may have `depth` requests under way.
    pub fn new(queue: Box<dyn Queue>, depth: usize) -> Self {
        Flusher {
            queue,
            depth: depth.max(1),
            jobs: Vec::new(),
            done: Vec::new(),
            spare: Vec::new(),
            batch: WriteJob::default(),
            gathered: Gathered::default(),
            keeps: false,
        }
    }

    /// For a thread that helps this one's: one request at a time.
    pub fn helper(&self) -> Self {
        Flusher {
            keeps: self.keeps,
            ..Flusher::new(Box::new(Inline::new()), 1)
        }
    }

    /// As a keeper's.
    pub fn of_keeper(self) -> Self {
        Flusher {
            keeps: true,
            ..self
        }
    }

    /// Name of the queue's kind.
    pub fn queue_name(&self) -> &'static str {
        self.queue.name()
    }

    /// Flushes what `scope` asks for of one file. The caller is in no operation. Returns when everything that it began
    /// has ended.
    pub fn flush(
        &mut self,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        scope: Scope,
    ) -> Outcome {
        self.run(me, file, device, |flusher, work| {
            if scope.all && tracking::orders_flushes(me.arena) {
                flusher.walk_streams(work, &scope);
                flusher.finish_walk(work, &scope);
                // The marks say what is owed; the streams should have said the same.
                work.verifies = true;
            }
            flusher.walk(work, &scope);
            flusher.finish_walk(work, &scope);
        })
    }

    fn finish_walk(&mut self, work: &mut Work<'_, '_>, scope: &Scope) {
        self.submit_batch(work);
        self.drain(work);
        if scope.all {
            self.come_back(work, scope);
        }
    }

    /// Carries out a flush and draws up the account.
    fn run(
        &mut self,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        flush: impl FnOnce(&mut Self, &mut Work<'_, '_>),
    ) -> Outcome {
        // Should this thread die, its flights are looked for though it is in no operation.
        let before = me.slot().flushing.swap(file.0 + 1, Ordering::AcqRel);
        let mut work = Work {
            me,
            file,
            device,
            outcome: Outcome::default(),
            later: Vec::new(),
            apart: Vec::new(),
            unfilled: Vec::new(),
            reads_nothing: false,
            is_refused: false,
            verifies: false,
        };
        flush(self, &mut work);
        self.submit_batch(&mut work);
        self.drain(&mut work);
        self.write_unfilled(&mut work);

        let page = PAGE_BYTES as u64;
        if device.reaches_device() {
            let written = work.outcome.pages_written * page;
            me.count(Counter::FlushedBytes as usize, written);
        }
        me.count(Counter::FillReadBytes as usize, work.outcome.bytes_read);
        let entry = me.arena.file_unchecked(file);
        if let Some(errno) = work.outcome.errno {
            errors::record(
                entry,
                errno,
                me.arena.superblock().tick.load(Ordering::Relaxed),
            );
        } else if work.outcome.pages_written > 0 {
            me.settle_owed();
            errors::succeeded(entry);
        }
        me.slot().flushing.store(before, Ordering::Release);
        work.outcome
    }

    fn walk(&mut self, work: &mut Work<'_, '_>, scope: &Scope) {
        let mut at = scope.from;
        while work.outcome.pages_written < scope.pages_max && !work.is_refused {
            let next = self.ask(work, |me, file| {
                slots::next_owed(me.arena, me.arena.file_unchecked(file), at)
            });
            let Some((block, header)) = next.filter(|(b, _)| u64::from(b.0) < scope.until) else {
                return;
            };
            self.visit(work, scope, block, header);
            at = u64::from(block.0) + 1;
            self.reap(work, false);
        }
    }

    /// Does for one header what can be done now.
    fn visit(&mut self, work: &mut Work<'_, '_>, scope: &Scope, block: BlockIndex, id: HeaderId) {
        let me = work.me;
        let identity = Identity {
            file: work.file,
            block,
        };
        let Ok(operation) = me.enter(work.file) else {
            work.later.push((block, id));
            return;
        };
        let entry = me.arena.file_unchecked(work.file);
        // A keeper flushes files that nobody has open.
        if !entry.is_still_of(work.device.caps()) {
            return;
        }
        let Some(header) = me.arena.header(id) else {
            return;
        };
        let Some(guard) = header.lock(me, id) else {
            work.later.push((block, id));
            return;
        };
        let tick = me.arena.superblock().tick.load(Ordering::Relaxed);
        let wanted = guard.is_for(identity) && is_eligible(header, tick, scope);
        if !wanted {
            return;
        }
        if work.verifies && guard.charged() != 0 {
            tracking::is_surprise(me, work.file, block);
        }
        let ready = select::prepare(&guard, entry, scope.fill && !work.reads_nothing);
        match ready {
            Ready::Nothing => {}
            Ready::Busy => {
                drop(guard);
                work.later.push((block, id));
            }
            Ready::Fill {
                pages,
                ragged,
                epoch,
            } => {
                drop(guard);
                drop(operation);
                let fill = Fill {
                    header: id,
                    identity,
                    epoch,
                    ragged,
                };
                self.submit_fills(work, fill, pages);
            }
            Ready::Write { pages, tail } => {
                gather(&guard, pages, &mut self.gathered);
                let tail = tail.and_then(|(page, len)| Some((page, guard.page_bytes(page)?, len)));
                drop(guard);
                drop(operation);
                self.write(work, id, identity, tail);
            }
        }
    }

    fn write(
        &mut self,
        work: &mut Work<'_, '_>,
        id: HeaderId,
        identity: Identity,
        tail: Option<(usize, *mut u8, usize)>,
    ) {
        let gathered = std::mem::replace(&mut self.gathered, Gathered::none());
        for &(pages, start, ref range) in &gathered.runs {
            let pieces = &gathered.pieces[range.clone()];
            let offset = identity.block.start() + start as u64;
            let bytes: usize = pieces.iter().map(|p| p.len).sum();
            let fits = self.batch.bytes + bytes <= BATCH_BYTES_MAX
                && self.batch.pieces.len() + pieces.len() <= PIECES_MAX
                && self.batch.offset + self.batch.bytes as u64 == offset;
            if !fits {
                self.submit_batch(work);
                self.batch.offset = offset;
            }
            self.batch.bytes += bytes;
            self.batch.pieces.extend(pieces);
            self.batch.parts.push((id, pages));
        }
        self.gathered = gathered;
        if let Some((page, ptr, len)) = tail {
            // After what comes before it, so that the device file does not end beyond a gap for long.
            self.submit_batch(work);
            self.write_tail(work, id, identity, page, Piece { ptr, len });
        }
    }

    fn submit_batch(&mut self, work: &mut Work<'_, '_>) {
        if self.batch.parts.is_empty() {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        work.me.arena.file_unchecked(work.file).show_change();
        let device = work.device.caps().device;
        let idle = busy::inflight_bytes(work.me.arena.superblock(), device) == 0;
        batch.begun = idle.then(Instant::now);
        batch.flight = busy::begin(
            work.me.arena.superblock(),
            work.device.caps().device,
            batch.bytes as u64,
        );
        let request = Request {
            file: Arc::clone(work.device),
            kind: RequestKind::Write,
            pieces: batch.pieces.clone(),
            offset: batch.offset,
            token: 0,
        };
        self.submit(work, request, Job::Write(batch));
    }

    fn submit(&mut self, work: &mut Work<'_, '_>, mut request: Request, job: Job) {
        while self.queue.in_flight() >= self.depth {
            self.reap(work, true);
        }
        let token = match self.jobs.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.jobs.push(None);
                self.jobs.len() - 1
            }
        };
        self.jobs[token] = Some(job);
        request.token = token as u64;
        work.me.at_device(work.file, || self.queue.submit(request));
    }

    fn drain(&mut self, work: &mut Work<'_, '_>) {
        loop {
            while self.queue.in_flight() > 0 {
                self.reap(work, true);
                // A fill that has ended may have begun a flight.
                self.submit_batch(work);
            }
            let Some(fill) = work.apart.pop() else { return };
            self.submit_apart(work, fill);
        }
    }

    /// Handles requests that have ended.
    fn reap(&mut self, work: &mut Work<'_, '_>, wait: bool) {
        if self.queue.in_flight() == 0 {
            return;
        }
        let mut done = std::mem::take(&mut self.done);
        let queue = &mut self.queue;
        work.me.at_device(work.file, || queue.poll(wait, &mut done));
        if work.device.descriptors().is_some() {
            // A request may have waited for those that have ended, and have reached the file only now.
            work.me.arena.file_unchecked(work.file).show_change();
        }
        for end in done.drain(..) {
            match self.jobs.get_mut(end.token as usize).and_then(Option::take) {
                Some(Job::Write(job)) => end_write(work, &job, end.result, self.keeps),
                Some(Job::Fill(job)) => self.end_fill(work, job, end.result),
                None => {}
            }
        }
        self.done = done;
    }
}
