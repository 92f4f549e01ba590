//! Pins: each record names a frame that holds a block or held one, and what is counted is the sum of the records.

use super::Check;
use crate::ids::FrameId;
use crate::memory::pins::{COUNT, LEFT, records, unpack};
use crate::memory::regions::Owner;
use crate::sync::Ordering;

impl Check<'_> {
    pub(super) fn pins(&mut self) {
        let arena = self.arena;
        let mut counts = vec![0u32; arena.counts().frames as usize];
        for (record, word) in records(arena, 0) {
            match unpack(arena, word) {
                Some((_, frame)) => counts[frame.index()] += 1,
                None if word == 0 => {
                    let hinted = arena.pin_hints().is_set(record);
                    self.must(hinted, || {
                        format!("pin {record} is free and cannot be found")
                    });
                }
                None => self.problem(format!("pin {record} is odd: {word:x}")),
            }
        }
        for (frame, count) in (0..).map(FrameId).zip(counts) {
            self.pins_of(frame, count);
        }
        let counted = arena.superblock().frames_pinned.load(Ordering::Acquire);
        let found = self.report.frames_pinned;
        self.must(counted == found, || {
            format!("{counted} frames are counted pinned and {found} are")
        });
    }

    fn pins_of(&mut self, frame: FrameId, count: u32) {
        let word = self.arena.pins(frame);
        let word = word.map_or(0, |word| word.load(Ordering::Acquire));
        let owner = self.arena.frame_owner(frame);
        let owner = owner.map(|word| Owner::unpack(word.load(Ordering::Acquire)));
        self.report.frames_pinned += u32::from(count != 0);
        let fine = word & COUNT == count
            && match owner {
                Some(Owner::Viewed) => word & LEFT != 0 && count != 0,
                Some(Owner::Linked(_)) => word & LEFT == 0,
                _ => word == 0,
            };
        self.must(fine, || {
            format!(
                "frame {} is {owner:?}, has {count} pins, and says {word:x}",
                frame.0
            )
        });
    }
}
