//! What a page should say about its bytes: one `bool` a byte, and a page driven as the header
//! drives one, compared after every step.
//!
//! The property tests and the fuzz target share this. The merge is a parameter, so that a wrong one
//! can be planted: a checker that accepts it is worth nothing.

use std::ops::Deref;

use super::map::{ByteMap, MAP_BYTES};
use super::page::{Merge, PageWord, Ragged, clip, holes, runs};
use crate::ids::SmallId;
use crate::limits::PAGE_BYTES;

/// The shape of [`super::page::merge`].
pub(crate) type MergeFn = fn(Ragged, usize, usize) -> Merge;

/// What happens to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Bytes `start..end` are written.
    Write(usize, usize),
    /// Bytes at and beyond the position are dropped.
    Truncate(usize),
}

/// A map in memory of its own, for as long as it lives.
pub(crate) struct LocalMap {
    memory: *mut MapMemory,
    map: ByteMap,
}

/// Aligned as a small frame is.
#[repr(C, align(4096))]
struct MapMemory([u8; MAP_BYTES]);

impl LocalMap {
    /// A map in memory that someone else has used before: none of its bits can be relied on.
    pub(crate) fn used() -> LocalMap {
        let memory = Box::into_raw(Box::new(MapMemory([0xa5; MAP_BYTES])));
        // SAFETY: the bytes are initialised and aligned, and stay until the drop below. Only the
        // map touches them, and it cannot leave its owner: it is lent, and is not Copy.
        let map = unsafe { ByteMap::new(memory.cast()) };
        LocalMap { memory, map }
    }
}

impl Deref for LocalMap {
    type Target = ByteMap;

    fn deref(&self) -> &ByteMap {
        &self.map
    }
}

impl Drop for LocalMap {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in `used`, freed nowhere else; the map goes with it.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

const SMALL: SmallId = SmallId(17);
const MAP: SmallId = SmallId(4711);

/// A page driven by a merge, beside the naive truth.
pub(crate) struct Page {
    merge: MergeFn,
    word: PageWord,
    whole: bool,
    map: LocalMap,
    truth: [bool; PAGE_BYTES],
}

impl Page {
    pub(crate) fn new(merge: MergeFn) -> Page {
        Page {
            merge,
            word: PageWord::EMPTY.with_small(Some(SMALL)),
            whole: false,
            map: LocalMap::used(),
            truth: [false; PAGE_BYTES],
        }
    }

    /// Takes the steps on a fresh page and checks it after each. `Ok` holds the coverage at the end.
    pub(crate) fn run(merge: MergeFn, steps: &[Step]) -> Result<Vec<(usize, usize)>, String> {
        let mut page = Page::new(merge);
        for &step in steps {
            page.step(step)
                .map_err(|why| format!("after {step:?} of {steps:?}: {why}"))?;
        }
        Ok(spans(&page.truth, true))
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Write(start, end) => {
                self.truth[start..end].fill(true);
                self.write(start, end)?;
            }
            // What truncation does to a whole page is the header's: its end becomes zeros.
            Step::Truncate(_) if self.whole => {}
            Step::Truncate(end) => {
                self.truth[end..].fill(false);
                let ragged = self.word.ragged();
                if let Ragged::Map(_) = ragged {
                    self.map.clear_from(end);
                }
                self.word = self.word.with_ragged(clip(ragged, end));
            }
        }
        self.check()
    }

    fn write(&mut self, start: usize, end: usize) -> Result<(), String> {
        if self.whole {
            return Ok(());
        }
        let old = self.word.ragged();
        let (ragged, whole) = match (self.merge)(old, start, end) {
            Merge::Whole => (Ragged::None, true),
            Merge::Run { start, len } => {
                if len == 0 || start as usize + len as usize > PAGE_BYTES {
                    return Err(format!("{len} bytes at {start} are no run"));
                }
                (Ragged::Run { start, len }, false)
            }
            Merge::NeedsMap => {
                if !matches!(old, Ragged::Map(_)) {
                    self.begin_map(old)?;
                }
                let whole = self.map.set(start, end);
                (
                    if whole {
                        Ragged::None
                    } else {
                        Ragged::Map(MAP)
                    },
                    whole,
                )
            }
        };
        self.word = self.word.with_ragged(ragged);
        self.whole = whole;
        Ok(())
    }

    fn begin_map(&mut self, old: Ragged) -> Result<(), String> {
        if spans(&self.truth, true).len() < 2 {
            return Err("a map for what one run could say".into());
        }
        self.map.clear();
        runs(&old, None, |start, end| {
            self.map.set(start, end);
        });
        Ok(())
    }

    /// Compares everything that can be asked with the truth.
    fn check(&self) -> Result<(), String> {
        let ragged = self.word.ragged();
        if !self.word.is_wellformed() || self.word.small() != Some(SMALL) {
            return Err(format!("{:x?} is not a page's word", self.word));
        }
        if self.whole != self.truth.iter().all(|&there| there) {
            return Err(format!("whole is {}", self.whole));
        }
        if self.whole {
            return Ok(());
        }
        let map = matches!(ragged, Ragged::Map(_)).then_some(&*self.map);
        let (mut there, mut missing) = (Vec::new(), Vec::new());
        runs(&ragged, map, |start, end| there.push((start, end)));
        holes(&ragged, map, |start, end| missing.push((start, end)));
        if there != spans(&self.truth, true) {
            return Err(format!("says {there:?} are in memory"));
        }
        if missing != spans(&self.truth, false) {
            return Err(format!("says {missing:?} are not in memory"));
        }
        Ok(())
    }
}

/// The maximal runs of `wanted` in `bits`, found byte by byte.
pub(crate) fn spans(bits: &[bool], wanted: bool) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for (at, _) in bits.iter().enumerate().filter(|&(_, &bit)| bit == wanted) {
        match found.last_mut() {
            Some((_, end)) if *end == at => *end = at + 1,
            _ => found.push((at, at + 1)),
        }
    }
    found
}

/// Wrong merges, each a mistake that is easily made; the checker must reject every one.
#[cfg(test)]
pub(crate) const PLANTED: [(&str, MergeFn); 8] = [
    ("a byte too many", |old, start, end| {
        super::page::merge(old, start, (end + 1).min(PAGE_BYTES))
    }),
    ("a byte too few", |old, start, end| {
        super::page::merge(old, start, end.max(start + 2) - 1)
    }),
    (
        "the gap between two runs counts",
        |old, start, end| match old {
            Ragged::Run { start: first, len } => {
                let last = first as usize + len as usize;
                super::page::merge(Ragged::None, start.min(first as usize), end.max(last))
            }
            _ => super::page::merge(old, start, end),
        },
    ),
    (
        "a gap of one byte before the old run counts",
        |old, start, end| match old {
            Ragged::Run { start: first, .. } if end + 1 == first as usize => {
                super::page::merge(old, start, end + 1)
            }
            _ => super::page::merge(old, start, end),
        },
    ),
    (
        "a gap of one byte after the old run counts",
        |old, start, end| match old {
            Ragged::Run { start: first, len } if start == (first + len + 1) as usize => {
                super::page::merge(old, start - 1, end)
            }
            _ => super::page::merge(old, start, end),
        },
    ),
    ("runs that touch stay apart", |old, start, end| match old {
        Ragged::Run { start: first, len }
            if end == first as usize || start == first as usize + len as usize =>
        {
            Merge::NeedsMap
        }
        _ => super::page::merge(old, start, end),
    }),
    (
        "the old run is forgotten",
        |old, start, end| match super::page::merge(old, start, end) {
            Merge::Run { .. } => super::page::merge(Ragged::None, start, end),
            other => other,
        },
    ),
    (
        "whole when only both ends are there",
        |old, start, end| match old {
            Ragged::Run { start: 0, .. } if end == PAGE_BYTES => Merge::Whole,
            _ => super::page::merge(old, start, end),
        },
    ),
];
