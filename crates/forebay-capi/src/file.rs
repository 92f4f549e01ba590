//! Files: opened by a session, read and written at offsets.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::slice;

use forebay::sys::forks::Owned;
use forebay::{Advise, OpenOptions};

use crate::border::{Failure, call, of, ours, put, text};
use crate::session::{Session, of_session};

/// An open file. Used by any number of threads at once: each call is one operation at an offset of its own, as with pread and pwrite, and
/// there is no position that threads could share. Closed once, by forebay_close.
pub struct File(Owned<Opened>);

struct Opened {
    // Dropped first: the session lives longer than its files, and is kept for them.
    file: forebay::File,
    _session: forebay::Session,
}

/// `IOV_MAX`: as many parts as the kernel takes.
const PARTS_MAX: usize = 1024;

/// Opens a file, and makes it where `flags` say so. `flags` are those of open(2): one of O_RDONLY, O_WRONLY and O_RDWR, with any of
/// O_CREAT, O_EXCL (with O_CREAT), O_TRUNC, O_APPEND (every write goes to the end), O_CLOEXEC (always so). O_CREAT and O_TRUNC need a file that is
/// open for writing. `mode` are the permissions of a file that is made, less the umask; it means nothing without O_CREAT.
///
/// A file that the engine cannot manage is served by the kernel, and every function works on it: forebay_kernel_reason says why.
///
/// Returns NULL on failure. errno is EINVAL for other flags, ENOTCONN when the session's tables are full, or what open(2) says.
///
/// # Safety
/// `session` is an open handle, `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_open(
    session: *const Session,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> *mut File {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        let session = unsafe { of_session(session) }?;
        // SAFETY: the caller's promise.
        let path = unsafe { text(path, "the path") }?;
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        let file = session.open_file(path, options_of(flags)?.mode(mode))?;
        let session = session.clone();
        let opened = Opened {
            file,
            _session: session,
        };
        let owned = Owned::new(opened).map_err(forebay::Error::from)?;
        Ok(Box::into_raw(Box::new(File(owned))))
    })
}

pub(crate) fn options_of(flags: c_int) -> Result<OpenOptions, Failure> {
    let has = |flag: c_int| flags & flag != 0;
    let access = flags & libc::O_ACCMODE;
    let writes = matches!(access, libc::O_WRONLY | libc::O_RDWR);
    let known = libc::O_ACCMODE
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_CLOEXEC
        | libc::O_LARGEFILE;
    let refused = if flags & !known != 0 {
        Some(
            "only O_CREAT, O_EXCL, O_TRUNC, O_APPEND and O_CLOEXEC may be in the flags beside the access",
        )
    } else if access == libc::O_ACCMODE {
        Some("the access must be O_RDONLY, O_WRONLY or O_RDWR")
    } else if has(libc::O_EXCL) && !has(libc::O_CREAT) {
        Some("O_EXCL means nothing without O_CREAT")
    } else if !writes && (has(libc::O_CREAT) || has(libc::O_TRUNC) || has(libc::O_APPEND)) {
        Some("O_CREAT, O_TRUNC and O_APPEND need O_WRONLY or O_RDWR")
    } else {
        None
    };
    if let Some(why) = refused {
        return Err(Failure::invalid(why));
    }
    let mut options = OpenOptions::new();
    options
        .read(access != libc::O_WRONLY)
        .write(writes && !has(libc::O_APPEND))
        .append(has(libc::O_APPEND))
        .truncate(has(libc::O_TRUNC))
        .create(has(libc::O_CREAT))
        .create_new(has(libc::O_EXCL));
    Ok(options)
}

/// Closes a file: what it owes is handed to the device, so that programs outside the session see it; forebay_sync before makes it
/// durable. The handle is gone whatever the answer is. NULL is no file, and nothing is done. In a forked child a parent's handle is given back without a
/// word, and nothing is written.
///
/// Returns 0, or -1 with an error of an earlier write that nobody has heard of yet: such bytes stay in the session's memory, and are tried again.
///
/// # Safety
/// `file` is NULL or a handle that is not closed yet, and no other thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_close(file: *mut File) -> c_int {
    call(-1, || {
        if file.is_null() {
            return Ok(0);
        }
        // SAFETY: made of a box by `forebay_open`, and the caller's promise that this is its last use.
        let file = *unsafe { Box::from_raw(file) };
        if let Some(opened) = file.0.take() {
            opened.file.close()?;
        }
        Ok(0)
    })
}

/// Reads up to `count` bytes from `offset` on into `buffer`.
///
/// Returns the number of bytes, fewer than `count` only at the file's end, 0 beyond it, and before bytes that cannot be read, of which the next read
/// says so; or -1 with EBADF when the file is not open for reading, EINVAL for a negative offset or a count beyond SSIZE_MAX, or what the device says
/// of the first byte.
///
/// # Safety
/// `file` is an open handle; `buffer` is valid for writes of `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pread(
    file: *const File,
    buffer: *mut c_void,
    count: usize,
    offset: i64,
) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (file, bytes) = unsafe { (opened(file)?, bytes_mut(buffer, count)?) };
        Ok(file.read_at(bytes, offset_of(offset)?)? as isize)
    })
}

/// Writes `count` bytes at `offset`; at the end of the file where it was opened with O_APPEND, whatever the offset.
///
/// Returns the number of bytes: all, unless an error came after some were written; or -1 with EBADF when the file is not open for writing,
/// ENOSPC or EDQUOT when the space cannot be had, EINVAL for a negative offset or a count beyond SSIZE_MAX, EFBIG beyond the largest file, or what the device
/// says. The bytes outlive the death of this process from here on, and a power failure once forebay_datasync has returned 0.
///
/// # Safety
/// `file` is an open handle; `buffer` is valid for reads of `count` bytes, which nobody changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pwrite(
    file: *const File,
    buffer: *const c_void,
    count: usize,
    offset: i64,
) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (file, bytes) = unsafe { (opened(file)?, bytes(buffer, count)?) };
        Ok(file.write_at(bytes, offset_of(offset)?)? as isize)
    })
}

/// As forebay_pread, into `count` buffers one after the other. EINVAL also for a count that is negative or above 1024 (IOV_MAX), and for lengths whose sum is
/// beyond SSIZE_MAX.
///
/// # Safety
/// As for forebay_pread, for each of `count` buffers, which do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_preadv(
    file: *const File,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (file, parts) = unsafe { (opened(file)?, parts_of(parts, count)?) };
        let mut buffers = Vec::with_capacity(parts.len());
        for part in parts {
            // SAFETY: the caller's promise.
            let bytes = unsafe { bytes_mut(part.iov_base, part.iov_len) }?;
            buffers.push(IoSliceMut::new(bytes));
        }
        Ok(file.read_vectored_at(&mut buffers, offset_of(offset)?)? as isize)
    })
}

/// As forebay_pwrite, from `count` buffers one after the other; where the file was opened with O_APPEND, as one append. EINVAL as for forebay_preadv.
///
/// # Safety
/// As for forebay_pwrite, for each of `count` buffers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pwritev(
    file: *const File,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (file, parts) = unsafe { (opened(file)?, parts_of(parts, count)?) };
        let mut buffers = Vec::with_capacity(parts.len());
        for part in parts {
            // SAFETY: the caller's promise.
            let bytes = unsafe { bytes(part.iov_base, part.iov_len) }?;
            buffers.push(IoSlice::new(bytes));
        }
        Ok(file.write_vectored_at(&buffers, offset_of(offset)?)? as isize)
    })
}

/// Writes `count` bytes at the file's end, wherever that is, whole and apart from what others append.
///
/// Returns the offset, in bytes, at which they lie; or -1 with the errors of forebay_pwrite. Bytes that were written before an error stay.
///
/// # Safety
/// As for forebay_pwrite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_append(
    file: *const File,
    buffer: *const c_void,
    count: usize,
) -> i64 {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (file, bytes) = unsafe { (opened(file)?, bytes(buffer, count)?) };
        Ok(file.append(bytes)? as i64)
    })
}

/// Makes all bytes that were written to the file durable, and what is needed to read them, as fdatasync does.
///
/// Returns 0, or -1 with the first error of a write to the device that this handle has not heard of: such bytes stay in memory and are tried again.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_datasync(file: *const File) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { done(file, forebay::File::sync_data) }
}

/// Makes all bytes that were written to the file durable, and its metadata, as fsync does. Errors are those of forebay_datasync.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_sync(file: *const File) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { done(file, forebay::File::sync_all) }
}

/// Hands all bytes that were written to the file to the device, so that programs outside the session see them. They are not durable by that. Errors are those of
/// forebay_datasync.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_flush(file: *const File) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { done(file, forebay::File::flush) }
}

/// Sets the file's length, bytes: what is beyond is gone, what is new is zeros.
///
/// Returns 0, or -1 with EINVAL when the file is not open for writing or the length is negative, EFBIG beyond the largest file, or what the file
/// system says.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_truncate(file: *const File, length: i64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { done(file, |file| file.set_len(range_of(length)?)) }
}

/// The file's length, bytes, as the session sees it: stat(2) may tell an older one until the file is flushed. -1 with what the kernel says
/// on failure.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_size(file: *const File) -> i64 {
    call(-1, || {
        // SAFETY: the caller's promise.
        Ok(unsafe { opened(file) }?.len()? as i64)
    })
}

/// Makes `length` bytes from `offset` on zeros, and gives their space back. The file's length does not change.
///
/// Returns 0, or -1 with EINVAL for an empty or negative range, EBADF when the file is not open for writing, EOPNOTSUPP where the file system cannot.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_punch(file: *const File, offset: i64, length: i64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        done(file, |file| {
            file.punch(range_of(offset)?, range_of(length)?)
        })
    }
}

/// Says how `length` bytes from `offset` on will be read, as posix_fadvise does; a length of 0 is to the end. `advice` is one of
/// POSIX_FADV_NORMAL, _SEQUENTIAL, _RANDOM, _WILLNEED, _DONTNEED and _NOREUSE.
///
/// Returns 0, or -1 with EINVAL for other advice or a negative range.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_advise(
    file: *const File,
    offset: i64,
    length: i64,
    advice: c_int,
) -> c_int {
    let advice = match advice {
        libc::POSIX_FADV_NORMAL => Ok(Advise::Normal),
        libc::POSIX_FADV_SEQUENTIAL => Ok(Advise::Sequential),
        libc::POSIX_FADV_RANDOM => Ok(Advise::Random),
        libc::POSIX_FADV_WILLNEED => Ok(Advise::WillNeed),
        libc::POSIX_FADV_DONTNEED => Ok(Advise::DontNeed),
        libc::POSIX_FADV_NOREUSE => Ok(Advise::NoReuse),
        _ => Err(forebay::Error::InvalidInput(
            "the advice is none of POSIX_FADV_*",
        )),
    };
    // SAFETY: the caller's promise.
    unsafe {
        done(file, |file| {
            file.advise(range_of(offset)?, range_of(length)?, advice?)
        })
    }
}

/// Why the kernel serves this file, as a text of up to `size` bytes with the zero byte at its end; "" while the engine serves it. `reason` may be
/// NULL where `size` is 0.
///
/// Returns the length of the whole text, 0 while the engine serves the file; or -1.
///
/// # Safety
/// `file` is an open handle; `reason` is valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_kernel_reason(
    file: *const File,
    reason: *mut c_char,
    size: usize,
) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        let why = unsafe { opened(file) }?.kernel_reason();
        // SAFETY: the caller's promise.
        unsafe { put(&why.unwrap_or_default(), reason, size) }
    })
}

/// # Safety
/// As for [`of`].
pub(crate) unsafe fn opened<'a>(file: *const File) -> Result<&'a forebay::File, Failure> {
    // SAFETY: the caller's promise.
    Ok(&ours(&unsafe { of(file) }?.0)?.file)
}

/// # Safety
/// As for [`of`].
unsafe fn done(
    file: *const File,
    work: impl FnOnce(&forebay::File) -> forebay::Result<()>,
) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        work(unsafe { opened(file) }?)?;
        Ok(0)
    })
}

pub(crate) fn offset_of(offset: i64) -> Result<u64, Failure> {
    u64::try_from(offset).map_err(|_| Failure::invalid("the offset is negative"))
}

fn range_of(number: i64) -> forebay::Result<u64> {
    let negative = forebay::Error::InvalidInput("an offset or length is negative");
    u64::try_from(number).map_err(|_| negative)
}

/// # Safety
/// `buffer` is valid for reads of `count` bytes, which nobody changes before the answer's last use.
pub(crate) unsafe fn bytes<'a>(buffer: *const c_void, count: usize) -> Result<&'a [u8], Failure> {
    if !is_memory(buffer, count)? {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { slice::from_raw_parts(buffer.cast(), count) })
}

/// # Safety
/// `buffer` is valid for writes of `count` bytes, which nobody else touches before the answer's last use.
pub(crate) unsafe fn bytes_mut<'a>(
    buffer: *mut c_void,
    count: usize,
) -> Result<&'a mut [u8], Failure> {
    if !is_memory(buffer, count)? {
        return Ok(&mut []);
    }
    // SAFETY: the caller's promise. A C program may not have written the bytes before; they are only written here.
    Ok(unsafe { slice::from_raw_parts_mut(buffer.cast(), count) })
}

/// Whether there is any: of no bytes the address may be anything.
fn is_memory(buffer: *const c_void, count: usize) -> Result<bool, Failure> {
    match count {
        0 => Ok(false),
        _ if buffer.is_null() => Err(Failure::new(libc::EFAULT, "the buffer is NULL")),
        _ if isize::try_from(count).is_err() => {
            Err(Failure::invalid("the count is beyond SSIZE_MAX"))
        }
        _ => Ok(true),
    }
}

/// # Safety
/// `parts` points to `count` parts.
unsafe fn parts_of<'a>(
    parts: *const libc::iovec,
    count: c_int,
) -> Result<&'a [libc::iovec], Failure> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > PARTS_MAX {
        return Err(Failure::invalid("there may be 0 to 1024 buffers"));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if parts.is_null() {
        return Err(Failure::new(libc::EFAULT, "the list of buffers is NULL"));
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { slice::from_raw_parts(parts, count) };
    let sum = parts
        .iter()
        .try_fold(0usize, |sum, part| sum.checked_add(part.iov_len));
    match sum.map(isize::try_from) {
        Some(Ok(_)) => Ok(parts),
        _ => Err(Failure::invalid(
            "the buffers' lengths are beyond SSIZE_MAX",
        )),
    }
}

/// Handles go from thread to thread, and are used by many at once.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<File>();
    shared::<Session>();
};
