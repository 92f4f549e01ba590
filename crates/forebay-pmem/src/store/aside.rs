//! Large writes beside each other: their bytes are copied without the store's lock.
//!
//! A write copies under the lock, since it may write in place. So two threads would wait for each other's copies. A large write that finds another
//! one under way has free blocks lent instead, as a window has, and copies its bytes there. What it does under the lock then is to put these blocks in place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Inner;
use crate::errno::{Errno, Result};
use crate::layout::BLOCK;
use crate::medium::For;
use crate::operations::files;
use crate::space::Run;
use crate::state::Filled;

/// Bytes from which on a write is large: a copy takes longer than to take blocks and to free others.
const LARGE: usize = 256 << 10;

/// How many large writes are under way.
#[derive(Default)]
pub(super) struct Writers(AtomicUsize);

/// A large write, until it is dropped.
pub(super) struct Writing<'a>(&'a Writers);

impl Writers {
    /// One begins, if this is a large one.
    pub(super) fn begin(&self, bytes: &[u8]) -> Option<Writing<'_>> {
        (bytes.len() >= LARGE).then(|| {
            // Relaxed: who does not see the other one waits for it, as before.
            self.0.fetch_add(1, Ordering::Relaxed);
            Writing(self)
        })
    }
}

impl Writing<'_> {
    pub(super) fn is_beside_others(&self) -> bool {
        // Relaxed: as above.
        self.0.0.load(Ordering::Relaxed) > 1
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        // Relaxed: as above.
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Blocks for one piece of a write; they are given back if they are not put in place.
struct Lent<'a> {
    inner: &'a Inner,
    run: Run,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.inner.write().give_back(self.run);
    }
}

impl Inner {
    /// Writes a piece so. Whether it could: the store may be too full for it, or the file have space that it is to keep. The caller has the file's turn.
    pub(super) fn write_aside(&self, inode: u64, offset: u64, bytes: &[u8]) -> Result<bool> {
        let Some(lent) = self.lend_whole(inode, offset, bytes.len()) else {
            return Ok(false);
        };
        let medium = Arc::clone(&self.read().medium);
        let at = lent.run.start * BLOCK as u64 + offset % BLOCK as u64;
        medium.stream(at, bytes, For::Data);
        medium.fence(For::Data);
        let (length, block) = (bytes.len(), lent.run.start);
        let put = |state: &mut _| files::attach(state, inode, offset, length, block, Filled::Store);
        match self.change(put) {
            Ok(()) => {
                std::mem::forget(lent);
                Ok(true)
            }
            Err(Errno::ENOSPC) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lends blocks side by side for a whole piece, and waits for no commit.
    fn lend_whole(&self, inode: u64, offset: u64, length: usize) -> Option<Lent<'_>> {
        let pages = (offset % BLOCK as u64 + length as u64).div_ceil(BLOCK as u64);
        let mut state = self.write();
        if state.read_only.is_some() || !files::may_move(&state, inode, offset, length) {
            return None;
        }
        match files::lend(&mut state, inode, offset, length) {
            Ok(run) if run.length == pages && state.keep(&[]) => Some(Lent { inner: self, run }),
            _ => {
                state.undo();
                None
            }
        }
    }
}

#[cfg(test)]
impl super::Store {
    /// A write that has another one beside it, as far as it knows.
    pub(crate) fn write_beside(&self, inode: u64, offset: u64, bytes: &[u8]) -> Result<usize> {
        let _turn = self.inner.turn(inode);
        self.write_pieces(inode, offset, bytes, || true)
    }
}
