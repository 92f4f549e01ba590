//! Opening a file for the engine: what is asked of it, and why it may stay with the kernel.
//!
//! Each question is asked once: files that live for milliseconds are managed as well.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{OnceLock, RwLock};

use super::united::Together;
use super::{RealFile, Relocate, since_1970};
use crate::device::file_system::{FileSystem, Nature, lookup};
use crate::device::{Caps, DeviceFile, KernelReason};
use crate::limits::PAGE_BYTES;
use crate::sys::stat::Stat;
use crate::sys::{block, file, handle, memory, stat};

impl RealFile {
    /// Opens the file behind a caller's descriptor once more. The descriptor itself is not used
    /// any further.
    pub fn reopen(fd: BorrowedFd<'_>) -> Result<Self, KernelReason> {
        Self::reopen_at(fd, &|fd| fd)
    }

    /// As [`RealFile::reopen`], with descriptors of the caller's choice.
    pub fn reopen_at(fd: BorrowedFd<'_>, relocate: Relocate<'_>) -> Result<Self, KernelReason> {
        Self::reopen_known(fd, &ask(fd)?, true, relocate)
    }

    /// The same, of a file whose attributes have just been asked for; or, if it is not to be `writable`, for reading alone: no writable
    /// descriptor of it comes into being, so that it may be a program that runs, or one that the caller may not write.
    pub fn reopen_known(
        fd: BorrowedFd<'_>,
        stat: &Stat,
        writable: bool,
        relocate: Relocate<'_>,
    ) -> Result<Self, KernelReason> {
        // The flusher may have rights that the writer has not, and would leave the bits as they are.
        if writable && stat.regular && stat.set_id {
            return Err(KernelReason::SetId);
        }
        let file_system = admit(fd, stat)?;
        if writable && is_synchronous(fd, stat, &file_system) {
            return Err(KernelReason::Synchronous);
        }
        Self::open_once(fd, stat, file_system, writable, relocate)
    }

    /// As [`RealFile::reopen`], for a file that has been managed before.
    pub(crate) fn reopen_managed(
        fd: BorrowedFd<'_>,
        relocate: Relocate<'_>,
    ) -> Result<Self, KernelReason> {
        let stat = ask(fd)?;
        let file_system = admit(fd, &stat)?;
        Self::open_once(fd, &stat, file_system, true, relocate)
    }

    fn open_once(
        fd: BorrowedFd<'_>,
        stat: &Stat,
        file_system: FileSystem,
        writable: bool,
        relocate: Relocate<'_>,
    ) -> Result<Self, KernelReason> {
        let open = |direct| file::open_again(fd, direct, writable);
        // What cannot be opened without O_DIRECT either is not told that direct I/O is missing.
        let direct = open(true)
            .or_else(|error| open(false).and(Err(error)))
            .map(relocate)
            .map_err(|error| KernelReason::of_open(&error, file_system.name))?;
        // Another thread may have closed the descriptor, and its number may be another file's by now.
        let inode = stat::inode(direct.as_fd());
        let inode = inode.map_err(|error| KernelReason::of_probe("statx", &error))?;
        if inode != (stat.device, stat.inode) {
            return Err(KernelReason::WrongDescriptors { what: TWO_FILES });
        }
        let buffered = direct.try_clone().map(relocate);
        let buffered = buffered.map_err(|error| KernelReason::of_open(&error, file_system.name))?;
        let opened = (direct, buffered, Together::SoFar);
        Self::over(opened, (stat, file_system), writable)
    }

    /// Over descriptors, direct and buffered, of the file that `stat` and its file system tell of.
    pub(super) fn over(
        (direct, buffered, together): (OwnedFd, OwnedFd, Together),
        (stat, file_system): (&Stat, FileSystem),
        writable: bool,
    ) -> Result<Self, KernelReason> {
        let generation = handle::hash(direct.as_fd()).unwrap_or(0);
        let birth = since_1970(stat.birth_ns.unwrap_or(0)) ^ generation;
        let store = match file_system.nature {
            Nature::Store => stat::store_of(direct.as_fd(), stat)
                .map_err(|error| KernelReason::of_probe("ioctl", &error))?,
            _ => 0,
        };
        let caps = caps_of(stat, &file_system, (birth, store));
        let file = Self {
            direct,
            buffered,
            caps,
            nature: file_system.nature,
            writable,
            together: RwLock::new(together),
            uncached: AtomicU32::new(0),
            is_old_store: AtomicBool::new(false),
            companion: OnceLock::new(),
        };
        file.probe_reading(stat)?;
        if writable && file.nature == Nature::Unknown {
            file.probe_writing()?;
        }
        Ok(file)
    }

    /// Tries what is not known from tables and `statx`, of what reading needs.
    fn probe_reading(&self, stat: &Stat) -> Result<(), KernelReason> {
        if stat.direct_align.is_some() {
            return Ok(());
        }
        let file_system = self.caps.file_system;
        let page = memory::AlignedBytes::new(PAGE_BYTES, PAGE_BYTES);
        self.read_direct(page.piece(), 0)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => KernelReason::NoDirectIo { file_system },
                _ => KernelReason::of_probe("direct read", &error),
            })?;
        Ok(())
    }

    /// The same of what writing needs, on a file system that no table knows.
    fn probe_writing(&self) -> Result<(), KernelReason> {
        let file_system = self.caps.file_system;
        let end = ask(self.direct.as_fd())?.len.saturating_sub(1);
        self.reserve(end, 1)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EOPNOTSUPP) => KernelReason::NoReserve { file_system },
                _ => KernelReason::of_probe("fallocate", &error),
            })?;
        self.trim()
            .map_err(|error| KernelReason::of_probe("ftruncate", &error))?;
        self.is_allocated(0, 1)
            .map_err(|error| KernelReason::of_probe("FIEMAP", &error))?;
        Ok(())
    }
}

/// What is wrong with descriptors of different files.
pub(super) const TWO_FILES: &str = "they are of two files";

pub(super) fn ask(fd: BorrowedFd<'_>) -> Result<Stat, KernelReason> {
    stat::stat(fd).map_err(|error| KernelReason::of_probe("statx", &error))
}

/// What can be told from any descriptor of the file, without opening it.
pub(super) fn admit(fd: BorrowedFd<'_>, stat: &Stat) -> Result<FileSystem, KernelReason> {
    if !stat.regular {
        return Err(KernelReason::NotRegular);
    }
    let kind = stat::file_system_of(fd, stat);
    let kind = kind.map_err(|error| KernelReason::of_probe("statfs", &error))?;
    let file_system = lookup(kind.magic);
    // Which a table knows better says so first. A store has its own answer for those that ask for space.
    if kind.has_small_blocks && file_system.nature != Nature::Store {
        file_system.admit(|| Ok(!0))?;
        return Err(KernelReason::SmallBlocks {
            file_system: file_system.name,
        });
    }
    match refusal(fd, stat, &file_system) {
        Some(reason) => Err(reason),
        None => Ok(file_system),
    }
}

/// Whether each write is to be durable when it returns. What is owed already is written all the same, so that this is asked before a file is managed.
fn is_synchronous(fd: BorrowedFd<'_>, stat: &Stat, file_system: &FileSystem) -> bool {
    let has_flag = |flags| flags & stat::FLAG_SYNCHRONOUS != 0;
    // A store has no such flags, and its process would be asked.
    let is_flagged =
        || file_system.nature != Nature::Store && stat::inode_flags(fd).is_ok_and(has_flag);
    stat::file_system_of(fd, stat).is_ok_and(|kind| kind.is_synchronous) || is_flagged()
}

fn refusal(fd: BorrowedFd<'_>, stat: &Stat, file_system: &FileSystem) -> Option<KernelReason> {
    let name = file_system.name;
    if stat.append_only {
        return Some(KernelReason::AppendOnly);
    }
    if stat.immutable {
        return Some(KernelReason::Immutable);
    }
    if stat.compressed {
        return Some(KernelReason::CopyOnWrite { file_system: name });
    }
    let flags =
        || stat::inode_flags(fd).map_err(|error| KernelReason::of_probe("FS_IOC_GETFLAGS", &error));
    if let Err(reason) = file_system.admit(flags) {
        return Some(reason);
    }
    match stat.direct_align {
        Some((0, _) | (_, 0)) => Some(KernelReason::NoDirectIo { file_system: name }),
        Some((memory, offset)) if memory.max(offset) as usize > PAGE_BYTES => {
            Some(KernelReason::CoarseAlignment {
                bytes: memory.max(offset),
            })
        }
        _ => None,
    }
}

fn caps_of(stat: &Stat, file_system: &FileSystem, (birth, store): (u64, u64)) -> Caps {
    let (major, minor) = (stat.device_major, stat.device_minor);
    let (memory_align, offset_align) = stat.direct_align.unwrap_or_else(|| {
        // Never guessed as 512: a page is right for every device that passes.
        let bytes = block::logical_block_bytes(major, minor).unwrap_or(PAGE_BYTES as u32);
        (bytes, bytes)
    });
    // A device number that is no block device's stands for several, or for a layer over others:
    // what lies beneath may well compute checksums.
    // A store takes a copy of what it is given.
    let stable_writes = match file_system.nature {
        Nature::CopyOnWriteUnlessFlagged => true,
        Nature::Store => false,
        _ => block::may_need_stable_pages(major, minor),
    };
    Caps {
        offset_align,
        memory_align,
        stable_writes,
        device: stat.device,
        inode: stat.inode,
        birth,
        store,
        file_system: file_system.name,
    }
}
