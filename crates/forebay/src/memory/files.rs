//! The file table's entries: one per inode that the session knows.
//!
//! An entry is the truth about a file that headers cannot hold: its identity, its sizes, its mode, its
//! errors, and where it can be found again. States are in `docs/states.md`.

use std::path::Path;

use crate::device::Caps;
use crate::ids::BlockIndex;
use crate::ids::ThreadId;
use crate::limits::{BLOCK_BYTES, PATH_BYTES_MAX, THREADS_MAX};
use crate::memory::asks::Asks;
use crate::memory::regions::Stock;
use crate::memory::superblock::Line;
use crate::memory::threads::Gate;
use crate::sync::{AtomicU32, AtomicU64, Ordering, planted};

mod life;

/// One entry, 2 KiB. Its first line is read by every request to the file, and changes when the file is opened, closed or given space.
#[repr(C, align(2048))]
pub struct FileEntry {
    /// [`ABSENT`], [`ENTERING`] with the thread above, or [`LIVE`].
    pub state: AtomicU32,
    /// 0 managed, else the code of the reason for kernel mode.
    pub kernel_reason: AtomicU32,
    /// The thread that has stopped the file (right: file gate), and who may be at work on it.
    pub gate: Gate,
    /// Flags below.
    pub flags: AtomicU32,
    /// Open descriptions of this file in the session: in the lower half those that only read, in the upper those that have descriptors that
    /// the file could be written by. One word: a thread that adds both up never sees none while one comes and another goes.
    pub openers: AtomicU64,
    /// Device number.
    pub device: AtomicU64,
    /// Inode number.
    pub inode: AtomicU64,
    /// See `Caps::birth`.
    pub birth: AtomicU64,
    /// Root of the slot tree: node + 1 in the low half, its level in the high half; 0 is empty.
    pub root: AtomicU64,
    /// Space is promised up to here, bytes.
    pub reserved_end: AtomicU64,
    /// What a write that makes the file longer changes.
    pub growth: Line,
    /// Size that programs see, bytes.
    pub size: AtomicU64,
    /// The thread that appends, or 0 (right: append lock).
    pub append_lock: AtomicU32,
    /// Counts the times at which the file got a hole: space that a write had found may have gone since.
    pub holes: AtomicU32,
    /// Looks for space that were in vain, beyond those that were not: more than so many leave the file to the kernel. A hint.
    pub vain_looks: AtomicU32,
    /// Of a file with holes: the blocks that are known to have space throughout, as far as any is promised (`reserved_end`); the first in
    /// the upper half, one past the last in the lower. 0: none.
    pub solid: AtomicU64,
    /// Length + 1 that a truncation under way will leave, or 0: a repair carries it out.
    pub truncating: AtomicU64,
    /// Length of the last reservation ahead, bytes; the next is twice as long.
    pub reserve_step: AtomicU64,
    /// Small frames that are free for this file alone.
    pub stock: Stock,
    /// What a flush or a sync changes.
    pub flushes: Line,
    /// Pages owed to the device, whole frames counted as 64. Derived.
    pub owed_pages: AtomicU64,
    /// How far the device file is known to reach, bytes: beyond are zeros.
    pub disk_end: AtomicU64,
    /// Sequence of flush errors (high half) and the last errno (low half, 0 after success).
    pub error: AtomicU64,
    /// The last failure to make durable what the device had been given: its errno in the lowest 12 bits, above it the end
    /// of the sequence number of `error` that it had; 0 is none.
    pub sync_error: AtomicU32,
    /// Changes of the device file that we have begun so far.
    pub changes: AtomicU32,
    /// Tick before which no flush is tried again after an error.
    pub retry_tick: AtomicU32,
    /// Failed flushes in a row.
    pub failures: AtomicU32,
    /// While [`UNHEARD`]: the sequence number of `error` from before what nobody has heard of.
    pub unheard_since: AtomicU32,
    /// Syncs under way, and those at which somebody has died ([`crate::memory::threads::Me::at_sync`]).
    pub syncs: std::sync::atomic::AtomicU32,
    /// 1 where the file has been synced since its last large write: a program that did that will do it again. A hint.
    pub was_synced: AtomicU32,
    /// Syncs in a row, none of which had much to write. A hint.
    pub small_syncs: AtomicU32,
    /// Device file's size, mtime and ctime after our last change: recovery's witness.
    pub witness: [AtomicU64; 3],
    /// Made of `changes` when the witness was taken, and of the witness ([`sum_of`]): another sum than of what is there says that the witness
    /// is out of date, or that somebody is about to write it.
    pub witnessed: AtomicU64,
    /// When a change of ours was last seen to be under way, ns since 1970: what is dated later is none of ours.
    pub changed_ns: AtomicU64,
    /// While [`CLOSING`]: the modification time that the file shall have, ns since 1970, and in the highest bit whether a program has set it
    /// since (`file::closing`). Afterwards it tells a time of the device file that our writing has left from one that others have.
    pub closed_ns: AtomicU64,
    /// The `birth` for which somebody has found another file under the entry's numbers: its file is gone, whatever is owed to it, and
    /// each process that is counted as having it open has died. Another birth than the entry's says nothing.
    pub outlived: AtomicU64,
    /// What is seldom looked at.
    pub rest: Line,
    /// Length of `path`.
    pub path_len: AtomicU32,
    /// Last known path, as bytes in words.
    pub path: [AtomicU64; PATH_BYTES_MAX / 8],
    /// See `Caps::store`.
    pub store: AtomicU64,
    /// Bytes that have been read past memory so far; a hint.
    pub read_past: AtomicU64,
    /// The byte whose lock says who has the file open ([`crate::member::opens`]): no other entry has had it.
    pub lock_byte: AtomicU64,
    /// What is to be read ahead; hints.
    pub asks: Asks,
    /// Threads that are changing the device file, a bit each. A bit that a death has left says that how the file looks may
    /// be the dead thread's doing.
    intents: [AtomicU32; INTENT_WORDS],
}

/// One bit for each thread slot that an arena may have.
const INTENT_WORDS: usize = THREADS_MAX as usize / 32;

const _: () = assert!(size_of::<FileEntry>() == 2048);

/// A bit of [`FileEntry::device`]: the file's file system is not there any more, and its number is another one's. Numbers of the kernel's are shorter.
const SET_ASIDE: u64 = 1 << 63;

/// No file.
pub const ABSENT: u32 = 0;
/// Being filled in by a thread (its slot in the upper half).
pub const ENTERING: u32 = 1;
/// Complete.
pub const LIVE: u32 = 2;
/// Dropped; may be used again, but a search goes on past it.
pub const GONE: u32 = 3;

/// The file may have holes: each write asks whether its space is allocated.
pub const HOLEY: u32 = 1;
/// Pages must not change while in flight.
pub const STABLE: u32 = 2;
/// The device file may be longer than the file, with bytes that nobody was promised: a write beyond the end has failed, or
/// its thread has died. Before the file grows, or is synced, the device file is cut.
pub const EXCEEDING: u32 = 4;
/// A truncation is under way, or was when its thread died: `truncating` says to what length.
pub const TRUNCATING: u32 = 8;
/// Somebody waits for everything that is owed, in many places: the keeper writes it. A hint.
pub const HURRY: u32 = 16;
/// Closed by its last opener while it owed bytes: once they are written, the device file gets the time of the close.
pub const CLOSING: u32 = 32;
/// The keeper has a lease on the device file, and gives it up when nothing is owed any more.
pub const LEASED: u32 = 64;
/// A flush or a sync has failed of which no program that has the file open has heard: the program that opens it next does.
pub const UNHEARD: u32 = 128;
/// A keeper has seen, under its lease, that nobody has the file open and no name leads to it (`member::gone`).
pub const VANISHED: u32 = 1024;
/// That the file is not where it was, and owes bytes, has been said.
pub const TOLD: u32 = 2048;
/// A recovery has seen that others have changed the file since the session's last change of it: no recovery writes to it.
pub const FOREIGN: u32 = 4096;
/// Views have shown bytes of the file since it was opened: its memory stays when it is closed, though the kernel has the same. A hint.
pub const VIEWED: u32 = 8192;
/// A program has asked for space beyond the file's end since the file was last cut: none is given back.
pub const ASKED: u32 = 16384;
/// A sync has failed and none has succeeded since, or a recovery was about to sync what it had written: the device may not have what it was
/// given.
pub const UNSYNCED: u32 = 32768;
/// A program of the session is about to read a file that is [`LEASED`]: the keeper is to give the lease up before everything is written.
pub const BACK: u32 = 65536;
/// All [`FileEntry::small_syncs`] that are counted.
pub const SMALL_SYNCS_MAX: u32 = 255;

/// The upper and the lower half of [`FileEntry::solid`], in order whatever it says.
#[inline]
fn halves(solid: u64) -> (u32, u32) {
    let (first, last) = ((solid >> 32) as u32, solid as u32);
    (first.min(last), last)
}

/// See [`FileEntry::witnessed`]: what several have written in turns has another sum than any of them.
pub fn sum_of(changes: u32, witness: [u64; 3]) -> u64 {
    if planted!(LooseWitness) {
        return u64::from(changes);
    }
    let words = witness.into_iter().chain([u64::from(changes)]);
    // Knuth's multiplier of MMIX; each word is mixed with all before it.
    words.fold(0, |sum: u64, word| {
        (sum ^ word)
            .wrapping_mul(6_364_136_223_846_793_005)
            .rotate_left(29)
    })
}

impl FileEntry {
    /// Open descriptions that the file may be written by.
    pub fn writers(&self) -> u32 {
        (self.openers.load(Ordering::Acquire) >> 32) as u32
    }

    /// Open descriptions that only read.
    pub fn readers(&self) -> u32 {
        self.openers.load(Ordering::Acquire) as u32
    }

    /// Open descriptions of either kind.
    #[inline]
    pub fn opens(&self) -> u32 {
        let openers = self.openers.load(Ordering::SeqCst);
        (openers as u32).saturating_add((openers >> 32) as u32)
    }

    /// Whether the device file may have another length than the file: a thread that gives it to others makes it fit first.
    pub fn lacks_length(&self) -> bool {
        self.flags.load(Ordering::Acquire) & (EXCEEDING | TRUNCATING) != 0
            || self.disk_end.load(Ordering::Acquire) < self.size.load(Ordering::Acquire)
    }

    /// Whether the device file lacks any of the file's bytes, or its length.
    pub fn owes(&self) -> bool {
        self.owed_pages.load(Ordering::Acquire) != 0 || self.lacks_length()
    }

    /// Whether somebody has found another file under the entry's numbers: nothing of the entry is that file's.
    pub fn is_outlived(&self) -> bool {
        let outlived = self.outlived.load(Ordering::Acquire);
        outlived != 0 && outlived == self.birth.load(Ordering::Acquire)
    }

    /// Another file system has the device number that the file's had: from now on no file has the entry's numbers. What it owes is for a recovery to
    /// keep.
    pub fn set_aside(&self) {
        self.device.fetch_or(SET_ASIDE, Ordering::AcqRel);
    }

    /// Whether the entry is that of a device file with these properties.
    pub fn is_of(&self, caps: &Caps) -> bool {
        self.device.load(Ordering::Relaxed) == caps.device && self.is_at_any_device_of(caps)
    }

    fn is_at_any_device_of(&self, caps: &Caps) -> bool {
        self.inode.load(Ordering::Relaxed) == caps.inode
            && self.store.load(Ordering::Relaxed) == caps.store
            && (self.birth.load(Ordering::Relaxed) == caps.birth || planted!(AnyBirth))
    }

    /// Whether the entry is still that of such a device file. Asked in an operation: an entry that nobody needs is dropped, and becomes another file's,
    /// while nobody is in one. A device file that is written into the kernel's cache has no device's number ([`crate::device::Cached`]).
    pub fn is_still_of(&self, caps: &Caps) -> bool {
        let is_it = match caps.device {
            0 => self.is_at_any_device_of(caps),
            _ => self.is_of(caps),
        };
        is_it && self.state.load(Ordering::Acquire) == LIVE
    }

    /// The file's device and inode numbers.
    pub fn numbers(&self) -> (u64, u64) {
        (
            self.device.load(Ordering::Acquire),
            self.inode.load(Ordering::Acquire),
        )
    }

    /// Whether a range below `reserved_end` is known to have space throughout though the file has holes.
    #[inline]
    pub fn is_solid(&self, offset: u64, end: u64) -> bool {
        let (first, last) = halves(self.solid.load(Ordering::Acquire));
        BlockIndex::of(offset).0 >= first && end <= u64::from(last) * BLOCK_BYTES as u64
    }

    /// How much is known to have space throughout just before `offset`, bytes.
    pub fn solid_before(&self, offset: u64) -> u64 {
        let (first, last) = halves(self.solid.load(Ordering::Acquire));
        let block = BlockIndex::of(offset).0;
        u64::from(if (first..=last).contains(&block) {
            block - first
        } else {
            0
        }) * BLOCK_BYTES as u64
    }

    /// A range has space throughout: it is joined to what is known, or takes its place where it is longer. By a thread in an operation:
    /// nobody takes space away meanwhile.
    pub fn note_solid(&self, offset: u64, end: u64) {
        let block = BLOCK_BYTES as u64;
        let most = u64::from(u32::MAX);
        let (first, last) = (
            offset.div_ceil(block).min(most) as u32,
            (end / block).min(most) as u32,
        );
        if first >= last {
            return;
        }
        let known = self.solid.load(Ordering::Acquire);
        let (from, to) = halves(known);
        let (first, last) = match first <= to && from <= last {
            true => (first.min(from), last.max(to)),
            false if to - from > last - first => return,
            false => (first, last),
        };
        // What another thread has noted meanwhile stands.
        let noted = u64::from(first) << 32 | u64::from(last);
        let _ = self
            .solid
            .compare_exchange(known, noted, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Notes a write that had to look for space: in vain if there is none, or if the next write there has to look again.
    pub fn count_look(&self, in_vain: bool) {
        let count = self.vain_looks.load(Ordering::Relaxed);
        let count = if in_vain {
            count.saturating_add(1)
        } else {
            count.saturating_sub(1)
        };
        self.vain_looks.store(count, Ordering::Relaxed);
    }

    /// Syncs in a row, none of which had much to write: [`SMALL_SYNCS_MAX`] at most, about.
    pub fn small_syncs(&self) -> u32 {
        self.small_syncs.load(Ordering::Relaxed)
    }

    /// Notes a sync for [`FileEntry::small_syncs`].
    pub fn count_sync(&self, is_small: bool) {
        match (is_small, self.small_syncs()) {
            (true, SMALL_SYNCS_MAX..) | (false, 0) => {}
            (true, _) => _ = self.small_syncs.fetch_add(1, Ordering::Relaxed),
            (false, _) => self.small_syncs.store(0, Ordering::Relaxed),
        }
    }

    /// Notes that the file is being synced, for the next large write.
    pub fn note_sync(&self) {
        if self.was_synced.load(Ordering::Relaxed) == 0 {
            self.was_synced.store(1, Ordering::Relaxed);
        }
    }

    /// Whether the file was synced since the last large write. Programs that sync once for each do so again, and then wait for the
    /// device either way.
    pub fn take_sync(&self) -> bool {
        self.was_synced.load(Ordering::Relaxed) != 0
            && self.was_synced.swap(0, Ordering::Relaxed) != 0
    }

    /// The entry is being made: of this file no sync is known.
    pub fn forget_syncs(&self) {
        self.syncs.store(0, std::sync::atomic::Ordering::Relaxed);
        self.was_synced.store(0, Ordering::Relaxed);
        self.small_syncs.store(0, Ordering::Relaxed);
    }

    /// Notes that a thread is about to change the device file.
    pub fn begin_intent(&self, thread: ThreadId) {
        let (word, bit) = self.intent(thread);
        self.show_change();
        word.fetch_or(bit, Ordering::AcqRel);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that a change of ours is under way now.
    pub fn show_change(&self) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let ns = now.unwrap_or_default().as_nanos() as u64;
        self.changed_ns.store(ns, Ordering::Relaxed);
    }

    /// Takes the note away.
    pub fn end_intent(&self, thread: ThreadId) {
        let (word, bit) = self.intent(thread);
        word.fetch_and(!bit, Ordering::AcqRel);
    }

    /// As [`FileEntry::end_intent`], for a thread that has died at the change and has nobody to look at the device file: the note is
    /// nobody's from now on, and stays.
    pub fn leave_intent(&self, dead: ThreadId) {
        let (word, bit) = self.intent(ThreadId::NOBODY);
        word.fetch_or(bit, Ordering::AcqRel);
        self.end_intent(dead);
    }

    /// Whether somebody has noted a change of whom `is_one` says so.
    pub fn is_changed_by(&self, threads: u32, is_one: impl Fn(ThreadId) -> bool) -> bool {
        let words = self.intents.iter().take(threads.div_ceil(32) as usize);
        (0..).zip(words).any(|(index, word)| {
            let noted = word.load(Ordering::Acquire);
            let mut bits = (0..32).filter(|bit| noted & 1 << bit != 0);
            bits.any(|bit| is_one(ThreadId(index * 32 + bit)))
        })
    }

    /// Whether a thread has noted a change.
    pub fn has_intent(&self, thread: ThreadId) -> bool {
        let (word, bit) = self.intent(thread);
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Whether any of `threads` threads has noted a change.
    pub fn is_changing(&self, threads: u32) -> bool {
        let words = self.intents.iter().take(threads.div_ceil(32) as usize);
        words
            .into_iter()
            .any(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Whether how the device file looks may be our own doing, unwitnessed: somebody changes it, or died changing it.
    pub fn is_unwitnessed(&self, threads: u32) -> bool {
        self.witness(threads).is_none()
    }

    /// How the device file looks after our last change, if that is known.
    pub fn witness(&self, threads: u32) -> Option<[u64; 3]> {
        if self.is_changing(threads) {
            return None;
        }
        let changes = self.changes.load(Ordering::Acquire);
        let seen = std::array::from_fn(|at| self.witness[at].load(Ordering::Acquire));
        (self.witnessed.load(Ordering::Acquire) == sum_of(changes, seen)).then_some(seen)
    }

    /// Remembers how the device file looks after the change that `changes` counts. Several may be at it, each with what it has seen: a
    /// thread that looks meanwhile finds what one of them has written, or nothing.
    pub fn set_witness(&self, seen: [u64; 3], changes: u32) {
        for (word, value) in self.witness.iter().zip(seen) {
            word.store(value, Ordering::Release);
        }
        self.witnessed
            .store(sum_of(changes, seen), Ordering::Release);
    }

    /// Takes all notes away: the entry is being made.
    pub fn forget_intents(&self, threads: u32) {
        let words = self.intents.iter().take(threads.div_ceil(32) as usize);
        words
            .into_iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn intent(&self, thread: ThreadId) -> (&AtomicU32, u32) {
        let index = thread.0.min(THREADS_MAX - 1);
        (&self.intents[index as usize / 32], 1 << (index % 32))
    }

    /// Whether there is room for a path. The kernel tells none that is longer than a page.
    pub fn has_room_for(path: &Path) -> bool {
        (1..=PATH_BYTES_MAX).contains(&path.as_os_str().len())
    }

    /// Stores the path (cut to what fits; a path too long is not kept at all).
    pub fn set_path(&self, path: &[u8]) {
        use crate::sync::Ordering::{Relaxed, Release};
        self.path_len.store(0, Release);
        if path.len() > PATH_BYTES_MAX {
            return;
        }
        for (word, chunk) in self.path.iter().zip(path.chunks(8)) {
            let mut bytes = [0u8; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Relaxed);
        }
        self.path_len.store(path.len() as u32, Release);
    }

    /// The stored path; empty if none is known.
    pub fn path(&self) -> Vec<u8> {
        use crate::sync::Ordering::{Acquire, Relaxed};
        let len = (self.path_len.load(Acquire) as usize).min(PATH_BYTES_MAX);
        let words = self.path.iter().take(len.div_ceil(8));
        let mut bytes: Vec<u8> = words.flat_map(|w| w.load(Relaxed).to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }
}
