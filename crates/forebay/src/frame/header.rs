//! A scrap page's header: what it holds, what of it is true, and who may change it.
//!
//! Source: WSBuffer 3.2 (scrap pages) and 3.5 (one lock a scrap page, no lock over the index). Ours differs in that
//! validity is kept a page at a time (three maps and one word a page) instead of a list of segments, so that every
//! change is one store and a death between any two leaves a correct state; and in that one header serves a whole
//! frame or up to 64 small frames.
//!
//! Life cycle: `docs/states.md`. A [`Guard`] is the header lock; dropping it publishes and unlocks. Reading without
//! the lock: [`Header::peek`].

mod look;

pub use look::Look;

use crate::frame::page::{PageWord, Ragged};
use crate::ids::{BlockIndex, FileId, FrameId, HeaderId, SmallId, ThreadId};
use crate::limits::{BLOCK_BYTES, BLOCK_PAGES, PAGE_BYTES};
use crate::memory::arena::Arena;
use crate::memory::threads::Me;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, patience, planted, relax};

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
    /// Session tick of the last use.
    stamp: AtomicU32,
    /// Thread whose write is in flight, or 0.
    flusher: AtomicU32,
    /// Pages counted as owed in the file and the session. Derived.
    charged: AtomicU32,
    /// See [`PageWord`].
    pages: [AtomicU64; BLOCK_PAGES],
}

const _: () = assert!(size_of::<Header>() == 576);
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
    /// Looks at a header without locking it. `None`: locked, or it describes something else.
    #[inline]
    pub fn peek(&self, identity: Identity) -> Option<Peek> {
        let version = self.lock.load(Ordering::Acquire);
        if version & HOLDER_MASK != 0 || self.identity.load(Ordering::Relaxed) != identity.pack() {
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

    /// Notes a use, for eviction. Writes only when the tick has changed.
    #[inline]
    pub fn touch(&self, tick: u32) {
        if self.stamp.load(Ordering::Relaxed) != tick {
            self.stamp.store(tick, Ordering::Relaxed);
        }
    }

    /// Session tick of the last use.
    pub fn stamp(&self) -> u32 {
        self.stamp.load(Ordering::Relaxed)
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

    /// Locks, waiting for a moment. `None`: held for longer than a moment; leave the operation, ask whether
    /// the holder lives, come back.
    #[inline]
    pub fn lock<'a>(&'a self, me: Me<'a>, id: HeaderId) -> Option<Guard<'a>> {
        for round in 0..patience(300) {
            if let Some(guard) = self.try_lock(me, id) {
                return Some(guard);
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

    /// Who holds the lock.
    pub fn holder(&self) -> Option<ThreadId> {
        let holder = (self.lock.load(Ordering::Acquire) & HOLDER_MASK) as u32;
        (holder != 0).then_some(ThreadId(holder))
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
        self.charged.load(Ordering::Relaxed)
    }

    /// Memory behind the header and the header itself, bytes, as it is at this moment.
    pub fn memory_bytes(&self) -> u64 {
        let own = size_of::<Header>() as u64;
        if self.frame.load(Ordering::Relaxed) != 0 {
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
        self.identity.store(identity.pack(), Ordering::Relaxed);
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

/// The header lock. Everything that changes a header goes through it.
pub struct Guard<'a> {
    header: &'a Header,
    /// Who holds it.
    pub me: Me<'a>,
    /// Which header.
    pub id: HeaderId,
    version: u64,
}

impl<'a> Guard<'a> {
    /// The arena.
    #[inline]
    pub fn arena(&self) -> &'a Arena {
        self.me.arena
    }

    /// Whether the header is reachable and describes this block, superseded or not.
    #[inline]
    pub fn is_for(&self, identity: Identity) -> bool {
        self.header.identity.load(Ordering::Relaxed) == identity.pack()
            && matches!(self.state(), State::Linked | State::Superseded(_))
    }

    /// What it describes.
    pub fn identity(&self) -> Option<Identity> {
        self.header.identity()
    }

    /// The state word.
    #[inline]
    pub fn state(&self) -> State {
        State::unpack(self.header.state.load(Ordering::Relaxed))
    }

    /// Changes the state word.
    pub fn set_state(&self, state: State) {
        self.header.state.store(state.pack(), Ordering::Release);
    }

    /// Pages all of whose bytes are in memory.
    #[inline]
    pub fn valid(&self) -> u64 {
        self.header.valid.load(Ordering::Relaxed)
    }

    /// Pages with bytes that the device lacks.
    #[inline]
    pub fn dirty(&self) -> u64 {
        self.header.dirty.load(Ordering::Relaxed)
    }

    /// Pages in flight.
    #[inline]
    pub fn inflight(&self) -> u64 {
        self.header.inflight.load(Ordering::Relaxed)
    }

    /// Whose write is in flight.
    pub fn flusher(&self) -> ThreadId {
        ThreadId(self.header.flusher.load(Ordering::Relaxed))
    }

    /// The epoch.
    pub fn epoch(&self) -> u32 {
        self.header.epoch.load(Ordering::Relaxed)
    }

    /// Counts that bytes have left.
    pub fn next_epoch(&self) {
        self.header
            .epoch
            .store(self.epoch().wrapping_add(1), Ordering::Relaxed);
    }

    /// Stores the map of valid pages: after the bytes.
    #[inline]
    pub fn set_valid(&self, pages: u64) {
        self.header.valid.store(pages, Ordering::Release);
    }

    /// Stores the map of dirty pages: before the bytes.
    #[inline]
    pub fn set_dirty(&self, pages: u64) {
        self.header.dirty.store(pages, Ordering::Release);
        // The bytes that follow must not be seen, by a repair after this thread's death, before the mark.
        fence(Ordering::Release);
    }

    /// Moves pages from dirty to in flight.
    pub fn begin_flight(&self, pages: u64) {
        self.header.flusher.store(self.me.id.0, Ordering::Relaxed);
        self.header
            .inflight
            .store(self.inflight() | pages, Ordering::Release);
        self.header
            .dirty
            .store(self.dirty() & !pages, Ordering::Release);
    }

    /// Ends the flight of pages: clean, or dirty again.
    pub fn end_flight(&self, pages: u64, written: bool) {
        if !written {
            self.header
                .dirty
                .store(self.dirty() | pages, Ordering::Release);
        } else if planted!(LateClean) {
            self.header
                .dirty
                .store(self.dirty() & !pages, Ordering::Release);
        }
        let left = self.inflight() & !pages;
        self.header.inflight.store(left, Ordering::Release);
        if left == 0 {
            self.header.flusher.store(0, Ordering::Relaxed);
        }
    }

    /// Flights of the dead that nobody could wait for yet: they belong to no thread that will ever be.
    pub(crate) fn orphan_flights(&self) {
        self.header.flusher.store(u32::MAX, Ordering::Release);
    }

    /// Forgets flights that are nobody's: for repairs.
    pub(crate) fn forget_flights(&self) {
        self.header.inflight.store(0, Ordering::Release);
        self.header.flusher.store(0, Ordering::Relaxed);
    }

    /// The frame.
    #[inline]
    pub fn frame(&self) -> Option<FrameId> {
        self.header
            .frame
            .load(Ordering::Relaxed)
            .checked_sub(1)
            .map(FrameId)
    }

    /// Stores the frame.
    pub fn set_frame(&self, frame: Option<FrameId>) {
        self.header
            .frame
            .store(frame.map_or(0, |f| f.0 + 1), Ordering::Release);
    }

    /// A page's word.
    #[inline]
    pub fn page(&self, page: usize) -> PageWord {
        PageWord(self.header.pages[page % BLOCK_PAGES].load(Ordering::Relaxed))
    }

    /// Asks for the cache line of a page's word ahead of its use.
    #[inline]
    pub fn fetch_page(&self, page: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let word = self.header.pages[page % BLOCK_PAGES].as_ptr();
            // SAFETY: a prefetch changes nothing and cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(word.cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = page;
    }

    /// Stores a page's word: one store says where its bytes are and which of them are there.
    #[inline]
    pub fn set_page(&self, page: usize, word: PageWord) {
        self.header.pages[page % BLOCK_PAGES].store(word.0, Ordering::Release);
    }

    /// Address of a page's bytes, if it has memory.
    #[inline]
    pub fn page_bytes(&self, page: usize) -> Option<*mut u8> {
        match self.frame() {
            // SAFETY: a page's offset lies within the frame.
            Some(frame) => self
                .arena()
                .frame_bytes(frame)
                .map(|b| unsafe { b.add(page * PAGE_BYTES) }),
            None => self.arena().small_bytes(self.page(page).small()?),
        }
    }

    /// Pages with bytes in memory that are not whole.
    pub fn ragged(&self) -> u64 {
        let mut rest = self.dirty() & !self.valid();
        let mut ragged = 0;
        while rest != 0 {
            let page = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            if self.page(page).ragged() != Ragged::None {
                ragged |= 1 << page;
            }
        }
        ragged
    }

    /// Pages that have a small frame.
    pub fn small_pages(&self) -> u64 {
        #[cfg(feature = "sim")]
        let _quiet = crate::sim::explore::quiet();
        let has = |page: &usize| self.page(*page).small().is_some();
        (0..BLOCK_PAGES)
            .filter(has)
            .fold(0, |mask, page| mask | 1 << page)
    }

    /// Pages charged.
    #[inline]
    pub fn charged(&self) -> u32 {
        self.header.charged.load(Ordering::Relaxed)
    }

    /// Stores the charge.
    #[inline]
    pub fn set_charged(&self, pages: u32) {
        self.header.charged.store(pages, Ordering::Relaxed);
    }

    /// What the charge should be: a frame counts whole, small frames by the page.
    #[inline]
    pub fn charge_due(&self) -> u32 {
        let owed = self.dirty() | self.inflight();
        match owed {
            0 => 0,
            _ if self.frame().is_some() => BLOCK_PAGES as u32,
            _ => owed.count_ones(),
        }
    }

    /// Notes a use.
    #[inline]
    pub fn touch(&self) {
        self.header
            .touch(self.arena().superblock().tick.load(Ordering::Relaxed));
    }

    /// Makes the header describe nothing. Its memory has been taken away and its slot cleared.
    pub fn clear_identity(&self) {
        self.header.identity.store(0, Ordering::Release);
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        #[cfg(debug_assertions)]
        assert_header(self);
        if planted!(SameVersion) {
            return self.header.lock.store(self.version, Ordering::Release);
        }
        let next = (self.version >> HOLDER_BITS).wrapping_add(1) << HOLDER_BITS;
        self.header.lock.store(next, Ordering::Release);
    }
}

/// What is true of every header whenever nobody holds it; `docs/states.md` in code.
pub fn assert_header(guard: &Guard<'_>) {
    #[cfg(feature = "sim")]
    let _quiet = crate::sim::explore::quiet();
    let describe = || guard.header.describe();
    let owed = guard.dirty() | guard.inflight();
    match guard.state() {
        State::Free => {
            // Somebody may claim and prepare it meanwhile, without the lock.
            let nothing = guard.identity().is_none() || guard.state() != State::Free;
            assert!(nothing, "free but describes a block: {}", describe());
            assert!(
                guard.valid() | owed == 0,
                "free but holds bytes: {}",
                describe()
            );
            assert!(
                guard.frame().is_none(),
                "free but has a frame: {}",
                describe()
            );
        }
        State::Doomed => assert!(
            guard.valid() | owed == 0,
            "doomed but holds bytes: {}",
            describe()
        ),
        State::Held(_) => assert!(
            guard.valid() | owed == 0,
            "held but holds bytes: {}",
            describe()
        ),
        State::Linked | State::Superseded(_) => {
            assert!(
                guard.identity().is_some(),
                "linked to nothing: {}",
                describe()
            );
            if guard.inflight() != 0 {
                assert!(
                    guard.flusher() != ThreadId::NOBODY,
                    "in flight by nobody: {}",
                    describe()
                );
            }
            if guard.frame().is_none() {
                let homeless = (guard.valid() | guard.ragged()) & !guard.small_pages();
                assert!(
                    homeless == 0,
                    "bytes without memory {homeless:016x}: {}",
                    describe()
                );
            }
        }
    }
    assert_eq!(
        guard.charged(),
        guard.charge_due(),
        "charge is off: {}",
        describe()
    );
}

const _: () = assert!(BLOCK_BYTES / PAGE_BYTES == BLOCK_PAGES);
