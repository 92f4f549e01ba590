//! Pins: frames that views hold, so that their bytes stay as they are.
//!
//! A pin is a record in the arena: which process holds which frame. A frame's word counts its pins, and says whether the frame has been
//! left by its header. Nobody changes a byte of a frame that has a pin: a writer gives its block a new frame
//! (`scrap::own`), and a thread that frees a header lets go of the frame ([`let_go`]). The last of the two, header and pins, frees it.
//!
//! ```text
//! linked, 0 pins <--> linked, pins --(let_go)--> viewed (no header's), pins --(the last unpin)--> free
//!                          ^--(attached)-- viewed, 1 pin <--(hold)-- held by a thread
//! ```
//!
//! The second line is a window's frame (`file::window`): it has bytes that no header has yet.
//!
//! Pins are added under the lock of the header whose frame it is; they go without a lock. So a frame without a header gets no new ones, and
//! one atomic step says who is last. Records are the truth: a rebuild counts them anew. Those of a process that is gone are taken back by
//! `member::viewers`, which knows which processes live.

use crate::frame::header::Guard;
use crate::ids::FrameId;
use crate::memory::arena::Arena;
use crate::memory::regions::{self, Owner};
use crate::memory::superblock::Superblock;
use crate::memory::threads::{self, Me};
use crate::sync::{AtomicU32, Ordering, planted};

/// In a frame's word: no header has it any more.
pub const LEFT: u32 = 1 << 31;
/// In a frame's word: how many pins.
pub const COUNT: u32 = LEFT - 1;
/// Numbers of processes that hold views, from 1 on.
pub const HOLDERS_MAX: u32 = 256;
/// The part of the memory that may be pinned: a half. The rest goes round as ever, so that a thread that needs memory gets some.
const PINNED_PARTS: u32 = 2;

/// One pin, in the hands of its maker.
#[derive(Debug)]
pub struct Pin {
    record: u32,
    word: u64,
    /// The frame, whose bytes stay as they are.
    pub frame: FrameId,
}

/// The word of a record.
pub const fn pack(holder: u32, frame: FrameId) -> u64 {
    (holder as u64) << 32 | (frame.0 as u64 + 1)
}

/// Which process holds which frame; `None` for a word that nobody writes, and for none.
pub fn unpack(arena: &Arena, word: u64) -> Option<(u32, FrameId)> {
    let holder = (word >> 32) as u32;
    let frame = FrameId((word as u32).checked_sub(1)?);
    let known = (1..=HOLDERS_MAX).contains(&holder) && frame.0 < arena.counts().frames;
    known.then_some((holder, frame))
}

/// Whether a frame has pins. Under the lock of its header the answer "no" holds until the lock is opened.
#[inline]
pub fn is_pinned(arena: &Arena, frame: FrameId) -> bool {
    // Acquire: pairs with the unpin's release, whose holder has read the bytes by then.
    arena.superblock().frames_pinned.load(Ordering::Acquire) != 0
        && arena
            .pins(frame)
            .is_some_and(|word| word.load(Ordering::Acquire) & COUNT != 0)
}

/// Frames that may be pinned.
pub fn frames_max(superblock: &Superblock) -> u32 {
    let frames = superblock.frames_max.load(Ordering::Relaxed);
    let clean = superblock.clean_frames_max.load(Ordering::Relaxed);
    frames.min(clean) / PINNED_PARTS
}

/// Pins the frame of a header for the process with this number. `None`: it has none, or as many are pinned as may be. In an operation.
pub fn pin(guard: &Guard<'_>, holder: u32) -> Option<Pin> {
    let arena = guard.arena();
    let frame = guard.frame()?;
    let word = arena.pins(frame)?;
    let pinned = &arena.superblock().frames_pinned;
    // Before the frame's own count: a thread that sees 0 here need not look there.
    let before = pinned.fetch_add(1, Ordering::AcqRel);
    let is_new = word.load(Ordering::Acquire) & COUNT == 0;
    let has_room = !is_new || before < frames_max(arena.superblock());
    let record = has_room.then(|| take_record(guard.me, pack(holder, frame)));
    let Some(record) = record.flatten() else {
        pinned.fetch_sub(1, Ordering::AcqRel);
        return None;
    };
    if word.fetch_add(1, Ordering::AcqRel) & COUNT != 0 {
        pinned.fetch_sub(1, Ordering::AcqRel);
    }
    Some(Pin {
        record,
        word: pack(holder, frame),
        frame,
    })
}

/// Holds a frame that the calling thread has taken, and that no header has, for the process with this number: the frame is as one that its
/// header has left. `None`: as many are pinned as may be, and the frame is the thread's as before. In an operation.
pub fn hold(me: Me<'_>, holder: u32, frame: FrameId) -> Option<Pin> {
    let arena = me.arena;
    let (word, owner) = (arena.pins(frame)?, arena.frame_owner(frame)?);
    let pinned = &arena.superblock().frames_pinned;
    let has_room = pinned.fetch_add(1, Ordering::AcqRel) < frames_max(arena.superblock());
    // Before the record: a frame that a dead thread holds is free, and free frames have no pins.
    owner.store(Owner::Viewed.pack(), Ordering::Release);
    let record = has_room.then(|| take_record(me, pack(holder, frame)));
    let Some(record) = record.flatten() else {
        owner.store(Owner::Held(me.id).pack(), Ordering::Release);
        pinned.fetch_sub(1, Ordering::AcqRel);
        return None;
    };
    word.store(LEFT | 1, Ordering::Release);
    Some(Pin {
        record,
        word: pack(holder, frame),
        frame,
    })
}

/// A frame from [`hold`] is a header's now, with its pin: a writer gives the block a new one. The last step of making it so: where
/// a rebuild finds a header with a frame that says otherwise, somebody has died before it. Under the lock of that header.
pub fn attached(arena: &Arena, frame: FrameId) {
    if let Some(word) = arena.pins(frame) {
        word.fetch_and(COUNT, Ordering::AcqRel);
    }
}

fn take_record(me: Me<'_>, word: u64) -> Option<u32> {
    let claim = |record: u32| {
        me.arena.pin_record(record).is_some_and(|here| {
            here.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    };
    me.arena.pin_hints().take(me.id.index(), claim)
}

/// Takes pins back. The caller is in no operation, and reads their bytes no more.
pub fn unpin(me: Me<'_>, pins: &[Pin]) {
    // A thread that stops the session waits for an operation.
    for some in pins.chunks(64) {
        let _alone = me.enter_arena();
        for pin in some {
            take_back(me, pin.record, pin.word, pin.frame);
        }
    }
}

/// Takes all pins of a process back that is gone, or that holds none. Nobody else has its number meanwhile. `false`: it has some, and
/// somebody has died at work whom no rebuild has seen to yet. It may be this process, at giving a frame to a header: the frame would
/// look like one that no header has.
pub fn unpin_all_of(me: Me<'_>, gone: u32) -> bool {
    for first in (0..me.arena.counts().frames).step_by(64) {
        let _alone = me.enter_arena();
        let of_the_gone = records(me.arena, first)
            .take(64)
            .filter_map(|(record, word)| {
                let (holder, frame) = unpack(me.arena, word)?;
                (holder == gone).then_some((record, word, frame))
            });
        let of_the_gone: Vec<_> = of_the_gone.collect();
        if !of_the_gone.is_empty() && threads::is_rebuild_owed(me.arena) {
            return false;
        }
        for (record, word, frame) in of_the_gone {
            take_back(me, record, word, frame);
        }
    }
    true
}

/// The records in use from `first` on, with their words.
pub fn records(arena: &Arena, first: u32) -> impl Iterator<Item = (u32, u64)> {
    (first..arena.counts().frames)
        .filter_map(|record| Some((record, arena.pin_record(record)?.load(Ordering::Acquire))))
}

/// In an operation. Of several that try, one does.
fn take_back(me: Me<'_>, record: u32, word: u64, frame: FrameId) {
    let (arena, free) = (me.arena, 0);
    let (Some(here), Some(count)) = (arena.pin_record(record), arena.pins(frame)) else {
        return;
    };
    if here
        .compare_exchange(word, free, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    arena.pin_hints().set(record);
    let before = count.fetch_sub(1, Ordering::AcqRel);
    if before & COUNT != 1 {
        return;
    }
    arena
        .superblock()
        .frames_pinned
        .fetch_sub(1, Ordering::AcqRel);
    if before & LEFT != 0 {
        free_left(me, frame, count);
    }
}

/// The header that had this frame has it no more: the frame is free, or it is what views hold until the last of them goes. In an
/// operation; under the lock of that header, which names another frame by now, or none.
pub fn let_go(me: Me<'_>, frame: FrameId) {
    let arena = me.arena;
    let word = arena.pins(frame).filter(|_| is_pinned(arena, frame));
    let Some(word) = word.filter(|_| !planted!(FreePinned)) else {
        return regions::free_frame(me, frame);
    };
    if let Some(owner) = arena.frame_owner(frame) {
        owner.store(Owner::Viewed.pack(), Ordering::Release);
    }
    if word.fetch_or(LEFT, Ordering::AcqRel) & COUNT == 0 {
        free_left(me, frame, word);
    }
}

fn free_left(me: Me<'_>, frame: FrameId, word: &AtomicU32) {
    word.store(0, Ordering::Release);
    regions::free_frame(me, frame);
}
