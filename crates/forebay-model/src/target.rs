//! What the operations are asked of, and the shape of an answer.

use crate::Op;

/// Errors by what they mean to the program, so that answers of Rust, C and the kernel compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The handle was not opened for this (`EBADF`).
    NotAllowed,
    /// The request makes no sense (`EINVAL`).
    Invalid,
    /// Beyond the largest file (`EFBIG`).
    TooLarge,
    /// No space or no quota (`ENOSPC`, `EDQUOT`).
    NoSpace,
    /// The device failed (`EIO`).
    Io,
    /// Anything else, by errno.
    Other(i32),
}

impl ErrorClass {
    /// The class of an errno.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EBADF => ErrorClass::NotAllowed,
            libc::EINVAL => ErrorClass::Invalid,
            libc::EFBIG => ErrorClass::TooLarge,
            libc::ENOSPC | libc::EDQUOT => ErrorClass::NoSpace,
            libc::EIO => ErrorClass::Io,
            other => ErrorClass::Other(other),
        }
    }

    /// Whether a device can be the cause, so that a test with faults has to expect it anywhere.
    pub fn is_fault(self) -> bool {
        matches!(self, ErrorClass::Io | ErrorClass::NoSpace)
    }
}

/// The answer to one operation.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It worked and has nothing to tell: set-length, punch, sync, open, hints.
    Done,
    /// Bytes written by a positional write.
    Wrote(u64),
    /// Where an append went. An append is whole or has failed.
    AppendedAt(u64),
    /// What was read; short only at the end of the file.
    Bytes(Vec<u8>),
    /// The file's length.
    Length(u64),
    /// It failed.
    Failed(ErrorClass),
}

/// What the model says the answer must be.
pub type Expected = Outcome;

impl Outcome {
    /// The outcome of a failed system call.
    pub fn from_error(error: &std::io::Error) -> Self {
        Outcome::Failed(ErrorClass::from_errno(error.raw_os_error().unwrap_or(0)))
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Done => write!(f, "done"),
            Outcome::Wrote(n) => write!(f, "{n} bytes written"),
            Outcome::AppendedAt(offset) => write!(f, "appended at {offset}"),
            Outcome::Bytes(bytes) => write!(f, "{} bytes read", bytes.len()),
            Outcome::Length(len) => write!(f, "length {len}"),
            Outcome::Failed(class) => write!(f, "failed: {class:?}"),
        }
    }
}

/// Something that has files. Before the first operation every file exists and is empty, and every
/// handle is open read-write.
pub trait Target {
    /// Carries out one operation. Hints that mean nothing here answer [`Outcome::Done`]. Where a
    /// close reports an error, the handle is opened again all the same, and the error is the answer.
    fn run(&mut self, op: &Op) -> Outcome;
}

impl<F: FnMut(&Op) -> Outcome> Target for F {
    fn run(&mut self, op: &Op) -> Outcome {
        self(op)
    }
}
