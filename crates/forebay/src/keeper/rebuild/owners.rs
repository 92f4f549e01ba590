//! The part of a rebuild that says anew who owns each frame and small frame.

use super::Rebuild;
use std::collections::HashSet;

use crate::frame::header::{Guard, Header, State};
use crate::ids::{FrameId, HeaderId};
use crate::limits::{BLOCK_PAGES, HUGE_BYTES, HUGE_FRAMES};
use crate::memory::regions::{Owner, small_of};
use crate::scrap::page::Ragged;
use crate::sync::Ordering;

impl<'a> Rebuild<'a, '_> {
    /// Owner words and the maps of free frames.
    pub(super) fn owners(&mut self) {
        let arena = self.arena();
        arena.frame_hints().clear_all();
        arena.carve_hints().clear_all();
        let mut carved = HashSet::new();
        for small in &self.smalls {
            carved.insert(FrameId(small.0 / BLOCK_PAGES as u32));
        }
        let mut links = Vec::new();
        for (id, header) in self.all_headers() {
            if matches!(header.state(), State::Linked | State::Superseded(_)) {
                links.push((id, header));
            }
        }
        for frame in (0..arena.counts().frames).map(FrameId) {
            self.one_frame(frame, carved.contains(&frame));
        }
        for (id, header) in links {
            self.link_memory(id, header);
        }
        self.huge_pages();
        self.half_given();
        let superblock = arena.superblock();
        for (region, &free) in (0..).zip(&self.free) {
            let count = superblock.frames_free.of(region);
            count.store(free, Ordering::Relaxed);
        }
    }

    /// Counts the huge pages that have memory, or are the living's to give some to or to take it from. Those that the dead had claimed
    /// may have memory as well, which is taken back, unless a frame beside says that it is used.
    fn huge_pages(&self) {
        let arena = self.arena();
        let owner_of = |id: u32| {
            let word = arena.frame_owner(FrameId(id))?.load(Ordering::Acquire);
            Some(Owner::unpack(word))
        };
        let is_unbacked = |id: u32| owner_of(id) == Some(Owner::Unbacked);
        let mut claimed = 0;
        let frames = arena.counts().frames;
        for first in (0..frames).step_by(HUGE_FRAMES as usize) {
            let is_empty = (first + 1..(first + HUGE_FRAMES).min(frames)).all(is_unbacked);
            match owner_of(first) {
                Some(Owner::Giving(by)) if (self.dead.threads)(by) => {
                    if is_empty {
                        let offset = arena.frame_offset(FrameId(first));
                        // Where it fails, the thread that claims this next finds memory there.
                        let _ = arena.mapping().release(offset, HUGE_BYTES);
                    }
                    if let Some(owner) = arena.frame_owner(FrameId(first)) {
                        owner.store(Owner::Unbacked.pack(), Ordering::Release);
                    }
                    claimed += u32::from(!is_empty);
                }
                Some(Owner::Unbacked) if is_empty => {}
                _ => claimed += 1,
            }
        }
        let word = &arena.superblock().frames_claimed;
        word.store(claimed * HUGE_FRAMES, Ordering::Relaxed);
    }

    /// Huge pages that the dead have begun to publish, or to take back, are given in full, as far as the budget goes: where one
    /// frame has memory, all of its huge page have.
    pub(super) fn half_given(&mut self) {
        let arena = self.arena();
        let superblock = arena.superblock();
        let has_memory = |id: u32| {
            arena.frame_owner(FrameId(id)).is_some_and(|owner| {
                let owner = Owner::unpack(owner.load(Ordering::Acquire));
                !matches!(owner, Owner::Unbacked | Owner::Giving(_))
            })
        };
        let frames = arena.counts().frames;
        let mut backed = (0..frames).filter(|&id| has_memory(id)).count() as u32;
        let most = superblock.frames_max.load(Ordering::Relaxed);
        for first in (0..frames).step_by(HUGE_FRAMES as usize) {
            let huge = first..(first + HUGE_FRAMES).min(frames);
            if !huge.clone().any(has_memory) {
                continue;
            }
            for id in huge.filter(|&id| !has_memory(id)) {
                if backed < most {
                    self.set_free(FrameId(id));
                    backed += 1;
                }
            }
        }
        superblock.frames_backed.store(backed, Ordering::Relaxed);
    }

    /// What the living hold and have not linked has no bytes yet.
    pub(super) fn held(&mut self, guard: &Guard<'a>) {
        if guard.valid() | guard.dirty() | guard.inflight() != 0 {
            self.findings.corruptions += 1;
            guard.set_valid(0);
            guard.set_dirty(0);
            guard.forget_flights();
        }
    }

    pub(super) fn one_frame(&mut self, frame: FrameId, is_carved: bool) {
        let arena = self.arena();
        let Some(owner) = arena.frame_owner(frame) else {
            return;
        };
        let was = Owner::unpack(owner.load(Ordering::Acquire));
        if !is_carved && owner.load(Ordering::Acquire) != was.pack() {
            // A word that nobody writes reads as something that somebody does.
            self.findings.corruptions += 1;
            owner.store(was.pack(), Ordering::Release);
        }
        if self.frames.contains(&frame) {
            return;
        }
        match was {
            // Parts in use make a carved frame, whatever its own word says: the thread that carved it may have died at that.
            _ if is_carved => {
                self.findings.corruptions +=
                    u32::from(matches!(was, Owner::Unbacked | Owner::Giving(_)));
                owner.store(Owner::Carved.pack(), Ordering::Release);
                self.carve(frame, true);
            }
            Owner::Unbacked => {}
            Owner::Held(by) | Owner::Giving(by) if !(self.dead.threads)(by) => {}
            Owner::Giving(_) if frame.0.is_multiple_of(HUGE_FRAMES) => {}
            Owner::Giving(_) => owner.store(Owner::Unbacked.pack(), Ordering::Release),
            Owner::Carved => self.carve(frame, false),
            was if self.is_viewed(frame, was) => {
                owner.store(Owner::Viewed.pack(), Ordering::Release);
            }
            _ => self.set_free(frame),
        }
    }

    pub(super) fn set_free(&mut self, frame: FrameId) {
        let arena = self.arena();
        if let Some(owner) = arena.frame_owner(frame) {
            owner.store(Owner::Free.pack(), Ordering::Release);
            arena.frame_hints().set(frame);
            self.free[arena.shares().region_of(frame) as usize] += 1;
            self.findings.frames_free += 1;
        }
    }

    /// A carved frame's parts: held by the living, claimed by headers, or free.
    pub(super) fn carve(&mut self, frame: FrameId, used: bool) {
        let arena = self.arena();
        let mut free = 0u64;
        let mut held = false;
        for part in 0..BLOCK_PAGES as u32 {
            let small = small_of(frame, part);
            let Some(owner) = arena.small_owner(small) else {
                return;
            };
            match Owner::unpack(owner.load(Ordering::Acquire)) {
                _ if self.smalls.contains(&small) => {}
                Owner::Held(by) if !(self.dead.threads)(by) => held = true,
                _ => {
                    owner.store(Owner::Free.pack(), Ordering::Release);
                    free |= 1 << part;
                }
            }
        }
        if !used && !held {
            self.set_free(frame);
            return;
        }
        if let Some(bits) = arena.carve(frame) {
            bits.store(free, Ordering::Release);
        }
        if free != 0 {
            arena.carve_hints().set(frame);
        }
    }

    pub(super) fn link_memory(&mut self, id: HeaderId, header: &'a Header) {
        let arena = self.arena();
        let linked = Owner::Linked(id).pack();
        let Some(guard) = header.try_lock(self.me, id) else {
            return;
        };
        if let Some(owner) = guard.frame().and_then(|frame| arena.frame_owner(frame)) {
            owner.store(linked, Ordering::Release);
        }
        for page in 0..BLOCK_PAGES {
            let word = guard.page(page);
            let map = match word.ragged() {
                Ragged::Map(map) => Some(map),
                _ => None,
            };
            for small in word.small().into_iter().chain(map) {
                if let Some(owner) = arena.small_owner(small) {
                    owner.store(linked, Ordering::Release);
                }
            }
        }
        guard.set_charged(guard.charge_due());
    }
}
