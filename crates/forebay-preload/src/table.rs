//! What is known of each descriptor: one word a number; and open descriptions, in memory that forked children share.
//!
//! A word that is 0 sends a call to the real function at once, which is all that a descriptor costs that is none of ours.
//! Everything else is decided by the word's kind, and by the description that it names.

mod gone;
pub mod holders;
mod note;
mod room;

use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed,
    compiler_fence,
};

use forebay::limits::LARGE_SYNCS;
use forebay::sys::liveness;
use libc::c_int;

pub use holders::{hold, let_go};
pub use room::{WIPED_APART, WIPED_LOCK_MAPPED, WIPED_LOCK_RARE, at_start, part, wiped};

use crate::files::Look;
use crate::inside::{Inside, thread};
use crate::{raw, streams};
use gone::is_gone;
use note::WORDS;

/// Descriptors in the table at most.
const DESCRIPTORS_MAX: usize = 1 << 20;
/// Descriptions of a process and its relatives at most.
const DESCRIPTIONS_MAX: usize = 1 << 18;
/// How often a lock is looked at before its holder's life is.
const SPINS: u32 = 2000;

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing of ours.
    None,
    /// A regular file that the kernel serves, for now.
    Candidate,
    /// The engine answers.
    Managed,
    /// Was managed by the parent of this process.
    Orphan,
    /// A descriptor of the engine's own.
    Ours,
}

/// A descriptor's word: the kind, access, which description, and for managed ones which of the process's inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

const KIND_MASK: u64 = 7;
const READ: u64 = 8;
const WRITE: u64 = 16;
const DESCRIPTION_SHIFT: u32 = 8;
const DESCRIPTION_MASK: u64 = 0xff_ffff;
const SLOT_SHIFT: u32 = 32;

impl Word {
    /// Nothing.
    pub const NONE: Word = Word(0);
    /// One of ours.
    pub const OURS: Word = Word(4);

    /// A candidate with a description.
    pub fn candidate(description: u32, reads: bool, writes: bool) -> Self {
        let access = if reads { READ } else { 0 } | if writes { WRITE } else { 0 };
        Word(1 | access | u64::from(description) << DESCRIPTION_SHIFT)
    }

    /// The same descriptor, managed by one of the process's inodes.
    pub fn managed(self, slot: u32) -> Self {
        let kept = self.0 & (READ | WRITE | DESCRIPTION_MASK << DESCRIPTION_SHIFT);
        Word(2 | kept | u64::from(slot) << SLOT_SHIFT)
    }

    /// The same descriptor, with no inode of this process behind it.
    pub fn orphan(self) -> Self {
        let kept = self.0 & (READ | WRITE | DESCRIPTION_MASK << DESCRIPTION_SHIFT);
        Word(3 | kept)
    }

    /// What it is.
    #[inline(always)]
    pub fn kind(self) -> Kind {
        match self.0 & KIND_MASK {
            1 => Kind::Candidate,
            2 => Kind::Managed,
            3 => Kind::Orphan,
            4 => Kind::Ours,
            _ => Kind::None,
        }
    }

    /// Open for reading.
    #[inline(always)]
    pub fn reads(self) -> bool {
        self.0 & READ != 0
    }

    /// Open for writing.
    #[inline(always)]
    pub fn writes(self) -> bool {
        self.0 & WRITE != 0
    }

    /// The number of its description.
    #[inline(always)]
    pub fn description_index(self) -> u32 {
        (self.0 >> DESCRIPTION_SHIFT & DESCRIPTION_MASK) as u32
    }

    /// Its description.
    #[inline(always)]
    pub fn description(self) -> &'static Description {
        description(self.description_index())
    }

    /// Which of the process's inodes.
    #[inline(always)]
    pub fn slot(self) -> usize {
        (self.0 >> SLOT_SHIFT & 0xffff) as usize
    }

    /// Whether it has a description.
    #[inline(always)]
    pub fn is_file(self) -> bool {
        matches!(self.kind(), Kind::Candidate | Kind::Managed | Kind::Orphan)
    }
}

/// No descriptor from this on has had a word.
static END: AtomicUsize = AtomicUsize::new(0);
static DESCRIPTIONS: AtomicPtr<Description> = AtomicPtr::new(std::ptr::null_mut());
static NEXT_FREE: AtomicUsize = AtomicUsize::new(1);
/// A word in memory that a forked child finds wiped; it counts the process's life.
static ALIVE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// Whether this is still the process that has last called [`set_alive`], and not a child of it.
#[inline(always)]
pub fn is_alive() -> bool {
    let alive = ALIVE.load(Relaxed);
    // SAFETY: mapped for good once it is not null; a plain word.
    !alive.is_null() && unsafe { (*alive).load(Relaxed) } != 0
}

/// From here on the process is not taken for a child.
pub fn set_alive() {
    let alive = ALIVE.load(Relaxed);
    if !alive.is_null() {
        // SAFETY: as above.
        unsafe { (*alive).store(1, Relaxed) };
    }
}

#[inline(always)]
fn place(fd: c_int) -> Option<&'static AtomicU64> {
    let index = fd as u32 as usize;
    if index >= WORDS.len.load(Relaxed) {
        return None;
    }
    // SAFETY: below the length of the table, which is mapped for good; words are atomics.
    Some(unsafe { &*WORDS.first.load(Relaxed).add(index) })
}

/// A descriptor's word.
#[inline(always)]
pub fn word(fd: c_int) -> Word {
    place(fd).map_or(Word::NONE, |place| Word(place.load(Ordering::Acquire)))
}

/// From now on every descriptor is none of ours, until [`show`] is called with the result. For a process of one thread.
pub fn hide() -> usize {
    WORDS.len.swap(0, Ordering::AcqRel)
}

/// What [`hide`] has hidden is there again.
pub fn show(len: usize) {
    WORDS.len.store(len, Ordering::Release);
}

/// Whether the table has room for the descriptor.
pub fn has_room(fd: c_int) -> bool {
    place(fd).is_some()
}

/// Whether descriptor 0 or 1 may be one whose stream must not be used unseen. A byte, for stubs.
pub static STANDARD: AtomicU8 = AtomicU8::new(0);

/// Whether it may.
pub fn has_standard() -> bool {
    STANDARD.load(Relaxed) != 0
}

/// Looks whether it still is. Each call of stdio may ask, so nothing is stored while it is, and no other thread finds it denied.
pub fn look_at_standard() {
    let is_one = |fd| word(fd).is_file() && !word(fd).description().has(FOREIGN);
    if is_one(0) || is_one(1) {
        return;
    }
    STANDARD.store(0, Ordering::SeqCst);
    // One that was moved there meanwhile: `set` says so after its word, too.
    if is_one(0) || is_one(1) {
        STANDARD.store(1, Ordering::SeqCst);
    }
}

/// Sets a descriptor's word. Returns what it was.
pub fn set(fd: c_int, word: Word) -> Word {
    let Some(place) = place(fd) else {
        return Word::NONE;
    };
    let is_standard = word.is_file() && (0..=1).contains(&fd);
    if is_standard {
        STANDARD.store(1, Ordering::SeqCst);
        streams::watch_wide();
    }
    if word != Word::NONE {
        END.fetch_max(fd as usize + 1, Relaxed);
    }
    let before = Word(place.swap(word.0, Ordering::SeqCst));
    if is_standard {
        // Again: `look_at_standard` may have denied it between the two.
        STANDARD.store(1, Ordering::SeqCst);
    }
    holders::opened(word);
    before
}

/// Sets a descriptor's word if it still is `before`.
pub fn replace(fd: c_int, before: Word, word: Word) -> bool {
    place(fd).is_some_and(|place| {
        place
            .compare_exchange(before.0, word.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })
}

/// All descriptors that have words.
pub fn each() -> impl Iterator<Item = (c_int, Word)> {
    let end = END.load(Relaxed);
    (0..end as c_int)
        .map(|fd| (fd, word(fd)))
        .filter(|(_, word)| *word != Word::NONE)
}

/// An open description, 64 bytes of memory that all relatives by fork share.
#[repr(C, align(64))]
pub struct Description {
    /// Processes that have it open; 0: free.
    holders: AtomicU32,
    /// [`APPENDS`] and its like.
    flags: AtomicU32,
    /// [`State`].
    state: AtomicU32,
    /// The error sequence that it has reported.
    pub seen: AtomicU32,
    /// Offset, while it is ours. By [`Description::begin`] and [`Description::move_to`].
    offset: AtomicU64,
    /// The holder of the offset: process above, thread below; 0 nobody.
    lock: AtomicU64,
    /// Device number of its file.
    pub device: AtomicU64,
    /// Inode number of its file.
    pub inode: AtomicU64,
    /// Bytes written through it while it was a candidate, calls in the upper 16 bits.
    written: AtomicU64,
    /// While the offset is the kernel's: the file's size when it was opened. While it is ours: where the write ends that the holder of the
    /// offset is at; not beyond the offset, if at none.
    size_or_end: AtomicU64,
}

const _: () = assert!(size_of::<Description>() == 64);

/// Writes go to the end.
pub const APPENDS: u32 = 1;
/// It can never be managed: should its file be, the file goes to the kernel.
pub const FOREIGN: u32 = 2;
/// The program wants to hear of no byte before it is durable.
pub const SYNCS: u32 = 4;
/// Somebody may have a descriptor of it and pass no hook; the arena knows.
pub const REACHED: u32 = 8;
/// ... and nobody here will hear when that ends: it does not with the last descriptor that is known of.
pub const STICKS: u32 = 16;

/// Syncs of a candidate are counted in the flags, from here up.
const SYNC: u32 = 1 << 16;

/// A call in [`Description::written`]: its bytes are counted below.
const ONE_CALL: u64 = 1 << 48;

/// Whose offset is the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The kernel's: it is a candidate.
    Kernels,
    /// Ours: it is managed.
    Ours,
    /// The kernel's for good.
    Left,
}

/// A description by its number.
#[inline(always)]
pub fn description(index: u32) -> &'static Description {
    let index = (index as usize).min(DESCRIPTIONS_MAX - 1);
    // SAFETY: within the table, mapped for good before the first word could name one; all atomics.
    unsafe { &*DESCRIPTIONS.load(Relaxed).add(index) }
}

/// Takes a description for a file that has just been opened. `None`: all are in use.
pub fn new_description(flags: u32, look: &Look) -> Option<u32> {
    if DESCRIPTIONS.load(Ordering::Acquire).is_null() && !room::reserve_descriptions() {
        return None;
    }
    let index = take_free().or_else(|| {
        holders::let_the_dead_go();
        take_free()
    })?;
    NEXT_FREE.store(index as usize + 1, Relaxed);
    let it = description(index);
    it.flags.store(flags, Relaxed);
    it.offset.store(0, Relaxed);
    it.lock.store(0, Relaxed);
    it.seen.store(0, Relaxed);
    it.written.store(0, Relaxed);
    it.device.store(look.device, Relaxed);
    it.inode.store(look.inode, Relaxed);
    it.size_or_end.store(look.size, Relaxed);
    it.set_state(State::Kernels);
    Some(index)
}

fn take_free() -> Option<u32> {
    let start = NEXT_FREE.load(Relaxed) as u32;
    // Number 0 is left out.
    (start..DESCRIPTIONS_MAX as u32)
        .chain(1..start)
        .find(|&index| holders::take(index))
}

impl Description {
    /// Whose offset is the truth.
    #[inline(always)]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Kernels,
            1 => State::Ours,
            _ => State::Left,
        }
    }

    /// Changes it; whoever calls has the lock, or the description to itself.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    /// Sets or clears a flag.
    pub fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.flags.fetch_or(flag, Relaxed);
        } else {
            self.flags.fetch_and(!flag, Relaxed);
        }
    }

    /// Notes a write of a candidate. Returns the calls and bytes so far, this one included. Threads that write at once may lose a count:
    /// the file is managed a little later then.
    pub fn note_write(&self, len: usize) -> (u64, u64) {
        let len = (len as u64).min(ONE_CALL / 4);
        let word = self.written.load(Relaxed).wrapping_add(ONE_CALL + len);
        self.written.store(word, Relaxed);
        (word / ONE_CALL, word % ONE_CALL)
    }

    /// What [`Description::note_write`] has noted so far: calls and bytes. It begins anew.
    pub fn take_written(&self) -> (u64, u64) {
        let word = self.written.swap(0, Relaxed);
        (word / ONE_CALL, word % ONE_CALL)
    }

    /// A candidate's size when it was opened.
    pub fn size_at_open(&self) -> u64 {
        self.size_or_end.load(Relaxed)
    }

    /// Whether the file may have been empty when it was opened. [`Description::take_written`] has nothing of a managed one that was not.
    pub fn may_be_new(&self) -> bool {
        self.state() != State::Kernels || self.size_at_open() == 0
    }

    /// The offset is ours from now on, and is `at`. Whoever calls has the lock.
    pub fn become_ours(&self, at: u64) {
        if self.size_or_end.swap(0, Relaxed) != 0 {
            // It says nothing of new files (`habit`).
            self.take_written();
        }
        self.offset.store(at, Relaxed);
        self.set_state(State::Ours);
    }

    /// The offset, for whoever has the lock. Where the one who had it was killed in the middle of a write, it is behind what is there of that
    /// write, as the kernel has it: otherwise the next write would lie over a part of the record, and leave its rest behind it. `size` is the
    /// file's size, and asked for only then.
    #[inline(always)]
    pub fn begin<E>(&self, size: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        let (at, end) = (self.offset.load(Relaxed), self.size_or_end.load(Relaxed));
        if end <= at {
            return Ok(at);
        }
        let at = end.min(size()?).max(at);
        self.move_to(at);
        Ok(at)
    }

    /// The holder of the lock begins a write from the offset up to `end`.
    #[inline(always)]
    pub fn write_to(&self, end: u64) {
        self.size_or_end.store(end, Relaxed);
        // Only a kill of this very thread comes between the two: no other processor has to see it in order.
        compiler_fence(Ordering::SeqCst);
    }

    /// The holder of the lock is done with the write, if it was at one, and sets the offset.
    #[inline(always)]
    pub fn move_to(&self, at: u64) {
        compiler_fence(Ordering::SeqCst);
        if self.size_or_end.load(Relaxed) > at {
            // Backwards, or short of what was to be written.
            self.size_or_end.store(0, Relaxed);
            compiler_fence(Ordering::SeqCst);
        }
        self.offset.store(at, Relaxed);
    }

    /// Notes a sync of a candidate.
    pub fn note_sync(&self) {
        if !self.is_synced_again() {
            self.flags.fetch_add(SYNC, Relaxed);
        }
    }

    /// Whether the candidate has been synced again and again.
    pub fn is_synced_again(&self) -> bool {
        self.flags.load(Relaxed) / SYNC >= LARGE_SYNCS
    }

    /// Holds the offset until the result is dropped.
    #[inline(always)]
    pub fn lock(&self) -> OffsetLock<'_> {
        let inside = Inside::enter();
        let me = who();
        if self
            .lock
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.lock_patiently(me);
        }
        OffsetLock(self, inside)
    }

    /// Takes the offset from any thread of this process's.
    fn unlock_for_this_process(&self) {
        let holder = self.lock.load(Relaxed);
        if holder >> 32 == who() >> 32 {
            let _ = self
                .lock
                .compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    #[cold]
    fn lock_patiently(&self, me: u64) {
        let mut round = 0u32;
        loop {
            let holder = self.lock.load(Relaxed);
            let free =
                holder == 0 || (round > SPINS && round.is_multiple_of(64) && is_gone(holder));
            if free
                && self
                    .lock
                    .compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            round += 1;
            if round > 100 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// The right to a description's offset. Its holder is inside: no handler of its own waits for it.
pub struct OffsetLock<'a>(&'a Description, #[allow(dead_code)] Inside);

impl Drop for OffsetLock<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.lock.store(0, Ordering::Release);
    }
}

/// The calling thread, as locks name it.
#[inline(always)]
fn who() -> u64 {
    match thread().who.get() {
        0 => who_anew(),
        who => who,
    }
}

#[cold]
fn who_anew() -> u64 {
    let who = u64::from(raw::process_id()) << 32 | u64::from(raw::thread_id());
    thread().who.set(who);
    who
}

/// Whether the process has no thread but the calling one, and is not another one that borrows its memory (`vfork`).
pub fn is_alone() -> bool {
    // A directory has a link of its own, one of its parent's, and one of each directory in it.
    let mut tasks = std::mem::MaybeUninit::uninit();
    // SAFETY: the string ends in a null byte; the target is ours.
    let known =
        unsafe { crate::real::stat64(c"/proc/self/task".as_ptr(), tasks.as_mut_ptr()) } == 0;
    // SAFETY: filled by the call.
    known
        && unsafe { tasks.assume_init() }.st_nlink == 3
        && (who() >> 32) as u32 == raw::process_id()
}

/// A forked child's thread is another one.
pub fn forget_who() {
    thread().who.set(0);
}
