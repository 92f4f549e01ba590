//! Windows: memory of the store that a program fills, and that then becomes a part of a file without being copied.
//!
//! A window's blocks are free in the medium, so a crash before the commit leaves no trace. The commit changes metadata alone. What
//! the program stored may be in the CPU's cache still: the batch's persistence phase writes it back, without the store's lock.
//!
//! The first byte of a window lies where its offset in the file has it in a page (the slides' sliding window); the rest of the first and
//! the last page is copied from the file at the commit.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::calls::piece;
use super::{Inner, Store};
use crate::errno::{Errno, Result};
use crate::layout::BLOCK;
use crate::operations::files::{self, CHUNK_PAGES};
use crate::space::Run;
use crate::state::Filled;

/// Bytes to be written, in the store's own memory: see [`Store::window`].
pub struct Window {
    inner: Arc<Inner>,
    inode: u64,
    offset: u64,
    /// What is lent and not committed yet.
    run: Run,
    /// The first byte.
    at: *mut u8,
    length: usize,
    /// What is kept from children of this process.
    kept: Option<Run>,
}

// SAFETY: the blocks are lent to this window alone: nobody else reads or writes them until they are committed or given back. The
// mapping lives as long as `inner`.
unsafe impl Send for Window {}
// SAFETY: as above; by a shared reference bytes are read only.
unsafe impl Sync for Window {}

impl Store {
    /// Lends memory for up to `length` bytes (not 0) that are to be written to a file at `offset`: as many as the store has side by
    /// side, at least to the end of the first page. [`Window::commit`] writes them; a window that is dropped before has not been.
    ///
    /// The bytes are whatever was there before, of removed files too: fill all of them, or cut the window short.
    ///
    /// A window holds its file: that stays when its last name goes, and nobody else gets its number, until the window is dropped.
    ///
    /// # Errors
    /// Those of [`Store::write`].
    pub fn window(&self, inode: u64, offset: u64, length: usize) -> Result<Window> {
        if length == 0 {
            return Err(Errno::EINVAL);
        }
        let run = self.inner.change(|state| {
            let run = files::lend(state, inode, offset, length)?;
            state.hold(inode);
            Ok(run)
        })?;
        let skipped = (offset % BLOCK as u64) as usize;
        let length = length.min(run.length as usize * BLOCK - skipped);
        let at = run.start * BLOCK as u64 + skipped as u64;
        let at = self.inner.read().medium.address(at, length, true);
        Ok(Window {
            inner: Arc::clone(&self.inner),
            inode,
            offset,
            run,
            at,
            length,
            kept: None,
        })
    }
}

impl Window {
    /// Where its first byte goes in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Children of this process have nothing at the window's addresses until it is committed or dropped, and end there by SIGSEGV: without this
    /// one that stores there stores into its parent's window, and into the file after the commit.
    pub fn keep_from_children(&mut self) {
        self.advise(self.run, true);
        self.kept = Some(self.run);
    }

    fn advise(&self, run: Run, keeps: bool) {
        let (at, length) = (run.start * BLOCK as u64, run.length * BLOCK as u64);
        let medium = Arc::clone(&self.inner.read().medium);
        medium.keep_from_children(at, length, keeps);
    }

    fn give_to_children(&mut self) {
        if let Some(run) = self.kept.take() {
            self.advise(run, false);
        }
    }

    /// Leaves out all but the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Writes the bytes to the file, without copying them: the slides' `zcopy_to_flac`. What is promised of [`Store::write`] and its
    /// parts holds. The window is empty then; the memory is the file's, and the next one is had by [`Store::window`] (the slides'
    /// `detach`), or with these bytes by copying them there from a view (`bfault`).
    ///
    /// # Errors
    /// Those of [`Store::write`], and `EROFS` when the store has been closed. The window has what is not in the file then, and may be committed again.
    pub fn commit(&mut self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let _turn = inner.turn(self.inode);
        while self.length > 0 {
            let part = piece(self.offset, self.length, CHUNK_PAGES);
            let block = self.run.start;
            inner.change(|state| {
                files::attach(state, self.inode, self.offset, part, block, Filled::Program)
            })?;
            self.advance(part);
        }
        self.give_to_children();
        Ok(())
    }

    /// Writes the first `count` bytes, as [`Window::commit`] does, and gives the others back.
    ///
    /// # Errors
    /// `EINVAL` for more than there are, and those of [`Window::commit`]: the window has all that is not in the file then, also what was not asked for.
    pub fn commit_first(&mut self, count: usize) -> Result<()> {
        let others = self.length.checked_sub(count).ok_or(Errno::EINVAL)?;
        self.length = count;
        let committed = self.commit();
        if committed.is_err() {
            self.length += others;
        }
        committed
    }

    /// These bytes are the file's; all but the last of them end with a page.
    fn advance(&mut self, part: usize) {
        let pages = (self.offset + part as u64).div_ceil(BLOCK as u64) - self.offset / BLOCK as u64;
        self.run.start += pages;
        self.run.length -= pages;
        self.offset += part as u64;
        self.length -= part;
        self.at = self.at.wrapping_add(part);
    }
}

impl Deref for Window {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: within the mapping, initialised as all of a store is, and lent to this window alone.
        unsafe { std::slice::from_raw_parts(self.at, self.length) }
    }
}

impl DerefMut for Window {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.length) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.give_to_children();
        if self.run.length > 0 {
            self.inner.write().give_back(self.run);
        }
        self.inner.release(self.inode, 1);
    }
}
