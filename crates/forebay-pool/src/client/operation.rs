//! What programs ask a client for, and what they are answered.

use serde::{Deserialize, Serialize};

use super::attributes::{Changes, Facts, Kind};
use crate::ids::File;
use crate::rope::Rope;

/// How a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// By this client's memory: what is not there comes there, and what is written stays there.
    Local,
    /// Past it, straight between the caller and the servers: nothing comes to be in this client's memory, and a write is at the servers when it
    /// returns. What only this client's memory has is read there.
    Remote,
}

/// What a program wants. Offsets and lengths are in bytes.
#[expect(missing_docs, reason = "the fields are what the operation says")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Bytes from an offset, up to the file's end.
    Read {
        file: File,
        offset: u64,
        length: u64,
        mode: Mode,
    },
    /// Bytes at an offset.
    Write {
        file: File,
        offset: u64,
        bytes: Rope,
        mode: Mode,
    },
    /// Bytes at the file's end.
    Append { file: File, bytes: Rope },
    /// A new size.
    Truncate { file: File, size: u64 },
    /// What this client has written to the file is at the servers when this returns, and durable in the home, if there is one. What others have written
    /// and nobody has asked for is theirs to sync. [`Failure::Lost`]: some of it is lost, and who asks has not been told. `heard` is the last loss
    /// of which he has, or that was older than his opening of the file ([`Client::losses`](super::Client::losses)). What nobody has been told of yet he
    /// is told of all the same. Without `heard` nobody asks: the next one who does is told.
    Sync { file: File, heard: Option<u64> },
    /// The file's size and what else is known of it.
    Attributes { file: File },
    /// What is known of the file, but its size, is changed.
    Change { file: File, changes: Changes },
    /// The file has no name any more: its blocks are given back, and whoever has it open finds that it is gone.
    Remove { file: File },
    /// A file by its name in a directory.
    LookUp { parent: File, name: Vec<u8> },
    /// All names in a directory.
    List { parent: File },
    /// A file by its name in a directory; if there is none, a new one, as `facts` say. Whoever finds the name finds `bytes` in it.
    Make {
        parent: File,
        name: Vec<u8>,
        facts: Facts,
        bytes: Vec<u8>,
    },
    /// A new file without a name. Whoever makes it removes it.
    MakeNameless,
    /// A name goes, if it stands for this file. A directory must be empty, and is gone afterwards.
    Unlink {
        parent: File,
        name: Vec<u8>,
        entry: Entry,
    },
    /// A file gets another name, if its own still stands for it, and if the other one stands for what `replaced` says. A directory
    /// that is replaced must be empty. Directories do not move into others: what is below one would have to be looked for.
    Rename {
        from: (File, Vec<u8>),
        entry: Entry,
        to: (File, Vec<u8>),
        replaced: Option<Entry>,
    },
}

impl Operation {
    /// A sync by somebody who is told of what nobody else has been told of.
    pub fn sync(file: File) -> Self {
        Operation::Sync {
            file,
            heard: Some(u64::MAX),
        }
    }
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Of a read.
    Bytes(Rope),
    /// It is done, and that is all there is to say.
    Done,
    /// Where an append wrote.
    At(u64),
    /// A file's size in bytes, and what else is known of it.
    Attributes(u64, Facts),
    /// What a name stands for.
    Entry(Option<Entry>),
    /// What the name to be made stands for, and whether that is new; or the file without one.
    Made(Entry, bool),
    /// Names, in no order.
    Names(Vec<(Vec<u8>, Entry)>),
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Which file.
    pub file: File,
    /// What it is.
    pub kind: Kind,
}

/// Why it did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Failure {
    /// The register does not answer: nothing was done.
    #[error("the pool's register does not answer, and this client's term is over")]
    CutOff,
    /// The pool has given this client up. What was not synced is lost; this operation may have been done.
    #[error("the pool has given this client up: what was not synced is lost")]
    GivenUp,
    /// A block was on servers that died, or is damaged in the home. Nothing was done.
    #[error(
        "these blocks are lost: a server died that had the only copy, or they are damaged in the pool's home"
    )]
    Lost,
    /// No file can be so large.
    #[error("beyond the end of the largest file")]
    TooLarge,
    /// No file has this name.
    #[error("no file has this name")]
    NoSuchName,
    /// It stands for another file, or for none: look again.
    #[error("the name does not stand for this file any more")]
    Changed,
    /// A directory that is to go has names.
    #[error("the directory is not empty")]
    NotEmpty,
    /// There is no such file any more.
    #[error("the file has been removed")]
    Gone,
    /// The names of one directory are one block, and these would be too many; or this client has made so many files that it has no numbers left for more.
    #[error("the directory is full, or this client has made all files that it can")]
    Full,
    /// A server that would have a new block has no memory for it. Nothing was done.
    #[error(
        "the memory of the pool's servers is full: remove files, raise memory_mib in the pool's configuration, or give the pool a home"
    )]
    NoRoom,
}
