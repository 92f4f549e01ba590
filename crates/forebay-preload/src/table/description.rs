//! An open description: what all descriptors of one opening share, in this process and its relatives.
//!
//! The holder of its lock has the offset. A holder that is killed is found out by the next one, which also moves the offset behind what the
//! killed one has written.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, compiler_fence};

use forebay::limits::LARGE_SYNCS;

use super::gone::is_gone;
use super::who;
use crate::files::Look;
use crate::inside::Inside;

/// How often a lock is looked at before its holder's life is.
const SPINS: u32 = 2000;

/// An open description, 64 bytes of memory that all relatives by fork share.
#[repr(C, align(64))]
pub struct Description {
    /// Processes that have it open; 0: free.
    pub(super) holders: AtomicU32,
    /// [`APPENDS`] and its like.
    pub(super) flags: AtomicU32,
    /// [`State`].
    state: AtomicU32,
    /// The error sequence that it has reported.
    pub seen: AtomicU32,
    /// Offset, while it is ours. By [`Description::begin`] and [`Description::move_to`].
    offset: AtomicU64,
    /// The holder of the offset: process above, thread below; 0 nobody.
    lock: AtomicU64,
    /// Device number of its file.
    pub device: AtomicU64,
    /// Inode number of its file.
    pub inode: AtomicU64,
    /// What was written through it while it was a candidate: [`Written`], packed.
    written: AtomicU64,
    /// While the offset is the kernel's: the file's size when it was opened. While it is ours: where the write ends that the holder of the
    /// offset is at; not beyond the offset, if at none.
    size_or_end: AtomicU64,
}

const _: () = assert!(size_of::<Description>() == 64);

/// Writes go to the end.
pub const APPENDS: u32 = 1;
/// It can never be managed: should its file be, the file goes to the kernel.
pub const FOREIGN: u32 = 2;
/// The program wants to hear of no byte before it is durable.
pub const SYNCS: u32 = 4;
/// Somebody may have a descriptor of it and pass no hook; the arena knows.
pub const REACHED: u32 = 8;
/// ... and nobody here will hear when that ends: it does not with the last descriptor that is known of.
pub const STICKS: u32 = 16;
/// Its file is a mounted store's: whatever is left to the kernel is a request to another process.
pub const OF_STORE: u32 = 32;

/// [`Description::seen`] has been since it was opened, before its file was managed.
pub const HEARD: u32 = 64;

/// Syncs of a candidate are counted in the flags, from here up.
const SYNC: u32 = 1 << 16;

/// Times made final before the close are counted in the flags, from here up to [`FINISHED_MAX`].
const FINISHED: u32 = 1 << 8;
/// How often that is done for a description: a program that asks after each of its writes goes on as one that never does.
const FINISHED_MAX: u32 = 4;

/// What has been written through a candidate so far. No field wraps: each stays at the most that it can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Calls.
    pub calls: u64,
    /// Bytes.
    pub bytes: u64,
    /// Nanoseconds that the kernel took for them, and for reads, about, where anybody measures it ([`Description::note_spent`]).
    pub spent_ns: u64,
}

impl Written {
    /// In one word: calls above, the time in the middle, in units of so many nanoseconds, and the bytes.
    const CALLS: u32 = 16;
    const SPENT: u32 = 10;
    const BYTES: u32 = 38;
    const UNIT_NS: u64 = 256;

    const fn pack(self) -> u64 {
        const fn field(value: u64, bits: u32) -> u64 {
            let most = (1 << bits) - 1;
            if value < most { value } else { most }
        }
        field(self.calls, Self::CALLS) << (Self::SPENT + Self::BYTES)
            | field(self.spent_ns / Self::UNIT_NS, Self::SPENT) << Self::BYTES
            | field(self.bytes, Self::BYTES)
    }

    const fn unpack(word: u64) -> Self {
        Written {
            calls: word >> (Self::SPENT + Self::BYTES),
            bytes: word & ((1 << Self::BYTES) - 1),
            spent_ns: (word >> Self::BYTES & ((1 << Self::SPENT) - 1)) * Self::UNIT_NS,
        }
    }
}

/// Whose offset is the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The kernel's: it is a candidate.
    Kernels,
    /// Ours: it is managed.
    Ours,
    /// The kernel's for good.
    Left,
}

impl Description {
    /// Nobody's.
    pub(super) const fn free() -> Self {
        Description {
            holders: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            state: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            offset: AtomicU64::new(0),
            lock: AtomicU64::new(0),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            written: AtomicU64::new(0),
            size_or_end: AtomicU64::new(0),
        }
    }

    /// It is a file's that has just been opened, and a candidate. Its lock is not touched: a thread that was in a call on what it was before
    /// may have it for a moment.
    pub(super) fn begin_life(&self, flags: u32, look: &Look) {
        self.flags.store(flags, Relaxed);
        self.offset.store(0, Relaxed);
        self.seen.store(0, Relaxed);
        self.written.store(0, Relaxed);
        self.device.store(look.device, Relaxed);
        self.inode.store(look.inode, Relaxed);
        self.size_or_end.store(look.size, Relaxed);
        self.set_state(State::Kernels);
    }

    /// Whose offset is the truth.
    #[inline(always)]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Kernels,
            1 => State::Ours,
            _ => State::Left,
        }
    }

    /// Changes it; the caller has the lock, or the description to itself.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    /// Sets or clears a flag.
    pub fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.flags.fetch_or(flag, Relaxed);
        } else {
            self.flags.fetch_and(!flag, Relaxed);
        }
    }

    /// Notes a write of a candidate. Returns all so far, this one included. Threads that write at once may lose a count: the file is managed a
    /// little later then.
    pub fn note_write(&self, len: usize) -> Written {
        let mut written = Written::unpack(self.written.load(Relaxed));
        written.calls += 1;
        written.bytes += (len as u64).min(1 << Written::BYTES);
        self.written.store(written.pack(), Relaxed);
        written
    }

    /// Notes how long the kernel took for a call on a candidate.
    pub fn note_spent(&self, nanoseconds: u64) {
        let mut written = Written::unpack(self.written.load(Relaxed));
        written.spent_ns += nanoseconds + Written::UNIT_NS / 2;
        self.written.store(written.pack(), Relaxed);
    }

    /// What [`Description::note_spent`] has noted so far.
    pub fn spent_ns(&self) -> u64 {
        Written::unpack(self.written.load(Relaxed)).spent_ns
    }

    /// What [`Description::note_write`] has noted so far. It begins anew.
    pub fn take_written(&self) -> Written {
        Written::unpack(self.written.swap(0, Relaxed))
    }

    /// A candidate's size when it was opened.
    pub fn size_at_open(&self) -> u64 {
        self.size_or_end.load(Relaxed)
    }

    /// Whether the file may have been empty when it was opened. [`Description::take_written`] has nothing of a managed one that was not.
    pub fn may_be_new(&self) -> bool {
        self.state() != State::Kernels || self.size_at_open() == 0
    }

    /// The offset is ours from now on, and is `at`. The caller has the lock.
    pub fn become_ours(&self, at: u64) {
        if self.size_or_end.swap(0, Relaxed) != 0 {
            // It says nothing of new files (`habit`).
            self.take_written();
        }
        self.offset.store(at, Relaxed);
        self.set_state(State::Ours);
    }

    /// The offset, for the holder of the lock. Where a holder was killed in the middle of a write, it is behind what is there of that
    /// write, as the kernel has it: otherwise the next write would lie over a part of the record, and leave its rest behind it. `size` is the
    /// file's size, and asked for only then.
    #[inline(always)]
    pub fn begin<E>(&self, size: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        let (at, end) = (self.offset.load(Relaxed), self.size_or_end.load(Relaxed));
        if end <= at {
            return Ok(at);
        }
        let at = end.min(size()?).max(at);
        self.move_to(at);
        Ok(at)
    }

    /// The holder of the lock begins a write from the offset up to `end`.
    #[inline(always)]
    pub fn write_to(&self, end: u64) {
        self.size_or_end.store(end, Relaxed);
        // Only a kill of this very thread comes between the two: no other processor has to see it in order.
        compiler_fence(Ordering::SeqCst);
    }

    /// The holder of the lock is done with the write, if it was at one, and sets the offset.
    #[inline(always)]
    pub fn move_to(&self, at: u64) {
        compiler_fence(Ordering::SeqCst);
        if self.size_or_end.load(Relaxed) > at {
            // Backwards, or short of what was to be written.
            self.size_or_end.store(0, Relaxed);
            compiler_fence(Ordering::SeqCst);
        }
        self.offset.store(at, Relaxed);
    }

    /// Notes a sync of a candidate.
    pub fn note_sync(&self) {
        if !self.is_synced_again() {
            self.flags.fetch_add(SYNC, Relaxed);
        }
    }

    /// Whether its file's times may be made final before its close once more.
    pub fn may_finish_times(&self) -> bool {
        self.flags.load(Relaxed) % SYNC / FINISHED < FINISHED_MAX
    }

    /// Notes that they are.
    pub fn note_finished_times(&self) {
        // Threads that ask at once may each count one too many: the bits above are nobody's.
        self.flags.fetch_add(FINISHED, Relaxed);
    }

    /// Whether the candidate has been synced again and again.
    pub fn is_synced_again(&self) -> bool {
        self.flags.load(Relaxed) / SYNC >= LARGE_SYNCS
    }

    /// Holds the offset until the result is dropped.
    #[inline(always)]
    pub fn lock(&self) -> OffsetLock<'_> {
        let inside = Inside::enter();
        let me = who();
        if self
            .lock
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.lock_patiently(me);
        }
        OffsetLock(self, inside)
    }

    /// Whether somebody has the offset. A thread may have it that was in a call as the descriptor was closed: it moves the offset once more. Where
    /// its holder is gone, nobody has it from here on.
    pub(super) fn is_locked(&self) -> bool {
        let holder = self.lock.load(Ordering::Acquire);
        let ended = || {
            let freed =
                (self.lock).compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed);
            freed.is_ok()
        };
        holder != 0 && !(is_gone(holder) && ended())
    }

    /// Takes the offset from any thread of this process's.
    pub(super) fn unlock_for_this_process(&self) {
        let holder = self.lock.load(Relaxed);
        if holder >> 32 == who() >> 32 {
            let _ = self
                .lock
                .compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Takes the offset from its holder: in memory of a forked child's own that is a thread of its parent's.
    pub(super) fn unlock_in_child(&self) {
        if self.lock.load(Relaxed) != 0 {
            self.lock.store(0, Relaxed);
        }
    }

    #[cold]
    fn lock_patiently(&self, me: u64) {
        let mut round = 0u32;
        loop {
            let holder = self.lock.load(Relaxed);
            let free =
                holder == 0 || (round > SPINS && round.is_multiple_of(64) && is_gone(holder));
            if free
                && self
                    .lock
                    .compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            round += 1;
            if round > 100 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// The right to a description's offset. Its holder is inside: no handler of its own waits for it.
pub struct OffsetLock<'a>(&'a Description, #[allow(dead_code)] Inside);

impl Drop for OffsetLock<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.lock.store(0, Ordering::Release);
    }
}
