//! Files as programs see them: the Rust API's [`File`], and the operations behind it.
//!
//! [`core`] is how every operation waits; [`quick`] is the short way of small requests;
//! [`write`](mod@write), [`direct`], [`read`](mod@read), [`append`], [`resize`], [`settle`] and [`closing`] carry operations out,
//! [`hasten`] has the keeper help; [`reserve`] asks for space, [`room`] makes room; `flushing` writes in the caller's thread, [`streams`] by streams, [`beside`] many files at once; [`vanished`] ends what nobody can read again; [`inode`] is for front ends, [`view`] gives bytes without a copy and [`window`] takes them so. The rest the kernel serves.

pub mod append;
pub mod beside;
mod bounce;
mod by_kernel;
pub mod closing;
pub mod core;
pub mod direct;
mod flushing;
pub mod hasten;
pub mod inode;
mod managed;
pub mod options;
pub mod quick;
pub mod read;
pub mod reserve;
pub mod resize;
pub mod room;
pub mod settle;
mod space;
pub mod streams;
mod synced;
mod throttle;
pub mod times;
pub mod vanished;
mod vectored;
pub mod view;
pub mod window;
pub mod write;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use self::by_kernel::*;
use self::core::{Core, Halt};
use self::managed::Managed;
pub use self::options::OpenOptions;
use self::quick::Recent;
pub use self::read::advise::Advise;
use self::read::follow::Read;
use self::settle::Durability;
pub use self::space::Sought;
pub use self::view::View;
pub use self::view::private::PrivateView;
pub use self::window::Window;
use crate::error::{Error, Result};
use crate::member::given;
use crate::member::reached::Reaching;
use crate::memory::threads::Me;
use crate::route::Route;

/// An open file.
///
/// May be used by many threads at once; each call is one operation on its own offset, as `pread` and `pwrite` are.
/// Dropping it closes it without hearing of errors: use [`File::close`].
///
/// While a program has a file open so it opens it by nothing else (`std::fs`, `fopen`, a library): it would read old bytes there, and what it
/// writes there may be lost. The session does not hear of it, as it does of other programs. Under `forebay run` it may.
///
/// ```
/// # fn main() -> forebay::error::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// let session = forebay::Session::open(forebay::Config::tiny())?;
/// let file = session.open_file(&path, forebay::OpenOptions::new().read(true).write(true).create(true))?;
/// file.write_at(b"ragged", 100)?;
/// let mut bytes = [0; 6];
/// assert_eq!(file.read_at(&mut bytes, 100)?, 6);
/// assert_eq!(&bytes, b"ragged");
/// file.sync_data()?;
/// file.close()
/// # }
/// ```
pub struct File {
    kind: Kind,
    path: PathBuf,
    readable: bool,
    writable: bool,
    appends: bool,
    closed: bool,
}

enum Kind {
    Managed(Box<Managed>),
    Kernel {
        file: fs::File,
        reason: String,
        /// Nobody else of the session manages the file meanwhile.
        _reaching: Reaching,
    },
}

impl File {
    pub(crate) fn managed(core: Core, file: fs::File, path: &Path, options: &OpenOptions) -> Self {
        let seen = crate::flush::errors::sequence_to_begin_with(core.entry());
        let plain = options.writes() && !options.appends();
        let route = Arc::clone(core.shared.route_for(path));
        let below = || route.quick_scrap_below();
        let quick_write_below = plain.then(below).unwrap_or(0);
        let managed = Managed {
            core,
            file,
            handed: AtomicU32::new(0),
            seen: AtomicU32::new(seen),
            quick_write_below,
            route,
            recent: Recent::default(),
        };
        Self::with(Kind::Managed(Box::new(managed)), path, options)
    }

    pub(crate) fn kernel(
        file: fs::File,
        reason: String,
        reaching: Reaching,
        path: &Path,
        options: &OpenOptions,
    ) -> Self {
        let kind = Kind::Kernel {
            file,
            reason,
            _reaching: reaching,
        };
        Self::with(kind, path, options)
    }

    fn with(kind: Kind, path: &Path, options: &OpenOptions) -> Self {
        File {
            kind,
            path: path.to_owned(),
            readable: options.reads(),
            writable: options.writes(),
            appends: options.appends(),
            closed: false,
        }
    }

    /// Sends this description's writes by a route of the caller's own, in place of the one that the configuration names. A file that the
    /// kernel serves has no route.
    pub fn routed_by(mut self, route: Arc<dyn Route>) -> Self {
        if let Kind::Managed(managed) = &mut self.kind {
            if managed.quick_write_below != 0 {
                managed.quick_write_below = route.quick_scrap_below();
            }
            managed.route = route;
        }
        self
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why the kernel serves this file, or `None` while the engine does.
    pub fn kernel_reason(&self) -> Option<String> {
        match &self.kind {
            Kind::Kernel { reason, .. } => Some(reason.clone()),
            Kind::Managed(managed) => {
                let code = managed.core.entry().kernel_reason.load(Relaxed);
                (code != 0).then(|| given::reason(code))
            }
        }
    }

    /// Writes at `offset`, bytes. Returns how many were written: all, unless an error came after some were.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the file system cannot promise the space; `EBADF` when the file is not
    /// open for writing; the device's for bytes that go straight to it. Bytes left in memory report the device's
    /// errors at the next sync or close.
    #[inline]
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        let Kind::Managed(managed) = &self.kind else {
            return self.write_elsewhere(bytes, offset);
        };
        let core = &managed.core;
        let me = core.shared.me()?;
        let stream = managed.recent.stream(me);
        let sequential = stream.is_sequential(offset, bytes.len());
        let handed = core.shared.is_handed(&managed.handed);
        if handed && (bytes.len() as u64) < managed.quick_write_below {
            let (source, len) = (bytes.as_ptr(), bytes.len());
            // SAFETY: a slice is valid for its length.
            if unsafe { quick::write(core, me, stream, source, len, offset, sequential) } {
                return Ok(len);
            }
        }
        self.write_managed(managed, me, bytes, offset, sequential)
    }

    #[cold]
    fn write_elsewhere(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        match &self.kind {
            Kind::Kernel { file, .. } if self.writable => {
                write_by_kernel(file, self.appends, bytes, offset)
            }
            _ => Err(not_open_for("write")),
        }
    }

    #[inline(never)]
    fn write_managed(
        &self,
        managed: &Managed,
        me: Me<'_>,
        bytes: &[u8],
        offset: u64,
        sequential: bool,
    ) -> Result<usize> {
        if !self.writable {
            return Err(not_open_for("write"));
        }
        if self.appends {
            return managed.append(bytes).map(|(_, written)| written);
        }
        managed.hand_over(me);
        let core = &managed.core;
        let intent = managed.intent(me, sequential);
        // SAFETY: a slice is valid for its length.
        match unsafe { write::write(core, me, bytes.as_ptr(), bytes.len(), offset, intent) } {
            Err(Halt::Kernel) => write_by_kernel(&managed.file, false, bytes, offset),
            result => write::finish(result),
        }
    }

    /// Writes all bytes at the file's end, wherever that is. Returns the offset. Of more than 2 GiB in a file of the kernel's, what others append may
    /// lie in between.
    ///
    /// # Errors
    /// As for [`File::write_at`]. Bytes written before an error stay.
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        if !self.writable {
            return Err(not_open_for("write"));
        }
        match &self.kind {
            Kind::Managed(managed) => managed.append_all(bytes),
            Kind::Kernel { file, .. } => append_all_by_kernel(file, bytes),
        }
    }

    /// As [`File::append`], of as many bytes as there is room for. Returns the offset and how many, as [`File::write_at`] does.
    ///
    /// # Errors
    /// As for [`File::write_at`]. Nothing was written then.
    pub fn append_some(&self, bytes: &[u8]) -> Result<(u64, usize)> {
        if !self.writable {
            return Err(not_open_for("write"));
        }
        match &self.kind {
            Kind::Managed(managed) => managed.append(bytes),
            Kind::Kernel { file, .. } => append_by_kernel(file, bytes),
        }
    }

    /// Reads at `offset`, bytes. Returns how many: fewer than asked for only at the file's end, and before bytes that cannot be read: a read that
    /// begins with these fails.
    ///
    /// # Errors
    /// `EBADF` when the file is not open for reading; the device's, for bytes that are not in memory.
    #[inline]
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        if !self.readable {
            return Err(not_open_for("read"));
        }
        let managed = match &self.kind {
            Kind::Managed(managed) => managed,
            Kind::Kernel { file, .. } => return read_by_kernel(file, bytes, offset),
        };
        let core = &managed.core;
        let me = core.shared.me()?;
        let stream = managed.recent.stream(me);
        let sequential = stream.is_sequential(offset, bytes.len());
        let (target, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: a slice is valid for its length.
        if unsafe { quick::read(core, me, stream, target, len, offset, sequential) } {
            return Ok(len);
        }
        Self::read_managed(managed, me, bytes, offset, sequential)
    }

    #[inline(never)]
    fn read_managed(
        managed: &Managed,
        me: Me<'_>,
        bytes: &mut [u8],
        offset: u64,
        sequential: bool,
    ) -> Result<usize> {
        let (core, memory) = (&managed.core, (bytes.as_mut_ptr(), bytes.len()));
        let following = Read {
            recent: &managed.recent,
            stream: managed.recent.stream(me),
            handed: &managed.handed,
        };
        // SAFETY: a slice is valid for its length.
        match unsafe { read::followed(core, me, &following, memory, offset, sequential) } {
            Err(Halt::Kernel) => read_by_kernel(&managed.file, bytes, offset),
            result => result.map_err(Core::ended),
        }
    }

    /// Says how `len` bytes from `offset` on will be read; a length of 0 is to the end. How reads come holds for the whole
    /// description, as with `posix_fadvise`.
    ///
    /// # Errors
    /// [`Error::Session`] when the calling thread finds no slot; the kernel's, for files that it serves.
    pub fn advise(&self, offset: u64, len: u64, advice: Advise) -> Result<()> {
        match &self.kind {
            Kind::Managed(managed) => managed.advise(offset, len, advice),
            Kind::Kernel { file, .. } => advise_kernel(file, offset, len, advice),
        }
    }

    /// Makes all bytes written so far durable, and what is needed to read them (`fdatasync`).
    ///
    /// # Errors
    /// The first error since this description last heard of one. Bytes that could not be written stay in memory and
    /// are tried again.
    pub fn sync_data(&self) -> Result<()> {
        self.settle(Durability::Data)
    }

    /// Makes all bytes and metadata durable (`fsync`).
    ///
    /// # Errors
    /// As for [`File::sync_data`].
    pub fn sync_all(&self) -> Result<()> {
        self.settle(Durability::All)
    }

    /// Hands all bytes written so far to the device, so that programs outside the session see them. Not durable yet.
    ///
    /// # Errors
    /// As for [`File::sync_data`].
    pub fn flush(&self) -> Result<()> {
        self.settle(Durability::Written)
    }

    fn settle(&self, durability: Durability) -> Result<()> {
        match &self.kind {
            Kind::Managed(managed) => {
                let me = hasten::begin(&managed.core, &managed.handed)?;
                settle::settle(&managed.core, me, durability, &managed.seen)
            }
            Kind::Kernel { file, .. } => match durability {
                Durability::Kernel | Durability::Written => Ok(()),
                Durability::Data => by_kernel(file.sync_data(), "sync"),
                Durability::All => by_kernel(file.sync_all(), "sync"),
            },
        }
    }

    /// Sets the length, bytes: what is beyond is gone, what is new is zeros.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] when the file is not open for writing; the file system's.
    pub fn set_len(&self, len: u64) -> Result<()> {
        if !self.writable {
            return Err(Error::InvalidInput(
                "a file that is not open for writing cannot be resized",
            ));
        }
        match &self.kind {
            Kind::Managed(managed) => {
                let core = &managed.core;
                match resize::set_len(core, core.shared.me()?, len) {
                    Err(Halt::Kernel) => by_kernel(managed.file.set_len(len), "truncate"),
                    result => result.map_err(Core::ended),
                }
            }
            Kind::Kernel { file, .. } => by_kernel(file.set_len(len), "truncate"),
        }
    }

    /// Makes a range zeros and gives its space back. The length does not change.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for an empty range, however the file is open; `EBADF` when it is not open for writing; the file
    /// system's, some of which cannot.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Error::InvalidInput("an empty range cannot be punched"));
        }
        if !self.writable {
            return Err(not_open_for("write"));
        }
        match &self.kind {
            Kind::Managed(managed) => {
                let core = &managed.core;
                match resize::punch(core, core.shared.me()?, offset, len) {
                    Err(Halt::Kernel) => punch_by_kernel(&managed.file, offset, len),
                    result => result.map_err(Core::ended),
                }
            }
            Kind::Kernel { file, .. } => punch_by_kernel(file, offset, len),
        }
    }

    /// The length, bytes; a block device's is where it ends. The kernel says 0 of what it makes up (`/proc`) and of other devices, which have bytes all the same.
    ///
    /// # Errors
    /// The kernel's, for files that it serves.
    pub fn len(&self) -> Result<u64> {
        match &self.kind {
            Kind::Managed(managed) => {
                let entry = managed.core.entry();
                if entry.kernel_reason.load(Relaxed) == 0 {
                    let core = &managed.core;
                    match core.size(core.shared.me()?) {
                        Err(Halt::Kernel) => {}
                        size => return size.map_err(Core::ended),
                    }
                }
                len_by_kernel(&managed.file)
            }
            Kind::Kernel { file, .. } => len_by_kernel(file),
        }
    }

    /// Whether the length is 0.
    ///
    /// # Errors
    /// As for [`File::len`].
    pub fn is_empty(&self) -> Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Gives the file to the kernel for good: what is owed is flushed, what is in memory is dropped.
    ///
    /// # Errors
    /// As for [`File::sync_data`]; the file stays managed then.
    pub fn to_kernel(&self) -> Result<()> {
        match &self.kind {
            Kind::Managed(managed) => {
                settle::to_kernel(&managed.core, managed.core.shared.me()?, given::BY_PROGRAM)
            }
            Kind::Kernel { .. } => Ok(()),
        }
    }

    /// Closes: everything is handed to the device, and errors not yet heard of are returned. Not durable by itself.
    ///
    /// # Errors
    /// As for [`File::sync_data`]; none for a file that the kernel serves, whose own close tells none. The file is closed all
    /// the same; bytes that could not be written stay in the session's
    /// memory and are tried again.
    pub fn close(mut self) -> Result<()> {
        self.close_once()
    }

    fn close_once(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        match &self.kind {
            Kind::Managed(managed) => {
                let core = &managed.core;
                let me = hasten::begin(core, &managed.handed)?;
                let closed = settle::close(core, me, Durability::Written, &managed.seen);
                core.shared.released(core.id, &managed.handed);
                core.shared.closed(core.id, &core.device);
                closed
            }
            Kind::Kernel { .. } => Ok(()),
        }
    }

    /// Whether it was opened for appending.
    pub fn is_append(&self) -> bool {
        self.appends
    }

    /// What tests need to look behind the file.
    #[doc(hidden)]
    pub fn core(&self) -> Option<&Core> {
        match &self.kind {
            Kind::Managed(managed) => Some(&managed.core),
            Kind::Kernel { .. } => None,
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        let _ = self.close_once();
    }
}
