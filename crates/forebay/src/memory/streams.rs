//! The records of stream tracking: where streams, trees and lists lie in the arena. What they mean and who changes them
//! is `stream::tree`; all of it is derived, and made anew by a rebuild.
//!
//! Words that lead to a stream hold its index + 1, so that zeroed memory leads nowhere.

use crate::memory::layout::Counts;
use crate::sync::{AtomicU32, AtomicU64};

/// One stream, a cache line: a run of consecutive blocks of one file. Blocks are indices; ends are exclusive.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Stream {
    /// 0 free, else the file + 1.
    pub file: AtomicU32,
    /// First block: the key in the file's tree.
    pub start: AtomicU32,
    /// End of the range.
    pub end: AtomicU32,
    /// First block that may be owed.
    pub dirty_start: AtomicU32,
    /// End of what may be owed; not above `dirty_start` where nothing is.
    pub dirty_end: AtomicU32,
    /// Not above the start of the stream that follows in the file; `u32::MAX` where none does.
    pub upper_limit: AtomicU32,
    /// Streams of the tree below this one, with lower and with higher keys.
    pub left: AtomicU32,
    /// See `left`.
    pub right: AtomicU32,
    /// Neighbours in the list of all streams.
    pub all: Neighbours,
    /// Neighbours in the list of dirty streams.
    pub dirty: Neighbours,
    /// Tick at which it became its file's current stream, or was found in use.
    pub tick: AtomicU32,
    /// How often it has become the current stream.
    pub visits: AtomicU32,
    /// The block at which eviction goes on.
    pub evict_at: AtomicU32,
    unused: AtomicU32,
}

const _: () = assert!(size_of::<Stream>() == 64);

/// A place in a list.
#[repr(C)]
#[derive(Default)]
pub struct Neighbours {
    /// The hotter one, `u32::MAX` for the first of the list, 0 for none: not in the list.
    pub hotter: AtomicU32,
    /// The colder one, or 0 for the last of the list.
    pub colder: AtomicU32,
}

/// A file's tree.
#[repr(C, align(32))]
pub struct Tree {
    /// The thread that changes the tree, or 0.
    pub lock: AtomicU32,
    /// The stream at the root.
    pub root: AtomicU32,
    /// The current stream: the one that the last request belonged to.
    pub pointer: AtomicU32,
    /// 1: a change is missing, since the lock or a stream was not to be had; the tree is to be made anew.
    pub doubt: AtomicU32,
    /// Streams that the file has.
    pub count: AtomicU32,
    unused: [AtomicU32; 3],
}

const _: () = assert!(size_of::<Tree>() == 32);

/// Ends of a list.
#[repr(C)]
pub struct Ends {
    /// The hottest stream.
    pub first: AtomicU32,
    /// The coldest.
    pub last: AtomicU32,
}

/// The session's part: two lists, and what is counted.
#[repr(C, align(64))]
pub struct Lists {
    /// How what is owed is tracked: a number of `config::DirtyTracking`.
    pub tracking: AtomicU32,
    /// 0 where what is owed is written file by file.
    pub ordering: AtomicU32,
    /// The thread that changes the lists, or 0.
    pub lock: AtomicU32,
    /// All streams, in the order of their last use.
    pub all: Ends,
    /// Streams that may owe something.
    pub dirty: Ends,
    /// Owed blocks that a sync found in no dirty range of a tree without doubts: there are none.
    pub surprises: AtomicU32,
    /// Trees that were made anew.
    pub mended: AtomicU32,
    /// Streams that were joined over a gap, for want of a free one.
    pub squeezed: AtomicU64,
}

const _: () = assert!(size_of::<Lists>() == 64);

impl Counts {
    /// Streams that the arena has room for: four a frame are more than any scan has, and 64 KiB for each 256 MiB of memory.
    /// Where requests are so scattered that there are not enough, neighbours are joined.
    pub fn streams(&self) -> u32 {
        (self.frames.saturating_mul(4)).clamp(64, 1 << 16)
    }
}
