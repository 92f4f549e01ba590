//! Space that is asked for ahead of bytes, and where holes are.

use std::fs;
use std::os::fd::AsFd;

use super::by_kernel::{by_kernel, not_open_for};
use super::core::{Core, Halt};
use super::settle::Durability;
use super::{File, Kind, resize};
use crate::error::{Error, Result};
use crate::limits::FILE_BYTES_MAX;
use crate::sys;

/// What a search in a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// Bytes (`SEEK_DATA`).
    Data,
    /// A hole, or the file's end (`SEEK_HOLE`).
    Hole,
}

impl File {
    /// Reserves space for a range, and makes the file long enough for it unless it is to keep its length (`fallocate`).
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for an empty range; `EBADF` when the file is not open for writing; the file system's.
    pub fn reserve(&self, offset: u64, len: u64, keeps_len: bool) -> Result<()> {
        if len == 0 {
            return Err(Error::InvalidInput("an empty range cannot be reserved"));
        }
        if !self.writable {
            return Err(not_open_for("write"));
        }
        let end = offset.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX);
        let Some(end) = end else {
            let operation = "reserve space";
            return Err(Error::Device {
                errno: libc::EFBIG,
                operation,
            });
        };
        match &self.kind {
            Kind::Managed(managed) => {
                // Everything that is owed is written first, so that the kernel's length is ours and it changes nothing else.
                self.settle(Durability::Written)?;
                let core = &managed.core;
                let reserved = by_kernel(core.device.reserve(offset, len), "reserve space");
                let grown = match (reserved, keeps_len) {
                    (Ok(()), false) => resize::grow(core, core.shared.me()?, end),
                    (Ok(()), true) => {
                        core.keep_space(end);
                        Ok(())
                    }
                    (Err(error), _) => return Err(error),
                };
                match grown {
                    Err(Halt::Kernel) => reserve_by_kernel(&managed.file, offset, len, keeps_len),
                    result => result.map_err(Core::ended),
                }
            }
            Kind::Kernel { file, .. } => reserve_by_kernel(file, offset, len, keeps_len),
        }
    }

    /// Where the next bytes, or the next hole, from `offset` on begin, as the file system knows it (`lseek`).
    ///
    /// # Errors
    /// `ENXIO` when there is nothing such, or the offset lies beyond the end; as for [`File::flush`].
    pub fn seek(&self, offset: u64, sought: Sought) -> Result<u64> {
        let file = match &self.kind {
            Kind::Managed(managed) => {
                self.settle(Durability::Written)?;
                &managed.file
            }
            Kind::Kernel { file, .. } => file,
        };
        let position = by_kernel(sys::file::POSITION.lock(), "seek")?;
        let found = sys::file::seek(file.as_fd(), offset, sought == Sought::Data);
        drop(position);
        by_kernel(found, "seek")
    }
}

fn reserve_by_kernel(file: &fs::File, offset: u64, len: u64, keeps_len: bool) -> Result<()> {
    let mode = if keeps_len {
        libc::FALLOC_FL_KEEP_SIZE
    } else {
        0
    };
    by_kernel(
        sys::file::allocate(file.as_fd(), mode, offset, len),
        "reserve space",
    )
}
