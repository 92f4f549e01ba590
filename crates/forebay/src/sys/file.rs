//! Calls on an open file: opening it again, moving bytes, space, times and sync.
//!
//! Memory is always given as [`Piece`]s, which are raw: other processes may change the bytes while
//! the kernel reads them, and no Rust reference to them is ever made. All offsets and lengths are
//! bytes. A call may move fewer bytes than asked for, as the kernel's does.

use super::forks::Lock;
use super::memory::Piece;
use super::{check, check_bytes, offset_of, opening, retry};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Pieces that one vectored call takes (`UIO_MAXIOV`).
pub const PIECES_MAX: usize = 1024;

/// Bytes that one call moves at most (`MAX_RW_COUNT`, the last whole page below 2 GiB).
pub const CALL_BYTES_MAX: usize = 0x7fff_f000;

// A piece is handed to the kernel as an `iovec`, so it must look like one.
const _: () = {
    assert!(size_of::<Piece>() == size_of::<libc::iovec>());
    assert!(align_of::<Piece>() == align_of::<libc::iovec>());
    assert!(std::mem::offset_of!(Piece, ptr) == std::mem::offset_of!(libc::iovec, iov_base));
    assert!(std::mem::offset_of!(Piece, len) == std::mem::offset_of!(libc::iovec, iov_len));
};

/// Pieces as the kernel's type. Valid as long as `pieces` is.
pub fn as_iovecs(pieces: &[Piece]) -> *const libc::iovec {
    pieces.as_ptr().cast()
}

/// Opens a file for the engine, by one call, which a signal may end (`EINTR`).
pub fn open_once(path: &Path, flags: libc::c_int, mode: u32) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    opening::open(&path, flags, mode)
}

/// As [`open_once`], whatever signals come.
pub fn open(path: &Path, flags: libc::c_int, mode: u32) -> io::Result<OwnedFd> {
    retry(|| open_once(path, flags, mode))
}

/// Opens a new description of the file behind a descriptor, through `/proc/self/fd`, for reading and,
/// with `writable`, for writing. Permission is checked again, against the file's mode as it is now. Where somebody holds a
/// lease on the file, the answer is `EWOULDBLOCK`, instead of waiting for as long as the holder is given.
pub fn open_again(fd: BorrowedFd<'_>, direct: bool, writable: bool) -> io::Result<OwnedFd> {
    let path = CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("no zero byte");
    let access = if writable {
        libc::O_RDWR
    } else {
        libc::O_RDONLY
    };
    let mut flags = access | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    if direct {
        flags |= libc::O_DIRECT;
    }
    retry(|| {
        let again = opening::open(&path, flags, 0)?;
        // The flag was for the opening; io_uring would answer `EAGAIN` on some file systems.
        set_flags(again.as_fd(), flags & !libc::O_NONBLOCK)?;
        Ok(again)
    })
}

/// A copy of a descriptor that this process was started with, by its number, if it is open for writing. To be asked for before anything else is
/// opened, so that the number is nothing of ours.
///
/// # Errors
/// `EBADF` where nothing with that number is open for writing.
pub fn inherited_for_writing(number: u32) -> io::Result<OwnedFd> {
    let bad = || io::Error::from_raw_os_error(libc::EBADF);
    let number = libc::c_int::try_from(number).map_err(|_| bad())?;
    // SAFETY: takes no memory; a number that is not open is an error. A new descriptor is nobody's yet.
    let copy = unsafe {
        let copy = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3);
        check(copy)?;
        OwnedFd::from_raw_fd(copy)
    };
    match flags(copy.as_fd())? & libc::O_ACCMODE {
        libc::O_RDONLY => Err(bad()),
        _ => Ok(copy),
    }
}

fn set_flags(fd: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes no memory.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) })
}

/// Status flags of a description (`O_DIRECT`, `O_APPEND`, access mode).
pub fn flags(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: the call takes no memory.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    check(flags)?;
    Ok(flags)
}

/// Makes a description one for direct I/O, or one that goes through the kernel's cache.
pub fn set_direct(fd: BorrowedFd<'_>, direct: bool) -> io::Result<()> {
    let others = flags(fd)? & !libc::O_DIRECT;
    set_flags(
        fd,
        if direct {
            others | libc::O_DIRECT
        } else {
            others
        },
    )
}

/// Makes the descriptor `to` one of `from`'s description; what it was of is closed (`dup3`).
pub fn replace(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call takes no memory. The number stays its owner's: what it leads to changes.
    retry(|| check(unsafe { libc::dup3(from.as_raw_fd(), to.as_raw_fd(), libc::O_CLOEXEC) }))
}

/// Whether two of this process's descriptors are of one description. `false` as well where the kernel does not tell.
pub fn is_one_description(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    const KCMP_FILE: libc::c_int = 0;
    let me = std::process::id();
    // SAFETY: the call takes no memory.
    let order = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            me,
            me,
            KCMP_FILE,
            a.as_raw_fd(),
            b.as_raw_fd(),
        )
    };
    order == 0
}

/// `pread`.
pub fn read_at(fd: BorrowedFd<'_>, piece: Piece, offset: u64) -> io::Result<usize> {
    let offset = offset_of(offset)?;
    retry(|| {
        // SAFETY: others may change the bytes, and the kernel alone writes them here; the maker of
        // the piece promised that it stays mapped; it need not be initialised, being written.
        check_bytes(unsafe { libc::pread(fd.as_raw_fd(), piece.ptr.cast(), piece.len, offset) })
    })
}

/// A description's own position, which tells where an append has put its bytes. Threads share it: a thread that moves it, or asks for it after
/// a call that moves it, has this lock.
pub static POSITION: Lock = Lock::new();

/// Writes at the file's end, wherever that is, by one call. Returns where the bytes lie, and how many they are: as with `write`, fewer than
/// asked for where there is no room for more, and [`CALL_BYTES_MAX`] at most. Where a file has no positions, as a pipe, they lie at 0.
pub fn append(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<(u64, usize)> {
    if bytes.is_empty() {
        return Ok((super::stat::stat(fd)?.len, 0));
    }
    let piece = [Piece {
        ptr: bytes.as_ptr().cast_mut(),
        len: bytes.len().min(CALL_BYTES_MAX),
    }];
    let _turn = POSITION.lock()?;
    let written = retry(|| {
        let (iovecs, flags) = (as_iovecs(&piece), libc::RWF_APPEND);
        // SAFETY: a slice is initialised and stays as it is during the call; a piece has the layout of `iovec`.
        check_bytes(unsafe { libc::pwritev2(fd.as_raw_fd(), iovecs, 1, -1, flags) })
    })?;
    // SAFETY: a call on an open descriptor.
    let end = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_CUR) };
    // The bytes are written: that nobody says where is no error.
    let end = u64::try_from(end).unwrap_or(0);
    Ok((end.saturating_sub(written as u64), written))
}

/// `pwritev2`, at most [`PIECES_MAX`] pieces at a time; stops at the first call that moved less than
/// it was asked to. An error counts only if nothing was written before it.
pub fn write_at(fd: BorrowedFd<'_>, pieces: &[Piece], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    for chunk in pieces.chunks(PIECES_MAX) {
        let wanted: usize = chunk.iter().map(|piece| piece.len).sum();
        let written = match write_chunk(fd, chunk, offset + done as u64) {
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
            Ok(written) => written,
        };
        done += written;
        if written < wanted {
            break;
        }
    }
    Ok(done)
}

fn write_chunk(fd: BorrowedFd<'_>, chunk: &[Piece], offset: u64) -> io::Result<usize> {
    let offset = offset_of(offset)?;
    let count = chunk.len() as libc::c_int;
    retry(|| {
        // SAFETY: others may change the bytes while the kernel reads them, which tears them but no
        // more; the maker of the pieces promised that they stay mapped and are initialised. The
        // array of pieces is ours and has the layout of `iovec`, which is asserted above.
        check_bytes(unsafe { libc::pwritev2(fd.as_raw_fd(), as_iovecs(chunk), count, offset, 0) })
    })
}

/// `fallocate` with the given mode.
pub fn allocate(fd: BorrowedFd<'_>, mode: libc::c_int, offset: u64, len: u64) -> io::Result<()> {
    let (offset, len) = (offset_of(offset)?, offset_of(len)?);
    // SAFETY: the call takes no memory.
    retry(|| check(unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset, len) }))
}

/// Where the next bytes (`SEEK_DATA`), or the next hole (`SEEK_HOLE`), from an offset on begin. It moves the description's own offset.
pub fn seek(fd: BorrowedFd<'_>, offset: u64, data: bool) -> io::Result<u64> {
    let whence = if data {
        libc::SEEK_DATA
    } else {
        libc::SEEK_HOLE
    };
    // SAFETY: takes no memory.
    let found = unsafe { libc::lseek(fd.as_raw_fd(), offset_of(offset)?, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}

/// `ftruncate`.
pub fn truncate(fd: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    let len = offset_of(len)?;
    // SAFETY: the call takes no memory.
    retry(|| check(unsafe { libc::ftruncate(fd.as_raw_fd(), len) }))
}

/// Sets the modification time, in nanoseconds since 1970, and leaves the access time alone. Only the
/// file's owner may; others get `EPERM`.
pub fn set_modified(fd: BorrowedFd<'_>, mtime_ns: i128) -> io::Result<()> {
    let modified = libc::timespec {
        tv_sec: mtime_ns.div_euclid(1_000_000_000) as libc::time_t,
        tv_nsec: mtime_ns.rem_euclid(1_000_000_000) as libc::c_long,
    };
    set_modified_to(fd, modified)
}

/// As [`set_modified`], to what a write would set it to now: no clock that can be read tells that.
pub fn set_modified_now(fd: BorrowedFd<'_>) -> io::Result<()> {
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: libc::UTIME_NOW,
    };
    set_modified_to(fd, now)
}

fn set_modified_to(fd: BorrowedFd<'_>, modified: libc::timespec) -> io::Result<()> {
    let leave = libc::timespec {
        tv_sec: 0,
        tv_nsec: libc::UTIME_OMIT,
    };
    let times = [leave, modified];
    // SAFETY: the array is ours, initialised, and lives during the call.
    retry(|| check(unsafe { libc::futimens(fd.as_raw_fd(), times.as_ptr()) }))
}

/// `fdatasync`.
pub fn sync_data(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call takes no memory.
    retry(|| check(unsafe { libc::fdatasync(fd.as_raw_fd()) }))
}

/// `fsync`.
pub fn sync_all(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call takes no memory.
    retry(|| check(unsafe { libc::fsync(fd.as_raw_fd()) }))
}

/// Starts the writing of the dirty pages of a range from the kernel's cache and waits until the device has them
/// (`sync_file_range`). No barrier: see `fdatasync` for that.
pub fn write_back(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let (offset, len) = (super::offset_of(offset)?, super::offset_of(len)?);
    // SAFETY: no memory is passed.
    retry(|| check(unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, len, flags) }))
}

/// What the kernel could not write back since the description was opened, and has not told it yet; it tells each description once. Nothing is
/// waited for: no page is so far out.
pub fn untold(fd: BorrowedFd<'_>) -> io::Result<()> {
    let (offset, to_the_end) = (libc::off64_t::MAX, 0);
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
    // SAFETY: no memory is passed.
    match check(unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, to_the_end, flags) }) {
        // A sandbox answers, and not the file.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => Ok(()),
        told => told,
    }
}

/// The name by which the kernel knows an open file now; empty where it cannot be asked.
pub fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default()
}
