//! The competitors. Each is one way to get bytes to and from one file.
//!
//! The measured loops are provided methods: compiled once per side, with the side's own call in
//! them, so that a request pays for nothing but itself (no clock, no virtual call, no allocation).
//! The null side in [`null`] shows what is left.

use std::io;
use std::path::Path;

use serde::Serialize;

use crate::memory::{Generation, Source};
use crate::requests::Request;

mod direct;
#[cfg(feature = "engine")]
mod forebay;
mod kernel;
pub mod null;

/// Writes to be made, in order.
pub struct Writes<'a> {
    /// Where the bytes come from.
    pub source: &'a Source,
    /// Which bytes.
    pub generation: Generation,
    /// Where they go.
    pub requests: &'a [Request],
}

impl<'a> Writes<'a> {
    /// The bytes and the file offset of each write.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], u64)> {
        let (source, generation) = (self.source, self.generation);
        self.requests.iter().map(move |request| {
            (
                source.at(generation, request.offset, request.len as usize),
                request.offset,
            )
        })
    }
}

/// What an engine counts, in bytes since its session began. The kernel's sides count nothing.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SideStats {
    /// Written into scrap pages.
    pub scrap_bytes: u64,
    /// Written to the device at once.
    pub direct_bytes: u64,
    /// Passed to the kernel.
    pub kernel_bytes: u64,
    /// Read from the device.
    pub device_read_bytes: u64,
    /// Written to the device.
    pub device_write_bytes: u64,
    /// Memory held for the file's bytes at this moment.
    pub memory_held_bytes: u64,
    /// Of that, memory of blocks that owe something to the device.
    pub owed_memory_bytes: u64,
    /// Bytes owed to the device at this moment.
    pub dirty_bytes: u64,
}

impl SideStats {
    /// What was counted since `before`; the two levels as they are.
    pub fn since(self, before: SideStats) -> SideStats {
        SideStats {
            scrap_bytes: self.scrap_bytes - before.scrap_bytes,
            direct_bytes: self.direct_bytes - before.direct_bytes,
            kernel_bytes: self.kernel_bytes - before.kernel_bytes,
            device_read_bytes: self.device_read_bytes - before.device_read_bytes,
            device_write_bytes: self.device_write_bytes - before.device_write_bytes,
            ..self
        }
    }
}

/// One way to read and write one file. A value serves one run: started before it, dropped after it,
/// so that no side's memory or threads are there while another is measured.
pub trait Side {
    /// Opens the file for reading and writing; creates it if it is not there.
    fn open(&mut self, path: &Path) -> io::Result<()>;
    /// Writes all of `bytes`.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Fills all of `bytes`.
    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// `fsync`: returns when the bytes are durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Closes the file.
    fn close(&mut self) -> io::Result<()>;
    /// The engine's counters, if it has any.
    fn stats(&self) -> Option<SideStats> {
        None
    }
    /// Backs memory of the side's own ahead of the timed region.
    fn warm(&mut self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    /// The measured loop for writes.
    fn write_all(&mut self, writes: &Writes<'_>) -> io::Result<()> {
        for (bytes, offset) in writes.iter() {
            self.write_at(bytes, offset)?;
        }
        Ok(())
    }

    /// The measured loop for reads, all into the front of `buffer`.
    fn read_all(&mut self, buffer: &mut [u8], requests: &[Request]) -> io::Result<()> {
        for request in requests {
            self.read_at(&mut buffer[..request.len as usize], request.offset)?;
        }
        Ok(())
    }
}

/// Which side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideKind {
    /// `pwrite`, `pread`, `fsync`: what all others are compared with.
    Kernel,
    /// Buffered writes that the kernel starts to write back at once and then drops.
    KernelDontCache,
    /// `O_DIRECT`, with this many requests in flight.
    Direct {
        /// Requests in flight.
        depth: u32,
    },
    /// The engine, choosing its route by predicted times.
    ForebayAuto,
    /// The same, without reading ahead.
    ForebayAlone,
    /// The engine, with the fixed 1 MiB threshold of the paper.
    ForebayThreshold,
}

impl SideKind {
    /// The name in tables.
    pub fn name(self) -> String {
        match self {
            SideKind::Kernel => "kernel".into(),
            SideKind::KernelDontCache => "dontcache".into(),
            SideKind::Direct { depth } => format!("direct qd{depth}"),
            SideKind::ForebayAuto => "forebay auto".into(),
            SideKind::ForebayAlone => "forebay, not ahead".into(),
            SideKind::ForebayThreshold => "forebay threshold".into(),
        }
    }

    /// Whether this is the engine: targets are about nobody else.
    pub fn is_engine(self) -> bool {
        use SideKind::{ForebayAlone, ForebayAuto, ForebayThreshold};
        matches!(self, ForebayAuto | ForebayAlone | ForebayThreshold)
    }

    /// Starts the side.
    pub fn start(self) -> io::Result<Box<dyn Side>> {
        Ok(match self {
            SideKind::Kernel => Box::new(kernel::Kernel::default()),
            SideKind::KernelDontCache => Box::new(kernel::DontCache::default()),
            SideKind::Direct { depth } => Box::new(direct::Direct::new(depth)?),
            #[cfg(feature = "engine")]
            SideKind::ForebayAuto => Box::new(forebay::Forebay::new(forebay::AUTO)?),
            #[cfg(feature = "engine")]
            SideKind::ForebayAlone => Box::new(forebay::Forebay::without_reading_ahead()?),
            #[cfg(feature = "engine")]
            SideKind::ForebayThreshold => Box::new(forebay::Forebay::new(forebay::THRESHOLD)?),
            // Never asked for: such a build leaves the engine out of every round.
            #[cfg(not(feature = "engine"))]
            SideKind::ForebayAuto | SideKind::ForebayAlone | SideKind::ForebayThreshold => {
                return Err(io::Error::from_raw_os_error(libc::ENOSYS));
            }
        })
    }
}

/// The error of a side that is used before it is opened: a bug in the harness.
fn not_open() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}
