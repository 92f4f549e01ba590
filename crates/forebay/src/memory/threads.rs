//! Thread slots: who takes part in the session, whether it lives, and what it is doing.
//!
//! A thread takes a slot before it touches the arena. A slot *is* its robust mutex: the thread takes that first, and opens it
//! last. When it dies in between, the kernel marks the mutex's word, in any process and pid namespace (arena rule 4), and the thread that takes the mutex then sees
//! to what is left. While a thread works it publishes the file in its *operation word*; a thread that must be alone on a file, or in the session, closes a gate and
//! waits for the words (arena rule 6). `docs/locking.md` has the reasoning.
//!
//! Entering pairs with closing a gate: the entering side stores its word and then loads the gate, the
//! closing side stores the gate and then loads the words; `membarrier` (or a full fence on
//! both sides) stands between.

mod calls;
mod claimed;
mod dead;
mod gate;
mod opening;
mod stops;
mod syncs;
mod taking;
mod there;
mod work;

pub use calls::{calls_of, is_anybody_at_device, is_in_the_way};
pub(crate) use dead::bury;
pub use dead::{Dead, dead, dead_of, is_rebuild_owed, last_life};
pub use gate::{Gate, Inside};
pub use opening::{Opening, opens_for_the_engine};
pub use stops::{
    FileStop, SessionStop, Waiting, await_operations, stop_file, stop_session,
    stop_session_for_rebuild,
};
pub use taking::{take, take_for_good};
pub use there::{is_there, mark_who_executed};
pub use work::{
    died_working, flushes, gate_is_abandoned, is_named, is_working, is_written_over, works_on,
};

use crate::ids::{FileId, ThreadId};
use crate::limits;
use crate::memory::arena::Arena;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, planted, relax};
use crate::sys::liveness;
use std::time::Duration;

/// Per-thread counters, added up by `Session::stats`. Only the owner writes them.
pub const COUNTERS: usize = 32;

/// A slot, 512 bytes: two threads never share a cache line.
#[repr(C, align(256))]
pub struct ThreadSlot {
    /// Which of the slot's lives this is, with [`TAKEN`] while it lasts. Only the holder of the mutex changes
    /// it, and [`give_up`] for a thread that lives.
    state: AtomicU32,
    /// Process id, for people; never used as evidence of life.
    pub pid: AtomicU32,
    /// Operation word: 0, or file index + 1 with [`PARKED`] or not.
    op: AtomicU64,
    /// The pid namespace of `pid`, where it is needed ([`is_there`]); else 0.
    namespace: AtomicU64,
    /// Pages owed by this thread's work and not yet added to the superblock's sum (an `i64`).
    pub owed_delta: AtomicU64,
    /// File index + 1 while the thread may have writes in flight outside an operation, or all ones while it settles an account.
    pub flushing: AtomicU32,
    /// The carved frame in which this thread last found a small frame.
    pub small_hint: AtomicU32,
    /// The word of the map of free headers in which this thread last found one.
    pub header_hint: AtomicU32,
    /// Not 0 while the thread opens a file for the engine ([`Opening`]).
    opening: AtomicU32,
    /// The life and the holder of `mutex`, see [`seal`]: words that were written over are no life.
    seal: AtomicU32,
    /// What it is at a device with ([`Me::at_device`]). Nothing hangs on it but patience: no word of a simulation's.
    at_device: std::sync::atomic::AtomicU64,
    /// What it syncs ([`Me::at_sync`]). No word of a simulation's either.
    syncing: std::sync::atomic::AtomicU64,
    /// Counters, see `stats`.
    pub counters: [AtomicU64; COUNTERS],
    mutex: liveness::Word,
}

const _: () = assert!(size_of::<ThreadSlot>() == 512);

/// In a slot's state: a thread has it, or had it and is dead.
const TAKEN: u32 = 1;
/// What a life adds to the state word: a thread that decides by what a slot was in another life changes nothing.
const LIFE: u32 = 2;
const LIFE_MASK: u32 = !(LIFE - 1);
/// The operation is in a system call or a wait and touches nothing shared.
const PARKED: u64 = 1 << 32;
/// An operation on no file: as of one beyond any that there is.
const NO_FILE: u64 = u32::MAX as u64;
/// Looks at what another thread has before its lock is doubted.
const LONG_WAIT: u32 = 128;
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

/// Gives the calling thread's slot back.
pub fn release(me: Me<'_>) {
    me.settle_owed();
    let Some(slot) = me.arena.thread(me.id) else {
        return;
    };
    if liveness::is_ours(&slot.mutex) {
        slot.end_life();
    }
    // Also where somebody has taken it for dead and buried it: this thread's list leads through it, and the arena may be unmapped.
    liveness::let_go(&slot.mutex);
}

/// Frees the slot of a thread that lives and will not use it again: its process leaves. Not if the slot is in another life than `life` by now, or
/// its thread has died: that others see to.
pub(crate) fn give_up(me: Me<'_>, life: u32) {
    let slot = me.slot();
    let owner = liveness::holder(&slot.mutex);
    let its = life & LIFE_MASK | TAKEN;
    if slot.state.load(Ordering::Acquire) != its || is_dead(me.arena, me.id) {
        return;
    }
    me.settle_owed();
    me.arena.superblock().resign(me.id);
    let (way, else_way) = (Ordering::AcqRel, Ordering::Relaxed);
    let free = life & LIFE_MASK;
    if slot
        .state
        .compare_exchange(its, free, way, else_way)
        .is_ok()
    {
        liveness::open_for(&slot.mutex, owner);
    }
}

/// What [`ThreadSlot::seal`] holds in a life whose thread is the holder of this number.
fn seal(life: u32, holder: u32) -> u32 {
    life & LIFE_MASK ^ holder
}

impl ThreadSlot {
    /// The state word, if the slot is taken and its thread has died, or no thread can have put the slot into this state.
    fn ended_life(&self) -> Option<u32> {
        let state = self.state.load(Ordering::Acquire);
        let ended = state & TAKEN != 0 && !self.is_held_in(state);
        // What was seen is evidence of this life only if it still is this life.
        (ended && self.state.load(Ordering::Acquire) == state).then_some(state)
    }

    /// Whether a thread that lives has the mutex, in this life.
    fn is_held_in(&self, state: u32) -> bool {
        liveness::is_held(&self.mutex)
            && self.seal.load(Ordering::Acquire) == seal(state, liveness::holder(&self.mutex))
    }

    fn is_taken(&self) -> bool {
        self.state.load(Ordering::Acquire) & TAKEN != 0
    }

    /// Leaves nothing of this life. The holder of the mutex opens it next, or begins another.
    fn end_life(&self) {
        self.op.store(0, Ordering::Relaxed);
        self.flushing.store(0, Ordering::Relaxed);
        self.at_device.store(0, Ordering::Relaxed);
        self.syncing.store(0, Ordering::Relaxed);
        let life = self.state.load(Ordering::Relaxed) & LIFE_MASK;
        self.state.store(life, Ordering::Release);
    }
}

/// Declares a slot dead, for tests and for sessions all of whose processes are gone. One that nobody has stays free.
pub fn slay(arena: &Arena, id: ThreadId) {
    if let Some(slot) = arena.thread(id)
        && (slot.is_taken() || !liveness::is_nobodys(&slot.mutex))
    {
        liveness::mark(&slot.mutex);
    }
}

/// Whether the slot is taken and its thread has died.
pub fn is_dead(arena: &Arena, id: ThreadId) -> bool {
    arena
        .thread(id)
        .is_none_or(|slot| slot.ended_life().is_some())
}

/// Whether the thread that a lock word names cannot release it: dead, or no longer there.
pub fn is_gone(arena: &Arena, id: ThreadId) -> bool {
    match arena.thread(id) {
        Some(slot) => !slot.is_taken() || is_dead(arena, id),
        None => true,
    }
}

/// Which of its lives a slot is in, while the thread of that life lives. Executing another program ends it, too.
pub fn life(arena: &Arena, id: ThreadId) -> Option<u32> {
    let life = arena.thread(id)?.state.load(Ordering::Acquire) & LIFE_MASK;
    (!is_gone(arena, id)).then_some(life)
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
            Some(Closed::File(_)) if planted!(DeafEnter) => Ok(Operation { me: self, file }),
            // The thread that closed the gate is alone on the file, and may flush and evict it.
            Some(Closed::File(by)) if by == self.id => Ok(Operation { me: self, file }),
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

    /// Enters an operation that ends a flight: a closed file gate does not keep it out, because the closer may be
    /// waiting for just this; a stopped session does. Only header locks may be taken in it.
    pub fn enter_past_gate(self, file: FileId) -> Operation<'a> {
        let operation = Operation { me: self, file };
        operation.unpark();
        operation
    }

    #[inline(always)]
    fn gates_after_barrier(self, file: FileId) -> Option<Closed> {
        let session = self.session_gate_after_barrier();
        if session != 0 {
            return Some(Closed::Session(ThreadId(session)));
        }
        let gate = &self.arena.file_unchecked(file).gate;
        gate.pass(self.id).err().map(Closed::File)
    }

    /// The thread that has stopped the session, or 0.
    #[inline(always)]
    fn session_gate_after_barrier(self) -> u32 {
        if self.arena.fences() {
            fence(Ordering::SeqCst);
        } else {
            // Pairs with membarrier in `barrier`: the compiler must not move the loads up.
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        self.arena.superblock().gate.load(Ordering::Acquire)
    }

    /// Enters an operation on what the arena has for all files. Waits while the session is stopped; the caller must be idle, and not the
    /// one that has stopped it.
    pub fn enter_arena(self) -> ArenaOperation<'a> {
        let slot = self.slot();
        debug_assert_eq!(slot.op.load(Ordering::Relaxed), 0, "operations do not nest");
        let mut round = 0;
        loop {
            slot.op.store(NO_FILE, Ordering::Relaxed);
            if self.session_gate_after_barrier() == 0 {
                return ArenaOperation { me: self };
            }
            slot.op.store(0, Ordering::Release);
            round += 1;
            self.wait(round);
        }
    }

    /// Waits a moment for another thread, which may have died: now and then asks for a rescue. The caller is idle or
    /// parked. `round` counts the waits so far.
    pub fn wait(self, round: u32) {
        relax(round);
        if round == 8 || round.is_multiple_of(64) {
            let long = round >= LONG_WAIT && round.is_power_of_two();
            self.arena.rescue_from(self, long);
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
        // A rebuild sets both words anew: after both steps, should this thread die between them, and else before or after them.
        let _settling = self.settling();
        let is_idle = slot.op.load(Ordering::Relaxed) == 0;
        let _alone = is_idle.then(|| self.enter_arena());
        let delta = slot.owed_delta.load(Ordering::Relaxed);
        slot.owed_delta.store(0, Ordering::Relaxed);
        self.arena
            .superblock()
            .owed_pages
            .fetch_add(delta, Ordering::Relaxed);
    }

    /// Until this is dropped, the thread's death calls for a rebuild, though it is in no operation.
    pub fn settling(self) -> Settling<'a> {
        let word = &self.slot().flushing;
        let before = word.load(Ordering::Relaxed);
        let now = if before == 0 { SETTLING } else { before };
        word.store(now, Ordering::Release);
        Settling { me: self, before }
    }

    /// Adds to one of this thread's counters.
    #[inline]
    pub fn count(self, counter: usize, amount: u64) {
        let word = &self.slot().counters[counter];
        word.store(
            word.load(Ordering::Relaxed).wrapping_add(amount),
            Ordering::Relaxed,
        );
    }
}

/// An operation that has been entered: the right to touch the file's part of the arena. Left when dropped.
pub struct Operation<'a> {
    /// The working thread.
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
                Some(Closed::Session(by)) if !planted!(DeafUnpark) => {
                    self.park();
                    if round % 16 == 4 && is_gone(self.me.arena, by) {
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
        let closer = self.me.arena.file_unchecked(self.file).gate.closer();
        closer != ThreadId::NOBODY && closer != self.me.id
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

/// See [`Me::settling`].
pub struct Settling<'a> {
    me: Me<'a>,
    before: u32,
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        let word = &self.me.slot().flushing;
        word.store(self.before, Ordering::Release);
    }
}

/// An operation on no file, see [`Me::enter_arena`]: never parked. Left when dropped.
pub struct ArenaOperation<'a> {
    me: Me<'a>,
}

impl Drop for ArenaOperation<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.me.slot().op.store(0, Ordering::Release);
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests;
