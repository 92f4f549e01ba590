//! Why a request cannot be done, as the kernel wants to hear it.

use std::io;

/// An error number, not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed(pub(crate) i32);

/// What a request is answered.
pub(crate) type Answer<T> = Result<T, Failed>;

impl From<rustix::io::Errno> for Failed {
    fn from(error: rustix::io::Errno) -> Self {
        Failed(error.raw_os_error())
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed(forebay::error::errno_of(&error))
    }
}

impl From<forebay::Error> for Failed {
    fn from(error: forebay::Error) -> Self {
        Failed(error.errno())
    }
}

/// A file was to be made, and something has its name already. The kernel takes what it is answered for a new file: it checks no rights of it and
/// cuts nothing off it. Where what is there may be opened, `ESTALE` has the kernel look the name up again, with its checks.
pub(crate) fn there_already(flags: i32) -> Failed {
    match flags & libc::O_EXCL {
        0 => Failed(libc::ESTALE),
        _ => Failed(libc::EEXIST),
    }
}
