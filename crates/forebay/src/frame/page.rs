//! The word of a page in its header: where its bytes lie, and which of them are in memory.
//!
//! ```text
//!   63 62 61                          32 31                             0
//!   +----+------------------------------+--------------------------------+
//!   |tag | small frame + 1, or 0 = none | ragged part                    |
//!   +----+------------------------------+--------------------------------+
//!    0 none                              0
//!    1 run                               0 (8 bits), length (12), start (12)
//!    2 map                               the small frame that holds the bitmap
//! ```
//!
//! Words come from shared memory and are not trusted. Decoding accepts every bit pattern: a ragged
//! part that no [`PageWord::with_ragged`] could have made reads as [`Ragged::None`], and
//! [`PageWord::is_wellformed`] tells the arena checker that it was there. Whether a small frame of
//! that number exists is for the arena to say.

use super::map::ByteMap;
use crate::ids::SmallId;
use crate::limits::PAGE_BYTES;

const TAG_SHIFT: u32 = 62;
const TAG_NONE: u64 = 0;
const TAG_RUN: u64 = 1;
const TAG_MAP: u64 = 2;

const SMALL_SHIFT: u32 = 32;
const SMALL_MASK: u64 = (1 << 30) - 1;
const SMALL_FIELD: u64 = SMALL_MASK << SMALL_SHIFT;

/// Both parts of a run take 12 bits: a start is below 4096, and a run of 4096 bytes is a whole page.
const RUN_BITS: u32 = 12;
const RUN_MASK: u32 = (1 << RUN_BITS) - 1;

/// Small frames have numbers below this: their number plus one must fit 30 bits.
pub const SMALL_IDS_MAX: u32 = (1 << 30) - 1;

const _: () = assert!(PAGE_BYTES == 1 << RUN_BITS);

/// A page's word, as the header stores it. Zero is a page without a small frame and without bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct PageWord(pub u64);

/// Which bytes of a page that is not valid are in memory. Bytes, counted from the page's first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ragged {
    /// None of them.
    #[default]
    None,
    /// `start..start + len`, with `len` in `1..=4095` and the end at most 4096.
    Run {
        /// First byte in memory.
        start: u16,
        /// Bytes in memory.
        len: u16,
    },
    /// Those whose bits are set in the [`ByteMap`] that lies in this small frame.
    Map(SmallId),
}

/// What a page is after a write into it; the plan that the header carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Merge {
    /// One run still says it all.
    Run {
        /// First byte in memory.
        start: u16,
        /// Bytes in memory, `1..=4095`.
        len: u16,
    },
    /// Every byte is in memory: the page becomes valid.
    Whole,
    /// Two runs with a gap between them: the page needs a [`ByteMap`], or has one already.
    NeedsMap,
}

impl PageWord {
    /// No small frame, no bytes.
    pub const EMPTY: PageWord = PageWord(0);

    /// The small frame that holds the page's bytes; `None` if they lie in the block's frame, or
    /// nowhere.
    #[inline]
    pub fn small(self) -> Option<SmallId> {
        let field = (self.0 >> SMALL_SHIFT) & SMALL_MASK;
        (field as u32).checked_sub(1).map(SmallId)
    }

    /// Which bytes are in memory while the page is not valid.
    #[inline]
    pub fn ragged(self) -> Ragged {
        self.decode().unwrap_or(Ragged::None)
    }

    /// Whether the ragged part is one that [`PageWord::with_ragged`] makes.
    #[inline]
    pub fn is_wellformed(self) -> bool {
        self.decode().is_some()
    }

    /// The same ragged part, with the bytes in `small`.
    #[inline]
    #[must_use]
    pub fn with_small(self, small: Option<SmallId>) -> PageWord {
        let field = match small {
            None => 0,
            Some(id) => {
                debug_assert!(id.0 < SMALL_IDS_MAX, "{id:?} does not fit a page word");
                (u64::from(id.0) + 1) & SMALL_MASK
            }
        };
        PageWord(self.0 & !SMALL_FIELD | field << SMALL_SHIFT)
    }

    /// The same small frame, with another ragged part.
    #[inline]
    #[must_use]
    pub fn with_ragged(self, ragged: Ragged) -> PageWord {
        let (tag, part) = match ragged {
            Ragged::None => (TAG_NONE, 0),
            Ragged::Run { start, len } => {
                debug_assert!(run_fits(u32::from(start), u32::from(len)), "{ragged:?}");
                (TAG_RUN, u32::from(start) | u32::from(len) << RUN_BITS)
            }
            Ragged::Map(id) => {
                debug_assert!(id.0 < SMALL_IDS_MAX, "{id:?} does not fit a page word");
                (TAG_MAP, id.0)
            }
        };
        PageWord(self.0 & SMALL_FIELD | tag << TAG_SHIFT | u64::from(part))
    }

    /// The ragged part, or `None` where it is not one.
    #[inline]
    fn decode(self) -> Option<Ragged> {
        let part = self.0 as u32;
        match self.0 >> TAG_SHIFT {
            TAG_NONE if part == 0 => Some(Ragged::None),
            TAG_RUN => {
                let (start, len) = (part & RUN_MASK, part >> RUN_BITS);
                run_fits(start, len).then_some(Ragged::Run {
                    start: start as u16,
                    len: len as u16,
                })
            }
            TAG_MAP if part < SMALL_IDS_MAX => Some(Ragged::Map(SmallId(part))),
            _ => None,
        }
    }
}

/// Whether a run lies in a page and is neither empty nor the whole of it.
#[inline]
fn run_fits(start: u32, len: u32) -> bool {
    (1..PAGE_BYTES as u32).contains(&len) && start <= PAGE_BYTES as u32 - len
}

/// What a page that is `old` is once bytes `start..end` have been written into it.
///
/// Runs that overlap or touch become one. A page with a map answers [`Merge::NeedsMap`]: there
/// [`ByteMap::set`] does the merging.
#[inline]
pub fn merge(old: Ragged, start: usize, end: usize) -> Merge {
    debug_assert!(
        start < end && end <= PAGE_BYTES,
        "{start}..{end} is not in a page"
    );
    let (start, end) = match old {
        Ragged::None => (start, end),
        Ragged::Run {
            start: old_start,
            len,
        } => {
            let (old_start, old_end) = (old_start as usize, old_start as usize + len as usize);
            debug_assert!(old_end <= PAGE_BYTES);
            if end < old_start || old_end < start {
                return Merge::NeedsMap;
            }
            (start.min(old_start), end.max(old_end))
        }
        Ragged::Map(_) => return Merge::NeedsMap,
    };
    if end - start == PAGE_BYTES {
        return Merge::Whole;
    }
    Merge::Run {
        start: start as u16,
        len: (end - start) as u16,
    }
}

/// What remains of a page when its bytes at and beyond `end` are dropped (truncation).
///
/// A map stays a map: its bits are dropped by [`ByteMap::clear_from`].
#[inline]
#[must_use]
pub fn clip(ragged: Ragged, end: usize) -> Ragged {
    match ragged {
        Ragged::Run { start, len } => {
            let kept = end.saturating_sub(start as usize).min(len as usize) as u16;
            if kept == 0 {
                return Ragged::None;
            }
            Ragged::Run { start, len: kept }
        }
        Ragged::None | Ragged::Map(_) => ragged,
    }
}

/// Calls `f(start, end)` for each maximal run of bytes that are in memory, in ascending order.
///
/// `map` is the page's map where it has one. A map that could not be found (`None`) says nothing, so
/// none of the page's bytes count as in memory.
#[inline]
pub fn runs(ragged: &Ragged, map: Option<&ByteMap>, mut f: impl FnMut(usize, usize)) {
    match (*ragged, map) {
        (Ragged::Run { start, len }, _) => f(start as usize, start as usize + len as usize),
        (Ragged::Map(_), Some(map)) => map.runs(f),
        (Ragged::None, _) | (Ragged::Map(_), None) => {}
    }
}

/// Calls `f(start, end)` for each maximal run of bytes that are not in memory, in ascending order:
/// what a fill must copy from the device. `map` as for [`runs`].
#[inline]
pub fn holes(ragged: &Ragged, map: Option<&ByteMap>, mut f: impl FnMut(usize, usize)) {
    match (*ragged, map) {
        (Ragged::Run { start, len }, _) => {
            let (start, end) = (start as usize, start as usize + len as usize);
            if start > 0 {
                f(0, start);
            }
            if end < PAGE_BYTES {
                f(end, PAGE_BYTES);
            }
        }
        (Ragged::Map(_), Some(map)) => map.holes(f),
        (Ragged::None, _) | (Ragged::Map(_), None) => f(0, PAGE_BYTES),
    }
}
