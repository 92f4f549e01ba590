//! The device seam: what the engine asks of a file on a device, and nothing more.
//!
//! Used four ways: real files ([`mod@file`]), requests in flight by io_uring or by threads ([`queue`]),
//! and a simulated device with faults (`crate::sim::device`). Everything above this module reaches
//! storage only through [`DeviceFile`] and [`Queue`].
//!
//! A file that cannot be served this way stays in kernel mode, and [`KernelReason`] says why.

mod cached;
pub mod file;
pub mod file_system;
pub mod queue;
pub mod reason;

pub use crate::sys::memory::Piece;
pub use cached::Cached;
pub use file::RealFile;
pub use queue::{Inline, Threads, best_queue, threads_queue, uring_queue};
pub use reason::KernelReason;

use crate::error::Error;
use crate::limits::PAGE_BYTES;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Where a test has said so, a real device fails here (`crate::sim::faults`).
#[cfg(feature = "sim")]
macro_rules! may_fail {
    ($file:expr, $call:ident) => {
        crate::sim::faults::pass($file.caps.inode, crate::sim::faults::Call::$call)?
    };
}
#[cfg(not(feature = "sim"))]
macro_rules! may_fail {
    ($file:expr, $call:ident) => {};
}
use may_fail;

/// What a device file wants and can do, found once when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Direct reads and writes must start and end at multiples of this (`statx` `dio_offset_align`).
    pub offset_align: u32,
    /// Memory of direct requests must be aligned to this (`statx` `dio_mem_align`).
    pub memory_align: u32,
    /// Pages must not change while they are written (checksums, parity): writers wait.
    pub stable_writes: bool,
    /// Device number, the key of busyness accounting.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// What tells the inode from earlier ones of its number: birth time and file handle, as far as the file system has them, mixed. With
    /// device and inode it is the file's identity.
    pub birth: u64,
    /// Which mounted store the file is of (`sys::extents::store_of`); 0: of none. The kernel gives the device number of a mount that has ended again, so
    /// that it does not tell.
    pub store: u64,
    /// Name of the file system, for messages.
    pub file_system: &'static str,
}

/// What `stat` says, as far as the engine cares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStat {
    /// Size in bytes.
    pub len: u64,
    /// Bytes of space allocated (`st_blocks * 512`).
    pub allocated: u64,
    /// Modification time, ns since 1970.
    pub mtime_ns: u64,
    /// Change time, ns since 1970.
    pub ctime_ns: u64,
    /// Names that the file has; 0 once it is unlinked.
    pub links: u32,
}

/// What [`not_written_back`] tells an error by.
const WRITE_BACK: &str = "write back from the kernel's cache";

/// The error of a wait for what the kernel writes from its cache.
pub fn not_written_back(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), Error::device(WRITE_BACK, &error))
}

/// Whether it is such an error.
pub fn is_not_written_back(error: &io::Error) -> bool {
    let own = error.get_ref().and_then(|e| e.downcast_ref::<Error>());
    match own {
        Some(Error::Device { operation, .. }) => *operation == WRITE_BACK,
        Some(Error::NoSpace { what }) => *what == WRITE_BACK,
        _ => false,
    }
}

/// One open file of a device. All calls block until done; all offsets and lengths are bytes.
/// Errors are the operating system's.
pub trait DeviceFile: Send + Sync {
    /// Alignment, abilities and identity.
    fn caps(&self) -> &Caps;
    /// Direct read. Offset, length and memory must be aligned as [`Caps`] says. Returns the bytes
    /// read; less than asked for only at the end of the file, and before bytes that cannot be read.
    fn read_direct(&self, piece: Piece, offset: u64) -> io::Result<usize>;
    /// Reads what the kernel has in its own cache, all of it, without the device; memory of any alignment. `None`: it does not, or
    /// nobody knows. Fewer bytes than asked for are no error.
    fn read_cached(&self, piece: Piece, offset: u64) -> Option<usize> {
        let _ = (piece, offset);
        None
    }
    /// Whether the kernel has all of the file in its own cache.
    fn is_cached(&self) -> bool {
        false
    }
    /// Direct write of pieces that lie one after the other in the file, aligned likewise. May write
    /// less than asked for.
    fn write_direct(&self, pieces: &[Piece], offset: u64) -> io::Result<usize>;
    /// Buffered write, for bytes that are not aligned: a file's last page, the kernel route.
    fn write_buffered(&self, pieces: &[Piece], offset: u64) -> io::Result<usize>;
    /// Buffered write that leaves the bytes in the kernel's cache: it writes them in its own time, or drops them with the file.
    fn write_cached(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.write_buffered(pieces, offset)
    }
    /// Whether what is written gets to the device.
    fn reaches_device(&self) -> bool {
        true
    }
    /// Buffered write of the bytes before a file's end that fill no page, waiting until the device has them: only then
    /// may the engine forget that it owes them. Not a sync: what the device has may still be in its own cache.
    /// An error of the wait says so ([`not_written_back`]): it may be of other bytes that the kernel had in its cache, and the kernel
    /// tells it once.
    fn write_through(&self, piece: Piece, offset: u64) -> io::Result<usize> {
        let written = self.write_buffered(&[piece], offset)?;
        self.sync_data().map_err(not_written_back)?;
        Ok(written)
    }
    /// `fdatasync`.
    fn sync_data(&self) -> io::Result<()>;
    /// `fsync`.
    fn sync_all(&self) -> io::Result<()>;
    /// Whether [`DeviceFile::sync_and_stat`] is one request, where the two calls that it stands for are two.
    fn has_sync_and_stat(&self) -> bool {
        false
    }
    /// What the file is like, if that can be told, and then `fsync`. In this order: what somebody from outside does during the sync is not seen.
    fn sync_and_stat(&self) -> (io::Result<()>, Option<DeviceStat>) {
        let found = self.stat().ok();
        (self.sync_all(), found)
    }
    /// `ftruncate`.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves space without changing the size (`fallocate`, keep size).
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Gives back space reserved beyond the end, leaving size and times as they are.
    fn trim(&self) -> io::Result<()>;
    /// Punches a hole (`fallocate`, punch hole, keep size).
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Whether every byte of the range has space allocated to it, written or not (`FIEMAP`).
    fn is_allocated(&self, offset: u64, len: u64) -> io::Result<bool>;
    /// Bytes that anybody may still take on the file system. `None`: nobody knows.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    /// Whether space of the file may be a clone's as well, so that overwriting it needs more.
    fn may_share_space(&self) -> bool {
        false
    }
    /// How far space goes on from `offset`, at most to `end`, as one look tells: there may be more of it. `offset`: it has none.
    fn allocated_to(&self, offset: u64, end: u64) -> io::Result<u64>;
    /// Size, space and times.
    fn stat(&self) -> io::Result<DeviceStat>;
    /// Returns when no direct write submitted earlier, by anyone, is still under way, those of dead
    /// processes included; changes neither size nor contents.
    fn wait_in_flight(&self) -> io::Result<()>;
    /// Sets the modification time, ns since 1970; `None` is what a write would set it to.
    fn set_modified(&self, mtime_ns: Option<u64>) -> io::Result<()> {
        let _ = mtime_ns;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Gives all descriptions up but one, which a lease can be had with; what is not direct is slower from then on. Refused
    /// for a file that may be executed: a program that waits for the end of a lease to do so may find the description still there.
    fn unite(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Opens no other description of the file from here on: what is not direct goes by the one that there is.
    fn open_no_more(&self) {}
    /// Takes a lease: each opener of the file waits until it has been given up, with the last descriptor if not before.
    fn lease(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Gives the lease up.
    fn give_lease_up(&self) {}
    /// Whether somebody waits for the lease's end, or it has ended.
    fn is_lease_wanted(&self) -> bool {
        false
    }
    /// Whether it may be written to. One that may not serves reads of a file whose owed bytes are written by somebody else.
    fn is_writable(&self) -> bool {
        true
    }
    /// Descriptors (direct, buffered) for queues that speak to the kernel themselves; `None` for a simulated file, which queues then call
    /// instead. The second may be of the first one's description, and is for questions about the file alone: what is to be read or written through
    /// the kernel's cache is a call of this trait.
    fn descriptors(&self) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        None
    }
    /// The simulated file that it is, whose descriptors a simulation hands over.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    fn timed(&self) -> Option<&crate::sim::device::Timed> {
        None
    }
}

/// Goes on with a direct read that gave `got` bytes, until the piece is full or the file ends. The file is known to reach
/// `sure_end`: less than that is an error in the middle of a request, which the next one will name, and not the end.
/// `got` is a multiple of a page but at the end.
pub fn read_rest(
    file: &dyn DeviceFile,
    piece: Piece,
    offset: u64,
    mut got: usize,
    sure_end: u64,
) -> io::Result<usize> {
    let mut last = None;
    // The same end twice: the file does end here, somebody else has cut it.
    while got < piece.len && offset + (got as u64) < sure_end && last != Some(got) {
        last = Some(got);
        let at = got / PAGE_BYTES * PAGE_BYTES;
        let rest = Piece {
            // SAFETY: `at` is less than the piece's length.
            ptr: unsafe { piece.ptr.add(at) },
            len: piece.len - at,
        };
        got = at + file.read_direct(rest, offset + at as u64)?;
    }
    Ok(got)
}

/// What a queued request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// [`DeviceFile::read_direct`]
    Read,
    /// [`DeviceFile::write_direct`]
    Write,
    /// [`DeviceFile::write_buffered`]
    WriteBuffered,
}

/// A request to be carried out by a [`Queue`].
pub struct Request {
    /// The file.
    pub file: Arc<dyn DeviceFile>,
    /// What to do.
    pub kind: RequestKind,
    /// The memory, in file order.
    pub pieces: Vec<Piece>,
    /// Where in the file the first piece begins.
    pub offset: u64,
    /// Handed back in [`Done`].
    pub token: u64,
}

/// The end of a request.
#[derive(Debug)]
pub struct Done {
    /// The request's token.
    pub token: u64,
    /// Bytes moved, which may be fewer than asked for, or the error.
    pub result: io::Result<usize>,
}

/// Requests in flight. One thread owns a queue; requests may complete in any order.
pub trait Queue: Send {
    /// Starts a request. Never fails: an error comes back as the request's [`Done`].
    fn submit(&mut self, request: Request);
    /// Completed requests, appended to `done`. With `wait`, blocks until at least one has completed,
    /// unless none is in flight.
    fn poll(&mut self, wait: bool, done: &mut Vec<Done>);
    /// Requests submitted and not yet handed back.
    fn in_flight(&self) -> usize;
    /// "io_uring", "threads" or "inline", for `doctor` and reports.
    fn name(&self) -> &'static str;
}
