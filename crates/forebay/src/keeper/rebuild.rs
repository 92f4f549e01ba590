//! Making everything that is derived anew from linked headers and the file table (arena rule 8).
//!
//! One function, used after a death, by `recover`, and by the arena checker. It runs with the session stopped: nobody is
//! active, the living are idle or parked and keep what they own (held memory, superseded headers, flights). The dead
//! are given as a set that was taken after the stop, so that nobody dies in between unnoticed.
//!
//! Nothing read from the arena is trusted: indices are checked, a frame claimed twice stays with the first header,
//! and what is set right is counted as a corruption.

mod owners;
mod pins;
mod streams;
mod words;

use std::collections::{HashMap, HashSet};

use crate::flush::busy;
use crate::frame::header::{Guard, Header, State};
use crate::frame::slots;
use crate::ids::{BlockIndex, FileId, FrameId, HeaderId, SmallId, ThreadId};
use crate::limits::{BLOCK_PAGES, FILE_BYTES_MAX, PAGE_BYTES};
use crate::memory::arena::Arena;
use crate::memory::files::{ENTERING, FileEntry, GONE, LIVE};
use crate::memory::threads::Me;
use crate::scrap::absorb::pages_of;
use crate::scrap::page::{PageWord, Ragged};
use crate::scrap::split::mask;
use crate::sync::{Ordering, planted};

/// What a rebuild found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Findings {
    /// Headers that describe blocks.
    pub linked: u32,
    /// Headers of the dead that were freed.
    pub freed: u32,
    /// Locks of the dead that were opened.
    pub unlocked: u32,
    /// Headers with writes of the dead in flight that are owed again.
    pub reowed: u32,
    /// Headers whose flights nobody here can wait for, since the file is not open in this process.
    pub orphaned: u32,
    /// Frames free afterwards.
    pub frames_free: u32,
    /// Words that were wrong in a way no death explains.
    pub corruptions: u32,
}

/// The dead threads, and which files' devices have been asked to finish what the dead had under way.
pub struct Dead<'d> {
    /// Threads that are gone.
    pub threads: &'d dyn Fn(ThreadId) -> bool,
    /// Files whose devices have nothing of the dead under way.
    pub landed: &'d dyn Fn(FileId) -> bool,
}

struct Rebuild<'a, 'd> {
    me: Me<'a>,
    dead: &'d Dead<'d>,
    frames: HashSet<FrameId>,
    smalls: HashSet<SmallId>,
    /// Frames that claimed small frames are parts of.
    carved: HashSet<FrameId>,
    /// Frames free, by region.
    free: Vec<u32>,
    findings: Findings,
}

/// Rebuilds. The session is stopped by `me`.
pub fn rebuild(me: Me<'_>, dead: &Dead<'_>) -> Findings {
    #[cfg(feature = "sim")]
    let _sparse = crate::sim::explore::sparse(16);
    let mut work = Rebuild {
        me,
        dead,
        frames: HashSet::new(),
        smalls: HashSet::new(),
        carved: HashSet::new(),
        free: vec![0; me.arena.shares().regions() as usize],
        findings: Findings::default(),
    };
    work.bounds();
    work.prepare_files();
    work.count_pins();
    work.headers();
    work.trees_and_charges();
    work.streams();
    work.owners();
    work.settle_pins();
    work.release_locks();
    let superblock = me.arena.superblock();
    superblock
        .orphans
        .store(work.findings.orphaned, Ordering::Release);
    superblock.rebuilds.fetch_add(1, Ordering::Relaxed);
    superblock
        .corruptions
        .fetch_add(work.findings.corruptions, Ordering::Relaxed);
    work.findings
}

fn is_live(arena: &Arena, file: FileId) -> Option<&FileEntry> {
    arena
        .file(file)
        .filter(|entry| entry.state.load(Ordering::Acquire) == LIVE)
}

impl<'a> Rebuild<'a, '_> {
    fn arena(&self) -> &'a Arena {
        self.me.arena
    }

    fn all_headers(&self) -> impl Iterator<Item = (HeaderId, &'a Header)> + use<'a> {
        let arena = self.me.arena;
        let backed = arena.superblock().headers_backed.load(Ordering::Acquire);
        (0..backed.min(arena.counts().headers))
            .map(HeaderId)
            .filter_map(move |id| Some((id, arena.header(id)?)))
    }

    /// Entries that a dead thread was filling in are dropped; trees are forgotten. What a file owes is not set to zero
    /// meanwhile: a sync looks at it outside of any operation, and would take a file that owes much for a clean one.
    fn prepare_files(&mut self) {
        let (mut live, mut lock_bytes) = (0, 0);
        for id in (0..self.arena().counts().files).map(FileId) {
            let entry = self.arena().file_unchecked(id);
            let state = entry.state.load(Ordering::Acquire);
            let entering = state & 7 == ENTERING;
            if entering && (self.dead.threads)(ThreadId(state >> 3)) || !entering && state > GONE {
                // Not absent: entries that were made when this one was another's are found past it.
                entry.state.store(GONE, Ordering::Release);
                self.findings.corruptions += u32::from(!entering);
            }
            if state == LIVE {
                live += 1;
                let byte = entry.lock_byte.load(Ordering::Acquire);
                lock_bytes = lock_bytes.max(byte.saturating_add(1));
            }
            self.findings.corruptions += entry.mend();
            for word in [
                &entry.size,
                &entry.disk_end,
                &entry.reserved_end,
                &entry.reserve_step,
            ] {
                if word.load(Ordering::Acquire) > FILE_BYTES_MAX {
                    word.store(FILE_BYTES_MAX, Ordering::Release);
                    self.findings.corruptions += 1;
                }
            }
            slots::forget_tree(entry);
            if !planted!(StaleStock) {
                entry.stock.forget();
            }
            entry.asks.forget(|thread| (self.dead.threads)(thread));
        }
        // More are possible: a thread in no operation may be making one.
        let superblock = self.arena().superblock();
        superblock.entries.fetch_max(live, Ordering::SeqCst);
        // No entry gets the byte that another one has.
        superblock
            .lock_bytes
            .fetch_max(lock_bytes, Ordering::AcqRel);
    }

    fn headers(&mut self) {
        for (id, header) in self.all_headers() {
            if header.holder().is_some() {
                header.force_unlock();
                self.findings.unlocked += 1;
            }
            let Some(guard) = header.try_lock(self.me, id) else {
                continue;
            };
            self.one_header(guard);
        }
    }

    fn one_header(&mut self, guard: Guard<'a>) {
        match guard.state() {
            State::Free => self.make_free(&guard),
            State::Held(by) if !(self.dead.threads)(by) => self.held(&guard),
            State::Held(_) | State::Doomed => {
                self.findings.freed += 1;
                self.make_free(&guard);
            }
            State::Linked | State::Superseded(_) => self.linked(&guard),
        }
        guard.set_charged(guard.charge_due());
    }

    fn make_free(&mut self, guard: &Guard<'a>) {
        // Should this repair die too, the next must not take it for a linked header of nothing.
        guard.set_state(State::Doomed);
        guard.set_valid(0);
        guard.set_dirty(0);
        guard.forget_flights();
        guard.set_frame(None);
        for page in 0..BLOCK_PAGES {
            if guard.page(page) != PageWord::EMPTY {
                guard.set_page(page, PageWord::EMPTY);
            }
        }
        guard.set_charged(0);
        guard.next_epoch();
        guard.clear_identity();
        guard.set_state(State::Free);
    }

    fn linked(&mut self, guard: &Guard<'a>) {
        let arena = self.arena();
        let live = guard
            .identity()
            .and_then(|i| Some((i, is_live(arena, i.file)?)));
        let Some((identity, entry)) = live else {
            self.findings.corruptions += 1;
            self.make_free(guard);
            return;
        };
        self.memory_of(guard);
        if planted!(ForgottenDirt) {
            guard.set_dirty(0);
        }
        self.flights_of(guard, identity.file);
        let size = entry.size.load(Ordering::Acquire);
        let end = size
            .saturating_sub(identity.block.start())
            .min(crate::limits::BLOCK_BYTES as u64);
        self.cut(guard, end as usize);
        if let State::Superseded(by) = guard.state()
            && (self.dead.threads)(by)
        {
            let clean = guard.valid() & !guard.dirty() & !guard.inflight();
            guard.set_valid(guard.valid() & !clean);
            guard.next_epoch();
            guard.set_state(State::Linked);
        }
        let owed = guard.dirty() | guard.inflight();
        if guard.state() == State::Linked && guard.valid() | owed == 0 {
            self.forget_memory(guard);
            self.make_free(guard);
            return;
        }
        if guard.state() == State::Linked {
            guard.set_state(State::Linked);
        }
        self.findings.linked += 1;
    }

    /// Claims the header's frame or small frames; what somebody else has claimed, or does not exist, is taken away.
    fn memory_of(&mut self, guard: &Guard<'a>) {
        if let Some(frame) = guard.frame()
            && (self.arena().frame_owner(frame).is_none()
                || self.carved.contains(&frame)
                || !self.frames.insert(frame) && !planted!(TrustFrames))
        {
            self.findings.corruptions += 1;
            guard.set_valid(0);
            guard.set_dirty(0);
            guard.set_frame(None);
        }
        if let Some(frame) = guard.frame() {
            self.end_attaching(frame);
        }
        let in_frame = guard.frame().is_some();
        for page in 0..BLOCK_PAGES {
            let word = guard.page(page);
            if word == PageWord::EMPTY {
                continue;
            }
            if !word.is_wellformed() {
                self.findings.corruptions += 1;
                self.lose_page(guard, page);
                continue;
            }
            match word.small() {
                // Left over from moving into the frame.
                Some(_) if in_frame => guard.set_page(page, word.with_small(None)),
                Some(small) if !self.claim_small(small) => self.lose_page(guard, page),
                _ => {}
            }
            if let Ragged::Map(map) = guard.page(page).ragged()
                && !self.claim_small(map)
            {
                guard.set_page(page, guard.page(page).with_ragged(Ragged::None));
            }
        }
        self.bytes_need_memory(guard);
    }

    /// Valid pages without memory cannot be.
    fn bytes_need_memory(&mut self, guard: &Guard<'a>) {
        // A run that owes nothing cannot be either.
        for page in pages_of(!(guard.dirty() | guard.inflight() | guard.valid())) {
            if guard.page(page).ragged() != Ragged::None {
                self.findings.corruptions += 1;
                self.forget_run(guard, page);
            }
        }
        if guard.frame().is_some() {
            return;
        }
        let small = guard.small_pages();
        for page in pages_of((guard.valid() | guard.ragged()) & !small) {
            self.findings.corruptions += 1;
            self.forget_run(guard, page);
            self.lose_page(guard, page);
        }
        // Announced, and no memory came: nothing is owed.
        guard.set_dirty(guard.dirty() & small);
    }

    fn lose_page(&mut self, guard: &Guard<'a>, page: usize) {
        guard.set_valid(guard.valid() & !(1 << page));
        guard.set_dirty(guard.dirty() & !(1 << page));
        guard.set_page(page, PageWord::EMPTY);
    }

    fn claim_small(&mut self, small: SmallId) -> bool {
        let frame = FrameId(small.0 / BLOCK_PAGES as u32);
        let exists = self.arena().small_owner(small).is_some();
        if exists && !self.frames.contains(&frame) && self.smalls.insert(small) {
            self.carved.insert(frame);
            return true;
        }
        self.findings.corruptions += 1;
        false
    }

    /// Flights of the dead are owed again, once the device has nothing of theirs under way; until then nobody's.
    fn flights_of(&mut self, guard: &Guard<'a>, file: FileId) {
        let flying = guard.inflight();
        if flying == 0 {
            guard.forget_flights();
            return;
        }
        if !(self.dead.threads)(guard.flusher()) {
            return;
        }
        if (self.dead.landed)(file) {
            let forgotten = planted!(ForgetFlights);
            guard.end_flight(flying, forgotten);
            self.findings.reowed += 1;
        } else {
            guard.orphan_flights();
            self.findings.orphaned += 1;
        }
    }

    /// Bytes beyond the file's end were never acknowledged: they go.
    fn cut(&mut self, guard: &Guard<'a>, end: usize) {
        let first_gone = end.div_ceil(PAGE_BYTES) as u32;
        let gone = mask(first_gone..BLOCK_PAGES as u32) & !guard.inflight();
        let present = guard.valid() | guard.dirty();
        if gone & present != 0 {
            guard.set_valid(guard.valid() & !gone);
            for page in pages_of(gone) {
                self.forget_run(guard, page);
            }
            guard.set_dirty(guard.dirty() & !gone);
            guard.next_epoch();
        }
        if !end.is_multiple_of(PAGE_BYTES) {
            let page = end / PAGE_BYTES;
            crate::scrap::absorb::cut_page(guard, page, end % PAGE_BYTES);
        }
        // A run left beside a valid bit is out of date.
        for page in pages_of(guard.valid()) {
            self.forget_run(guard, page);
        }
    }

    /// Takes a page's run away; its map is free again.
    fn forget_run(&mut self, guard: &Guard<'a>, page: usize) {
        let word = guard.page(page);
        if let Ragged::Map(map) = word.ragged() {
            self.smalls.remove(&map);
        }
        if word.ragged() != Ragged::None {
            guard.set_page(page, word.with_ragged(Ragged::None));
        }
    }

    fn forget_memory(&mut self, guard: &Guard<'a>) {
        if let Some(frame) = guard.frame() {
            self.frames.remove(&frame);
        }
        for page in 0..BLOCK_PAGES {
            let word = guard.page(page);
            word.small().map(|small| self.smalls.remove(&small));
            if let Ragged::Map(map) = word.ragged() {
                self.smalls.remove(&map);
            }
        }
    }

    fn trees_and_charges(&mut self) {
        let arena = self.arena();
        slots::free_all_nodes(arena, |thread| (self.dead.threads)(thread));
        arena.header_hints().clear_all();
        let mut owed = HashMap::new();
        for (id, header) in self.all_headers() {
            match (header.state(), header.identity()) {
                (State::Free, _) => arena.header_hints().set(id.0),
                (State::Linked | State::Superseded(_), Some(identity)) => {
                    let charged = self.hang(id, header, identity.file, identity.block);
                    *owed.entry(identity.file).or_insert(0u64) += charged;
                }
                _ => {}
            }
        }
        for id in (0..arena.counts().files).map(FileId) {
            let pages = owed.get(&id).copied().unwrap_or(0);
            arena
                .file_unchecked(id)
                .owed_pages
                .store(pages, Ordering::Release);
        }
        for thread in (0..arena.counts().threads).map(ThreadId) {
            arena
                .thread_unchecked(thread)
                .owed_delta
                .store(0, Ordering::Relaxed);
        }
        arena
            .superblock()
            .owed_pages
            .store(owed.values().sum(), Ordering::Release);
        busy::forget(arena.superblock());
    }

    /// Puts a header into its file's tree. Two for one block cannot be; the second is dropped.
    fn hang(&mut self, id: HeaderId, header: &'a Header, file: FileId, block: BlockIndex) -> u64 {
        let arena = self.arena();
        let entry = arena.file_unchecked(file);
        if slots::install(self.me, entry, block, id).is_err() {
            self.findings.corruptions += 1;
            if let Some(guard) = header.try_lock(self.me, id) {
                self.forget_memory(&guard);
                self.make_free(&guard);
            }
            self.findings.linked -= 1;
            arena.header_hints().set(id.0);
            return 0;
        }
        let charged = u64::from(header.charged());
        if charged != 0 {
            slots::mark_owed(arena, entry, block);
        }
        charged
    }
}
