//! A device file that is written into the kernel's cache: what is closed is then where it would be if nobody had managed it. No call waits
//! for the device; a program that opens or maps the file finds the bytes in memory; and a file that is removed soon never sees the device.

use std::io;
use std::sync::Arc;

use super::{Caps, DeviceFile, DeviceStat, Piece};

/// See above. What is written is not on the device, and nothing here makes it durable.
pub struct Cached {
    inner: Arc<dyn DeviceFile>,
    caps: Caps,
}

impl Cached {
    /// Another way to write to this file.
    pub fn new(inner: &Arc<dyn DeviceFile>) -> Self {
        Cached {
            inner: Arc::clone(inner),
            // Nobody shall take how fast this is for the device's speed.
            caps: Caps {
                device: 0,
                ..inner.caps().clone()
            },
        }
    }
}

impl DeviceFile for Cached {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn read_direct(&self, piece: Piece, offset: u64) -> io::Result<usize> {
        // A direct read has the kernel write first what is dirty there.
        match self.inner.read_cached(piece, offset) {
            Some(got) => Ok(got),
            None => self.inner.read_direct(piece, offset),
        }
    }

    fn read_cached(&self, piece: Piece, offset: u64) -> Option<usize> {
        self.inner.read_cached(piece, offset)
    }

    fn is_cached(&self) -> bool {
        self.inner.is_cached()
    }

    fn write_direct(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.inner.write_cached(pieces, offset)
    }

    fn write_buffered(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.inner.write_cached(pieces, offset)
    }

    fn write_through(&self, piece: Piece, offset: u64) -> io::Result<usize> {
        self.inner.write_cached(&[piece], offset)
    }

    fn reaches_device(&self) -> bool {
        false
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.inner.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.reserve(offset, len)
    }

    fn trim(&self) -> io::Result<()> {
        self.inner.trim()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.punch(offset, len)
    }

    fn is_allocated(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.inner.is_allocated(offset, len)
    }

    fn allocated_to(&self, offset: u64, end: u64) -> io::Result<u64> {
        self.inner.allocated_to(offset, end)
    }

    fn stat(&self) -> io::Result<DeviceStat> {
        self.inner.stat()
    }

    fn wait_in_flight(&self) -> io::Result<()> {
        self.inner.wait_in_flight()
    }

    fn is_writable(&self) -> bool {
        self.inner.is_writable()
    }
}
