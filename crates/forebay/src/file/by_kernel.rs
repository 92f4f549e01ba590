//! Calls of the kernel's, for files that it serves, with errors as the engine reports them.

use std::fs;
use std::io::{IoSlice, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};

use crate::error::{Error, Result};
use crate::file::read::advise::Advise;
use crate::sys::file::{CALL_BYTES_MAX, append};
use crate::sys::{kernel_cache, limits};

pub(super) fn not_open_for(operation: &'static str) -> Error {
    Error::Device {
        errno: libc::EBADF,
        operation,
    }
}

/// Passes on what a program says about its reads.
pub(super) fn advise_kernel(file: &fs::File, offset: u64, len: u64, advice: Advise) -> Result<()> {
    let number = match advice {
        Advise::Normal => libc::POSIX_FADV_NORMAL,
        Advise::Sequential => libc::POSIX_FADV_SEQUENTIAL,
        Advise::Random => libc::POSIX_FADV_RANDOM,
        Advise::WillNeed => libc::POSIX_FADV_WILLNEED,
        Advise::NoReuse => libc::POSIX_FADV_NOREUSE,
        Advise::DontNeed => libc::POSIX_FADV_DONTNEED,
    };
    by_kernel(
        kernel_cache::advise(file.as_fd(), offset, len, number),
        "advise",
    )
}

pub(super) fn by_kernel<T>(result: std::io::Result<T>, operation: &'static str) -> Result<T> {
    result.map_err(|error| Error::device(operation, &error))
}

/// The length as the kernel has it: of a block device it tells none but by a seek to the end. Appends, which go by the position, fail there.
pub(super) fn len_by_kernel(mut file: &fs::File) -> Result<u64> {
    let len = file.metadata().and_then(|meta| {
        if meta.file_type().is_block_device() {
            return file.seek(SeekFrom::End(0));
        }
        Ok(meta.len())
    });
    by_kernel(len, "stat")
}

/// Moves all of `len` bytes by as many calls as that takes, since one moves 2 GiB less a page at most. `step`: what one call moves, from so
/// many bytes on. Less: there is no more, or an error came after some.
fn whole(
    len: usize,
    mut step: impl FnMut(usize) -> std::io::Result<usize>,
) -> std::io::Result<usize> {
    let mut done = 0;
    loop {
        match step(done) {
            Ok(0) => return Ok(done),
            Ok(moved) => done += moved,
            Err(error) if done == 0 => return Err(error),
            Err(_) => return Ok(done),
        }
        if done >= len {
            return Ok(done);
        }
    }
}

/// Reads at an offset: fewer bytes than asked for only at the file's end, and before bytes that cannot be read.
pub(super) fn read_by_kernel(file: &fs::File, bytes: &mut [u8], offset: u64) -> Result<usize> {
    let read = whole(bytes.len(), |from| {
        file.read_at(&mut bytes[from..], offset.saturating_add(from as u64))
    });
    by_kernel(read, "read")
}

/// A positional write; through a description that appends it goes to the end, as with the kernel. There a call that has written a part is the last
/// one; of more than one call moves, others may append in between.
pub(super) fn write_by_kernel(
    file: &fs::File,
    appends: bool,
    bytes: &[u8],
    offset: u64,
) -> Result<usize> {
    let written = whole(bytes.len(), |from| {
        if appends && from % CALL_BYTES_MAX != 0 {
            return Ok(0);
        }
        if appends {
            return append(file.as_fd(), &bytes[from..]).map(|(_, written)| written);
        }
        let at = offset.saturating_add(from as u64);
        if from > 0 && at >= limits::look_at_file_bytes() {
            // A part was written. For one more byte the kernel would send a signal, which it does not send with a part.
            return Ok(0);
        }
        file.write_at(&bytes[from..], at)
    });
    by_kernel(written, "write")
}

/// The bytes of several buffers in one.
pub(super) fn gathered(buffers: &[IoSlice<'_>]) -> Vec<u8> {
    let slices: Vec<&[u8]> = buffers.iter().map(|buffer| &**buffer).collect();
    slices.concat()
}

/// Writes at the end, by one call of the kernel's. Returns where, and how many bytes: fewer than asked for where there is no room for more, and of
/// more than 2 GiB. What others append lies before or after them.
pub(super) fn append_by_kernel(file: &fs::File, bytes: &[u8]) -> Result<(u64, usize)> {
    by_kernel(append(file.as_fd(), bytes), "append")
}

/// Writes all bytes at the end, by as many appends as that takes, and says where the first of them lies. Others may append in between.
pub(super) fn append_all_by_kernel(file: &fs::File, bytes: &[u8]) -> Result<u64> {
    let (start, mut done) = append_by_kernel(file, bytes)?;
    while done < bytes.len() {
        match append_by_kernel(file, &bytes[done..])? {
            (_, 0) => return Err(Error::NoSpace { what: "append" }),
            (_, more) => done += more,
        }
    }
    Ok(start)
}

pub(super) fn punch_by_kernel(file: &fs::File, offset: u64, len: u64) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    by_kernel(
        crate::sys::file::allocate(file.as_fd(), mode, offset, len),
        "punch a hole",
    )
}
