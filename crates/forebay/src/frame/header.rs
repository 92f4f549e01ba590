//! A scrap page's header: what it holds, what of it is true, and who may change it.
//!
//! Source: WSBuffer 3.2 (scrap pages) and 3.5 (one lock a scrap page, no lock over the index). Ours differs in that
//! validity is kept a page at a time (three maps and one word a page) instead of a list of segments, so that every
//! change is one store and a death between any two leaves a correct state; and in that one header serves a whole
//! frame or up to 64 small frames.
//!
//! Life cycle: `docs/states.md`. A [`Guard`] is the header lock; dropping it publishes and unlocks. Reading without
//! the lock: [`Header::peek`].

mod guard;
mod look;
mod usage;

pub use guard::{Guard, assert_header};

pub use look::Look;
pub use usage::Usage;

use crate::frame::page::{PageWord, Ragged};
use crate::ids::{BlockIndex, FileId, FrameId, HeaderId, SmallId, ThreadId};
use crate::limits::{BLOCK_BYTES, BLOCK_PAGES, PAGE_BYTES};
use crate::memory::arena::Arena;
use crate::memory::pins;
use crate::memory::threads::{Me, is_gone};
use crate::sync::{AtomicU32, AtomicU64, Ordering, SPINS, fence, patience, relax};

/// A header, nine cache lines; all that a read or write of whole pages touches is in the first.
#[repr(C, align(64))]
pub struct Header {
    /// Version in the upper 48 bits, holder in the lower 16.
    lock: AtomicU64,
    /// File + 1 in the upper half, block in the lower; 0 is none.
    identity: AtomicU64,
    /// Pages all of whose bytes are in memory.
    valid: AtomicU64,
    /// Pages with bytes that the device does not have.
    dirty: AtomicU64,
    /// Pages that a device write under way covers.
    inflight: AtomicU64,
    state: AtomicU32,
    /// Frame + 1, or 0.
    frame: AtomicU32,
    /// Counts the times bytes left other than by being written over.
    epoch: AtomicU32,
    /// See [`Usage`].
    stamp: AtomicU32,
    /// Thread whose write is in flight, or 0.
    flusher: AtomicU32,
    /// Pages counted as owed in the file and the session, derived, in the lowest [`CHARGE_BITS`] bits; above, the tick since
    /// which the oldest of them is dirty.
    charged: AtomicU32,
    /// See [`PageWord`].
    pages: [AtomicU64; BLOCK_PAGES],
}

const _: () = assert!(size_of::<Header>() == 576);
/// Bits of a number up to 64. The tick has the others: about four hours and a half until it comes round.
const CHARGE_BITS: u32 = 8;
/// The greatest age that is told apart: half of what the tick can say.
pub const AGE_MAX: u32 = u32::MAX >> (CHARGE_BITS + 1);
/// Whose flights are that a repair found and could not wait for.
pub const NOBODYS: ThreadId = ThreadId(u32::MAX);
const CHARGE_MASK: u32 = (1 << CHARGE_BITS) - 1;
const HOLDER_BITS: u32 = 16;
const HOLDER_MASK: u64 = (1 << HOLDER_BITS) - 1;

/// What a header's state word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody's.
    Free,
    /// In a thread's hands, not reachable.
    Held(ThreadId),
    /// Describes its block.
    Linked,
    /// As linked, while this thread writes the block on the device.
    Superseded(ThreadId),
    /// On its way to free.
    Doomed,
}

impl State {
    const fn pack(self) -> u32 {
        match self {
            State::Free => 0,
            State::Held(thread) => 1 | (thread.0 << 3),
            State::Linked => 2,
            State::Superseded(thread) => 3 | (thread.0 << 3),
            State::Doomed => 4,
        }
    }

    const fn unpack(word: u32) -> Self {
        match word & 7 {
            0 => State::Free,
            1 => State::Held(ThreadId(word >> 3)),
            2 => State::Linked,
            3 => State::Superseded(ThreadId(word >> 3)),
            _ => State::Doomed,
        }
    }
}

/// File and block that a header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The file.
    pub file: FileId,
    /// The block.
    pub block: BlockIndex,
}

impl Identity {
    const fn pack(self) -> u64 {
        ((self.file.0 as u64 + 1) << 32) | self.block.0 as u64
    }

    fn unpack(word: u64) -> Option<Self> {
        let file = (word >> 32).checked_sub(1)?;
        Some(Identity {
            file: FileId(file as u32),
            block: BlockIndex(word as u32),
        })
    }
}

/// Where the lock-free reader stands: the version it saw.
#[derive(Clone, Copy)]
pub struct Peek {
    version: u64,
    /// Pages all of whose bytes were in memory.
    pub valid: u64,
    /// The frame, if the block is in one.
    pub frame: Option<FrameId>,
}

impl Header {
    /// Where the frame's word lies, for tests that damage it.
    #[cfg(all(test, feature = "sim"))]
    pub(crate) const FRAME_OFFSET: usize = std::mem::offset_of!(Header, frame);

    /// Looks at a header without locking it. `None`: locked, or it describes something else.
    #[inline]
    pub fn peek(&self, identity: Identity) -> Option<Peek> {
        let version = self.lock.load(Ordering::Acquire);
        if version & HOLDER_MASK != 0 || self.identity.load(Ordering::Acquire) != identity.pack() {
            return None;
        }
        let valid = self.valid.load(Ordering::Relaxed);
        let frame = self
            .frame
            .load(Ordering::Relaxed)
            .checked_sub(1)
            .map(FrameId);
        Some(Peek {
            version,
            valid,
            frame,
        })
    }

    /// The small frame of a page, for a reader that has peeked and will ask [`Header::unchanged`].
    #[inline]
    pub fn peek_small(&self, page: usize) -> Option<SmallId> {
        PageWord(self.pages[page % BLOCK_PAGES].load(Ordering::Relaxed)).small()
    }

    /// Whether nobody has held the lock since the peek: what was copied meanwhile is good.
    #[inline]
    pub fn unchanged(&self, peek: &Peek) -> bool {
        // Orders the copy before the load; pairs with the acquire of the lock's compare-and-swap, whose
        // holder changes bytes only afterwards, and with the release of the unlock.
        fence(Ordering::Acquire);
        self.lock.load(Ordering::Relaxed) == peek.version
    }

    /// Tries to lock. `None`: somebody holds it.
    #[inline]
    pub fn try_lock<'a>(&'a self, me: Me<'a>, id: HeaderId) -> Option<Guard<'a>> {
        let seen = self.lock.load(Ordering::Relaxed);
        if seen & HOLDER_MASK != 0 {
            return None;
        }
        let mine = seen | u64::from(me.id.0);
        self.lock
            .compare_exchange(seen, mine, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // A store-store fence for the lock-free reader: it must see the lock before any changed byte.
        fence(Ordering::Release);
        Some(Guard {
            header: self,
            me,
            id,
            version: seen,
        })
    }

    /// Locks, waiting for a moment. `None`: held for longer than a moment, or by a thread that is gone; leave the operation, ask whether
    /// the holder lives, come back.
    #[inline]
    pub fn lock<'a>(&'a self, me: Me<'a>, id: HeaderId) -> Option<Guard<'a>> {
        for round in 0..patience(300) {
            if let Some(guard) = self.try_lock(me, id) {
                return Some(guard);
            }
            // Before the core is given away: on a busy machine each time takes milliseconds.
            if round % SPINS == SPINS - 1 && self.holder().is_some_and(|by| is_gone(me.arena, by)) {
                return None;
            }
            relax(round.min(255));
        }
        None
    }

    /// Opens the lock of a holder that is gone. Only while the session is stopped.
    pub(crate) fn force_unlock(&self) {
        let seen = self.lock.load(Ordering::Relaxed);
        if seen & HOLDER_MASK != 0 {
            let version = (seen >> HOLDER_BITS).wrapping_add(1) << HOLDER_BITS;
            self.lock.store(version, Ordering::Release);
        }
    }

    /// The holder of the lock.
    pub fn holder(&self) -> Option<ThreadId> {
        let holder = (self.lock.load(Ordering::Acquire) & HOLDER_MASK) as u32;
        (holder != 0).then_some(ThreadId(holder))
    }

    /// Whether the lock is held, for as long as two looks take, by a thread that `cannot` hold it.
    pub fn is_held_by_nobody(&self, cannot: impl Fn(ThreadId) -> bool) -> bool {
        let seen = self.lock.load(Ordering::Acquire);
        let holder = (seen & HOLDER_MASK) as u32;
        // A later hold has another version.
        holder != 0 && cannot(ThreadId(holder)) && self.lock.load(Ordering::Acquire) == seen
    }

    /// The state word.
    #[inline]
    pub fn state(&self) -> State {
        State::unpack(self.state.load(Ordering::Acquire))
    }

    /// File and block, as they are at this moment.
    #[inline]
    pub fn identity(&self) -> Option<Identity> {
        Identity::unpack(self.identity.load(Ordering::Acquire))
    }

    /// Pages owed, as they are at this moment.
    pub fn owed(&self) -> u64 {
        self.dirty.load(Ordering::Acquire) | self.inflight.load(Ordering::Acquire)
    }

    /// Pages in flight, as they are at this moment.
    pub fn inflight(&self) -> u64 {
        self.inflight.load(Ordering::Acquire)
    }

    /// Whose write is in flight, as it is at this moment.
    pub fn flusher(&self) -> ThreadId {
        ThreadId(self.flusher.load(Ordering::Acquire))
    }

    /// Pages charged. Derived.
    pub fn charged(&self) -> u32 {
        self.charged.load(Ordering::Relaxed) & CHARGE_MASK
    }

    /// Ticks for which something has been dirty, or has been tried in vain; at most [`AGE_MAX`]. None have passed if that began after
    /// somebody looked at `tick`.
    pub fn dirty_ticks(&self, tick: u32) -> u32 {
        let since = self.charged.load(Ordering::Relaxed) >> CHARGE_BITS;
        usage::between(since, tick, u32::MAX >> CHARGE_BITS).min(AGE_MAX)
    }

    /// Whether every byte of the block is in memory, as it is at this moment.
    pub fn is_whole(&self) -> bool {
        self.valid.load(Ordering::Relaxed) == u64::MAX
    }

    /// Whether the bytes lie in a frame, as it is at this moment.
    pub fn has_frame(&self) -> bool {
        self.frame.load(Ordering::Relaxed) != 0
    }

    /// Whether views hold its frame, as it is at this moment.
    pub fn is_pinned(&self, arena: &Arena) -> bool {
        let frame = self.frame.load(Ordering::Relaxed).checked_sub(1);
        frame.is_some_and(|frame| pins::is_pinned(arena, FrameId(frame)))
    }

    /// Memory behind the header and the header itself, bytes, as it is at this moment.
    pub fn memory_bytes(&self) -> u64 {
        let own = size_of::<Header>() as u64;
        if self.has_frame() {
            return own + BLOCK_BYTES as u64;
        }
        let small = |page: &AtomicU64| {
            let word = PageWord(page.load(Ordering::Relaxed));
            let map = matches!(word.ragged(), Ragged::Map(_));
            (u64::from(word.small().is_some()) + u64::from(map)) * PAGE_BYTES as u64
        };
        own + self.pages.iter().map(small).sum::<u64>()
    }

    /// Makes a free header mine. One compare-and-swap of the state word decides.
    pub fn claim(&self, by: ThreadId) -> bool {
        let (free, held) = (State::Free.pack(), State::Held(by).pack());
        self.state
            .compare_exchange(free, held, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Prepares a held header for its block. It is not reachable yet.
    pub fn prepare(&self, identity: Identity) {
        self.forget_usage();
        // Pairs with `peek`, by a thread that remembers the header from a time before it was free: that it is for this block again
        // goes with what happened to it in between, the version above all.
        self.identity.store(identity.pack(), Ordering::Release);
    }

    /// The last step of linking, after the slot has been won.
    pub fn set_linked(&self) {
        self.state.store(State::Linked.pack(), Ordering::Release);
    }

    /// Gives a held header back that lost the race for its slot.
    pub fn unclaim(&self) {
        self.identity.store(0, Ordering::Relaxed);
        self.state.store(State::Free.pack(), Ordering::Release);
    }

    /// One line for people and for failing tests.
    pub fn describe(&self) -> String {
        let identity = match self.identity() {
            Some(i) => format!("file {} block {}", i.file.0, i.block.0),
            None => "nothing".into(),
        };
        format!(
            "{:?} {identity} frame {:?} valid {:016x} dirty {:016x} inflight {:016x} by {} epoch {} charged {} lock {:?}",
            self.state(),
            self.frame.load(Ordering::Relaxed).checked_sub(1),
            self.valid.load(Ordering::Relaxed),
            self.dirty.load(Ordering::Relaxed),
            self.inflight.load(Ordering::Relaxed),
            self.flusher.load(Ordering::Relaxed),
            self.epoch.load(Ordering::Relaxed),
            self.charged(),
            self.holder(),
        )
    }
}

const _: () = assert!(BLOCK_BYTES / PAGE_BYTES == BLOCK_PAGES);
