//! Managed files of this process: what descriptors stand for, and how files go to the kernel.
//!
//! What hooks that do not serve a call themselves use of it: [`give_to_kernel`] and its siblings, which return with the call
//! free to go on to the real function.

use libc::c_int;

/// Why a file goes to the kernel: the code in its entry, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Why {
    /// Inherited by a program that is executed, or moved onto a standard descriptor.
    Inherited = 64,
    /// Used through stdio.
    Stdio = 65,
    /// Mapped into memory.
    Mapped = 66,
    /// sendfile, splice, copy_file_range and their like.
    Transfer = 67,
    /// An ioctl.
    Ioctl = 68,
    /// Record or whole-file locks.
    Locked = 69,
    /// The program's own asynchronous I/O or io_uring.
    Asynchronous = 70,
    /// `syscall()`.
    RawCall = 71,
    /// Sent to another process.
    Sent = 72,
    /// The process changes its user, root or namespace.
    Identity = 73,
    /// An option of the call that the engine does not serve.
    Unserved = 74,
}

/// Whether the engine may have bytes of the file behind this descriptor: one load. `false` for anything else.
#[inline]
pub fn is_known(_fd: c_int) -> bool {
    false
}

/// Gives the file behind a descriptor to the kernel: flushed, dropped from memory, the kernel's offset up to date. Nothing to do
/// for a descriptor that is not managed. Keeps `errno`.
pub fn give_to_kernel(_fd: c_int, _why: Why) {}

/// As [`give_to_kernel`], for a file by name, should the session hold it.
///
/// # Safety
/// `path` is null or a string that ends in a null byte.
pub unsafe fn give_path_to_kernel(_dir: c_int, _path: *const libc::c_char, _why: Why) {}

/// As [`give_to_kernel`], for all descriptors that stay open in a program that this process executes.
pub fn give_inheritable_to_kernel(_why: Why) {}

/// As [`give_to_kernel`], for all descriptors of the process; from now on nothing becomes managed in it.
pub fn give_all_to_kernel(_why: Why) {}

/// The descriptor has been closed without `close`: what is known of it is forgotten.
pub fn forget(_fd: c_int) {}
