//! A file or a device, mapped whole.
//!
//! A device file of DAX, or a file that `MAP_SYNC` maps, is durable by the CPU alone; any other file by
//! `fdatasync`. The file is locked (`flock`) while it is open: one process has a store, others may read one
//! that nobody writes. The process that opened it gives the lock back, also where a child of it has the
//! descriptor still (every child has, from `fork` to `exec`). Who cuts the file short under a mapping ends the process that maps it (SIGBUS), and
//! so does a full disk below a sparse file: [`Mapped::create`] therefore allocates it all.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::faulted::Faulted;
use super::machine::{self, FlushBy};
use super::{Durability, For, Medium};
use crate::errno::{OpenError, Result};
use crate::layout::BLOCK;

/// Bytes from which on the pages of a write are faulted in by one call, and not one by one.
const POPULATED_MIN: usize = 32 << 10;
/// From so many bytes on it is quicker not to read the lines that are written over: new blocks are in no cache. The fence at the end waits for the memory.
const STREAMED_MIN: usize = 64 << 10;

/// A mapped file or device.
pub struct Mapped {
    base: *mut u8,
    length: usize,
    file: File,
    /// The process that has the lock: a child of `fork` that drops its copy must not give it back.
    opener: u32,
    durability: Durability,
    by: FlushBy,
    faulted: Faulted,
}

// SAFETY: the mapping lives as long as `self`; bytes are copied in and out by address only, and the store's
// lock keeps two threads from touching the same bytes where one of them writes.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Opens and maps what is there.
    pub fn open(path: &Path, writable: bool) -> std::result::Result<Self, OpenError> {
        let failed =
            |error| OpenError::system(&format!("{} cannot be opened", path.display()), error);
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .open(path)
            .map_err(failed)?;
        Self::map(file, path, writable)
    }

    /// Makes the file if it is not there, for its owner alone, gives it `size` bytes if that is said, and maps it. `sparse` leaves
    /// out the allocation. `may_overwrite` looks at what is there, locked and as it was. A block device that is mounted is refused.
    pub fn create(
        path: &Path,
        size: Option<u64>,
        sparse: bool,
        may_overwrite: impl FnOnce(&File) -> std::result::Result<(), OpenError>,
    ) -> std::result::Result<Self, OpenError> {
        let failed =
            |error| OpenError::system(&format!("{} cannot be made", path.display()), error);
        let mut options = OpenOptions::new();
        let there = std::fs::metadata(path);
        let is_block_device = there.is_ok_and(|is| is.file_type().is_block_device());
        options.read(true).write(true);
        match is_block_device {
            // Busy, where a file system on it is mounted or another device is made of it.
            true => options.custom_flags(libc::O_EXCL),
            false => options.create(size.is_some()),
        };
        // Files in a store have owners and modes of their own, which only its mounts know.
        options.truncate(false).mode(0o600);
        let file = options.open(path).map_err(failed)?;
        lock(&file, true)?;
        may_overwrite(&file)?;
        if let Some(size) = size
            && file.metadata().map_err(failed)?.file_type().is_file()
        {
            file.set_len(size).map_err(failed)?;
            if !sparse {
                allocate(&file, size)?;
            }
            file.sync_all().map_err(failed)?;
        }
        Self::map(file, path, true)
    }

    fn map(file: File, path: &Path, writable: bool) -> std::result::Result<Self, OpenError> {
        lock(&file, writable)?;
        let failed =
            |error| OpenError::system(&format!("{} cannot be mapped", path.display()), error);
        let length = length_of(&file).map_err(failed)?;
        let length =
            usize::try_from(length).map_err(|_| failed(io::ErrorKind::FileTooLarge.into()))?;
        if length == 0 {
            let why = format!("{} is empty: it is no store", path.display());
            return Err(OpenError::NotAStore(why));
        }
        let by = machine::flush_by();
        let device = file
            .metadata()
            .map_err(failed)?
            .file_type()
            .is_char_device();
        let dax = match map(
            &file,
            length,
            writable,
            libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
        ) {
            Ok(base) if by != FlushBy::Nothing => Some(base),
            Ok(base) => {
                unmap(base, length);
                None
            }
            Err(_) => None,
        };
        let (base, durability) = match dax {
            Some(base) => (base, Durability::Dax),
            // A DAX device is durable by the CPU however it is mapped.
            None if device && by != FlushBy::Nothing => {
                let base = map(&file, length, writable, libc::MAP_SHARED).map_err(failed)?;
                (base, Durability::Dax)
            }
            None => {
                let base = map(&file, length, writable, libc::MAP_SHARED).map_err(failed)?;
                (base, Durability::Fdatasync)
            }
        };
        Ok(Self {
            base,
            length,
            faulted: Faulted::of(&file, device, length),
            file,
            opener: std::process::id(),
            durability,
            by,
        })
    }

    /// Where `length` bytes at `at` lie.
    fn place(&self, at: u64, length: usize) -> *mut u8 {
        let end = at.checked_add(length as u64);
        assert!(
            end.is_some_and(|end| end <= self.length as u64),
            "{length} bytes at {at} are not in a medium of {}",
            self.length
        );
        self.base.wrapping_add(at as usize)
    }

    /// Faults pages in for writing by one call, where they are many. It is only for speed: what it leaves out, the copy faults in.
    fn populate(&self, at: u64, length: usize) {
        if length < POPULATED_MIN {
            return;
        }
        let block = BLOCK as u64;
        let blocks = at / block..(at + length as u64).div_ceil(block);
        let missing = self.faulted.missing(blocks);
        if missing.is_empty() {
            return;
        }
        let from = self.base.wrapping_add(missing.start as usize * BLOCK);
        let length = (missing.end - missing.start) as usize * BLOCK;
        // SAFETY: within the mapping, which lives and ends with a page; no byte changes.
        if unsafe { libc::madvise(from.cast(), length, libc::MADV_POPULATE_WRITE) } == 0 {
            self.faulted.note(missing);
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        unmap(self.base, self.length);
        if self.opener == std::process::id() {
            // SAFETY: a plain call on an open descriptor.
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
        }
    }
}

impl Medium for Mapped {
    fn length(&self) -> u64 {
        self.length as u64
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn address(&self, at: u64, length: usize, writable: bool) -> *mut u8 {
        let place = self.place(at, length);
        if writable {
            self.populate(at, length);
        }
        place
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let from = self.place(at, into.len());
        // SAFETY: within the mapping, which lives; nobody writes these bytes meanwhile (the store's lock).
        unsafe { machine::load(from, into) };
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let to = self.place(at, bytes.len());
        self.populate(at, bytes.len());
        // SAFETY: within the mapping, which lives; nobody else touches these bytes (the store's lock).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn stream(&self, at: u64, bytes: &[u8], _purpose: For) {
        match self.durability {
            Durability::Fdatasync if bytes.len() < STREAMED_MIN => self.write(at, bytes),
            Durability::Fdatasync => {
                let to = self.place(at, bytes.len());
                self.populate(at, bytes.len());
                // SAFETY: as for `write`.
                unsafe { machine::stream_unflushed(to, bytes) };
            }
            Durability::Dax => {
                let to = self.place(at, bytes.len());
                // SAFETY: as for `write`.
                unsafe { machine::stream(to, bytes, self.by) };
            }
        }
    }

    fn flush(&self, at: u64, length: u64, _purpose: For) {
        if self.durability == Durability::Dax {
            let at = self.place(at, length as usize);
            // SAFETY: within the mapping, which lives.
            unsafe { machine::flush(at, length as usize, self.by) };
        }
    }

    fn fence(&self, _purpose: For) {
        if self.durability == Durability::Dax {
            machine::fence();
        }
    }

    fn sync(&self, _purpose: For) -> Result<()> {
        match self.durability {
            Durability::Dax => machine::fence(),
            Durability::Fdatasync => self.file.sync_data()?,
        }
        Ok(())
    }

    fn keep_from_children(&self, at: u64, length: u64, keeps: bool) {
        let advise = |at: *mut u8, length, advice| {
            // SAFETY: within the mapping, which lives; no byte changes, and none of this process's goes.
            unsafe { libc::madvise(at.cast(), length, advice) == 0 }
        };
        let (place, length) = (self.place(at, length as usize), length as usize);
        match keeps {
            true if advise(place, length, libc::MADV_DONTFORK) => {}
            // The mapping of a DAX device is not cut at every block.
            true => drop(advise(self.base, self.length, libc::MADV_DONTFORK)),
            false => drop(advise(place, length, libc::MADV_DOFORK)),
        }
    }
}

/// Bytes of a file, a block device or a DAX device.
fn length_of(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    if metadata.file_type().is_char_device() {
        let device = metadata.rdev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let size = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/size"))?;
        return size
            .trim()
            .parse()
            .map_err(|_| io::ErrorKind::InvalidData.into());
    }
    io::Seek::seek(&mut &*file, io::SeekFrom::End(0))
}

fn map(file: &File, length: usize, writable: bool, flags: i32) -> io::Result<*mut u8> {
    let write = if writable { libc::PROT_WRITE } else { 0 };
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | write,
            flags,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(base.cast())
}

fn unmap(base: *mut u8, length: usize) {
    // SAFETY: what `map` returned, unmapped once; nobody keeps an address of it.
    unsafe { libc::munmap(base.cast(), length) };
}

/// Locks for one writer or for readers; a lock that this description has already is changed.
fn lock(file: &File, writable: bool) -> std::result::Result<(), OpenError> {
    let kind = if writable {
        libc::LOCK_EX
    } else {
        libc::LOCK_SH
    };
    // SAFETY: a plain call on an open descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EWOULDBLOCK) => Err(OpenError::Busy),
        error => Err(OpenError::system("the store cannot be locked", error)),
    }
}

/// Whether a file has other bytes than zeros.
pub(crate) fn holds_bytes(file: &File) -> io::Result<bool> {
    let mut bytes = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        // Past holes: a sparse file may be large.
        // SAFETY: a plain call on an open descriptor.
        let next = unsafe { libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA) };
        if next < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) {
            return Ok(false);
        }
        // Whoever knows of no holes has all to be read.
        at = at.max(next);
        let read = file.read_at(&mut bytes, at as u64)?;
        if read == 0 {
            return Ok(false);
        }
        if bytes[..read].iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        at += read as i64;
    }
}

fn allocate(file: &File, size: u64) -> std::result::Result<(), OpenError> {
    let what = "the file cannot be allocated (a sparse one can be had, and ends its users when the disk is full)";
    let size = i64::try_from(size)
        .map_err(|_| OpenError::system(what, io::ErrorKind::FileTooLarge.into()))?;
    // SAFETY: a plain call on an open descriptor.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, size) } {
        0 => Ok(()),
        error => Err(OpenError::system(what, io::Error::from_raw_os_error(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::Mapped;
    use crate::errno::OpenError;

    /// A child of `fork` has every descriptor of its parent until it begins its program, and with it the lock.
    #[test]
    fn the_lock_is_given_back_by_who_opened_and_by_nobody_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store");
        let mut medium = Mapped::create(&path, Some(1 << 20), true, |_| Ok(())).expect("made");
        let of_a_child = medium.file.try_clone().expect("a descriptor");
        drop(medium);
        medium = Mapped::open(&path, true).expect("free though the child has it");
        drop(of_a_child);

        let of_the_parent = medium.file.try_clone().expect("a descriptor");
        medium.opener += 1;
        drop(medium);
        let again = Mapped::open(&path, true).map(|_| ());
        assert!(matches!(again, Err(OpenError::Busy)), "{again:?}");
        drop(of_the_parent);
        assert!(Mapped::open(&path, true).is_ok());
    }
}
