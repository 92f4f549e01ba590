//! What is known of each descriptor: one word a number; and open descriptions, in memory that forked children share.
//!
//! A word that is 0 sends a call to the real function at once, which is all that a descriptor costs that is none of ours.
//! Everything else is decided by the word's kind, and by the description that it names.

mod description;
mod gone;
pub mod holders;
mod note;
mod own;
mod room;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed,
};

use forebay::sys::liveness;
use libc::c_int;

pub use description::{
    APPENDS, Description, FOREIGN, HEARD, OF_STORE, REACHED, STICKS, SYNCS, State, Written,
};
pub use own::new_own_description;
pub use room::{
    WIPED_APART, WIPED_LOCK_MAPPED, WIPED_LOCK_RARE, WIPED_PASSING, at_start, part, wiped,
};

use crate::files::Look;
use crate::inside::thread;
use crate::{raw, streams};
use note::WORDS;

/// Descriptors in the table at most.
const DESCRIPTORS_MAX: usize = 1 << 20;
/// Descriptions of a process and its relatives at most.
const DESCRIPTIONS_MAX: usize = 1 << 18;

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

    /// Whether relatives by fork have its description as well.
    #[inline(always)]
    fn is_shared(self) -> bool {
        self.is_file() && own::description(self.description_index()).is_none()
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
/// All descriptors of the program's files are below this: the engine's lie far beyond.
static FILES_END: AtomicUsize = AtomicUsize::new(0);
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

/// As [`is_alive`], for a caller that is about to call [`set_alive`]: the page that a child finds wiped becomes its own at once. One that is read
/// first is mapped twice.
pub fn is_alive_in_own_page() -> bool {
    let alive = ALIVE.load(Relaxed);
    // SAFETY: as above.
    !alive.is_null() && unsafe { (*alive).compare_exchange(0, 0, Relaxed, Relaxed) }.is_err()
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

/// The words of files among what [`hide`] has hidden, which has returned `len`.
pub fn hidden_files(len: usize) -> impl Iterator<Item = Word> {
    let end = FILES_END.load(Relaxed).min(len);
    let word = |index| {
        // SAFETY: below the length that the table had, which is mapped for good; words are atomics.
        Word(unsafe { &*WORDS.first.load(Relaxed).add(index) }.load(Ordering::Acquire))
    };
    (0..end).map(word).filter(|word| word.is_file())
}

/// Whether any descriptor has been a file's so far.
pub fn has_files() -> bool {
    FILES_END.load(Relaxed) != 0 && WORDS.len.load(Relaxed) != 0
}

/// Whether the table has room for the descriptor.
pub fn has_room(fd: c_int) -> bool {
    place(fd).is_some()
}

/// Whether descriptors 0 and 1 may be such whose streams must not be used unseen: a bit for each. A byte, for stubs.
pub static STANDARD: AtomicU8 = AtomicU8::new(0);

/// Whether one may.
pub fn has_standard() -> bool {
    STANDARD.load(Relaxed) != 0
}

/// Looks whether they still are. Each call of stdio may ask, so nothing is stored while they are, and no other thread finds one denied.
pub fn look_at_standard() {
    let is_one = |fd| word(fd).is_file() && !word(fd).description().has(FOREIGN);
    for fd in 0..=1 {
        if STANDARD.load(Relaxed) & 1 << fd == 0 || is_one(fd) {
            continue;
        }
        STANDARD.fetch_and(!(1 << fd), Ordering::SeqCst);
        // One that was moved there meanwhile: `set` says so after its word, too.
        if is_one(fd) {
            STANDARD.fetch_or(1 << fd, Ordering::SeqCst);
        }
    }
}

/// Sets a descriptor's word. Returns what it was.
pub fn set(fd: c_int, word: Word) -> Word {
    let Some(place) = place(fd) else {
        return Word::NONE;
    };
    let is_standard = word.is_file() && (0..=1).contains(&fd);
    if is_standard {
        STANDARD.fetch_or(1 << fd, Ordering::SeqCst);
        streams::watch_wide();
    }
    if word != Word::NONE {
        END.fetch_max(fd as usize + 1, Relaxed);
    }
    note_file(fd, word);
    let before = Word(place.swap(word.0, Ordering::SeqCst));
    if is_standard {
        // Again: `look_at_standard` may have denied it between the two.
        STANDARD.fetch_or(1 << fd, Ordering::SeqCst);
    }
    holders::opened(word);
    before
}

/// Before a descriptor is a file's.
fn note_file(fd: c_int, word: Word) {
    if word.is_file() && FILES_END.load(Relaxed) <= fd as usize {
        FILES_END.fetch_max(fd as usize + 1, Relaxed);
    }
}

/// Sets a descriptor's word if it still is `before`.
pub fn replace(fd: c_int, before: Word, word: Word) -> bool {
    note_file(fd, word);
    place(fd).is_some_and(|place| {
        place
            .compare_exchange(before.0, word.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })
}

/// Marks a descriptor as ours that is closed in a moment: where it is, since moving it takes more calls than all that it is for.
pub fn own(fd: BorrowedFd<'_>) {
    // What the program may have closed past the library is forgotten when this is closed.
    replace(fd.as_raw_fd(), Word::NONE, Word::OURS);
}

/// All descriptors that have words.
pub fn each() -> impl Iterator<Item = (c_int, Word)> {
    below(&END).filter(|(_, word)| *word != Word::NONE)
}

/// All descriptors of files that are known.
pub fn files() -> impl Iterator<Item = (c_int, Word)> {
    below(&FILES_END).filter(|(_, word)| word.is_file())
}

/// Those whose descriptions relatives by fork have as well.
fn shared_files() -> impl Iterator<Item = (c_int, Word)> {
    below(&FILES_END).filter(|(_, word)| word.is_shared())
}

fn below(end: &AtomicUsize) -> impl Iterator<Item = (c_int, Word)> + use<> {
    (0..end.load(Relaxed) as c_int).map(|fd| (fd, word(fd)))
}

/// A description by its number.
#[inline(always)]
pub fn description(index: u32) -> &'static Description {
    if let Some(own) = own::description(index) {
        return own;
    }
    // SAFETY: within the table, mapped for good before the first word could name one; all atomics.
    unsafe { &*DESCRIPTIONS.load(Relaxed).add(index as usize) }
}

/// One more descriptor of a description. `false`: the process has none of it any more.
pub fn hold(index: u32) -> bool {
    own::hold(index).unwrap_or_else(|| holders::hold(index))
}

/// One descriptor fewer. Whether it was the last of all.
pub fn let_go(index: u32) -> bool {
    own::let_go(index).unwrap_or_else(|| holders::let_go(index))
}

/// Run by a forked child.
pub fn in_child() {
    own::in_child();
    holders::in_child();
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
    description(index).begin_life(flags, look);
    Some(index)
}

fn take_free() -> Option<u32> {
    let start = NEXT_FREE.load(Relaxed) as u32;
    // Number 0 is left out.
    (start..DESCRIPTIONS_MAX as u32)
        .chain(1..start)
        .find(|&index| !description(index).is_locked() && holders::take(index))
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
