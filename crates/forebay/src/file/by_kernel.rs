//! Calls of the kernel's, for files that it serves, with errors as the engine reports them.

use std::fs;
use std::os::fd::AsFd;

use crate::error::{Error, Result};

pub(super) fn not_open_for(operation: &'static str) -> Error {
    Error::Device {
        errno: libc::EBADF,
        operation,
    }
}

pub(super) fn by_kernel<T>(result: std::io::Result<T>, operation: &'static str) -> Result<T> {
    result.map_err(|error| Error::device(operation, &error))
}

pub(super) fn append_by_kernel(file: &fs::File, bytes: &[u8]) -> Result<u64> {
    by_kernel(crate::sys::file::append(file.as_fd(), bytes), "append")
}

pub(super) fn punch_by_kernel(file: &fs::File, offset: u64, len: u64) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    by_kernel(
        crate::sys::file::allocate(file.as_fd(), mode, offset, len),
        "punch a hole",
    )
}
