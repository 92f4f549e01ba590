//! Why a request cannot be done, as the kernel wants to hear it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

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

impl From<Failed> for fuser::Errno {
    fn from(failed: Failed) -> Self {
        fuser::Errno::from_i32(failed.0)
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

/// Carries out the work of a request. A panic ends at it: the thread goes on to serve others.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Answer<T>) -> Answer<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failed(libc::EIO)))
}
