//! Thread slots: who takes part in the session, whether it lives, and what it is doing.
//!
//! A thread takes a slot before it touches the arena and locks the slot's robust mutex for life; when it
//! dies the kernel marks the mutex's word, in any process and pid namespace (architecture 4.4.4). While it
//! works it publishes the file in its *operation word*; whoever must be alone on a file, or in the
//! session, closes a gate and waits for the words (4.4.6). `docs/locking.md` has the reasoning.
//!
//! Entering pairs with closing a gate: the entering side stores its word and then loads the gate, the
//! closing side stores the gate and then loads the words; `membarrier` (or a full fence on
//! both sides) stands between.

use crate::ids::{FileId, ThreadId};
use crate::limits;
use crate::memory::arena::Arena;
use crate::memory::files::ENTERING;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, planted, relax};
use crate::sys::{liveness, membarrier};
use std::time::{Duration, Instant};

/// Per-thread counters, added up by `Session::stats`. Only the owner writes them.
pub const COUNTERS: usize = 16;

/// A slot, 256 bytes: two threads never share a cache line.
#[repr(C, align(256))]
pub struct ThreadSlot {
    state: AtomicU32,
    /// Process id, for people; never used as evidence of life.
    pub pid: AtomicU32,
    /// Operation word: 0, or file index + 1 with [`PARKED`] or not.
    op: AtomicU64,
    /// Set by tests: counts as dead though its thread runs on.
    slain: AtomicU32,
    /// Whether `mutex` is in use; simulated threads have none.
    has_mutex: AtomicU32,
    /// Pages owed by this thread's work and not yet added to the superblock's sum (an `i64`).
    pub owed_delta: AtomicU64,
    /// File index + 1 while the thread may have writes in flight outside an operation, or [`SETTLING`].
    pub flushing: AtomicU32,
    /// The carved frame in which this thread last found a small frame.
    pub small_hint: AtomicU32,
    /// Counters, see `stats`.
    pub counters: [AtomicU64; COUNTERS],
    mutex: liveness::Word,
}

const _: () = assert!(size_of::<ThreadSlot>() == 256);

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// The operation is in a system call or a wait and touches nothing shared.
const PARKED: u64 = 1 << 32;
/// No file, but something that a death leaves half done.
const SETTLING: u32 = u32::MAX;
/// How long a stop waits for the others before it gives up.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// A thread that takes part: its arena and slot. Copied freely within the thread, never given to another.
#[derive(Clone, Copy)]
pub struct Me<'a> {
    /// The arena it works in.
    pub arena: &'a Arena,
    /// Its slot.
    pub id: ThreadId,
}

/// Why an operation could not be entered or had to be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The session is stopped by this thread.
    Session(ThreadId),
    /// The file is stopped by this thread.
    File(ThreadId),
}

/// Takes a slot for the calling thread. `None` when all are taken.
///
/// With `real`, the slot's mutex is locked by the calling operating-system thread; without, the slot
/// lives until [`slay`] or [`release`] (simulation).
pub fn take(arena: &Arena, real: bool) -> Option<ThreadId> {
    for index in 1..arena.counts().threads {
        let slot = arena.thread(ThreadId(index))?;
        if slot.state.load(Ordering::Relaxed) != FREE
            || slot
                .state
                .compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
        {
            continue;
        }
        slot.op.store(0, Ordering::Relaxed);
        slot.slain.store(0, Ordering::Relaxed);
        slot.flushing.store(0, Ordering::Relaxed);
        slot.pid.store(std::process::id(), Ordering::Relaxed);
        slot.has_mutex.store(0, Ordering::Relaxed);
        if real {
            liveness::hold(&slot.mutex);
            slot.has_mutex.store(1, Ordering::Release);
        }
        return Some(ThreadId(index));
    }
    None
}

/// Gives the calling thread's slot back.
pub fn release(me: Me<'_>) {
    me.settle_owed();
    let Some(slot) = me.arena.thread(me.id) else { return };
    if slot.has_mutex.swap(0, Ordering::Relaxed) == 1 {
        liveness::let_go(&slot.mutex);
    }
    slot.op.store(0, Ordering::Relaxed);
    slot.state.store(FREE, Ordering::Release);
}

/// Frees the slot of a thread that has died.
pub(crate) fn bury(arena: &Arena, id: ThreadId) {
    let Some(slot) = arena.thread(id) else { return };
    let delta = slot.owed_delta.swap(0, Ordering::Relaxed);
    arena.superblock().owed_pages.fetch_add(delta, Ordering::Relaxed);
    slot.has_mutex.store(0, Ordering::Relaxed);
    slot.op.store(0, Ordering::Relaxed);
    slot.state.store(FREE, Ordering::Release);
}

/// Declares a slot dead, for tests and for sessions all of whose processes are gone.
pub fn slay(arena: &Arena, id: ThreadId) {
    if let Some(slot) = arena.thread(id) {
        slot.slain.store(1, Ordering::Release);
    }
}

/// Whether the slot is taken and its thread has died.
pub fn is_dead(arena: &Arena, id: ThreadId) -> bool {
    let Some(slot) = arena.thread(id) else { return true };
    if slot.state.load(Ordering::Acquire) != TAKEN {
        return false;
    }
    slot.slain.load(Ordering::Acquire) == 1
        || (slot.has_mutex.load(Ordering::Acquire) == 1 && liveness::owner_died(&slot.mutex))
}

/// Whether whoever is named in a lock word cannot release it: dead, or no longer there.
pub fn is_gone(arena: &Arena, id: ThreadId) -> bool {
    match arena.thread(id) {
        Some(slot) => slot.state.load(Ordering::Acquire) != TAKEN || is_dead(arena, id),
        None => true,
    }
}

/// Taken slots whose threads have died.
pub fn dead(arena: &Arena) -> Vec<ThreadId> {
    (1..arena.counts().threads).map(ThreadId).filter(|&id| is_dead(arena, id)).collect()
}

/// Whether a dead thread was in the middle of an operation or a flush, so that a rebuild is owed.
pub fn died_working(arena: &Arena, id: ThreadId) -> bool {
    arena.thread(id).is_some_and(|slot| {
        slot.op.load(Ordering::Acquire) != 0 || slot.flushing.load(Ordering::Acquire) != 0
    })
}

/// Whether a lock, a gate or a table entry names the thread: what it can own between operations.
pub fn is_named(arena: &Arena, id: ThreadId) -> bool {
    let superblock = arena.superblock();
    let names = |word: &AtomicU32| word.load(Ordering::Acquire) == id.0;
    let entering = ENTERING | (id.0 << 3);
    names(&superblock.gate)
        || names(&superblock.table_lock)
        || names(&superblock.provision_lock)
        || (0..arena.counts().files).filter_map(|file| arena.file(FileId(file))).any(|entry| {
            names(&entry.gate)
                || names(&entry.append_lock)
                || entry.state.load(Ordering::Acquire) == entering
        })
}

/// Whether the session is stopped by somebody who is gone: what its rebuild has left is not to be entered before another
/// rebuild has gone over it.
pub fn gate_is_abandoned(arena: &Arena) -> bool {
    let holder = arena.superblock().gate.load(Ordering::Acquire);
    holder != 0 && is_gone(arena, ThreadId(holder))
}

/// The file that a thread is at work on, by its operation word.
pub fn works_on(arena: &Arena, id: ThreadId) -> Option<FileId> {
    let word = arena.thread(id)?.op.load(Ordering::Acquire);
    ((word & !PARKED) as u32).checked_sub(1).map(FileId)
}

/// The file that a thread flushes, in or between operations.
pub fn flushes(arena: &Arena, id: ThreadId) -> Option<FileId> {
    let word = arena.thread(id)?.flushing.load(Ordering::Acquire);
    word.checked_sub(1).filter(|_| word != SETTLING).map(FileId)
}

impl<'a> Me<'a> {
    /// This thread's slot.
    #[inline(always)]
    pub fn slot(&self) -> &'a ThreadSlot {
        self.arena.thread_unchecked(self.id)
    }

    /// Enters an operation on `file`. The caller must be idle.
    #[inline]
    pub fn enter(self, file: FileId) -> Result<Operation<'a>, Closed> {
        let slot = self.slot();
        debug_assert_eq!(slot.op.load(Ordering::Relaxed), 0, "operations do not nest");
        slot.op.store(u64::from(file.0) + 1, Ordering::Relaxed);
        match self.gates_after_barrier(file) {
            None => Ok(Operation { me: self, file }),
            Some(closed) => {
                slot.op.store(0, Ordering::Release);
                Err(closed)
            }
        }
    }

    /// Enters an operation on a file whose gate this thread has closed itself.
    pub fn enter_stopped(self, file: FileId) -> Result<Operation<'a>, Closed> {
        let slot = self.slot();
        slot.op.store(u64::from(file.0) + 1, Ordering::Relaxed);
        match self.gates_after_barrier(file) {
            None => Ok(Operation { me: self, file }),
            Some(Closed::File(by)) if by == self.id => Ok(Operation { me: self, file }),
            Some(closed) => {
                slot.op.store(0, Ordering::Release);
                Err(closed)
            }
        }
    }

    /// Enters an operation that ends a flight: a closed file gate does not keep it out, because whoever closed it may be
    /// waiting for just this; a stopped session does. Only header locks may be taken in it.
    pub fn enter_past_gate(self, file: FileId) -> Operation<'a> {
        let operation = Operation { me: self, file };
        operation.unpark();
        operation
    }

    #[inline(always)]
    fn gates_after_barrier(self, file: FileId) -> Option<Closed> {
        if self.arena.fences() {
            fence(Ordering::SeqCst);
        } else {
            // Pairs with membarrier in `barrier`: the compiler must not move the loads up.
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        let session = self.arena.superblock().gate.load(Ordering::Acquire);
        if session != 0 {
            return Some(Closed::Session(ThreadId(session)));
        }
        let gate = self.arena.file_unchecked(file).gate.load(Ordering::Acquire);
        (gate != 0).then_some(Closed::File(ThreadId(gate)))
    }

    /// Waits a moment for another thread, which may have died: now and then asks for a rescue. The caller is idle or
    /// parked. `round` counts the waits so far.
    pub fn wait(self, round: u32) {
        relax(round);
        if round == 8 || round.is_multiple_of(64) {
            self.arena.rescue(self);
        }
    }

    /// Adds to the pages owed. Exact for the thread; the session's sum lags by at most 64 pages a thread.
    #[inline]
    pub fn owe(self, pages: i64) {
        let slot = self.slot();
        let delta = (slot.owed_delta.load(Ordering::Relaxed) as i64).wrapping_add(pages);
        slot.owed_delta.store(delta as u64, Ordering::Relaxed);
        if delta.unsigned_abs() >= limits::BLOCK_PAGES as u64 {
            self.settle_owed();
        }
    }

    /// Brings the session's sum up to date with this thread's part.
    pub fn settle_owed(self) {
        let slot = self.slot();
        let delta = slot.owed_delta.load(Ordering::Relaxed);
        if delta == 0 {
            return;
        }
        // A death between the two steps is one that calls for a rebuild, which counts anew.
        let before = slot.flushing.load(Ordering::Relaxed);
        slot.flushing.store(if before == 0 { SETTLING } else { before }, Ordering::Release);
        slot.owed_delta.store(0, Ordering::Relaxed);
        self.arena.superblock().owed_pages.fetch_add(delta, Ordering::Relaxed);
        slot.flushing.store(before, Ordering::Release);
    }

    /// Adds to one of this thread's counters.
    #[inline]
    pub fn count(self, counter: usize, amount: u64) {
        let word = &self.slot().counters[counter];
        word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }
}

/// An operation that has been entered: the right to touch the file's part of the arena. Left when dropped.
pub struct Operation<'a> {
    /// Who works.
    pub me: Me<'a>,
    /// On what.
    pub file: FileId,
}

impl Operation<'_> {
    /// Marks the operation as not touching anything shared: around system calls and waits.
    pub fn park(&self) {
        let word = (u64::from(self.file.0) + 1) | PARKED;
        self.me.slot().op.store(word, Ordering::Release);
    }

    /// Ends the parking; waits while the session is stopped. Everything not owned must be looked at anew.
    pub fn unpark(&self) {
        let slot = self.me.slot();
        let mut round = 0;
        loop {
            slot.op.store(u64::from(self.file.0) + 1, Ordering::Relaxed);
            match self.me.gates_after_barrier(self.file) {
                Some(Closed::Session(by)) => {
                    self.park();
                    if is_gone(self.me.arena, by) {
                        self.me.arena.rescue(self.me);
                    }
                }
                _ => return,
            }
            round += 1;
            relax(round);
        }
    }

    /// Waits a moment, parked.
    pub fn wait(&self, round: u32) {
        self.park();
        self.me.wait(round);
        self.unpark();
    }

    /// Whether someone else is waiting to be alone on the file.
    pub fn file_is_closing(&self) -> bool {
        let gate = self.me.arena.file_unchecked(self.file).gate.load(Ordering::Acquire);
        gate != 0 && gate != self.me.id.0
    }
}

impl Drop for Operation<'_> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.me.slot().op.store(0, Ordering::Release);
    }
}

fn barrier(arena: &Arena) {
    if arena.fences() {
        fence(Ordering::SeqCst);
    } else {
        membarrier::global_expedited();
    }
}

/// The session is stopped while this lives.
pub struct SessionStop<'a> {
    me: Me<'a>,
}

/// Stops every operation of the session. `None` if somebody else holds the gate, or a thread did not stop in
/// time; the caller must be idle.
pub fn stop_session(me: Me<'_>) -> Option<SessionStop<'_>> {
    let gate = &me.arena.superblock().gate;
    gate.compare_exchange(0, me.id.0, Ordering::AcqRel, Ordering::Acquire).ok()?;
    stopped(me)
}

/// As [`stop_session`], for a rebuild: takes the gate over from a holder that is gone. It stays closed in between, since
/// that holder may have been in the middle of a rebuild.
pub fn stop_session_for_rebuild(me: Me<'_>) -> Option<SessionStop<'_>> {
    let gate = &me.arena.superblock().gate;
    if let Err(holder) = gate.compare_exchange(0, me.id.0, Ordering::AcqRel, Ordering::Acquire) {
        if !is_gone(me.arena, ThreadId(holder)) {
            return None;
        }
        if planted!(OpenGate) {
            gate.store(0, Ordering::Release);
            return None;
        }
        gate.compare_exchange(holder, me.id.0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    }
    stopped(me)
}

/// Waits until all others have stopped for a gate that is closed.
fn stopped(me: Me<'_>) -> Option<SessionStop<'_>> {
    let stop = SessionStop { me };
    barrier(me.arena);
    wait_for_others(me, |word| word != 0 && word & PARKED == 0).then_some(stop)
}

impl Drop for SessionStop<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.me.arena.superblock().gate.store(0, Ordering::Release);
    }
}

/// One file is stopped while this lives.
pub struct FileStop<'a> {
    me: Me<'a>,
    file: FileId,
}

/// Stops every operation on one file. `None` as for [`stop_session`].
pub fn stop_file<'a>(me: Me<'a>, file: FileId) -> Option<FileStop<'a>> {
    let gate = &me.arena.file_unchecked(file).gate;
    gate.compare_exchange(0, me.id.0, Ordering::AcqRel, Ordering::Acquire).ok()?;
    let stop = FileStop { me, file };
    barrier(me.arena);
    let here = u64::from(file.0) + 1;
    wait_for_others(me, |word| word & !PARKED == here).then_some(stop)
}

impl Drop for FileStop<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.me.arena.file_unchecked(self.file).gate.store(0, Ordering::Release);
    }
}

fn wait_for_others(me: Me<'_>, in_the_way: impl Fn(u64) -> bool) -> bool {
    let begun = Instant::now();
    for id in (1..me.arena.counts().threads).map(ThreadId).filter(|&id| id != me.id) {
        let slot = me.arena.thread_unchecked(id);
        let mut round = 0;
        // Acquire pairs with the release of `leave` and `park`: what that thread did is seen.
        while in_the_way(slot.op.load(Ordering::Acquire)) && !is_dead(me.arena, id) {
            round += 1;
            relax(round);
            if round > 1000 && begun.elapsed() > STOP_PATIENCE {
                return false;
            }
        }
    }
    true
}
