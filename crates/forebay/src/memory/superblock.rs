//! The first pages of the arena: what it is, how large, who keeps it, and the session's few shared words.

use crate::ids::ThreadId;
use crate::limits::BLOCK_PAGES;
use crate::memory::layout::Counts;
use crate::memory::place::PlaceKind;
use crate::memory::regions::{FreeFrames, Shortage};
use crate::memory::standers::{STANDERS, Stander};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Begins every arena's magic word, of whatever build.
pub const MARK: u32 = u32::from_le_bytes(*b"fore");

/// [`MARK`] and, above it, a hash of the engine's sources (`build.rs`), so that builds that differ never share an arena. There is no
/// migration, since an arena lives no longer than a boot.
pub const MAGIC: u64 =
    (include!(concat!(env!("OUT_DIR"), "/layout.rs")) as u64) << 32 | MARK as u64;

/// Words of [`Superblock::newcomers`].
pub const NEWCOMERS: usize = 256;
/// Files that [`Superblock::left`] remembers.
pub const LEFT: usize = 128;
/// Bytes of a path in [`Left`]; of a longer one the end.
pub const LEFT_PATH_BYTES: usize = 216;
/// Entries of [`Superblock::arrivals`].
pub const ARRIVALS: usize = 512;
/// Words of [`Superblock::reached`].
pub const REACHED: usize = 4096;

/// Begins a cache line. Words that every request reads share no line with words that requests or flushes change: a change takes the
/// line away from every other core.
#[repr(C, align(64))]
pub struct Line;

/// The superblock, a few pages. Its first line is read by every request, and changes when a keeper begins, memory is given or the
/// session stops.
#[repr(C, align(4096))]
pub struct Superblock {
    /// [`MAGIC`], stored last when an arena is made.
    pub magic: AtomicU64,
    /// Random, so that a path that names another arena by now is noticed.
    pub session: AtomicU64,
    /// [`Counts`], in its order.
    pub counts: [AtomicU32; 5],
    /// 1 where `membarrier` cannot be used and every entry into an operation makes a full fence.
    pub fences: AtomicU32,
    /// The thread that has stopped the session, or 0 (right: session gate).
    pub gate: AtomicU32,
    /// How frames are allotted: a number of `regions::Allocator`.
    pub allocator: AtomicU32,
    /// Counts keepers: descriptors handed to an earlier one must be handed over again.
    pub keeper_epoch: AtomicU32,
    /// Headers that have memory: all below this index.
    pub headers_backed: AtomicU32,
    /// Nodes that have memory.
    pub nodes_backed: AtomicU32,
    /// Whether the keeper sees outsiders come (`keeper::outsiders`): a process that manages a file has it watched first. 0: it does not.
    pub guard: AtomicU32,
    /// The number + 1 of the guard's listener in the keeper's process, by which members mark files themselves. 0: it has none.
    pub listener: AtomicU32,
    /// 1 where the arena's file has lost its name below the session (`keeper::nameless`): nobody begins to manage a file.
    pub nameless: AtomicU32,
    /// Pins: read by every write, changed by every view.
    pub pins: Line,
    /// Frames that views hold; never fewer than there are.
    pub frames_pinned: AtomicU32,
    /// The file table: read by every call on a file that is not managed, changed when a file begins to be managed or is dropped.
    pub table: Line,
    /// Entries of the file table that are complete, or about to be: 0 means that nothing is known of any file. Never too few; deaths leave
    /// some counted that are none.
    pub entries: AtomicU32,
    /// Bytes of locks that entries have been given so far ([`crate::member::opens`]).
    pub lock_bytes: AtomicU64,
    /// Limits: read by writers, changed with the budget.
    pub limits: Line,
    /// Limit on `owed_pages` at which writers wait.
    pub owed_pages_max: AtomicU64,
    /// `owed_pages` above which the keeper writes back; 0 before any has said so.
    pub owed_pages_background: AtomicU64,
    /// What the budget leaves for tables, bytes; for people.
    pub tables_bytes_max: AtomicU64,
    /// How the arena lies in memory: the rung of the huge-page ladder + 1, or 0.
    pub place: AtomicU64,
    /// Frames that may be backed at most (the memory budget); shrinks under pressure.
    pub frames_max: AtomicU32,
    /// Frames that may hold bytes and owe nothing.
    pub clean_frames_max: AtomicU32,
    /// Free frames that the keeper keeps ready; below half of them it is woken, which sleeps on `ready_work`. 0: it does not.
    pub frames_ready: AtomicU32,
    /// How short memory is: a number of [`Shortage`].
    pub shortage: AtomicU32,
    /// How the keeper speaks to devices: a number from 1 in `device::queue::NAMES`, or 0.
    pub io_engine: AtomicU32,
    /// The clock: read by writers, changed every millisecond.
    pub time: Line,
    /// Coarse clock of the session, in ticks of a millisecond: it goes on every few while anything is dirty or read ahead, else in
    /// larger steps.
    pub tick: AtomicU32,
    /// The thread whose life is the keeper's, or 0.
    pub keeper: AtomicU32,
    /// Last sign of life of a keeper, ns since 1970; for people.
    pub heartbeat_ns: AtomicU64,
    /// The tick + 1 at which the keeper did not answer: until the clock goes on nobody asks it (`member::handoff`).
    pub silent_at: AtomicU64,
    /// What is owed: changed by every flush.
    pub owed: Line,
    /// Pages owed to devices, whole frames counted as 64; exact after a rebuild, else late by at most
    /// 64 pages a thread.
    pub owed_pages: AtomicU64,
    /// 1 once a writer has told the keeper that more is owed than that, until the keeper has seen that it is no more.
    pub background_told: AtomicU32,
    /// Futex of writers that wait at `owed_pages_max` (`flush::room`).
    pub room: AtomicU32,
    /// Sleepers on `room`: 0 for none, else how much room they wait for.
    pub room_wanted: AtomicU32,
    /// Requests that keepers have carried out: while it counts on, the keeper makes room.
    pub kept: AtomicU32,
    /// Wake-ups.
    pub bells: Line,
    /// Futex the keeper sleeps on; every wake-up adds one.
    pub work: AtomicU32,
    /// 1 while the keeper sleeps on `work`.
    pub sleeping: AtomicU32,
    /// Futex of the thread that gives memory ahead of need; every wake-up adds one.
    pub ready_work: AtomicU32,
    /// Somebody has died in the middle of something, and the keeper shall repair.
    pub repair_asked: AtomicU32,
    /// Memory given and taken.
    pub memory: Line,
    /// Frames backed now.
    pub frames_backed: AtomicU32,
    /// Frames of the huge pages that have memory, or are being given some, or lose it: what counts against the budget.
    pub frames_claimed: AtomicU32,
    /// Where eviction looks next in the header table.
    pub clock: AtomicU32,
    /// The thread that changes the file table, or 0 (right: table lock).
    pub table_lock: AtomicU32,
    /// The thread whose turn it is to give memory to the arena, or 0: no right, see `member::provision`.
    pub giver: AtomicU32,
    /// Headers with flights of the dead in files that no repairer had open.
    pub orphans: AtomicU32,
    /// Files with a lease of the keeper's, about: a death may leave one counted too many.
    pub leased: AtomicU32,
    /// Rebuilds so far.
    pub rebuilds: AtomicU32,
    /// Words found out of bounds or malformed, and set right, by rebuilds.
    pub corruptions: AtomicU32,
    /// What a MiB of frames took that got memory, nanoseconds, averaged; 0 before any has been seen. See `member::provision`.
    pub provide_ns_per_mib: AtomicU32,
    /// Here the tables begin.
    pub lists: Line,
    /// Frames free, about, by region.
    pub frames_free: FreeFrames,
    /// Per device: bytes in flight and measured speeds.
    pub devices: [DeviceWords; 16],
    /// Full blocks of large requests, for the keeper to write.
    pub eager: Ring,
    /// The thread that is making an entry for a file that nobody has managed, or 0, by inode: calls of the kernel's wait for it, so
    /// that the file's length does not change meanwhile.
    pub newcomers: [AtomicU32; NEWCOMERS],
    /// Calls of the kernel's under way on files that nobody manages: a thread that begins to manage one waits for them; see
    /// `session::standing`.
    pub standers: [Stander; STANDERS],
    /// Records that have been used are below this one.
    pub standers_end: AtomicU32,
    /// The processes that reach files past the engine, by inode; see `member::reached`.
    pub reached: [AtomicU64; REACHED],
    /// Those that wait to open a file, and of whom the guard has been told; see `keeper::outsiders`.
    pub arrivals: [Arrival; ARRIVALS],
    /// How often files were left to the kernel; see `member::left`.
    pub left_count: AtomicU64,
    /// Those that were left last.
    pub left: [Left; LEFT],
    /// Reading ahead.
    pub ahead_line: Line,
    /// The thread that reads ahead for readers, or 0.
    pub ahead: AtomicU32,
    /// Futex that it sleeps on; every wake-up adds one.
    pub ahead_work: AtomicU32,
    /// 1 while it sleeps on `ahead_work`.
    pub ahead_sleeping: AtomicU32,
    /// Counts blocks whose reading ahead has ended; a thread that waits for one sleeps on it.
    pub ahead_ends: AtomicU32,
    /// 1 where somebody may sleep on `ahead_ends`.
    pub ahead_awaited: AtomicU32,
    /// The tick up to which nobody waits for what is being read ahead: somebody has waited for too long.
    pub ahead_late: AtomicU32,
    /// Files of which something is asked.
    pub ahead_files: Ring,
}

const _: () = assert!(size_of::<Superblock>().is_multiple_of(4096));

/// What the session knows of one device; see `flush::busy`.
#[repr(C, align(64))]
pub struct DeviceWords {
    /// Device number + 1, or 0.
    pub key: AtomicU64,
    /// `flush::speeds::Speeds`.
    pub speeds: [AtomicU64; 5],
    /// Large requests for which a way was chosen.
    pub choices: AtomicU64,
    /// What large reads of streams took: nanoseconds for 1 MiB past memory, and through it, or 0; see `file::read::choice`.
    pub reads: [AtomicU64; 2],
    /// Changed by every request to the device.
    pub requests: Line,
    /// Bytes of writes in flight.
    pub inflight_bytes: AtomicU64,
}

/// Somebody waits to open a file, and the guard has been told.
#[repr(C)]
pub struct Arrival {
    /// Of the file, or 0: there is nobody.
    pub inode: AtomicU64,
    /// The event's, in the process of the guard.
    pub number: AtomicU64,
}

/// A file that was left to the kernel.
#[repr(C)]
pub struct Left {
    /// Of its inode and the reason, or 0.
    pub key: AtomicU64,
    /// `left_count` when it was last, or 0 while it is being written.
    pub last: AtomicU64,
    /// How often.
    pub times: AtomicU32,
    /// The reason, a code of `member::given`.
    pub reason: AtomicU32,
    /// Bytes of the path.
    pub path_len: AtomicU64,
    /// The path.
    pub path: [AtomicU64; LEFT_PATH_BYTES / 8],
}

/// A ring of hints; see `flush::ring`.
#[repr(C)]
pub struct Ring {
    /// Pushes so far.
    pub head: AtomicU64,
    /// The hints.
    pub slots: [AtomicU64; 256],
}

impl Superblock {
    /// Notes that a keeper lives.
    pub fn show_life(&self) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let ns = now.unwrap_or_default().as_nanos() as u64;
        self.heartbeat_ns.store(ns, crate::sync::Ordering::Relaxed);
    }

    /// Whether the arena's file has no name any more, as far as its keeper has seen.
    pub fn has_lost_its_name(&self) -> bool {
        self.nameless.load(Ordering::Acquire) != 0
    }

    /// The clock shows so much; it never goes back.
    pub fn advance_tick(&self, tick: u32) {
        use crate::sync::Ordering::Relaxed;
        let mut now = self.tick.load(Relaxed);
        while tick.wrapping_sub(now) as i32 > 0 {
            match self.tick.compare_exchange(now, tick, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(seen) => now = seen,
            }
        }
    }

    /// The thread that has this one's slot next does not keep the session.
    pub fn resign(&self, id: ThreadId) {
        use crate::sync::Ordering::{AcqRel, Relaxed};
        let _ = self.keeper.compare_exchange(id.0, 0, AcqRel, Relaxed);
    }

    /// Wakes the keeper if it sleeps.
    pub fn wake_keeper(&self) {
        use crate::sync::Ordering::{AcqRel, Acquire};
        self.work.fetch_add(1, AcqRel);
        if self.sleeping.load(Acquire) != 0 {
            crate::sys::futex::wake(&self.work);
        }
    }

    /// Pages owed to devices, about. Threads add their parts late, so that the sum of what has been added may be below zero
    /// for a while: then it is 0.
    pub fn owed_about(&self) -> u64 {
        let sum = self.owed_pages.load(crate::sync::Ordering::Relaxed) as i64;
        sum.max(0) as u64
    }

    /// Frames that are free, about; threads count late, as with [`Superblock::owed_about`].
    pub fn free_about(&self) -> u32 {
        let sum = self.frames_free.load(crate::sync::Ordering::Relaxed) as i32;
        sum.max(0) as u32
    }

    /// Frames that hold clean bytes, about, beyond those that may, were there so many `more`. A carved frame counts as clean but for its
    /// dirty pages.
    pub fn clean_excess(&self, more: u32) -> u32 {
        use crate::sync::Ordering::Relaxed;
        let max = self.clean_frames_max.load(Relaxed);
        if max == u32::MAX {
            return 0;
        }
        let owed = (self.owed_about() / BLOCK_PAGES as u64) as u32;
        let backed = self.frames_backed.load(Relaxed);
        let used = backed.saturating_sub(self.free_about());
        let clean = used.saturating_sub(owed);
        clean.saturating_add(more).saturating_sub(max)
    }

    /// Wakes the thread that gives memory ahead of need.
    pub fn wake_ready(&self) {
        self.ready_work.fetch_add(1, crate::sync::Ordering::Relaxed);
        crate::sys::futex::wake(&self.ready_work);
    }

    /// How short memory is: one load.
    #[inline]
    pub fn shortage(&self) -> Shortage {
        Shortage::of(self.shortage.load(crate::sync::Ordering::Relaxed))
    }

    /// Notes the rung of the ladder.
    pub fn set_place(&self, kind: u64) {
        self.place.store(kind + 1, crate::sync::Ordering::Relaxed);
    }

    /// The rung of the ladder.
    pub fn place(&self) -> Option<PlaceKind> {
        match self.place.load(crate::sync::Ordering::Relaxed) {
            1 => Some(PlaceKind::Configured),
            2 => Some(PlaceKind::Hugetlb),
            3 => Some(PlaceKind::HugeTmpfs),
            4 => Some(PlaceKind::Plain),
            _ => None,
        }
    }

    /// The recorded counts.
    pub fn counts(&self) -> Counts {
        let at = |i: usize| self.counts[i].load(crate::sync::Ordering::Relaxed);
        Counts {
            threads: at(0),
            files: at(1),
            nodes: at(2),
            headers: at(3),
            frames: at(4),
        }
    }
}

/// One fewer of what is counted, if any are: deaths leave counts wrong.
pub fn one_fewer(word: &AtomicU32) {
    let mut seen = word.load(Ordering::Relaxed);
    while seen != 0 {
        match word.compare_exchange(seen, seen - 1, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

#[cfg(test)]
pub(in crate::memory) mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::memory::files::FileEntry;

    /// Whether two words lie on one cache line.
    fn share(a: usize, b: usize) -> bool {
        a / 64 == b / 64
    }

    #[test]
    fn what_every_request_reads_shares_no_line_with_what_requests_change() {
        let read = [
            offset_of!(Superblock, gate),
            offset_of!(Superblock, keeper_epoch),
            offset_of!(Superblock, headers_backed),
            offset_of!(Superblock, nodes_backed),
            offset_of!(Superblock, guard),
            offset_of!(Superblock, listener),
            offset_of!(Superblock, fences),
            offset_of!(Superblock, owed_pages_max),
            offset_of!(Superblock, shortage),
        ];
        let devices = offset_of!(Superblock, devices);
        let changed = [
            offset_of!(Superblock, tick),
            offset_of!(Superblock, heartbeat_ns),
            offset_of!(Superblock, owed_pages),
            offset_of!(Superblock, kept),
            offset_of!(Superblock, work),
            offset_of!(Superblock, sleeping),
            offset_of!(Superblock, ready_work),
            offset_of!(Superblock, clock),
            offset_of!(Superblock, frames_backed),
            offset_of!(Superblock, table_lock),
            offset_of!(Superblock, frames_free),
            offset_of!(Superblock, ahead_ends),
            offset_of!(Superblock, frames_pinned),
            offset_of!(Superblock, entries),
            offset_of!(Superblock, eager),
            devices + offset_of!(DeviceWords, inflight_bytes),
        ];
        for a in read {
            assert!(changed.iter().all(|b| !share(a, *b)), "{a}");
        }
        assert!(!share(
            offset_of!(Superblock, frames_pinned),
            offset_of!(Superblock, entries)
        ));
        assert!(!share(
            devices + offset_of!(DeviceWords, speeds),
            devices + offset_of!(DeviceWords, inflight_bytes)
        ));
    }

    #[test]
    fn the_clock_shares_no_line_with_what_is_owed() {
        let tick = offset_of!(Superblock, tick);
        assert!(!share(tick, offset_of!(Superblock, owed_pages)));
        assert!(!share(tick, offset_of!(Superblock, work)));
    }

    #[test]
    fn what_a_file_is_shares_no_line_with_its_growth_or_its_flushes() {
        let read = [
            offset_of!(FileEntry, state),
            offset_of!(FileEntry, kernel_reason),
            offset_of!(FileEntry, gate),
            offset_of!(FileEntry, flags),
            offset_of!(FileEntry, root),
            offset_of!(FileEntry, reserved_end),
        ];
        let grows = [
            offset_of!(FileEntry, size),
            offset_of!(FileEntry, append_lock),
            offset_of!(FileEntry, stock),
        ];
        let flushed = [
            offset_of!(FileEntry, owed_pages),
            offset_of!(FileEntry, disk_end),
            offset_of!(FileEntry, error),
            offset_of!(FileEntry, changes),
            offset_of!(FileEntry, syncs),
            offset_of!(FileEntry, was_synced),
            offset_of!(FileEntry, small_syncs),
        ];
        for a in read {
            assert!(grows.iter().chain(&flushed).all(|b| !share(a, *b)), "{a}");
        }
        for a in grows {
            assert!(flushed.iter().all(|b| !share(a, *b)), "{a}");
        }
    }

    #[test]
    fn a_sync_changes_no_word_that_every_request_reads() {
        let entry = entry();
        entry.note_sync();
        entry.count_sync(true);
        assert_eq!(entry.flags.load(Ordering::Relaxed), 0);
        assert_eq!(entry.small_syncs(), 1);
        assert!(entry.take_sync());
        assert!(!entry.take_sync());
    }

    /// An entry that nobody has made yet.
    pub fn entry() -> Box<FileEntry> {
        // SAFETY: an entry is made of atomic words, for which zeros are a value; nobody else knows the box.
        unsafe { Box::new(std::mem::zeroed()) }
    }
}
