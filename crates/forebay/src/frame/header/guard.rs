//! The header lock: everything that changes a header goes through it.
//!
//! A [`Guard`] is the right to change; its methods are the single stores of `docs/states.md`, each with the ordering that
//! its reader needs. Dropping it makes the next version and unlocks. [`assert_header`] is the page of states in code.

use super::{CHARGE_BITS, CHARGE_MASK, HOLDER_BITS, Header, Identity, NOBODYS, State, Usage};
use crate::frame::page::{PageWord, Ragged};
use crate::ids::{FrameId, HeaderId, ThreadId};
use crate::limits::{BLOCK_PAGES, PAGE_BYTES};
use crate::memory::arena::Arena;
use crate::memory::regions::Stock;
use crate::memory::threads::Me;
use crate::stats::Counter;
use crate::sync::{Ordering, fence, planted};

/// The header lock. Everything that changes a header goes through it.
pub struct Guard<'a> {
    pub(super) header: &'a Header,
    /// Its holder.
    pub me: Me<'a>,
    /// Which header.
    pub id: HeaderId,
    pub(super) version: u64,
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

    /// The stock of the file whose block it describes.
    pub fn stock(&self) -> Option<&'a Stock> {
        let file = self.identity()?.file;
        Some(&self.me.arena.file(file)?.stock)
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
        self.begin_age();
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
        self.header.flusher.store(NOBODYS.0, Ordering::Release);
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
        self.header.charged.load(Ordering::Relaxed) & CHARGE_MASK
    }

    /// Stores the charge; the first page that is owed begins to age.
    #[inline]
    pub fn set_charged(&self, pages: u32) {
        let word = self.header.charged.load(Ordering::Relaxed);
        let since = match word & CHARGE_MASK {
            0 => self.tick() << CHARGE_BITS,
            _ => word & !CHARGE_MASK,
        };
        self.header.charged.store(since | pages, Ordering::Relaxed);
    }

    /// What is dirty from now on is young: the rest is on its way to the device.
    fn begin_age(&self) {
        let (since, pages) = (self.tick() << CHARGE_BITS, self.charged());
        self.header.charged.store(since | pages, Ordering::Relaxed);
    }

    #[inline]
    fn tick(&self) -> u32 {
        let tick = &self.arena().superblock().tick;
        tick.load(Ordering::Relaxed)
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
        if self.header.touch(self.tick()) {
            self.header.count_ahead(self.me, Counter::AheadUsedBytes);
        }
    }

    /// Somebody is about to bring bytes: the header is not to be evicted for its having none.
    pub fn await_bytes(&self) {
        self.header.await_bytes(self.tick());
    }

    /// Notes that the block has been read ahead; where it has been used, that stands.
    pub fn set_ahead(&self) {
        if self.header.usage() == Usage::Fresh {
            self.header.set_ahead(self.tick());
        }
    }

    /// Before the header is freed: what was read ahead and never used is told.
    pub fn count_unused(&self) {
        if self.header.usage() == Usage::Ahead {
            self.header.count_ahead(self.me, Counter::AheadWastedBytes);
        }
    }

    /// How the block has been used.
    pub fn usage(&self) -> Usage {
        self.header.usage()
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
        #[cfg(feature = "sim")]
        let is_sound = !crate::sim::expects_damage();
        #[cfg(not(feature = "sim"))]
        let is_sound = true;
        if cfg!(debug_assertions) && is_sound {
            assert_header(self);
        }
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
