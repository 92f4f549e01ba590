//! The part of a rebuild that counts anew which frames views hold.
//!
//! Records of pins are the truth; whose process is gone is not looked at here (`member::viewers`).

use super::Rebuild;
use crate::ids::FrameId;
use crate::memory::pins::{COUNT, LEFT, records, unpack};
use crate::memory::regions::Owner;
use crate::sync::{Ordering, planted};

impl Rebuild<'_, '_> {
    /// Counts pins, before headers are gone over: what is cut there must not be what a view holds.
    pub(super) fn count_pins(&mut self) {
        let arena = self.arena();
        let frames = arena.counts().frames;
        let mut counts = vec![0u32; frames as usize];
        arena.pin_hints().clear_all();
        for (record, word) in records(arena, 0) {
            match unpack(arena, word) {
                Some((_, frame)) => counts[frame.index()] += 1,
                None => {
                    self.findings.corruptions += u32::from(word != 0);
                    self.forget_record(record);
                }
            }
        }
        for (frame, count) in (0..).map(FrameId).zip(counts) {
            let left = self.pins_of(frame) & LEFT;
            self.set_pins(frame, if count == 0 { 0 } else { count | left });
        }
    }

    /// A header has a frame that is still as one without a header: the thread that was giving it from a window has died before the file had
    /// its length. Its window is gone with it, and must not keep what lies beyond the end from being cut.
    pub(super) fn end_attaching(&mut self, frame: FrameId) {
        if self.pins_of(frame) & LEFT == 0 || planted!(HalfAttached) {
            return;
        }
        self.set_pins(frame, 0);
        self.forget_records_of(frame);
    }

    fn forget_record(&self, record: u32) {
        if let Some(word) = self.arena().pin_record(record) {
            word.store(0, Ordering::Release);
            self.arena().pin_hints().set(record);
        }
    }

    fn set_pins(&self, frame: FrameId, word: u32) {
        if let Some(pins) = self.arena().pins(frame) {
            pins.store(word, Ordering::Release);
        }
    }

    fn pins_of(&self, frame: FrameId) -> u32 {
        let pins = self.arena().pins(frame);
        pins.map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Whether a frame that no header claims is what views hold.
    pub(super) fn is_viewed(&self, frame: FrameId, was: Owner) -> bool {
        matches!(was, Owner::Linked(_) | Owner::Viewed) && self.pins_of(frame) != 0
    }

    /// Once it is known whose each frame is: pins of anything but a header's frame, or one that a header has left, are nobody's.
    pub(super) fn settle_pins(&mut self) {
        let arena = self.arena();
        let mut pinned = 0;
        for frame in (0..arena.counts().frames).map(FrameId) {
            let count = self.pins_of(frame) & COUNT;
            if count == 0 {
                continue;
            }
            let owner = arena.frame_owner(frame);
            let owner = owner.map(|word| Owner::unpack(word.load(Ordering::Acquire)));
            match owner {
                Some(Owner::Linked(_)) => {}
                Some(Owner::Viewed) => self.set_pins(frame, count | LEFT),
                _ => {
                    self.findings.corruptions += 1;
                    self.set_pins(frame, 0);
                    self.forget_records_of(frame);
                    continue;
                }
            }
            pinned += 1;
        }
        let word = &arena.superblock().frames_pinned;
        word.store(pinned, Ordering::Release);
    }

    fn forget_records_of(&self, frame: FrameId) {
        for (record, word) in records(self.arena(), 0) {
            if unpack(self.arena(), word).is_some_and(|(_, of)| of == frame) {
                self.forget_record(record);
            }
        }
    }
}
