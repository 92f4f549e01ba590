//! Errors: numbers of the system's for what a caller of a store asks, and words for who opens one.

use std::fmt;

/// A positive number of the system's (`errno`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// What the calls of a store answer.
pub type Result<T> = std::result::Result<T, Errno>;

macro_rules! numbers {
    ($($name:ident: $what:literal,)*) => {
        impl Errno {
            $(
                #[doc = $what]
                pub const $name: Self = Self(libc::$name);
            )*
        }
    };
}

numbers! {
    E2BIG: "A value is larger than any may be.",
    EBADF: "The file is not open for this.",
    EBUSY: "It is in use.",
    EEXIST: "The name is taken.",
    EFBIG: "The file would be larger than any may be.",
    EINVAL: "What is asked for makes no sense.",
    EIO: "The store is damaged here, or its memory failed.",
    EISDIR: "It is a directory.",
    ELOOP: "A path goes through too many symbolic links.",
    EMLINK: "The file has as many names as it may have.",
    ENAMETOOLONG: "The name is longer than 255 bytes.",
    ENODATA: "There is no such attribute.",
    ENOENT: "There is no such file.",
    ENOMEM: "The process has no memory for it.",
    ENOSPC: "The store is full.",
    ENOTDIR: "It is no directory.",
    ENOTEMPTY: "The directory has entries.",
    ENXIO: "There is nothing from there on.",
    EOPNOTSUPP: "Stores do not have this.",
    EPERM: "This is allowed to nobody.",
    ERANGE: "The name of an attribute is too long.",
    EROFS: "The store is open for reading only.",
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Why a store cannot be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file or device cannot be opened, mapped, locked, sized or written.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// Somebody else has it open.
    #[error("the store is open in another process; close it there first")]
    Busy,
    /// There is no store, or one that this build does not know.
    #[error("{0}")]
    NotAStore(String),
    /// What is there would be lost, and nobody has said that it may be.
    #[error("{0}; it is overwritten with `--force` only (`CreateOptions::force`)")]
    Occupied(String),
    /// There is a store, and it cannot be used.
    #[error("the store is damaged: {0}; `forebay pmem check` says what is lost")]
    Damaged(String),
    /// It is too small.
    #[error("a store needs at least {least} bytes, there are {size}")]
    TooSmall {
        /// Bytes that there are.
        size: u64,
        /// Bytes that are needed.
        least: u64,
    },
}

impl OpenError {
    /// The system's number for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::System { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
            Self::Busy => libc::EBUSY,
            Self::Occupied(_) => libc::EEXIST,
            Self::Damaged(_) => libc::EIO,
            Self::NotAStore(_) | Self::TooSmall { .. } => libc::EINVAL,
        }
    }

    /// The system's answer to `what`.
    pub(crate) fn system(what: &str, error: std::io::Error) -> Self {
        let what = what.to_string();
        Self::System { what, error }
    }
}

impl From<Errno> for OpenError {
    fn from(error: Errno) -> Self {
        let error = std::io::Error::from_raw_os_error(error.0);
        Self::system("the store's memory cannot be made durable", error)
    }
}
