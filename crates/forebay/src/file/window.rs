//! Windows: memory of the arena that a program fills, and whose frames become a file's without a copy.
//!
//! Source: FLAC, page attaching, sliding window, *bfault* and *detach*. A window's blocks lie side by side in the addresses. A block is in one
//! of three conditions:
//!
//! ```text
//! own ------(refill, slide)-----> fresh: a frame that no header has; what is stored is in it
//!  ^                                |  ^
//!  | (detach, memory is short)      |  | (refill: with the bytes; detach: with zeros)
//!  `------------------------------ given: the bytes that a file got; what is stored stays the window's alone
//! own: memory of the process, since the arena had none; a commit of it is a copy
//! ```
//!
//! A commit first has the addresses show the frame by a private mapping, so that no later store reaches it, from whatever thread and
//! however late: the kernel copies the page that is stored to. Then the block's header gets the frame (`scrap::own::attach`). The window
//! keeps its pin, so a writer of the file gives the block a new frame, and the window goes on showing what it has committed. The pins
//! of a process that dies are taken back like those of views, and frames that no header has are free then.
//!
//! Not done here: nothing is written to a device, and a block that is committed in part is copied (`File::write_at`).

mod blocks;
#[doc(hidden)]
pub mod commit;

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use self::blocks::{Block, Blocks};
use crate::error::{Error, Result};
use crate::file::File;
use crate::file::view::Counted;
use crate::ids::FrameId;
use crate::limits::{BLOCK_BYTES, FILE_BYTES_MAX, HUGE_BYTES};
use crate::member::shared::Shared;
use crate::sys::forks::Owned;

/// Mappings of a window beside those of its blocks.
const MAPPINGS: usize = 2;

/// Memory that a program fills and gives to files, without a copy where whole huge pages (2 MiB of the file) are given.
///
/// ```
/// # fn main() -> forebay::error::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// let session = forebay::Session::open(forebay::Config::tiny())?;
/// let file = session.open_file(&path, forebay::OpenOptions::new().read(true).write(true).create(true))?;
/// let mut window = session.window(2 << 20)?;
/// window.fill(1);
/// window.commit(&file, 0, 0..2 << 20)?;
/// window[0] = 2; // the window's alone
/// window.detach()?; // empty memory again, without a copy
/// let mut byte = [0];
/// file.read_at(&mut byte, 0)?;
/// assert_eq!((byte, window[0]), ([1], 0));
/// # file.close()
/// # }
/// ```
pub struct Window {
    /// They go before the frames that they show.
    addresses: Counted,
    blocks: Owned<Blocks>,
    shared: Arc<Shared>,
    len: usize,
    /// Where in its blocks the first byte lies.
    shift: usize,
    attached_bytes: u64,
}

// SAFETY: a window's addresses and frames are the process's, not a thread's, and it lends its bytes out as any owner does.
unsafe impl Send for Window {}
// SAFETY: as above; through a shared reference bytes are read only.
unsafe impl Sync for Window {}

impl Window {
    /// [`Session::window`](crate::Session::window).
    pub(crate) fn of(shared: &Arc<Shared>, bytes: usize) -> Result<Self> {
        if bytes == 0 || bytes as u64 > FILE_BYTES_MAX {
            return Err(Error::InvalidInput(
                "a window has at least one byte, and no more than a file can have",
            ));
        }
        Window::new(Arc::clone(shared), bytes, 0)
    }

    fn new(shared: Arc<Shared>, len: usize, shift: usize) -> Result<Self> {
        let me = shared.me()?;
        let count = (shift + len).div_ceil(BLOCK_BYTES);
        let first = shift / BLOCK_BYTES;
        let like = shared.arena.frame_offset(FrameId(0));
        let reserve = |mappings| Counted::reserve(mappings, count * BLOCK_BYTES, HUGE_BYTES, like);
        let by_blocks = reserve(count - first + MAPPINGS);
        let has_frames = by_blocks.is_some() && Blocks::can_be_shown(&shared.arena);
        let no_memory = || {
            Error::device(
                "make a window",
                &std::io::Error::from_raw_os_error(libc::ENOMEM),
            )
        };
        let addresses = by_blocks
            .or_else(|| reserve(MAPPINGS))
            .ok_or_else(no_memory)?;
        let bytes = (count - first) * BLOCK_BYTES;
        let emptied = addresses.addresses.empty(first * BLOCK_BYTES, bytes);
        emptied.map_err(|error| Error::device("make a window", &error))?;
        let mut blocks = Blocks::new(Arc::clone(&shared), first, count);
        if has_frames {
            blocks.fill(me, &addresses.addresses);
        }
        let blocks =
            Owned::new(blocks).map_err(|error| Error::device("watch for forks", &error))?;
        Ok(Window {
            addresses,
            blocks,
            shared,
            len,
            shift,
            attached_bytes: 0,
        })
    }

    /// Gives the window's bytes `range` to the file at `offset`: afterwards the file has them as if they had been written there, and what
    /// happens to the window is the window's alone. Returns how many bytes: all, unless an error came after some were given.
    ///
    /// Pieces of the file, 2 MiB at multiples of that, of which `range` has all go without a copy, if they lie in the window as they do in the
    /// file ([`Window::slide`] sees to that) and have not been committed since the last [`Window::refill`] or [`Window::detach`]. All else is copied, whatever of it the file has.
    /// Without a copy it is whatever the file's route is. Storing into what was given costs a copy of each page, once.
    ///
    /// Where memory is short for what the session has to note, or too much is dirty, the call waits as a write does, and fails for the same
    /// reasons. Of blocks that could not be given any more, the window keeps the bytes.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for a range that the window does not have; those of [`File::write_at`]. In a child that was forked,
    /// [`Error::InvalidInput`].
    pub fn commit(&mut self, file: &File, offset: u64, range: Range<usize>) -> Result<usize> {
        if range.start > range.end || range.end > self.len {
            return Err(Error::InvalidInput("a window does not have these bytes"));
        }
        if !self.blocks.is_ours() {
            return Err(of_the_parent());
        }
        self.commit_checked(file, offset, range)
    }

    /// Makes what was committed writable again at once, with the bytes that the window shows (*bfault*): one copy, instead of a fault and a
    /// copy for each page that is stored to. Memory of the process's own becomes the arena's, so that it can be given without a copy.
    ///
    /// Where the arena has no memory without waiting for a device, blocks stay as they are: nothing is lost, stores cost what they did, and
    /// the next commit of them is a copy.
    ///
    /// # Errors
    /// [`Error::Session`] when the calling thread finds no slot; in a child that was forked, [`Error::InvalidInput`].
    pub fn refill(&mut self) -> Result<()> {
        let me = self.shared.me()?;
        let blocks = self.blocks.get_mut().ok_or_else(of_the_parent)?;
        if self.addresses.mappings() > MAPPINGS {
            blocks.refill(me, &self.addresses.addresses);
        }
        Ok(())
    }

    /// Gives what was committed without a copy away, and has zeros there instead (*detach*): no copy, and no fault for each page that is
    /// stored to. All else stays as it is.
    ///
    /// Where the arena has no memory without waiting for a device, the zeros are memory of the process's own, and the next commit of them is
    /// a copy.
    ///
    /// # Errors
    /// As for [`Window::refill`]; `ENOMEM` when the system has no mapping for the zeros: the blocks are as they were then.
    pub fn detach(&mut self) -> Result<()> {
        let me = self.shared.me()?;
        let blocks = self.blocks.get_mut().ok_or_else(of_the_parent)?;
        let detached = blocks.detach(me, &self.addresses.addresses);
        detached.map_err(|error| Error::device("detach a window", &error))
    }

    /// Empties the window, and moves its first byte to where a byte at `offset` lies in a file's blocks (the *sliding window*): a commit at
    /// `offset` plus a multiple of 2 MiB is a copy only of what lies in huge pages in part. The window's bytes are zeros afterwards, at other
    /// addresses; a multiple of 2 MiB lets them lie on huge pages as they do in the file.
    ///
    /// # Errors
    /// As for [`Session::window`](crate::Session::window): the window is empty then, and where it was.
    pub fn slide(&mut self, offset: u64) -> Result<()> {
        let shift = (offset % HUGE_BYTES as u64) as usize;
        let attached_bytes = self.attached_bytes;
        // What it has now would be missing for what it is to have.
        self.empty()?;
        *self = Window::new(Arc::clone(&self.shared), self.len, shift)?;
        self.attached_bytes = attached_bytes;
        Ok(())
    }

    /// All of it zeros of the process's own.
    fn empty(&mut self) -> Result<()> {
        let blocks = self.blocks.get_mut().ok_or_else(of_the_parent)?;
        let first = self.shift / BLOCK_BYTES;
        let bytes = (blocks.list.len() - first) * BLOCK_BYTES;
        let emptied = self.addresses.addresses.empty(first * BLOCK_BYTES, bytes);
        emptied.map_err(|error| Error::device("empty a window", &error))?;
        blocks.let_go();
        Ok(())
    }

    /// Bytes that commits have given to files without a copy so far.
    pub fn attached_bytes(&self) -> u64 {
        self.attached_bytes
    }

    /// The blocks in which the window lies, and where in them it begins: what tests look at.
    #[doc(hidden)]
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |is: fn(&Block) -> bool| {
            let blocks = self.blocks.get().map(|blocks| blocks.list.as_slice());
            blocks
                .unwrap_or(&[])
                .iter()
                .filter(|block| is(block))
                .count()
        };
        (
            count(|block| matches!(block, Block::Own)),
            count(|block| matches!(block, Block::Fresh(_))),
            count(|block| matches!(block, Block::Given(_))),
        )
    }

    fn first_byte(&self) -> *mut u8 {
        let first = self.addresses.addresses.first().cast_mut();
        first.wrapping_add(self.shift)
    }
}

fn of_the_parent() -> Error {
    Error::InvalidInput("a child that was forked has none of its parent's windows")
}

impl Deref for Window {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if !self.blocks.is_ours() {
            return &[];
        }
        // SAFETY: the addresses are the window's, mapped and initialised until it is dropped. Frames that no header has are known to this
        // window alone; those that were given are mapped privately, pinned, and changed by nobody (`memory::pins`).
        unsafe { std::slice::from_raw_parts(self.first_byte(), self.len) }
    }
}

impl DerefMut for Window {
    fn deref_mut(&mut self) -> &mut [u8] {
        if !self.blocks.is_ours() {
            return &mut [];
        }
        // SAFETY: as for `deref`; the thread that stores has the window alone, and what is stored reaches a frame that no header has, or a copy.
        unsafe { std::slice::from_raw_parts_mut(self.first_byte(), self.len) }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Window");
        out.field("len", &self.len)
            .field("attached_bytes", &self.attached_bytes);
        out.finish_non_exhaustive()
    }
}
