//! Counters of a session. Each thread counts in its own slot; reading adds them up.

use crate::ids::{FrameId, ThreadId};
use crate::limits::{BLOCK_BYTES, HUGE_BYTES, HUGE_FRAMES, PAGE_BYTES};
use crate::memory::arena::Arena;
use crate::memory::regions::Owner;
use crate::memory::threads::COUNTERS;
use crate::sync::Ordering;
use serde::Serialize;

/// Which counter of a thread's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Bytes that writes left in memory.
    ScrapBytes = 0,
    /// Bytes that writes sent straight to the device.
    DirectBytes = 1,
    /// Bytes that writes sent through the kernel's cache.
    KernelBytes = 2,
    /// Bytes read by callers.
    ReadBytes = 3,
    /// Bytes read from devices for readers.
    DeviceReadBytes = 4,
    /// Bytes read from devices to fill ragged pages.
    FillReadBytes = 5,
    /// Bytes that flushes wrote to devices.
    FlushedBytes = 6,
    /// Syncs.
    Syncs = 7,
    /// Nanoseconds that threads spent on changing device files: flushes above all.
    ChangeNs = 8,
    /// Files that became managed in a process.
    FilesManaged = 9,
    /// Files left to the kernel: by their route, or outside the directories that are managed.
    FilesRouted = 10,
    /// ... because of their file system.
    FilesOfFileSystem = 11,
    /// ... because they cannot be opened for writing again.
    FilesNotWritable = 12,
    /// ... because another session has them.
    FilesClaimed = 13,
    /// ... for other reasons.
    FilesOther = 14,
    /// Files whose close left what they owed to the keeper.
    ClosedBehind = 15,
    /// Files not managed because somebody reaches them past the engine.
    FilesReached = 16,
    /// Bytes read ahead into memory.
    AheadBytes = 17,
    /// Of those, bytes in blocks that have been read since.
    AheadUsedBytes = 18,
    /// Of those, bytes in blocks that were dropped before anybody read them.
    AheadWastedBytes = 19,
    /// Files that were gone, so that what they owed was dropped.
    FilesVanished = 20,
}

const _: () = assert!((Counter::FilesVanished as usize) < COUNTERS);

/// A session's counters at one moment. Bytes unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Written into memory, to be flushed later.
    pub scrap_bytes: u64,
    /// Written straight to the device.
    pub direct_bytes: u64,
    /// Written through the kernel's cache.
    pub kernel_bytes: u64,
    /// Read by callers.
    pub read_bytes: u64,
    /// Read from devices: for readers and for fills.
    pub device_read_bytes: u64,
    /// Of that, read ahead into memory by the keeper.
    pub ahead_bytes: u64,
    /// Read ahead, in blocks that have been read since.
    pub ahead_used_bytes: u64,
    /// Read ahead, in blocks that were dropped before anybody read them.
    pub ahead_wasted_bytes: u64,
    /// Written to devices: flushed and direct.
    pub device_write_bytes: u64,
    /// Memory that the arena holds: frames, headers and nodes that are backed.
    pub memory_held_bytes: u64,
    /// Of that, frames that are free.
    pub memory_free_bytes: u64,
    /// Of that, frames that views hold, whole frames counted; at most half of the memory.
    pub viewed_bytes: u64,
    /// Of that, huge pages that hold 2 MiB of one file, in its order: a view of them is one huge page.
    pub run_bytes: u64,
    /// Owed to devices now: pages that are dirty or in flight, whole pages counted.
    pub dirty_bytes: u64,
    /// Owed as the limits count it: a frame with anything dirty counts whole.
    pub owed_bytes: u64,
    /// Memory in use by headers that owe something: frames, small frames, headers.
    pub owed_memory_bytes: u64,
    /// Repairs after deaths.
    pub rebuilds: u32,
    /// Words that a rebuild found wrong and set right.
    pub corruptions: u32,
    /// Nanoseconds that threads spent on changing device files: flushes above all.
    pub change_ns: u64,
    /// Files that became managed, once for each process.
    pub files_managed: u64,
    /// Files that programs opened and wrote to, and that were left to the kernel: by route or place.
    pub files_routed: u64,
    /// The same, because of their file system.
    pub files_of_file_system: u64,
    /// The same, because they cannot be opened for writing again.
    pub files_not_writable: u64,
    /// The same, because another session has them.
    pub files_claimed: u64,
    /// The same, for other reasons.
    pub files_other: u64,
    /// How often a close has left what its file owed to the keeper.
    pub closed_behind: u64,
    /// The same, because somebody reaches them past the engine: through stdio, a mapping, another program.
    pub files_reached: u64,
    /// Files that were gone, so that what they owed was dropped.
    pub files_vanished: u64,
}

impl Stats {
    /// Adds up. Walks all headers, so not for hot paths.
    pub fn collect(arena: &Arena) -> Self {
        let sum = |counter: Counter| -> u64 {
            (0..arena.counts().threads)
                .filter_map(|id| arena.thread(ThreadId(id)))
                .map(|slot| slot.counters[counter as usize].load(Ordering::Relaxed))
                .sum()
        };
        let superblock = arena.superblock();
        let frames = u64::from(superblock.frames_backed.load(Ordering::Relaxed));
        let free = u64::from(superblock.frames_free.load(Ordering::Relaxed)).min(frames);
        let viewed = u64::from(superblock.frames_pinned.load(Ordering::Relaxed));
        let mut stats = Stats {
            scrap_bytes: sum(Counter::ScrapBytes),
            direct_bytes: sum(Counter::DirectBytes),
            kernel_bytes: sum(Counter::KernelBytes),
            read_bytes: sum(Counter::ReadBytes),
            device_read_bytes: sum(Counter::DeviceReadBytes) + sum(Counter::FillReadBytes),
            ahead_bytes: sum(Counter::AheadBytes),
            ahead_used_bytes: sum(Counter::AheadUsedBytes),
            ahead_wasted_bytes: sum(Counter::AheadWastedBytes),
            device_write_bytes: sum(Counter::FlushedBytes) + sum(Counter::DirectBytes),
            memory_held_bytes: frames * BLOCK_BYTES as u64 + arena.tables_backed_bytes(),
            memory_free_bytes: free * BLOCK_BYTES as u64,
            viewed_bytes: viewed * BLOCK_BYTES as u64,
            run_bytes: runs(arena) * HUGE_BYTES as u64,
            owed_bytes: superblock.owed_about() * PAGE_BYTES as u64,
            rebuilds: superblock.rebuilds.load(Ordering::Relaxed),
            corruptions: superblock.corruptions.load(Ordering::Relaxed),
            change_ns: sum(Counter::ChangeNs),
            files_managed: sum(Counter::FilesManaged),
            files_routed: sum(Counter::FilesRouted),
            files_of_file_system: sum(Counter::FilesOfFileSystem),
            files_not_writable: sum(Counter::FilesNotWritable),
            files_claimed: sum(Counter::FilesClaimed),
            files_other: sum(Counter::FilesOther),
            closed_behind: sum(Counter::ClosedBehind),
            files_vanished: sum(Counter::FilesVanished),
            files_reached: sum(Counter::FilesReached),
            ..Stats::default()
        };
        for id in 0..superblock.headers_backed.load(Ordering::Acquire) {
            let Some(header) = arena.header(crate::ids::HeaderId(id)) else {
                continue;
            };
            let owed = header.owed();
            if owed != 0 {
                stats.dirty_bytes += u64::from(owed.count_ones()) * PAGE_BYTES as u64;
                stats.owed_memory_bytes += header.memory_bytes();
            }
        }
        stats
    }
}

/// Huge pages whose frames hold eight blocks of one file that lie in 2 MiB of it as the frames do. Nobody is locked: about as many.
fn runs(arena: &Arena) -> u64 {
    let block_of = |frame: FrameId| {
        let owner = arena.frame_owner(frame)?.load(Ordering::Acquire);
        match Owner::unpack(owner) {
            Owner::Linked(header) => arena.header(header)?.identity(),
            _ => None,
        }
    };
    let is_run = |first: &u32| {
        let Some(begin) = block_of(FrameId(*first)) else {
            return false;
        };
        begin.block.0.is_multiple_of(HUGE_FRAMES)
            && (1..HUGE_FRAMES).all(|place| {
                let next = block_of(FrameId(first + place));
                next.is_some_and(|next| {
                    next.file == begin.file && next.block.0 == begin.block.0 + place
                })
            })
    };
    let firsts = (0..arena.counts().frames).step_by(HUGE_FRAMES as usize);
    firsts.filter(is_run).count() as u64
}
