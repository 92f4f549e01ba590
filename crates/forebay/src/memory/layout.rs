//! Where each table lies in the arena file.
//!
//! ```text
//! | superblock | threads | files | hints | owners | carves | streams | nodes | headers |  frames ...  |
//! |<------------------- backed when the arena is made ------------->|<- backed on demand, by batches ->|
//! ```
//!
//! All offsets are functions of five counts, which the superblock records. Everything before `nodes` is
//! small and backed at once; nodes, headers and frames get memory as they are needed, so that an arena
//! may be far larger than what it holds.

use crate::frame::header::Header;
use crate::frame::slots::Node;
use crate::limits::{BATCH_BYTES, BATCH_FRAMES, BLOCK_BYTES, BLOCK_PAGES, HUGE_BYTES};
use crate::memory::files::FileEntry;
use crate::memory::regions::Shares;
use crate::memory::streams::{Lists, Stream, Tree};
use crate::memory::superblock::Superblock;
use crate::memory::threads::ThreadSlot;

/// How many of each thing the arena has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Thread slots, slot 0 (nobody) included.
    pub threads: u32,
    /// File-table entries.
    pub files: u32,
    /// Nodes of slot trees.
    pub nodes: u32,
    /// Headers.
    pub headers: u32,
    /// Frames, a multiple of a batch.
    pub frames: u32,
}

/// Headers a frame's worth of memory can need when it holds single pages of distinct blocks: each
/// such page costs 4096 bytes and a header of 576.
const HEADERS_PER_FRAME: u64 = (BLOCK_BYTES / (4096 + size_of::<Header>())) as u64 + 1;

impl Counts {
    /// Counts for an arena that may hold `memory` bytes of frames.
    pub fn for_memory(memory: u64, threads: u32, files: u32) -> Self {
        let frames = (memory.div_ceil(BATCH_BYTES as u64).max(1)) * BATCH_FRAMES as u64;
        let frames = frames.min(u64::from(u32::MAX >> 8));
        let headers = (frames * HEADERS_PER_FRAME + 64).next_multiple_of(64);
        Counts {
            threads,
            files,
            nodes: (headers / 4 + 4 * u64::from(files)).next_multiple_of(64) as u32,
            headers: headers as u32,
            frames: frames as u32,
        }
    }
}

/// Offsets in bytes from the start of the arena.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The counts everything follows from.
    pub counts: Counts,
    pub(crate) threads: usize,
    pub(crate) files: usize,
    pub(crate) frame_hints: usize,
    pub(crate) carve_hints: usize,
    pub(crate) header_hints: usize,
    pub(crate) node_hints: usize,
    pub(crate) frame_owners: usize,
    pub(crate) small_owners: usize,
    pub(crate) carves: usize,
    pub(crate) pins: usize,
    pub(crate) pin_records: usize,
    pub(crate) pin_hints: usize,
    pub(crate) stream_lists: usize,
    pub(crate) stream_trees: usize,
    pub(crate) stream_hints: usize,
    pub(crate) streams: usize,
    pub(crate) nodes: usize,
    pub(crate) headers: usize,
    pub(crate) frames: usize,
    /// Length of the whole file.
    pub len: usize,
}

impl Layout {
    /// Offset of the header table.
    pub fn headers_offset(&self) -> usize {
        self.headers
    }

    /// Offset of the node table.
    pub fn nodes_offset(&self) -> usize {
        self.nodes
    }

    /// Lays out an arena.
    pub fn new(counts: Counts) -> Self {
        let mut at = 0usize;
        let mut take = |bytes: usize, align: usize| {
            at = at.next_multiple_of(align);
            let here = at;
            at += bytes;
            here
        };
        let frames = counts.frames as usize;
        take(size_of::<Superblock>(), 4096);
        let threads = take(counts.threads as usize * size_of::<ThreadSlot>(), 4096);
        let files = take(counts.files as usize * size_of::<FileEntry>(), 4096);
        let frame_hints = take(Shares::words_max(frames) * 8, 64);
        let carve_hints = take(Shares::words_max(frames) * 8, 64);
        let header_hints = take((counts.headers as usize).div_ceil(64) * 8, 64);
        let node_hints = take((counts.nodes as usize).div_ceil(64) * 8, 64);
        let frame_owners = take(frames * 4, 64);
        let small_owners = take(frames * BLOCK_PAGES * 4, 64);
        let carves = take(frames * 8, 64);
        let pins = take(frames * 4, 64);
        let pin_records = take(frames * 8, 64);
        let pin_hints = take(frames.div_ceil(64) * 8, 64);
        let stream_lists = take(size_of::<Lists>(), 64);
        let stream_trees = take(counts.files as usize * size_of::<Tree>(), 64);
        let stream_hints = take((counts.streams() as usize).div_ceil(64) * 8, 64);
        let streams = take(counts.streams() as usize * size_of::<Stream>(), 64);
        let nodes = take(counts.nodes as usize * size_of::<Node>(), HUGE_BYTES);
        let headers = take(counts.headers as usize * size_of::<Header>(), HUGE_BYTES);
        let first = take(frames * BLOCK_BYTES, HUGE_BYTES);
        Layout {
            counts,
            threads,
            files,
            frame_hints,
            carve_hints,
            header_hints,
            node_hints,
            frame_owners,
            small_owners,
            carves,
            pins,
            pin_records,
            pin_hints,
            stream_lists,
            stream_trees,
            stream_hints,
            streams,
            nodes,
            headers,
            frames: first,
            len: at,
        }
    }
}
