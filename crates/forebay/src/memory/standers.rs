//! Threads that are not in the session, and what they make calls of the kernel's on: a record for each, which is theirs for life.
//!
//! Whether a record's thread lives the kernel says, by a robust mutex, as with thread slots; so a call counts as under way exactly as
//! long as it is. There are fewer records than there may be threads: a thread that gets none has another way, see `session::standing`.

use crate::memory::superblock::Superblock;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::sys::liveness;

/// Records.
pub const STANDERS: usize = 1024;

/// A record, of 64 bytes: two threads never share a cache line.
#[repr(C, align(64))]
pub struct Stander {
    mutex: liveness::Word,
    /// What its thread is at: an inode + 1, or 0; see [`IN_VAIN`].
    at: AtomicU64,
    /// Free, claimed or taken, and above that which of the record's lives this is.
    state: AtomicU32,
    unused: AtomicU32,
}

const _: () = assert!(size_of::<Stander>() == 64);

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const TAKEN: u32 = 2;
const KIND_MASK: u32 = 3;
const LIFE: u32 = 4;
/// In [`Stander::at`]: somebody has waited in vain for the end of this call.
const IN_VAIN: u64 = 1 << 63;

/// Takes a record, with its number, for the calling thread's life: a free one, or that of a thread that has ended. `None`: all are in use.
pub fn take(superblock: &Superblock) -> Option<(usize, &Stander)> {
    for (index, record) in superblock.standers.iter().enumerate() {
        let state = record.state.load(Ordering::Acquire);
        let free = match state & KIND_MASK {
            FREE => true,
            // What was seen is evidence of this life alone: in another one the state is another.
            TAKEN => liveness::owner_died(&record.mutex),
            _ => false,
        };
        let life = (state & !KIND_MASK).wrapping_add(LIFE);
        let claim = || {
            let claimed = life | CLAIMED;
            let (way, else_way) = (Ordering::AcqRel, Ordering::Relaxed);
            let changed = record.state.compare_exchange(state, claimed, way, else_way);
            changed.is_ok()
        };
        if free && claim() {
            record.at.store(0, Ordering::Relaxed);
            if !liveness::hold(&record.mutex) {
                record.state.store(life | FREE, Ordering::Release);
                return None;
            }
            record.state.store(life | TAKEN, Ordering::Release);
            let end = &superblock.standers_end;
            end.fetch_max(index as u32 + 1, Ordering::SeqCst);
            return Some((index, record));
        }
    }
    None
}

/// Frees a record of a thread's that lives and will not use it again, if it still is in the life of that `state`: its process leaves.
pub fn give_up(record: &Stander, state: u32) {
    let (free, claimed) = (state & !KIND_MASK | FREE, state & !KIND_MASK | CLAIMED);
    let (way, else_way) = (Ordering::AcqRel, Ordering::Relaxed);
    let changed = record.state.compare_exchange(state, claimed, way, else_way);
    if changed.is_ok() {
        record.at.store(0, Ordering::Relaxed);
        record.state.store(free, Ordering::Release);
    }
}

/// A call on an inode that takes long.
pub struct Standing<'a> {
    record: &'a Stander,
    at: u64,
}

/// A call on an inode that is under way by a thread that lives, if there is any.
pub fn find(superblock: &Superblock, inode: u64) -> Option<Standing<'_>> {
    let end = superblock.standers_end.load(Ordering::SeqCst) as usize;
    let records = superblock.standers.iter().take(end);
    records
        .map(|record| (record, record.at.load(Ordering::SeqCst)))
        .find(|(record, at)| at & !IN_VAIN == word_of(inode) && record.lives())
        .map(|(record, at)| Standing { record, at })
}

impl Standing<'_> {
    /// Whether somebody has waited for it in vain.
    pub fn is_in_vain(&self) -> bool {
        self.at & IN_VAIN != 0
    }

    /// Somebody has.
    pub fn note_in_vain(&self) {
        let more = self.at | IN_VAIN;
        let (way, else_way) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = self
            .record
            .at
            .compare_exchange(self.at, more, way, else_way);
    }
}

#[inline]
fn word_of(inode: u64) -> u64 {
    inode.wrapping_add(1) & !IN_VAIN
}

impl Stander {
    /// The thread begins a call. `false`: it is in one already, whose handler this is.
    #[inline]
    pub fn begin(&self, inode: u64) -> bool {
        let is_idle = self.at.load(Ordering::Relaxed) == 0;
        if is_idle {
            self.at.store(word_of(inode), Ordering::SeqCst);
        }
        is_idle
    }

    /// The call has ended.
    #[inline]
    pub fn end(&self) {
        self.at.store(0, Ordering::Release);
    }

    /// The record's life; never 0 while it is taken.
    pub fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    fn lives(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state & KIND_MASK != TAKEN || !liveness::owner_died(&self.mutex)
    }
}
