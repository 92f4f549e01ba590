//! Real files: one description for direct and one for buffered I/O, both the engine's own.
//!
//! A program's own descriptor is never used for more than finding the inode: the engine opens the file again through `/proc/self/fd`, in
//! the client, and may hand what it has opened to the keeper. The direct description is opened first. Most files need no other one in their
//! lives, so the buffered one is opened by the first request that needs it (`united`): each opening of a file that is guarded waits for the guard. All
//! questions about the file are asked then, once, and answered by [`Caps`] or a [`KernelReason`](super::KernelReason) (`opening`).
//!
//! **Times.** Reserving, trimming and waiting are no changes that a program should see. The kernel
//! sets the modification time all the same, so it is put back, unless the size changed meanwhile.
//! Putting back is the owner's right: for anyone else the time stays moved. The change time cannot be
//! put back. A modification by an outsider in the microseconds between is dated too early.
//!
//! **Trim** is a truncation to the size that the file has: a hole punched beyond the end gives
//! nothing back on ext4. It does on XFS, whose truncation waits for the device. The size is looked at last right before the call; an outsider's append
//! between those two system calls is cut. Only the session appends to a managed file of its own, so
//! this concerns outsiders alone.
//!
//! **Waiting** for direct writes of others, dead processes included. Measured on Linux 6.18 with the
//! device held up (`tests/device_files/stalls.rs`): `fallocate` of one byte that has space already,
//! anywhere in the file, waits on ext4 and XFS and then finds nothing to do; truncation to the same
//! size waits on XFS and btrfs, but not on ext4; on btrfs `fallocate` waits for its own range only.
//! Without space left XFS says so afterwards; truncating instead would give up what is reserved beyond the end, and not get it back.
//! `fsync` promises nothing about direct writes under way. So: `fallocate` where files are written in
//! place, truncation on btrfs, both where the file system is not known. A direct write to a mounted store holds the inode's lock until the
//! store has answered, and `lseek` for a hole takes that lock. A request that a dead process
//! had queued but that had not reached the file system is not under way yet and cannot be waited for.

mod cached;
mod opening;
mod received;
mod united;

use super::file_system::Nature;
use super::{Caps, DeviceFile, DeviceStat, Piece, may_fail, not_written_back};
use crate::limits::PAGE_BYTES;
use crate::sys::stat::Stat;
use crate::sys::{extents, file, lease, stat, version};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{OnceLock, RwLock};
use united::Together;

/// A file of a file system, opened for direct and for buffered I/O.
pub struct RealFile {
    direct: OwnedFd,
    buffered: OwnedFd,
    caps: Caps,
    nature: Nature,
    writable: bool,
    /// Whether `buffered` is another descriptor of the same description as `direct`, and why.
    together: RwLock<Together>,
    /// Ranges in a row that the kernel has not had in its cache; see [`cached`].
    uncached: AtomicU32,
    /// The mount of this store does not know how a sync and a look are one request.
    is_old_store: AtomicBool,
    /// What lives as long as this does.
    companion: OnceLock<Box<dyn Send + Sync>>,
}

/// Where descriptors of the engine's own are put: a front end that lives in somebody else's program keeps them out of the
/// numbers that the program expects.
pub type Relocate<'r> = &'r dyn Fn(OwnedFd) -> OwnedFd;

impl RealFile {
    /// How far space goes on from `offset`, as the first `most` extents tell.
    fn covered(&self, offset: u64, end: u64, most: usize) -> io::Result<u64> {
        if self.nature == Nature::Store {
            return extents::space_in_store(self.direct.as_fd(), offset, end);
        }
        let (mut covered, mut seen) = (offset, 0);
        extents::visit_extents(self.buffered.as_fd(), offset, end, |extent| {
            if extent.start > covered || !extent.is_settled() {
                return false;
            }
            covered = covered.max(extent.end());
            seen += 1;
            covered < end && seen < most
        })?;
        Ok(covered)
    }

    /// Drops `companion` with this file, and not before.
    pub fn accompany(&self, companion: impl Send + Sync + 'static) {
        let _ = self.companion.set(Box::new(companion));
    }

    /// The descriptions (direct, buffered), for sending them over a socket.
    pub fn into_descriptors(self) -> (OwnedFd, OwnedFd) {
        (self.direct, self.buffered)
    }

    /// Runs `change`, which leaves the contents as they are, and puts the modification time back. `change` is told what the file was
    /// like right before.
    fn quietly(&self, change: impl FnOnce(&Stat) -> io::Result<()>) -> io::Result<()> {
        let before = stat::stat(self.buffered.as_fd())?;
        let result = change(&before);
        let after = stat::stat(self.buffered.as_fd())?;
        if after.len == before.len && after.mtime_ns != before.mtime_ns {
            match file::set_modified(self.buffered.as_fd(), before.mtime_ns) {
                // Not the owner: the time stays moved, as documented.
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
                other => other?,
            }
        }
        result
    }

    /// Runs of space beyond the page that holds the byte before `len`: (offset, length).
    fn space_beyond(&self, len: u64) -> io::Result<Vec<(u64, u64)>> {
        let end = len.next_multiple_of(PAGE_BYTES as u64);
        if self.nature == Nature::Store {
            // The first run is enough to know: what the engine reserves begins at the end.
            let covered = extents::space_in_store(self.direct.as_fd(), end, i64::MAX as u64)?;
            return Ok(Vec::from_iter(
                (covered > end).then(|| (end, covered - end)),
            ));
        }
        let mut runs = Vec::new();
        extents::visit_extents(self.buffered.as_fd(), end, i64::MAX as u64, |extent| {
            let start = extent.start.max(end);
            if extent.end() > start {
                runs.push((start, extent.end() - start));
            }
            true
        })?;
        Ok(runs)
    }

    /// Punches runs of space beyond the end. Whether there is no more. A truncation of XFS's waits until the device has what is dirty in
    /// the kernel's cache.
    fn punch_beyond(&self, len: u64, runs: &[(u64, u64)]) -> io::Result<bool> {
        for (offset, bytes) in runs {
            self.punch(*offset, *bytes)?;
        }
        Ok(self.space_beyond(len)?.is_empty())
    }

    /// Truncates to the size the file has, and reserves again what that gave back.
    fn truncate_to_same(&self) -> io::Result<()> {
        let (len, reserved) = loop {
            let len = self.stat()?.len;
            let reserved = self.space_beyond(len)?;
            // Somebody may have appended while we looked; then look again.
            if self.stat()?.len == len {
                break (len, reserved);
            }
        };
        file::truncate(self.buffered.as_fd(), len)?;
        for (offset, len) in reserved {
            file::allocate(
                self.buffered.as_fd(),
                libc::FALLOC_FL_KEEP_SIZE,
                offset,
                len,
            )?;
        }
        Ok(())
    }

    /// Whether a sync of a file of a mounted store and a look at it are one request. Before Linux 6.16 the kernel says of pages that they are written back
    /// while it still copies them to the mount: no call but `fsync` waits for those, or hears of their errors.
    fn syncs_by_store(&self) -> bool {
        self.nature == Nature::Store
            && !self.is_old_store.load(Relaxed)
            && version::is_kernel_from(6, 16)
    }

    /// A look at a file of a mounted store and `fsync`, by one request. `None`: its mount is of an earlier build, which knows no such request, cannot tell
    /// what the file is like, or a sandbox lets nobody make it.
    fn sync_store(&self) -> io::Result<Option<DeviceStat>> {
        may_fail!(self, Sync);
        // As `fsync` does: what is dirty in the kernel's cache, by somebody's mapping, comes to the store before the store is synced.
        let synced = file::write_back(self.buffered.as_fd(), 0, 0)
            .and_then(|()| extents::sync_in_store(self.direct.as_fd()));
        let (found, synced) = match synced {
            Ok(found) => (Some(found), Ok(())),
            Err(error) if is_unknown(&error) => (None, Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.all_told(synced)?;
        let told = |[len, allocated, mtime_ns, ctime_ns, links]: [u64; 5]| DeviceStat {
            len,
            allocated,
            mtime_ns,
            ctime_ns,
            links: links as u32,
        };
        Ok(found.map(told))
    }

    fn has_shared_space(&self, offset: u64, len: u64) -> io::Result<bool> {
        let mut found = false;
        let end = offset.saturating_add(len);
        extents::visit_extents(self.buffered.as_fd(), offset, end, |extent| {
            found = extent.is_shared();
            !found
        })?;
        Ok(found)
    }

    /// A byte that has space, or the first one where nothing has: then one block is allocated.
    fn settled_byte(&self) -> io::Result<u64> {
        let mut byte = 0;
        extents::visit_extents(self.buffered.as_fd(), 0, i64::MAX as u64, |extent| {
            byte = extent.start;
            false
        })?;
        Ok(byte)
    }
}

/// Whether a request to a mounted store has found no process that knows it.
fn is_unknown(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTTY | libc::EPERM | libc::ENOSYS)
    )
}

fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Times before 1970 count as 1970.
pub(crate) fn since_1970(ns: i128) -> u64 {
    u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
}

impl DeviceFile for RealFile {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    /// XFS has space beyond a file's end set aside for pages in the kernel's cache, and once the file has become longer, says
    /// EIO to a direct read of it ("Direct I/O collision with buffered writes" in its log). Through the cache it can be read,
    /// and a device that is broken says so there as well.
    fn read_direct(&self, piece: Piece, offset: u64) -> io::Result<usize> {
        may_fail!(self, Read);
        match file::read_at(self.direct.as_fd(), piece, offset) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                self.through_cache(|fd| file::read_at(fd, piece, offset))
            }
            result => result,
        }
    }

    fn read_cached(&self, piece: Piece, offset: u64) -> Option<usize> {
        self.read_what_is_cached(piece, offset)
    }

    fn is_cached(&self) -> bool {
        self.is_whole_in_cache()
    }

    fn write_direct(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        may_fail!(self, WriteDirect);
        file::write_at(self.direct.as_fd(), pieces, offset)
    }

    fn write_buffered(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.through_cache(|fd| file::write_at(fd, pieces, offset))
    }

    fn write_cached(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.only_to_cache(|fd| file::write_at(fd, pieces, offset))
    }

    fn write_through(&self, piece: Piece, offset: u64) -> io::Result<usize> {
        let is_written = Cell::new(false);
        let result = self.through_cache(|fd| {
            let written = file::write_at(fd, &[piece], offset)?;
            is_written.set(true);
            file::write_back(fd, offset, written as u64)?;
            Ok(written)
        });
        result.map_err(|error| match is_written.get() {
            true => not_written_back(error),
            false => error,
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        may_fail!(self, Sync);
        self.all_told(file::sync_data(self.buffered.as_fd()))
    }

    fn sync_all(&self) -> io::Result<()> {
        may_fail!(self, Sync);
        self.all_told(file::sync_all(self.buffered.as_fd()))
    }

    fn has_sync_and_stat(&self) -> bool {
        self.syncs_by_store()
    }

    fn sync_and_stat(&self) -> (io::Result<()>, Option<DeviceStat>) {
        if self.syncs_by_store() {
            match self.sync_store() {
                Ok(None) => self.is_old_store.store(true, Relaxed),
                Ok(found) => return (Ok(()), found),
                Err(error) => return (Err(error), None),
            }
        }
        let found = self.stat().ok();
        (self.sync_all(), found)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        may_fail!(self, SetLen);
        file::truncate(self.buffered.as_fd(), len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        may_fail!(self, Reserve);
        let fd = self.buffered.as_fd();
        self.quietly(|before| {
            file::allocate(fd, libc::FALLOC_FL_KEEP_SIZE, offset, len)?;
            // What had no space has none in common with a clone.
            let may_share = self.may_share_space() && before.allocated != 0;
            if !may_share || !self.has_shared_space(offset, len)? {
                return Ok(());
            }
            // Space shared with a clone of the file: the next write would need space of its own.
            let mode = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_UNSHARE_RANGE;
            file::allocate(fd, mode, offset, len)
        })
    }

    fn trim(&self) -> io::Result<()> {
        let len = self.stat()?.len;
        let beyond = self.space_beyond(len)?;
        if beyond.is_empty() {
            return Ok(());
        }
        self.quietly(|before| {
            if before.len != len {
                // Somebody is writing: the space is in use, or will be trimmed another time.
                return Ok(());
            }
            if self.nature == Nature::InPlace && self.punch_beyond(len, &beyond)? {
                return Ok(());
            }
            file::truncate(self.buffered.as_fd(), len)
        })
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        may_fail!(self, Punch);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        file::allocate(self.buffered.as_fd(), mode, offset, len)
    }

    fn is_allocated(&self, offset: u64, len: u64) -> io::Result<bool> {
        let end = offset.saturating_add(len);
        Ok(self.covered(offset, end, usize::MAX)? >= end)
    }

    fn allocated_to(&self, offset: u64, end: u64) -> io::Result<u64> {
        let covered = self.covered(offset, end, extents::EXTENTS_PER_CALL)?;
        Ok(covered.min(end))
    }

    fn free_bytes(&self) -> Option<u64> {
        stat::free_bytes(self.direct.as_fd()).ok()
    }

    fn may_share_space(&self) -> bool {
        // ext4 and stores have no clones.
        !matches!(self.nature, Nature::InPlaceWithExtents | Nature::Store)
    }

    fn stat(&self) -> io::Result<DeviceStat> {
        let stat = stat::stat(self.buffered.as_fd())?;
        Ok(DeviceStat {
            len: stat.len,
            allocated: stat.allocated,
            mtime_ns: since_1970(stat.mtime_ns),
            ctime_ns: since_1970(stat.ctime_ns),
            links: stat.links,
        })
    }

    fn wait_in_flight(&self) -> io::Result<()> {
        if self.nature == Nature::Store {
            // At an offset that no file has: the question alone matters.
            let _ = file::seek(self.direct.as_fd(), i64::MAX as u64, false);
            return Ok(());
        }
        let by_allocating = self.nature != Nature::CopyOnWriteUnlessFlagged;
        let by_truncating = !by_allocating || self.nature == Nature::Unknown;
        self.quietly(|_| {
            if by_allocating {
                let byte = self.settled_byte()?;
                let mode = libc::FALLOC_FL_KEEP_SIZE;
                match file::allocate(self.buffered.as_fd(), mode, byte, 1) {
                    // It has waited by then: XFS wants space for the change before it looks whether there is any to make.
                    Err(error) if is_out_of_space(&error) => {}
                    other => other?,
                }
            }
            if by_truncating {
                self.truncate_to_same()?;
            }
            Ok(())
        })
    }

    fn set_modified(&self, mtime_ns: Option<u64>) -> io::Result<()> {
        match mtime_ns {
            Some(ns) => file::set_modified(self.direct.as_fd(), i128::from(ns)),
            None => file::set_modified_now(self.direct.as_fd()),
        }
    }

    fn unite(&self) -> io::Result<()> {
        self.give_up_all_but_one()
    }

    fn open_no_more(&self) {
        self.stay_together();
    }

    fn lease(&self) -> io::Result<()> {
        lease::take(self.direct.as_fd())
    }

    fn give_lease_up(&self) {
        // Without one there is nothing to give up.
        let _ = lease::give_up(self.direct.as_fd());
    }

    fn is_lease_wanted(&self) -> bool {
        !lease::is_held_in_peace(self.direct.as_fd()).unwrap_or(false)
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn descriptors(&self) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        Some((self.direct.as_fd(), self.buffered.as_fd()))
    }
}
