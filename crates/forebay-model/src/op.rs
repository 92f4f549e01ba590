//! The operations, and what each of them would change.
//!
//! Files and handles are small numbers: a target opens `handles` descriptions of each file
//! read-write before the first operation. Nothing in an operation depends on what came before, so
//! any part of a list is a list: that is what lets lists be shrunk.

use serde::{Deserialize, Serialize};

/// How a handle is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// `O_RDWR`
    #[default]
    ReadWrite,
    /// `O_RDONLY`
    ReadOnly,
    /// `O_WRONLY`
    WriteOnly,
    /// `O_RDWR | O_APPEND`: as on Linux, positional writes go to the end of the file too.
    Append,
}

/// One thing to do to a file. Offsets and lengths are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
#[allow(
    missing_docs,
    reason = "file, handle, offset, len and seed mean the same in every variant"
)]
pub enum Op {
    /// `pwrite` of `len` bytes made by [`fill`](crate::fill) from `seed`.
    Write {
        file: u8,
        handle: u8,
        offset: u64,
        len: u32,
        seed: u32,
    },
    /// `pwritev`: the same bytes as one write of the sum, in pieces of these lengths.
    WriteVectored {
        file: u8,
        handle: u8,
        offset: u64,
        lens: Vec<u32>,
        seed: u32,
    },
    /// A write at the end of the file, wherever that is; answers where it was.
    Append {
        file: u8,
        handle: u8,
        len: u32,
        seed: u32,
    },
    /// `pread`
    Read {
        file: u8,
        handle: u8,
        offset: u64,
        len: u32,
    },
    /// `ftruncate`, both ways.
    SetLen { file: u8, handle: u8, len: u64 },
    /// `fallocate` with punch hole, keep size.
    Punch {
        file: u8,
        handle: u8,
        offset: u64,
        len: u64,
    },
    /// `fdatasync`
    SyncData { file: u8, handle: u8 },
    /// `fsync`
    SyncAll { file: u8, handle: u8 },
    /// Asks how long the file is.
    Len { file: u8, handle: u8 },
    /// Closes one handle and opens it again; others of the file stay open.
    Reopen {
        file: u8,
        handle: u8,
        access: Access,
        truncate: bool,
    },
    /// Closes every handle of the file, then opens all of them again, read-write.
    CloseAll { file: u8 },
    /// A hint: give up what is in memory of this file, where that is allowed. Changes no contents.
    Evict { file: u8 },
    /// Simulation only: let the keeper take this many steps. Changes no contents.
    KeeperStep { steps: u16 },
}

impl Op {
    /// The file that the operation is on, if it is on one.
    pub fn file(&self) -> Option<u8> {
        match *self {
            Op::Write { file, .. }
            | Op::WriteVectored { file, .. }
            | Op::Append { file, .. }
            | Op::Read { file, .. }
            | Op::SetLen { file, .. }
            | Op::Punch { file, .. }
            | Op::SyncData { file, .. }
            | Op::SyncAll { file, .. }
            | Op::Len { file, .. }
            | Op::Reopen { file, .. }
            | Op::CloseAll { file }
            | Op::Evict { file } => Some(file),
            Op::KeeperStep { .. } => None,
        }
    }

    /// The handle that the operation goes through, if it goes through one.
    pub fn handle(&self) -> Option<u8> {
        match *self {
            Op::Write { handle, .. }
            | Op::WriteVectored { handle, .. }
            | Op::Append { handle, .. }
            | Op::Read { handle, .. }
            | Op::SetLen { handle, .. }
            | Op::Punch { handle, .. }
            | Op::SyncData { handle, .. }
            | Op::SyncAll { handle, .. }
            | Op::Len { handle, .. }
            | Op::Reopen { handle, .. } => Some(handle),
            Op::CloseAll { .. } | Op::Evict { .. } | Op::KeeperStep { .. } => None,
        }
    }

    /// Bytes that a write carries; 0 for everything else.
    pub fn payload_len(&self) -> u64 {
        match self {
            Op::Write { len, .. } | Op::Append { len, .. } => u64::from(*len),
            Op::WriteVectored { lens, .. } => lens.iter().map(|&l| u64::from(l)).sum(),
            _ => 0,
        }
    }

    /// Whether it is `fsync` or `fdatasync`.
    pub fn is_sync(&self) -> bool {
        matches!(self, Op::SyncData { .. } | Op::SyncAll { .. })
    }

    /// The number of files and of handles a file that a list needs.
    pub fn extent(ops: &[Op]) -> (usize, usize) {
        let files = ops
            .iter()
            .filter_map(Op::file)
            .max()
            .map_or(1, |f| f as usize + 1);
        let handles = ops
            .iter()
            .filter_map(Op::handle)
            .max()
            .map_or(1, |h| h as usize + 1);
        (files, handles)
    }
}
