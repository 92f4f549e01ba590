//! Frames side by side in a process's addresses: in the arena itself, or mapped so. Views and windows of a process have a number of mappings
//! for all of them; a thread that finds none left copies.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::ids::FrameId;
use crate::limits::{BLOCK_BYTES, HUGE_BYTES};
use crate::memory::arena::Arena;
use crate::sys::addresses::{Access, Addresses};

/// Mappings that all views and windows of this process may have. The kernel gives a process 65,530.
const MAPPINGS_MAX: usize = 16_384;

static MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// Addresses that count as so many mappings.
pub struct Counted {
    pub addresses: Addresses,
    mappings: usize,
}

impl Counted {
    /// As [`Addresses::reserve`]. `None`: views and windows of this process have as many mappings as they may, or the system has none.
    pub fn reserve(mappings: usize, len: usize, align: usize, like: usize) -> Option<Self> {
        if MAPPINGS.fetch_add(mappings, Relaxed) + mappings > MAPPINGS_MAX {
            MAPPINGS.fetch_sub(mappings, Relaxed);
            return None;
        }
        let Ok(addresses) = Addresses::reserve(len, align, like) else {
            MAPPINGS.fetch_sub(mappings, Relaxed);
            return None;
        };
        Some(Counted {
            addresses,
            mappings,
        })
    }

    /// As which it was reserved.
    pub fn mappings(&self) -> usize {
        self.mappings
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        MAPPINGS.fetch_sub(self.mappings, Relaxed);
    }
}

/// Frames in a row: the place of the first in the view, and how many.
pub fn runs_of(frames: &[FrameId]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (place, frame) in frames.iter().enumerate() {
        match runs.last_mut() {
            Some((first, count)) if frames[*first].0 + *count as u32 == frame.0 => *count += 1,
            _ => runs.push((place, 1)),
        }
    }
    runs
}

/// Maps frames side by side. `None`: the arena has no file, or there are no mappings left.
pub fn map(arena: &Arena, frames: &[FrameId], access: Access) -> Option<Counted> {
    let file = arena.mapping().file()?;
    let runs = runs_of(frames);
    // A mapping of the longest run is of huge pages where its addresses lie as its frames do.
    let &(first, _) = runs.iter().max_by_key(|(_, count)| *count)?;
    let like = arena
        .frame_offset(frames[first])
        .wrapping_sub(first * BLOCK_BYTES);
    let counted = Counted::reserve(runs.len() + 2, frames.len() * BLOCK_BYTES, HUGE_BYTES, like)?;
    for (first, count) in runs {
        let (at, len) = (first * BLOCK_BYTES, count * BLOCK_BYTES);
        let offset = arena.frame_offset(frames[first]);
        let shown = counted
            .addresses
            .show(at, len, file.as_fd(), offset, access);
        shown.ok()?;
    }
    Some(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_in_a_row_are_one_run() {
        let frames = |ids: &[u32]| ids.iter().copied().map(FrameId).collect::<Vec<_>>();
        assert_eq!(runs_of(&frames(&[])), []);
        assert_eq!(runs_of(&frames(&[4, 5, 6])), [(0, 3)]);
        assert_eq!(runs_of(&frames(&[4, 5, 7, 3, 4])), [(0, 2), (2, 1), (3, 2)]);
    }
}
