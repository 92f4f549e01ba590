//! Frames that a program's own mapping of a file shows: `mmap` under the preload library.
//!
//! The mapping is the program's: made where it asks for it, cut and moved by it, inherited by its children. So the caller makes it, of the
//! description of a [`Holder`], which each piece of it keeps. Here the frames are pinned, and said to lie where in the arena's file. The
//! caller maps privately: a store into the mapping is a copy of the process's, and never reaches the frame.

use super::{After, Pins, may_be_held, pages_held, pin_all, runs_of};
use crate::file::core::{Core, Halt};
use crate::file::inode::Inode;
use crate::ids::{BlockIndex, FrameId};
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::member::viewers::Holder;
use crate::memory::threads::Me;
use crate::scrap::split::segments;
use crate::sync::planted;

/// Of a range, the part that memory must have: one in so many. Of a range of which it has less, the kernel's own mapping reads only the
/// pages that are looked at.
const IN_MEMORY_PARTS: usize = 2;

/// The pinned frames of a range of whole pages of a file. They are let go when it is dropped, in the process that has made it.
pub struct Attached {
    pins: Pins,
    start: u64,
    len: usize,
    size: u64,
}

/// Bytes of the range that lie side by side in the arena's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the range.
    pub at: usize,
    /// How many, whole pages.
    pub len: usize,
    /// Where in the arena's file.
    pub offset: usize,
}

impl Inode {
    /// Pins the frames of `len` bytes from `start` on, both whole pages, for a private mapping. `None`, for the kernel's own mapping: pages
    /// of the range lie behind the page that holds the end, somebody may write the file, memory has less than half of the range or may not
    /// hold it, or the arena's pages are larger than a page.
    ///
    /// # Errors
    /// As for [`Core::operate`].
    pub fn attach(
        &self,
        me: Me<'_>,
        holder: &Holder,
        start: u64,
        len: usize,
    ) -> Result<Option<Attached>, Halt> {
        let core = self.core();
        let size = core.size(me)?;
        let pages = PAGE_BYTES as u64;
        let is_within = len > 0
            && start.checked_add(len as u64).is_some_and(|end| {
                size.checked_next_multiple_of(pages)
                    .is_some_and(|last| end <= last)
            });
        let is_of_pages = start.is_multiple_of(pages) && len.is_multiple_of(PAGE_BYTES);
        if !is_within || !is_of_pages || core.shared.arena.mapping().page_bytes() != PAGE_BYTES {
            return Ok(None);
        }
        let bytes = (size - start).min(len as u64) as usize;
        if core.entry().writers() != 0
            || !may_be_held(me, start, bytes)
            || !is_in_memory(core, me, start, bytes)
        {
            return Ok(None);
        }
        let (after, pins) = pin_all(core, me, holder.number(), (start, bytes))?;
        Ok((after == After::Done).then_some(Attached {
            pins,
            start,
            len,
            size,
        }))
    }
}

/// Whether memory has enough of a range, as far as a glance tells.
fn is_in_memory(core: &Core, me: Me<'_>, start: u64, len: usize) -> bool {
    let Ok(_operation) = me.enter(core.id) else {
        return false;
    };
    let (mut held, enough) = (0, len.div_ceil(IN_MEMORY_PARTS));
    segments(start, len).any(|segment| {
        let pages = pages_held(core, me, segment.block).unwrap_or(0);
        held += segment.len.min(pages * PAGE_BYTES);
        held >= enough
    })
}

impl Attached {
    /// Where the range lies in the arena's file, in its order, without gaps.
    pub fn pieces(&self) -> Vec<Piece> {
        let frames: Vec<FrameId> = self.pins.pins.iter().map(|pin| pin.frame).collect();
        let within = (self.start - BlockIndex::of(self.start).start()) as usize;
        let arena = &self.pins.shared.arena;
        let piece = |(first, count): (usize, usize)| {
            // From here on a place in the frames, of which the range begins at `within`.
            let begin = (first * BLOCK_BYTES).max(within);
            let end = ((first + count) * BLOCK_BYTES).min(within + self.len);
            Piece {
                at: begin - within,
                len: end - begin,
                offset: arena.frame_offset(frames[first]) + begin - first * BLOCK_BYTES,
            }
        };
        runs_of(&frames).into_iter().map(piece).collect()
    }

    /// How many bytes at the end of the range, behind the end of the file, a program must see as zeros, and would not.
    pub fn rest(&self) -> usize {
        let rest = (self.start + self.len as u64).saturating_sub(self.size) as usize;
        let last = self.pins.pins.last().map(|pin| pin.frame);
        let bytes = last.and_then(|frame| self.pins.shared.arena.frame_bytes(frame));
        let Some(bytes) = bytes.filter(|_| rest > 0) else {
            return 0;
        };
        let end = (self.start + self.len as u64 - 1) % BLOCK_BYTES as u64 + 1;
        // SAFETY: within a frame that is pinned: mapped as long as the session, and changed by nobody. What nobody has written is zero.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.add(end as usize - rest), rest) };
        if bytes.iter().all(|&byte| byte == 0) {
            0
        } else {
            rest
        }
    }

    /// From now on the frames stay pinned for as long as anybody has a mapping of the holder's description.
    pub fn leave_to_holder(mut self) {
        if !planted!(EarlyUnpin) {
            self.pins.pins.clear();
        }
    }
}
