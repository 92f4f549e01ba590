//! What a window's blocks lie in: frames that no header has, frames that were given to files, or memory of the process's own.
//!
//! Frames are held by pins (`memory::pins::hold`), eight side by side on a huge page where they can be had: the addresses lie as the frames
//! do, so that one fault maps all of them. On a heap arena, of simulated tests, frames have no addresses of their own: the window's
//! bytes are the process's there, and a commit copies them into the frames that it gives.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::evict;
use crate::file::view::runs_of;
use crate::ids::FrameId;
use crate::limits::{BLOCK_BYTES, HUGE_FRAMES};
use crate::member::provision;
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::memory::pins::{self, Pin};
use crate::memory::threads::Me;
use crate::memory::{copy, regions};
use crate::sync::{Ordering, patience, planted};
use crate::sys::addresses::{Access, Addresses};

/// Blocks of a huge page.
pub(super) const RUN: usize = HUGE_FRAMES as usize;
/// Rounds in which others may take what was made free for a window, before it does without.
const ROUNDS_MAX: u32 = 1000;
/// Rounds in which the window's thread waits, asleep, for another one that gives memory to the arena: some milliseconds. Then it does so
/// itself.
const WAITS_MAX: u32 = 100;
/// Waits of [`Me::wait`] that sleep.
const SLEEPS_FROM: u32 = 256;

/// One block of a window.
pub enum Block {
    /// Memory of the process's own.
    Own,
    /// A frame that no header has; stores reach it.
    Fresh(Pin),
    /// A frame that was given; stores do not reach it.
    Given(Pin),
}

/// The blocks of a window, in order.
pub struct Blocks {
    shared: Arc<Shared>,
    /// The first in which the window has bytes; those before it have no memory.
    first: usize,
    pub(super) list: Vec<Block>,
}

impl Drop for Blocks {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.let_go();
    }
}

impl Blocks {
    /// All of them the process's own.
    pub(super) fn new(shared: Arc<Shared>, first: usize, count: usize) -> Self {
        let list = (0..count).map(|_| Block::Own).collect();
        Blocks {
            shared,
            first,
            list,
        }
    }

    /// Whether frames can be a window's: each can be mapped, or the arena is a test's.
    pub(super) fn can_be_shown(arena: &Arena) -> bool {
        let mapping = arena.mapping();
        mapping.file().is_none() || mapping.page_bytes() <= BLOCK_BYTES
    }

    /// Whether bytes lie beside the frames instead of in them.
    pub(super) fn lie_apart(&self) -> bool {
        self.shared.arena.mapping().file().is_none()
    }

    /// Gives all blocks frames of zeros, as many as can be had. The addresses show zeros.
    pub(super) fn fill(&mut self, me: Me<'_>, addresses: &Addresses) {
        for group in groups(self.first..self.list.len()) {
            let has_all = self.replace(me, addresses, group, zero);
            if !has_all {
                return;
            }
        }
    }

    /// Gives all blocks that have none fresh frames, with what the addresses show in them.
    pub(super) fn refill(&mut self, me: Me<'_>, addresses: &Addresses) {
        let first = addresses.first();
        for group in self.groups_of(|block| !matches!(block, Block::Fresh(_))) {
            let with_bytes = |at: usize, frame: *mut u8| {
                let from = first.wrapping_add(at * BLOCK_BYTES);
                // SAFETY: a block of the window, mapped, which nobody else changes now; and a frame that only this window has.
                unsafe { copy::copy(from, frame, BLOCK_BYTES) };
            };
            if !self.replace(me, addresses, group, with_bytes) {
                return;
            }
        }
    }

    /// Gives all blocks that were given away frames of zeros, or zeros of the process's own.
    pub(super) fn detach(&mut self, me: Me<'_>, addresses: &Addresses) -> io::Result<()> {
        for group in self.groups_of(|block| matches!(block, Block::Given(_))) {
            if self.lie_apart() || !self.replace(me, addresses, group.clone(), zero) {
                self.empty(me, addresses, group)?;
            }
        }
        if self.lie_apart() {
            self.fill_own(me, addresses);
        }
        Ok(())
    }

    /// Zeros of the process's own for the blocks of a group that have been given.
    fn empty(&mut self, me: Me<'_>, addresses: &Addresses, group: Range<usize>) -> io::Result<()> {
        for at in group {
            if matches!(self.list[at], Block::Given(_)) {
                addresses.empty(at * BLOCK_BYTES, BLOCK_BYTES)?;
                if let Block::Given(pin) = std::mem::replace(&mut self.list[at], Block::Own) {
                    pins::unpin(me, &[pin]);
                }
            }
        }
        Ok(())
    }

    /// Frames again where bytes lie apart.
    fn fill_own(&mut self, me: Me<'_>, addresses: &Addresses) {
        for group in self.groups_of(|block| matches!(block, Block::Own)) {
            self.replace(me, addresses, group, |_, _| {});
        }
    }

    /// Gives blocks side by side fresh frames, made ready by `prepare` (which block, where). `false`: not all could be had; the rest are as
    /// they were.
    fn replace(
        &mut self,
        me: Me<'_>,
        addresses: &Addresses,
        blocks: Range<usize>,
        prepare: impl Fn(usize, *mut u8),
    ) -> bool {
        if !Self::can_be_shown(&self.shared.arena) {
            return false;
        }
        let Some(holder) = self.shared.viewer(me) else {
            return false;
        };
        let mut taken = take(&self.shared, me, holder, blocks.len());
        let arena = &self.shared.arena;
        if !self.lie_apart() {
            for (at, pin) in blocks.clone().zip(&taken) {
                if let Some(bytes) = arena.frame_bytes(pin.frame) {
                    prepare(at, bytes);
                }
            }
            let shown = show(
                arena,
                addresses,
                blocks.start,
                &frames(&taken),
                Access::Shared,
            );
            pins::unpin(me, &taken.split_off(shown));
        }
        let has_all = taken.len() == blocks.len();
        let mut old = Vec::new();
        for (at, pin) in blocks.zip(taken) {
            if let Block::Given(pin) = std::mem::replace(&mut self.list[at], Block::Fresh(pin)) {
                old.push(pin);
            }
        }
        pins::unpin(me, &old);
        has_all
    }

    /// Has the addresses show fresh frames so that no store reaches them any more; where bytes lie apart, they get them first. How many
    /// blocks, from the first on: the system may have no mapping for more.
    pub(super) fn protect(&mut self, addresses: &Addresses, blocks: Range<usize>) -> usize {
        let of = |block: &Block| match block {
            Block::Fresh(pin) => pin.frame,
            _ => unreachable!("whoever commits has looked"),
        };
        let frames: Vec<FrameId> = self.list[blocks.clone()].iter().map(of).collect();
        if self.lie_apart() {
            let first = addresses.first();
            for (at, &frame) in blocks.clone().zip(&frames) {
                if let Some(bytes) = self.shared.arena.frame_bytes(frame) {
                    let from = first.wrapping_add(at * BLOCK_BYTES);
                    // SAFETY: a block of the window's own memory, and a frame that only this window has.
                    unsafe { copy::copy(from, bytes, BLOCK_BYTES) };
                }
            }
        }
        let arena = &self.shared.arena;
        let access = match planted!(OpenWindow) {
            true => Access::Shared,
            false => Access::Private,
        };
        let shown = show(arena, addresses, blocks.start, &frames, access);
        for block in &mut self.list[blocks.start..blocks.start + shown] {
            if let Block::Fresh(pin) = std::mem::replace(block, Block::Own) {
                *block = Block::Given(pin);
            }
        }
        shown
    }

    /// Lets all frames go. Nobody looks at them through the addresses any more.
    pub(super) fn let_go(&mut self) {
        let pins: Vec<Pin> = (self.list.iter_mut())
            .filter_map(|block| match std::mem::replace(block, Block::Own) {
                Block::Own => None,
                Block::Fresh(pin) | Block::Given(pin) => Some(pin),
            })
            .collect();
        // Without a slot they stay until the process ends.
        if let Ok(me) = self.shared.me() {
            pins::unpin(me, &pins);
        }
    }

    /// Blocks side by side of which this is true, no group across huge pages.
    fn groups_of(&self, is: impl Fn(&Block) -> bool) -> Vec<Range<usize>> {
        let mut groups: Vec<Range<usize>> = Vec::new();
        for at in self.first..self.list.len() {
            if !is(&self.list[at]) {
                continue;
            }
            match groups.last_mut() {
                Some(group) if group.end == at && !at.is_multiple_of(RUN) => group.end += 1,
                _ => groups.push(at..at + 1),
            }
        }
        groups
    }
}

fn zero(_: usize, frame: *mut u8) {
    // SAFETY: a frame that only this window has, which no address shows yet.
    unsafe { copy::zero(frame, BLOCK_BYTES) };
}

fn frames(pins: &[Pin]) -> Vec<FrameId> {
    pins.iter().map(|pin| pin.frame).collect()
}

/// Blocks by huge pages.
fn groups(blocks: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = blocks.end;
    let mut at = blocks.start;
    std::iter::from_fn(move || {
        let start = at;
        at = end.min((start + 1).next_multiple_of(RUN));
        (start < end).then_some(start..at)
    })
}

/// Has the blocks from `first` on show these frames, and says how many do: fewer where the system has no mapping for more.
fn show(
    arena: &Arena,
    addresses: &Addresses,
    first: usize,
    frames: &[FrameId],
    access: Access,
) -> usize {
    let Some(file) = arena.mapping().file() else {
        return frames.len();
    };
    for (place, count) in runs_of(frames) {
        let (at, len) = ((first + place) * BLOCK_BYTES, count * BLOCK_BYTES);
        let offset = arena.frame_offset(frames[place]);
        let shown = addresses.show(at, len, file.as_fd(), offset, access);
        if shown.is_err() {
            return place;
        }
    }
    frames.len()
}

/// Takes up to `count` frames, eight side by side where that is what is asked for and can be had. Waits for no device.
fn take(shared: &Shared, me: Me<'_>, holder: u32, count: usize) -> Vec<Pin> {
    let mut taken = Vec::with_capacity(count);
    let mut waits = 0;
    for _ in 0..ROUNDS_MAX {
        take_free(me, holder, count, &mut taken);
        let superblock = me.arena.superblock();
        let pinned = superblock.frames_pinned.load(Ordering::Relaxed);
        if taken.len() == count || pinned >= pins::frames_max(superblock) {
            break;
        }
        let is_late = waits >= patience(WAITS_MAX);
        if provision::more(shared, me, is_late) {
            continue;
        }
        if !is_late && provision::is_under_way(me) {
            me.wait(SLEEPS_FROM + waits);
            waits += 1;
        } else if evict::evict(me, (count - taken.len()) as u32, 0) == 0 {
            break;
        }
    }
    taken
}

fn take_free(me: Me<'_>, holder: u32, count: usize, taken: &mut Vec<Pin>) {
    let _alone = me.enter_arena();
    let run = (count == RUN && taken.is_empty()).then(|| regions::take_run(me));
    let mut run = run.flatten().map(|first| first.0..first.0 + HUGE_FRAMES);
    while taken.len() < count {
        let next = run.as_mut().and_then(|run| run.next().map(FrameId));
        let Some(frame) = next.or_else(|| regions::take_frame(me)) else {
            return;
        };
        let Some(pin) = pins::hold(me, holder, frame) else {
            regions::free_frame(me, frame);
            break;
        };
        taken.push(pin);
    }
    for frame in run.into_iter().flatten() {
        regions::free_frame(me, FrameId(frame));
    }
}
