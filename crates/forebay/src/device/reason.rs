//! Why a file stays in kernel mode, in words for the program's owner.
//!
//! Nothing is silent (promise 7): every file that the engine does not manage carries one of
//! these, and each names its remedy. The serialised form is for reports that machines read.

use serde::Serialize;
use std::fmt;
use std::io;

/// Why a file cannot be managed. [`fmt::Display`] gives the reason and the remedy in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum KernelReason {
    /// A directory, pipe, socket, device or the like.
    NotRegular,
    /// The file system does no direct I/O for this file.
    NoDirectIo {
        /// Name of the file system.
        file_system: &'static str,
    },
    /// The file is in memory already.
    InMemory {
        /// Name of the file system.
        file_system: &'static str,
    },
    /// Overwriting takes new space, so a full disk could show only after a write was acknowledged.
    CopyOnWrite {
        /// Name of the file system.
        file_system: &'static str,
    },
    /// Other machines may change the file.
    Network {
        /// Name of the file system.
        file_system: &'static str,
    },
    /// The bytes are served by another process, perhaps by Forebay itself.
    Fuse,
    /// Direct I/O needs a coarser alignment than a page.
    CoarseAlignment {
        /// What the file asks for, in bytes.
        bytes: u32,
    },
    /// A page is several blocks, and one of them may have no space.
    SmallBlocks {
        /// Name of the file system.
        file_system: &'static str,
    },
    /// Each write is to be durable when it returns: `mount -o sync`, `chattr +S`.
    Synchronous,
    /// Space cannot be reserved ahead.
    NoReserve {
        /// Name of the file system.
        file_system: &'static str,
    },
    /// The file cannot be opened for writing a second time.
    ReadOnly {
        /// The error of that open.
        errno: i32,
    },
    /// Another open description holds a lease (`F_SETLEASE`), which opening for writing would break.
    Leased,
    /// Set-user-ID or set-group-ID: each write has to ask whether it may leave that so.
    SetId,
    /// Another session of Forebay manages it.
    Claimed,
    /// Its path is longer than what is kept of each file, so that no recovery would find it.
    LongPath,
    /// `chattr +a`.
    AppendOnly,
    /// `chattr +i`.
    Immutable,
    /// Opening again failed for another reason.
    OpenFailed {
        /// The error.
        errno: i32,
    },
    /// A question about the file was answered with an error.
    ProbeFailed {
        /// Which question.
        call: &'static str,
        /// The error.
        errno: i32,
    },
    /// Descriptors received from another process are not what was agreed.
    WrongDescriptors {
        /// What is wrong with them.
        what: &'static str,
    },
}

impl KernelReason {
    /// What an open for writing that failed means.
    pub(crate) fn of_open(error: &io::Error, file_system: &'static str) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        match errno {
            libc::EACCES | libc::EROFS | libc::ETXTBSY | libc::EPERM => Self::ReadOnly { errno },
            libc::EINVAL => Self::NoDirectIo { file_system },
            libc::EWOULDBLOCK => Self::Leased,
            _ => Self::OpenFailed { errno },
        }
    }

    /// What a question that failed means.
    pub(crate) fn of_probe(call: &'static str, error: &io::Error) -> Self {
        Self::ProbeFailed {
            call,
            errno: error.raw_os_error().unwrap_or(0),
        }
    }
}

impl fmt::Display for KernelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRegular => write!(f, "not a regular file: nothing to do"),
            Self::NoDirectIo { file_system } => write!(
                f,
                "{file_system} does no direct I/O for this file: keep it on ext4 or XFS, without \
                 data journalling, inline data, encryption or verity"
            ),
            Self::InMemory { file_system } => {
                write!(
                    f,
                    "{file_system} holds the file in memory already: nothing to gain"
                )
            }
            Self::CopyOnWrite { file_system } => write!(
                f,
                "{file_system} writes every change to new space: keep the file on ext4 or XFS, or \
                 on btrfs in a directory with `chattr +C`"
            ),
            Self::Network { file_system } => write!(
                f,
                "other machines may change files on {file_system}: keep the file on a local disk"
            ),
            Self::Fuse => f.write_str(FUSE),
            Self::CoarseAlignment { bytes } => write!(
                f,
                "direct I/O needs an alignment of {bytes} bytes, more than a page: make the file \
                 system on a device, or with blocks, of 4096 bytes or less"
            ),
            Self::SmallBlocks { file_system } => write!(f, "{file_system} {SMALL_BLOCKS}"),
            Self::Synchronous => f.write_str(SYNCHRONOUS),
            Self::NoReserve { file_system } => write!(
                f,
                "{file_system} cannot reserve space for this file: copy it to ext4 (with extents) \
                 or XFS"
            ),
            Self::ReadOnly { errno } => write!(
                f,
                "cannot be opened for writing again ({}): let its mode, its mount and the programs \
                 that run it allow writing",
                os_message(*errno)
            ),
            Self::Leased => write!(
                f,
                "a lease is held on the file: end the file server that holds it, or its lease"
            ),
            Self::SetId => write!(f, "set-user-ID or set-group-ID: `chmod ug-s` lifts it"),
            Self::Claimed => f.write_str(CLAIMED),
            Self::LongPath => f.write_str(LONG_PATH),
            Self::AppendOnly => write!(f, "append-only: `chattr -a` lifts it"),
            Self::Immutable => write!(f, "immutable: `chattr -i` lifts it"),
            Self::OpenFailed { errno } => write!(
                f,
                "cannot be opened again ({}): see that /proc is mounted and that descriptors are \
                 left (ulimit -n)",
                os_message(*errno)
            ),
            Self::ProbeFailed { call, errno } => write!(
                f,
                "{call} failed ({}): see the kernel's log, or keep the file on ext4 or XFS",
                os_message(*errno)
            ),
            Self::WrongDescriptors { what } => {
                write!(
                    f,
                    "descriptors received: {what}; run one version of Forebay everywhere"
                )
            }
        }
    }
}

const FUSE: &str = "served by another process (FUSE): use the files beneath it";
const SMALL_BLOCKS: &str = "has blocks smaller than a page: make it with blocks of 4096 bytes \
                            (`-b 4096`, for XFS `-b size=4096`)";
const SYNCHRONOUS: &str = "each write is to be durable when it returns: mount its file system without `sync`, and `chattr -S` it and its directory";
const LONG_PATH: &str = "its path has more than 1024 bytes: move it to a shorter one";
const CLAIMED: &str = "another session of Forebay manages it: run both programs in one session, or close it there first";

fn os_message(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_read_as_a_sentence_and_as_json() {
        let reason = KernelReason::of_open(&os_message(libc::ETXTBSY), "ext4");
        assert!(reason.to_string().contains("Text file busy"), "{reason}");
        let json = serde_json::to_string(&reason).expect("plain data");
        assert_eq!(json, r#"{"reason":"read-only","errno":26}"#);
    }

    #[test]
    fn an_open_refused_with_einval_is_about_direct_io() {
        let reason = KernelReason::of_open(&os_message(libc::EINVAL), "odd");
        assert_eq!(reason, KernelReason::NoDirectIo { file_system: "odd" });
    }
}
