//! What tells an inode from earlier ones of the same number: file handles (`name_to_handle_at`), as NFS servers use them.
//!
//! A file system gives a number again at once, and birth times come from a clock that ticks every few milliseconds: a file that is
//! removed and made again within a tick has the number and the birth of the one before. Its handle has another
//! generation.

use super::check;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// The longest handle, bytes (`MAX_HANDLE_SZ`).
const BYTES_MAX: usize = 128;

/// As `struct file_handle`.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; BYTES_MAX],
}

/// A number made of an open file's handle. `EOPNOTSUPP`: the file system has none.
pub fn hash(fd: BorrowedFd<'_>) -> io::Result<u64> {
    hash_at(fd.as_raw_fd(), c"", true)
}

/// As [`hash`], of the file at a path, or where a symbolic link there leads; of `dir` itself where the path is empty.
pub fn hash_at(dir: RawFd, path: &CStr, follow: bool) -> io::Result<u64> {
    let follow = if follow { libc::AT_SYMLINK_FOLLOW } else { 0 };
    let mut handle = Handle {
        bytes: BYTES_MAX as u32,
        kind: 0,
        handle: [0; BYTES_MAX],
    };
    let mut mount: libc::c_int = 0;
    // SAFETY: the path ends in a null byte and is only read; the kernel writes at most as many bytes as the handle says that it has room for, and the
    // mount's number; both are ours and live during the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            libc::AT_EMPTY_PATH | follow,
        )
    };
    check(result as libc::c_int)?;
    let len = (handle.bytes as usize).min(BYTES_MAX);
    // FNV-1a.
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let start = 0xcbf2_9ce4_8422_2325 ^ handle.kind as u64;
    Ok(handle.handle[..len].iter().fold(start, step))
}
