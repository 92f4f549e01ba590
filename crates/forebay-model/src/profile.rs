//! What kind of operations a list is made of: sizes, places and weights, all in one place.

use crate::{BLOCK_BYTES, PAGE_BYTES};

/// Kinds of operations, to be weighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the operation of the same name")]
pub enum Kind {
    Read,
    Write,
    WriteVectored,
    Append,
    SetLen,
    Punch,
    SyncData,
    SyncAll,
    Len,
    Reopen,
    CloseAll,
    Evict,
    KeeperStep,
}

/// How long reads and writes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// From one byte to two blocks, with a liking for pages and blocks give or take a byte.
    Mixed,
    /// 1 to 4 MiB, mostly ragged: what goes to the device at once.
    Large,
}

/// A kind of workload.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Number of files.
    pub files: u8,
    /// Handles open on each.
    pub handles: u8,
    /// Where in a file things happen: windows that begin here...
    pub bases: &'static [u64],
    /// ...and are this many bytes long.
    pub window: u64,
    /// Lengths of reads and writes.
    pub sizes: Sizes,
    /// Kinds with their weights, the simplest first: that is what proptest shrinks towards.
    pub weights: &'static [(Kind, u32)],
}

const WEIGHTS: &[(Kind, u32)] = &[
    (Kind::Write, 30),
    (Kind::Read, 20),
    (Kind::Append, 8),
    (Kind::SetLen, 6),
    (Kind::SyncData, 3),
    (Kind::SyncAll, 3),
    (Kind::Len, 5),
    (Kind::Punch, 8),
    (Kind::Evict, 5),
    (Kind::KeeperStep, 10),
    (Kind::WriteVectored, 5),
    (Kind::CloseAll, 1),
    (Kind::Reopen, 2),
];

const WEIGHTS_LARGE: &[(Kind, u32)] = &[
    (Kind::Write, 40),
    (Kind::Read, 20),
    (Kind::Append, 10),
    (Kind::SetLen, 3),
    (Kind::SyncData, 4),
    (Kind::Punch, 3),
    (Kind::Len, 3),
    (Kind::Evict, 5),
    (Kind::KeeperStep, 10),
    (Kind::WriteVectored, 4),
    (Kind::CloseAll, 1),
];

const WEIGHTS_PARTITION: &[(Kind, u32)] = &[
    (Kind::Write, 40),
    (Kind::Read, 40),
    (Kind::SyncData, 2),
    (Kind::Evict, 3),
    (Kind::KeeperStep, 5),
    (Kind::WriteVectored, 5),
];

impl Profile {
    /// Two files of six blocks: everything collides with everything.
    pub const TINY: Profile = Profile {
        files: 2,
        handles: 2,
        bases: &[0],
        window: 6 * BLOCK_BYTES,
        sizes: Sizes::Mixed,
        weights: WEIGHTS,
    };

    /// One file of 24 MiB, written in large ragged pieces.
    pub const LARGE: Profile = Profile {
        files: 1,
        handles: 1,
        bases: &[0],
        window: 96 * BLOCK_BYTES,
        sizes: Sizes::Large,
        weights: WEIGHTS_LARGE,
    };

    /// One file of more than a terabyte, nearly all of it holes: offsets beyond 32 bits, trees of
    /// more than one level.
    pub const SPARSE: Profile = Profile {
        files: 1,
        handles: 2,
        bases: &[0, (1 << 32) - BLOCK_BYTES, 77 << 30, (1 << 40) - PAGE_BYTES],
        window: 3 * BLOCK_BYTES,
        sizes: Sizes::Mixed,
        weights: WEIGHTS,
    };

    /// Two files that several workers share, each with bytes of its own
    /// ([`PartitionPlan`](crate::PartitionPlan)).
    pub const PARTITION: Profile = Profile {
        files: 2,
        handles: 1,
        bases: &[0],
        window: 6 * BLOCK_BYTES,
        sizes: Sizes::Mixed,
        weights: WEIGHTS_PARTITION,
    };
}
