//! Views: bytes of a file, read where they lie in persistent memory.
//!
//! A view shows a file as it was at one moment. A page that somebody writes while a view shows it goes to another block, and the
//! shown one is not used again before the view is dropped. So nothing is copied, and nothing changes.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use super::{Inner, Store};
use crate::errno::{Errno, Result};
use crate::layout::BLOCK;
use crate::operations::files;
use crate::space::Run;

/// What holes show, piece by piece.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes that lie side by side, or that are not there.
#[derive(Clone, Copy)]
enum Part {
    /// Where, and how many.
    Stored(*const u8, usize),
    /// So many zeros.
    Hole(usize),
}

/// Bytes of a file that do not change: see [`Store::view`].
pub struct View {
    inner: Arc<Inner>,
    parts: Vec<Part>,
    pinned: Vec<Run>,
    length: usize,
}

// SAFETY: the bytes that the addresses lead to are not changed as long as the view pins their blocks, and the medium that they lie in
// lives as long as `inner`; any thread may read them, and drop the view.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl Store {
    /// Shows up to `length` bytes of a file from `offset` on, less only at the end of the file, without copying them: the slides'
    /// `zcopy_from_flac`. All of them are from one moment.
    ///
    /// What a view shows keeps its room in the store, also if the file is written over or removed. A store stays open until the last
    /// view of it is dropped.
    ///
    /// # Errors
    /// Those of [`Store::read`].
    pub fn view(&self, inode: u64, offset: u64, length: usize) -> Result<View> {
        let state = self.inner.read();
        let (stretches, there) = files::stretches(&state, inode, offset, length)?;
        let mut view = View {
            inner: Arc::clone(&self.inner),
            parts: Vec::with_capacity(stretches.len()),
            pinned: Vec::with_capacity(stretches.len()),
            length: there,
        };
        let mut skipped = (offset % BLOCK as u64) as usize;
        let mut left = there;
        for (block, pages) in stretches {
            let length = (pages as usize * BLOCK - skipped).min(left);
            view.parts.push(match block {
                None => Part::Hole(length),
                Some(block) => {
                    let at = block * BLOCK as u64 + skipped as u64;
                    view.pinned.push(Run {
                        start: block,
                        length: pages,
                    });
                    Part::Stored(state.medium.address(at, length, false), length)
                }
            });
            left -= length;
            skipped = 0;
        }
        // Under the lock that the blocks were looked up under: nobody has freed or written them since.
        state.pins.pin(&view.pinned);
        Ok(view)
    }
}

impl View {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it shows nothing.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes in order, in as few slices as they lie in; holes are slices of zeros of 64 KiB at most.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().flat_map(|part| {
            let (stored, hole) = match *part {
                Part::Stored(at, length) => {
                    // SAFETY: initialised, as all of a store is; nobody writes to them as long as they are pinned, which they
                    // are as long as `self` lives, and so is the mapping.
                    let bytes = unsafe { std::slice::from_raw_parts(at, length) };
                    (Some(bytes), 0)
                }
                Part::Hole(length) => (None, length),
            };
            let zeros = (0..hole)
                .step_by(ZEROS.len())
                .map(move |from| &ZEROS[..ZEROS.len().min(hole - from)]);
            stored.into_iter().chain(zeros)
        })
    }

    /// All bytes in one slice, if they lie so: a file that was written in order on a store with room does.
    pub fn as_slice(&self) -> Option<&[u8]> {
        let mut parts = self.parts();
        match (parts.next(), parts.next()) {
            (None, _) => Some(&[]),
            (Some(part), None) => Some(part),
            _ => None,
        }
    }

    /// All bytes in one slice, copied if they do not lie so.
    pub fn to_slice(&self) -> Cow<'_, [u8]> {
        match self.as_slice() {
            Some(bytes) => Cow::Borrowed(bytes),
            None => Cow::Owned(self.parts().collect::<Vec<_>>().concat()),
        }
    }
}

/// A view's bytes as one slice: where they are in the medium, or a copy where they do not lie side by side there.
pub struct Whole(Bytes);

enum Bytes {
    Stored(View),
    Copied(Vec<u8>),
}

impl View {
    /// A copy of all bytes.
    ///
    /// # Errors
    /// `ENOMEM` when the process has no memory for it.
    pub fn copied(&self) -> Result<Vec<u8>> {
        let mut copy = Vec::new();
        let room = copy.try_reserve_exact(self.length);
        room.map_err(|_| Errno::ENOMEM)?;
        self.parts().for_each(|part| copy.extend_from_slice(part));
        Ok(copy)
    }

    /// All bytes as one slice for as long as they are wanted. What is copied is pinned no more.
    ///
    /// # Errors
    /// `ENOMEM` when they must be copied, and the process has no memory for it.
    pub fn whole(self) -> Result<Whole> {
        if self.as_slice().is_some() {
            return Ok(Whole(Bytes::Stored(self)));
        }
        let copy = self.copied()?;
        Ok(Whole(Bytes::Copied(copy)))
    }
}

impl Whole {
    /// Whether they are a copy.
    pub fn is_copy(&self) -> bool {
        matches!(self.0, Bytes::Copied(_))
    }
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Stored(view) => view.as_slice().unwrap_or_default(),
            Bytes::Copied(copy) => copy,
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let free = self.inner.read().pins.unpin(&self.pinned);
        if !free.is_empty() {
            let mut state = self.inner.write();
            free.into_iter()
                .for_each(|block| state.blocks.release(block));
        }
    }
}
