//! Frames in the hands of a thread, for blocks that it is about to read from the device straight into them.
//!
//! Eight side by side on a huge page where several blocks are wanted, of which each block has the one that lies in the page as the block
//! lies in 2 MiB of the file: a request is one piece of memory, and a mapping of what it brought is one huge page. They are *held* until a
//! header gets them ([`fill::adopt`](crate::file::read::fill::adopt)); what no header gets is free again.
//!
//! The device may write to them for as long as a synchronous read of this thread's is under way, and no longer: the thread does not end
//! before its system call. So frames that the dead have held are nobody's.

use std::sync::atomic::Ordering::Relaxed;

use crate::evict;
use crate::file::core::Core;
use crate::ids::{BlockIndex, FrameId};
use crate::limits::{BLOCK_BYTES, HUGE_FRAMES};
use crate::member::provision;
use crate::memory::regions::{self, Owner};
use crate::memory::threads::{Me, Operation, Settling};
use crate::sync::{AtomicU32, Ordering, patience};

/// Rounds in which a thread waits, asleep, for another one that gives memory to the arena: some milliseconds.
const WAITS_MAX: u32 = 100;
/// Waits of [`Me::wait`] that sleep.
const SLEEPS_FROM: u32 = 256;
/// Frames that are freed once where no huge page is free: what has been left alone gives way.
const FREED_AT_ONCE: u32 = 2 * HUGE_FRAMES;
/// Ticks for which these must have been left alone.
const IDLE_TICKS: u32 = 1;

/// Where in the arena the frames of a view shall lie: as far from its blocks as those of the last run. Then the whole view is an address in
/// the arena, and needs no mapping. A wish: where others are, runs lie elsewhere.
#[derive(Debug, Default)]
pub struct Place(std::sync::atomic::AtomicU32);

impl Place {
    /// No frame is as far from a block: runs begin at multiples of eight.
    const SOME: u32 = 1;

    fn of(&self, block: u32) -> Option<FrameId> {
        let offset = self.0.load(Relaxed);
        let first = block / HUGE_FRAMES * HUGE_FRAMES;
        (offset & Self::SOME != 0).then(|| FrameId(first.wrapping_add(offset - Self::SOME)))
    }

    /// Chooses a place for what begins with a block, by what is free now.
    pub fn choose(&self, core: &Core, me: Me<'_>, block: BlockIndex) {
        let first = BlockIndex(block.0 / HUGE_FRAMES * HUGE_FRAMES);
        drop(Run::find(core, me, first, HUGE_FRAMES, self));
    }

    fn learn(&self, block: u32, first: FrameId) {
        let offset = first.0.wrapping_sub(block / HUGE_FRAMES * HUGE_FRAMES);
        self.0.store(offset | Self::SOME, Relaxed);
    }
}

/// Frames in a row, for blocks in a row.
pub struct Run<'a> {
    me: Me<'a>,
    /// That of the block `block`.
    first: FrameId,
    block: u32,
    /// Those that are this thread's still, a bit each.
    held: u32,
    /// Its death between operations calls for a rebuild, which frees them.
    _settling: Settling<'a>,
}

impl<'a> Run<'a> {
    /// For `count` blocks from `block` on, which lie in one piece of 2 MiB of the file. Memory that the budget still allows is given to the
    /// arena for it. `None`: no such frames are free. The caller is in no operation.
    pub fn find(
        core: &Core,
        me: Me<'a>,
        block: BlockIndex,
        count: u32,
        place: &Place,
    ) -> Option<Self> {
        let (mut waits, mut evicts) = (0, true);
        // Memory that is wanted next may be given next.
        let is_coming = |owner: &AtomicU32| owner.load(Ordering::Acquire) == Owner::Unbacked.pack();
        let wanted = place
            .of(block.0)
            .and_then(|first| me.arena.frame_owner(first));
        let mut waits_for_place = wanted.is_some_and(is_coming);
        loop {
            let run = Run::take(me, block.0, count, place, waits_for_place);
            if run.is_some() || count == 1 {
                return run;
            }
            waits_for_place = false;
            let is_late = waits >= patience(WAITS_MAX);
            if provision::more_runs(&core.shared, me, is_late) {
                continue;
            }
            if !is_late && provision::is_under_way(me) {
                me.wait(SLEEPS_FROM + waits);
                waits += 1;
                continue;
            }
            let few = me.arena.superblock().free_about() < HUGE_FRAMES;
            if !few || !evicts || evict::evict(me, FREED_AT_ONCE, IDLE_TICKS) == 0 {
                return None;
            }
            evicts = false;
        }
    }

    /// `exactly`: where the place says, or nowhere.
    fn take(me: Me<'a>, block: u32, count: u32, place: &Place, exactly: bool) -> Option<Self> {
        let settling = me.settling();
        let _alone = me.enter_arena();
        let within = block % HUGE_FRAMES;
        debug_assert!(within + count <= HUGE_FRAMES, "a run crosses 2 MiB");
        let first = if count == 1 {
            regions::take_frame(me)?
        } else {
            let wanted = place.of(block);
            let wanted = wanted.filter(|&first| regions::take_run_at(me, first));
            let any = || if exactly { None } else { regions::take_run(me) };
            let huge = wanted.or_else(any)?;
            place.learn(block, huge);
            let needed = within..within + count;
            let rest = (0..HUGE_FRAMES).filter(|frame| !needed.contains(frame));
            rest.for_each(|frame| regions::free_frame(me, FrameId(huge.0 + frame)));
            FrameId(huge.0 + within)
        };
        Some(Run {
            me,
            first,
            block,
            held: (1 << count) - 1,
            _settling: settling,
        })
    }

    /// The frame of a block, if it is this thread's still.
    pub fn frame_of(&self, block: u32) -> Option<FrameId> {
        let place = block.checked_sub(self.block)?;
        let is_held = place < HUGE_FRAMES && self.held & 1 << place != 0;
        is_held.then(|| FrameId(self.first.0 + place))
    }

    /// Where a block's frame lies, and how many bytes from there on are this thread's.
    pub fn bytes_of(&self, block: u32) -> Option<(*mut u8, usize)> {
        let bytes = self.me.arena.frame_bytes(self.frame_of(block)?)?;
        let count = (self.held >> (block - self.block)).trailing_ones();
        Some((bytes, count as usize * BLOCK_BYTES))
    }

    /// A header has a block's frame now. Whether there are others still.
    pub fn gave(&mut self, block: u32) -> bool {
        self.held &= !(1 << (block - self.block));
        self.held != 0
    }

    /// Frees what is left, in an operation of this thread's.
    pub fn let_go(mut self, _operation: &Operation<'_>) {
        self.free();
    }

    fn free(&mut self) {
        let held = std::mem::take(&mut self.held);
        (0..HUGE_FRAMES)
            .filter(|place| held & 1 << place != 0)
            .for_each(|place| regions::free_frame(self.me, FrameId(self.first.0 + place)));
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        if self.held != 0 {
            let _alone = self.me.enter_arena();
            self.free();
        }
    }
}
