//! Frames and small frames: each has one owner, and both sides say so.

use super::Check;
use crate::ids::{FileId, FrameId, HeaderId, SmallId};
use crate::limits::BLOCK_PAGES;
use crate::memory::files::LIVE;
use crate::memory::regions::{Owner, small_of};
use crate::scrap::page::Ragged;
use crate::sync::Ordering;

impl Check<'_> {
    pub(super) fn memory(&mut self) {
        self.claims();
        self.stocks();
        let mut backed = 0;
        for frame in (0..self.arena.counts().frames).map(FrameId) {
            backed += u32::from(self.one_frame(frame));
        }
        let superblock = self.arena.superblock();
        let free = superblock.frames_free.load(Ordering::Acquire);
        let found = self.report.frames_free;
        self.must(free == found, || {
            format!("{} frames are counted free and {found} are", free as i32)
        });
        for region in 0..self.arena.shares().regions() {
            let count = superblock.frames_free.of(region).load(Ordering::Acquire);
            let found = self.free.get(&region).copied().unwrap_or(0);
            self.must(count == found, || {
                format!(
                    "region {region} counts {} free frames and has {found}",
                    count as i32
                )
            });
        }
        let counted = superblock.frames_backed.load(Ordering::Acquire);
        self.must(counted == backed, || {
            format!("{counted} frames are counted backed and {backed} are")
        });
    }

    /// What headers say they own.
    fn claims(&mut self) {
        let mut problems = Vec::new();
        let mut frames = std::mem::take(&mut self.frames);
        let mut smalls = std::mem::take(&mut self.smalls);
        for (id, look) in self.linked() {
            if let Some(frame) = look.frame
                && (self.arena.frame_owner(frame).is_none() || frames.insert(frame, id).is_some())
            {
                problems.push(format!("header {}: frame {} is not its own", id.0, frame.0));
            }
            for word in look.pages {
                let map = match word.ragged() {
                    Ragged::Map(map) => Some(map),
                    _ => None,
                };
                for small in word.small().into_iter().chain(map) {
                    if self.arena.small_owner(small).is_none() || smalls.insert(small, id).is_some()
                    {
                        problems.push(format!("header {}: small {} not its own", id.0, small.0));
                    }
                }
            }
        }
        (self.frames, self.smalls) = (frames, smalls);
        problems.into_iter().for_each(|text| self.problem(text));
    }

    /// What files have in stock: each part once, and of files that there are.
    fn stocks(&mut self) {
        for id in (0..self.arena.counts().files).map(FileId) {
            let Some(entry) = self.arena.file(id) else {
                continue;
            };
            let held = entry.stock.held();
            let Some(frame) = held.frame.filter(|_| held.parts != 0) else {
                continue;
            };
            let live = entry.state.load(Ordering::Acquire) == LIVE;
            let mask = self.stocked.entry(frame).or_default();
            let once = *mask & held.mask() == 0;
            *mask |= held.mask();
            self.report.smalls_stocked += held.parts.count_ones();
            self.must(
                live && once && self.arena.frame_owner(frame).is_some(),
                || format!("entry {} has a stock that is not its own: {held:?}", id.0),
            );
        }
    }

    /// Whether it has memory.
    fn one_frame(&mut self, frame: FrameId) -> bool {
        let Some(word) = self.arena.frame_owner(frame) else {
            return false;
        };
        let owner = Owner::unpack(word.load(Ordering::Acquire));
        let claimed = self.frames.get(&frame).copied();
        let fine = match owner {
            Owner::Unbacked => claimed.is_none(),
            Owner::Giving(by) => claimed.is_none() && self.lives(by),
            Owner::Free => {
                self.report.frames_free += 1;
                *self
                    .free
                    .entry(self.arena.shares().region_of(frame))
                    .or_default() += 1;
                claimed.is_none() && self.arena.frame_hints().is_set(frame)
            }
            Owner::Held(by) => {
                self.report.frames_held += 1;
                claimed.is_none() && self.lives(by)
            }
            Owner::Linked(header) => {
                self.report.frames_linked += 1;
                claimed == Some(header)
            }
            Owner::Viewed => {
                self.report.frames_viewed += 1;
                claimed.is_none()
            }
            Owner::Carved => {
                self.report.frames_carved += 1;
                claimed.is_none()
            }
        };
        let fine = fine && word.load(Ordering::Acquire) == owner.pack();
        self.must(fine, || {
            format!("frame {} is {owner:?} and claimed by {claimed:?}", frame.0)
        });
        if owner == Owner::Carved {
            self.carved(frame);
        } else {
            self.not_carved(frame);
        }
        !matches!(owner, Owner::Unbacked | Owner::Giving(_))
    }

    fn carved(&mut self, frame: FrameId) {
        let stocked = self.stocked.get(&frame).copied().unwrap_or(0);
        let bits = self
            .arena
            .carve(frame)
            .map_or(0, |bits| bits.load(Ordering::Acquire));
        for part in 0..BLOCK_PAGES as u32 {
            let small = small_of(frame, part);
            let Some(word) = self.arena.small_owner(small) else {
                return;
            };
            let owner = Owner::unpack(word.load(Ordering::Acquire));
            let claimed: Option<HeaderId> = self.smalls.get(&small).copied();
            let is_free = bits & (1 << part) != 0;
            let in_stock = stocked & (1 << part) != 0;
            let fine = match owner {
                Owner::Free => claimed.is_none() && is_free != in_stock,
                Owner::Held(by) => claimed.is_none() && !is_free && self.lives(by),
                Owner::Linked(header) => {
                    self.report.smalls_linked += 1;
                    claimed == Some(header) && !is_free
                }
                Owner::Unbacked | Owner::Carved | Owner::Giving(_) | Owner::Viewed => false,
            };
            let fine = fine
                && word.load(Ordering::Acquire) == owner.pack()
                && (owner == Owner::Free || !in_stock);
            self.must(fine, || {
                format!(
                    "small {} is {owner:?}, claimed by {claimed:?}, free: {is_free}, in stock: {in_stock}",
                    small.0
                )
            });
        }
        let hinted = bits == 0 || self.arena.carve_hints().is_set(frame);
        self.must(hinted, || {
            format!("carved frame {} has room nobody finds", frame.0)
        });
        let empty = bits == u64::MAX;
        self.must(!empty, || {
            format!("carved frame {} is empty and was not made whole", frame.0)
        });
    }

    fn not_carved(&mut self, frame: FrameId) {
        let stocked = self.stocked.contains_key(&frame);
        self.must(!stocked, || {
            format!("frame {} is in stock and not carved", frame.0)
        });
        for part in 0..BLOCK_PAGES as u32 {
            let small: SmallId = small_of(frame, part);
            let claimed = self.smalls.contains_key(&small);
            self.must(!claimed, || {
                format!("small {} is of a frame that is not carved", small.0)
            });
        }
    }
}
