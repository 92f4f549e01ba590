//! Errors of the engine, sorted by who must act.
//!
//! Inside the engine an error says what happened and who can do something about it; an errno exists
//! only at the edges. [`Error::errno`] and the conversion into [`io::Error`] are those edges, and
//! [`errno_of`] is the way back for front ends that hold only an [`io::Error`].
//!
//! No variant that can arise on the hot path owns memory: [`Error::Device`] and [`Error::NoSpace`]
//! are built without allocation, because a preloaded library must be able to fail inside `malloc`'s
//! callers, signal handlers and forked children.

use crate::config::ConfigError;
use std::io;

/// What the engine's fallible functions return.
pub type Result<T> = std::result::Result<T, Error>;

/// Something that could not be done, by who must act.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device or its file system refused. For the person who looks after that storage.
    #[error("{operation}: {}", io::Error::from_raw_os_error(*errno))]
    Device {
        /// The operating system's error number, never 0.
        errno: i32,
        /// What was asked for, as a verb phrase: "write to the device".
        operation: &'static str,
    },
    /// The file system of a managed file, or the arena, is full. For the user: delete something, or
    /// ask for less.
    #[error("no space left for {what}")]
    NoSpace {
        /// What the space was for: "a growing file", "the arena".
        what: &'static str,
    },
    /// The configuration is wrong. For the person who wrote it; the message names key, place and remedy.
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    /// The arena cannot be made, mapped or trusted. For the user: the message names the remedy.
    #[error("arena: {0}")]
    Arena(String),
    /// The session or its keeper cannot be reached or joined. For the user.
    #[error("session: {why}")]
    Session {
        /// What a caller can go by.
        fault: SessionFault,
        /// What has happened, and the remedy.
        why: String,
    },
    /// The caller passed something that no file could accept. For the programmer.
    #[error("invalid input: {0}")]
    InvalidInput(&'static str),
    /// The process cannot have so much memory. For the user: ask for less at once.
    #[error("no memory for {what}")]
    NoMemory {
        /// What it was for: "a copy of the view's bytes".
        what: &'static str,
    },
    /// The caller's memory is not there. For the programmer.
    #[error("bad address")]
    Fault,
    /// State that must hold does not. For the maintainers, and a reason to stop trusting the arena.
    #[error("corrupt: {0}; run `forebay recover`")]
    Corrupt(String),
}

/// What is the matter with a session, for callers that do something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionFault {
    /// Others use it, make it or recover it, or have just ended it. Another try may do.
    InUse,
    /// There is none of this name.
    Absent,
    /// It has no room left, in memory or in a table.
    Full,
    /// This process, or this machine, cannot have it as it is asked for.
    Unavailable,
}

impl SessionFault {
    /// An error of this kind. `why` says what has happened, and the remedy.
    pub fn error(self, why: impl Into<String>) -> Error {
        let (fault, why) = (self, why.into());
        Error::Session { fault, why }
    }
}

impl Error {
    /// Whether this is a session's error of that kind.
    pub fn is_session(&self, kind: SessionFault) -> bool {
        matches!(self, Self::Session { fault, .. } if *fault == kind)
    }

    /// A device's error, from what a system call returned. Full storage becomes [`Error::NoSpace`].
    pub fn device(operation: &'static str, error: &io::Error) -> Self {
        match errno_of(error) {
            libc::ENOSPC => Self::NoSpace { what: operation },
            errno => Self::Device { errno, operation },
        }
    }

    /// The number a C program would see. Never 0.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Device { errno, .. } => *errno,
            Self::NoSpace { .. } => libc::ENOSPC,
            Self::Configuration(_) | Self::InvalidInput(_) => libc::EINVAL,
            Self::Arena(_) | Self::NoMemory { .. } => libc::ENOMEM,
            Self::Session { .. } => libc::ENOTCONN,
            Self::Fault => libc::EFAULT,
            Self::Corrupt(_) => libc::EIO,
        }
    }
}

/// The error number behind an [`io::Error`], whether the operating system or this engine made it.
/// `EIO` where there is none.
pub fn errno_of(error: &io::Error) -> i32 {
    if let Some(errno) = error.raw_os_error() {
        return errno;
    }
    if let Some(own) = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>())
    {
        return own.errno();
    }
    match error.kind() {
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

impl From<io::Error> for Error {
    /// An error of this engine that travelled as an [`io::Error`] comes back unchanged.
    fn from(error: io::Error) -> Self {
        match error.downcast::<Error>() {
            Ok(own) => own,
            Err(foreign) => Self::device("input/output", &foreign),
        }
    }
}

impl From<Error> for io::Error {
    /// Keeps the errno in the form that programs test for ([`io::Error::raw_os_error`]) where the
    /// number says it all, and the message, with [`errno_of`] for the number, where it does not.
    fn from(error: Error) -> Self {
        match error {
            Error::Device { errno, .. } => Self::from_raw_os_error(errno),
            Error::NoSpace { .. } => Self::from_raw_os_error(libc::ENOSPC),
            Error::Fault => Self::from_raw_os_error(libc::EFAULT),
            other => Self::new(Self::from_raw_os_error(other.errno()).kind(), other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_storage_is_the_users_and_the_rest_is_the_devices() {
        let full = Error::from(io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(matches!(full, Error::NoSpace { .. }));
        let broken = Error::from(io::Error::from_raw_os_error(libc::EREMOTEIO));
        assert!(matches!(
            broken,
            Error::Device {
                errno: libc::EREMOTEIO,
                ..
            }
        ));
        assert_eq!(broken.errno(), libc::EREMOTEIO);
    }

    #[test]
    fn an_error_survives_the_way_through_io() {
        let out = io::Error::from(SessionFault::Absent.error("the keeper is gone"));
        assert_eq!(errno_of(&out), libc::ENOTCONN);
        assert!(out.to_string().contains("the keeper is gone"));
        assert!(Error::from(out).is_session(SessionFault::Absent));
        let out = io::Error::from(Error::NoSpace {
            what: "a growing file",
        });
        assert_eq!(out.raw_os_error(), Some(libc::ENOSPC));
    }

    #[test]
    fn a_number_is_always_there() {
        assert_eq!(errno_of(&io::Error::other("no number")), libc::EIO);
        assert_eq!(
            errno_of(&io::Error::from(io::ErrorKind::InvalidInput)),
            libc::EINVAL
        );
    }
}
