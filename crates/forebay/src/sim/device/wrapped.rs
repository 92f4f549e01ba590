//! A file with something before each call: one place that knows all calls, for every wrapper.

use super::call::{Call, CallKind};
use crate::device::{Caps, DeviceFile, DeviceStat, Piece};
use std::io;
use std::sync::Arc;

/// What becomes of a call.
#[derive(Debug)]
pub enum Verdict {
    /// The file gets it.
    Proceed,
    /// The file gets the first so many bytes of it.
    Shorten(usize),
    /// The file gets the first so many bytes of it, and the caller the error.
    Tear(usize, io::Error),
    /// The file never sees it.
    Fail(io::Error),
    /// The file never sees it, and the caller is told that all went well: a planted bug, for tests
    /// of tests.
    Pretend,
}

/// Decides about calls, and may take its time.
pub trait Before: Send + Sync {
    /// Called before each call, by the thread that makes it.
    fn before(&self, call: &Call) -> Verdict;
}

/// `F` with a `B` before each of its calls.
#[derive(Debug)]
pub struct Wrapped<F: ?Sized, B> {
    before: Arc<B>,
    inner: Arc<F>,
}

impl<F: DeviceFile + ?Sized, B: Before> Wrapped<F, B> {
    /// Puts `before` before each call of `inner`.
    pub fn new(inner: Arc<F>, before: Arc<B>) -> Self {
        Self { before, inner }
    }

    /// The file itself.
    pub fn inner(&self) -> &Arc<F> {
        &self.inner
    }

    /// A call that moves no bytes; `pretended` is the answer of one that never was made.
    fn call<T>(
        &self,
        kind: CallKind,
        range: (u64, u64),
        pretended: T,
        make: impl FnOnce(&F) -> io::Result<T>,
    ) -> io::Result<T> {
        match self.ask(kind, range) {
            Verdict::Proceed | Verdict::Shorten(_) => make(&self.inner),
            Verdict::Fail(error) | Verdict::Tear(_, error) => Err(error),
            Verdict::Pretend => Ok(pretended),
        }
    }

    /// A call that moves the bytes of `pieces`.
    fn transfer(
        &self,
        kind: CallKind,
        pieces: &[Piece],
        offset: u64,
        make: impl FnOnce(&F, &[Piece]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let len = pieces.iter().map(|piece| piece.len).sum::<usize>();
        match self.ask(kind, (offset, len as u64)) {
            Verdict::Proceed => make(&self.inner, pieces),
            Verdict::Shorten(bytes) => make(&self.inner, &first_bytes(pieces, bytes)),
            Verdict::Tear(bytes, error) => {
                make(&self.inner, &first_bytes(pieces, bytes))?;
                Err(error)
            }
            Verdict::Fail(error) => Err(error),
            Verdict::Pretend => Ok(len),
        }
    }

    fn ask(&self, kind: CallKind, (offset, len): (u64, u64)) -> Verdict {
        let Caps {
            inode,
            offset_align: align,
            ..
        } = *self.inner.caps();
        self.before.before(&Call {
            kind,
            inode,
            offset,
            len,
            align,
        })
    }
}

/// The pieces that make up the first `bytes` bytes.
fn first_bytes(pieces: &[Piece], mut bytes: usize) -> Vec<Piece> {
    let mut first = Vec::new();
    for piece in pieces {
        let len = piece.len.min(bytes);
        if len == 0 {
            break;
        }
        first.push(Piece {
            ptr: piece.ptr,
            len,
        });
        bytes -= len;
    }
    first
}

impl<F: DeviceFile + ?Sized, B: Before> DeviceFile for Wrapped<F, B> {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn read_direct(&self, piece: Piece, offset: u64) -> io::Result<usize> {
        self.transfer(CallKind::ReadDirect, &[piece], offset, |file, pieces| {
            file.read_direct(pieces[0], offset)
        })
    }

    fn write_direct(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.transfer(CallKind::WriteDirect, pieces, offset, |file, pieces| {
            file.write_direct(pieces, offset)
        })
    }

    fn write_buffered(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.transfer(CallKind::WriteBuffered, pieces, offset, |file, pieces| {
            file.write_buffered(pieces, offset)
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.call(CallKind::SyncData, (0, 0), (), |file| file.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.call(CallKind::SyncAll, (0, 0), (), |file| file.sync_all())
    }

    fn has_sync_and_stat(&self) -> bool {
        self.inner.has_sync_and_stat()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.call(CallKind::SetLen, (0, len), (), |file| file.set_len(len))
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.call(CallKind::Reserve, (offset, len), (), |file| {
            file.reserve(offset, len)
        })
    }

    fn trim(&self) -> io::Result<()> {
        self.call(CallKind::Trim, (0, 0), (), |file| file.trim())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.call(CallKind::Punch, (offset, len), (), |file| {
            file.punch(offset, len)
        })
    }

    fn is_allocated(&self, offset: u64, len: u64) -> io::Result<bool> {
        let range = (offset, len);
        self.call(CallKind::IsAllocated, range, true, |file| {
            file.is_allocated(offset, len)
        })
    }

    fn allocated_to(&self, offset: u64, end: u64) -> io::Result<u64> {
        let range = (offset, end - offset);
        self.call(CallKind::IsAllocated, range, end, |file| {
            file.allocated_to(offset, end)
        })
    }

    fn stat(&self) -> io::Result<DeviceStat> {
        self.call(CallKind::Stat, (0, 0), DeviceStat::default(), |file| {
            file.stat()
        })
    }

    fn wait_in_flight(&self) -> io::Result<()> {
        self.call(CallKind::WaitInFlight, (0, 0), (), |file| {
            file.wait_in_flight()
        })
    }
}
