//! What `holders.rs` finds around it in the library, over simulated processes: words of descriptors, descriptions, the kernel's files.

#[allow(dead_code)]
#[path = "../../src/table/holders.rs"]
pub mod holders;

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::explored::{AtomicU32, AtomicU64, Bug, Object, liveness, me, note, now, planted, point};

/// Few, so that they are used again and again.
const DESCRIPTIONS_MAX: usize = 64;
/// Descriptors of a process at most.
pub const FDS: usize = 12;
/// Words that a process has for itself, beside its counts.
pub const WORDS: usize = 12;
pub const PRIVATE: usize = WORDS + DESCRIPTIONS_MAX;
/// Descriptions from this one on are not used: the fewer there are, the sooner one is used again.
const USED: u32 = 7;

pub const REACHED: u32 = 8;
pub const STICKS: u32 = 16;

static NEXT_FREE: AtomicUsize = AtomicUsize::new(1);
static COUNTS: [AtomicU32; DESCRIPTIONS_MAX] = [const { AtomicU32::new(0) }; DESCRIPTIONS_MAX];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    pub const NONE: Word = Word(0);

    pub fn is_file(self) -> bool {
        self != Self::NONE
    }

    pub fn is_shared(self) -> bool {
        self.is_file()
    }

    pub fn description_index(self) -> u32 {
        self.0 as u32
    }
}

#[repr(C, align(64))]
pub struct Description {
    holders: AtomicU32,
    flags: AtomicU32,
    device: AtomicU64,
    inode: AtomicU64,
}

static DESCRIPTIONS: [Description; DESCRIPTIONS_MAX] = [const {
    Description {
        holders: AtomicU32::new(0),
        flags: AtomicU32::new(0),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
    }
}; DESCRIPTIONS_MAX];

pub fn description(index: u32) -> &'static Description {
    &DESCRIPTIONS[index as usize]
}

fn word(fd: usize) -> Word {
    point();
    Word(now().processes[me_or_first()].words[fd])
}

fn me_or_first() -> usize {
    match me() {
        usize::MAX => 0,
        me => me,
    }
}

pub fn shared_files() -> impl Iterator<Item = (i32, Word)> {
    let known = |fd| (fd as i32, word(fd));
    (0..FDS).map(known).filter(|(_, word)| word.is_file())
}

pub fn replace(fd: i32, before: Word, after: Word) -> bool {
    point();
    let me = me();
    let place = &mut now().processes[me].words[fd as usize];
    let same = *place == before.0;
    if same {
        *place = after.0;
    }
    same
}

/// What a process has for itself, beside its counts: a forked child gets a copy.
fn private() -> impl Iterator<Item = &'static AtomicU32> {
    let words = [&holders::SELF, &holders::THREADS, &holders::UNDER_WAY];
    holders::CHILDREN.iter().chain(words)
}

/// What the calling thread has for its next child, which begins with a copy of it.
pub fn given() -> &'static std::thread::LocalKey<std::cell::Cell<(u32, u64)>> {
    &holders::GIVEN
}

pub fn private_now() -> [u32; PRIVATE] {
    let mut all = [0; PRIVATE];
    let words = private().map(|word| word.raw().load(SeqCst));
    let next = std::iter::once(NEXT_FREE.load(SeqCst) as u32);
    let counts = COUNTS.iter().map(|word| word.raw().load(SeqCst));
    all.iter_mut()
        .zip(words.chain(next).chain(counts))
        .for_each(|(to, from)| *to = from);
    all
}

pub fn put_private(all: [u32; PRIVATE]) {
    let (words, counts) = all.split_at(WORDS);
    for (word, value) in private().zip(words) {
        word.raw().store(*value, SeqCst);
    }
    NEXT_FREE.store(words[WORDS - 1] as usize, SeqCst);
    for (word, value) in COUNTS.iter().zip(counts) {
        word.raw().store(*value, SeqCst);
    }
}

/// A child finds its counts wiped.
pub fn wipe_counts() {
    COUNTS.iter().for_each(|word| word.raw().store(0, SeqCst));
}

/// What relatives share is as it was before there was anybody.
pub fn begin_anew() {
    let family = holders::FAMILY.load(SeqCst);
    let family = if family.is_null() {
        // SAFETY: all atomics, for which zeros are good.
        Box::leak(unsafe { Box::<holders::Family>::new_zeroed().assume_init() })
    } else {
        family
    };
    // SAFETY: nobody of an earlier run is left; all atomics, for which zeros are good.
    unsafe { std::ptr::write_bytes(family, 0, 1) };
    holders::FAMILY.store(family, SeqCst);
    holders::OWN.store(COUNTS.as_ptr().cast_mut(), SeqCst);
    for it in &DESCRIPTIONS {
        it.holders.raw().store(0, SeqCst);
        it.flags.raw().store(0, SeqCst);
    }
}

/// The inode of the file that a description was taken for.
pub fn inode_of(index: u32) -> u64 {
    description(index).inode.raw().load(SeqCst)
}

/// As if the process had a descriptor of everything: it lets go of nothing.
pub fn keep_all() {
    COUNTS.iter().for_each(|word| word.raw().store(1, SeqCst));
}

/// The process executes a program that knows of nothing, if it has no other thread.
pub fn execute() {
    let me = me();
    let mut now = now();
    let process = &mut now.processes[me];
    if process.tasks == 1 {
        process.executed = true;
        process.noticed = false;
    }
}

/// Descriptions that somebody holds.
pub fn held() -> Vec<(u32, u32)> {
    let holders = (0..).zip(&DESCRIPTIONS);
    let holders = holders.map(|(index, it)| (index, it.holders.raw().load(SeqCst)));
    holders.filter(|(_, count)| *count != 0).collect()
}

/// As `table::new_description`: for a file that the kernel has just opened.
fn new_description(object: Object) -> Option<u32> {
    let take_free = || {
        let start = (NEXT_FREE.load(Relaxed) as u32).clamp(1, USED);
        (start..USED)
            .chain(1..start)
            .find(|&index| holders::take(index))
    };
    let index = take_free().or_else(|| {
        holders::let_the_dead_go();
        take_free()
    })?;
    NEXT_FREE.store(index as usize + 1, Relaxed);
    let it = description(index);
    it.flags.store(0, Relaxed);
    it.device.store(1, Relaxed);
    it.inode.store(object.inode, Relaxed);
    now().objects.insert(index, object);
    Some(index)
}

fn set(fd: usize, word: Word) {
    point();
    let me = me();
    now().processes[me].words[fd] = word.0;
    if !planted(Bug::UntoldOpening) {
        holders::opened(word);
    }
    tell(fd);
}

/// Whoever is forked from now on has the descriptor counted.
fn tell(fd: usize) {
    let me = me();
    let process = &mut now().processes[me];
    if let Some(object) = process.fds.get(&fd) {
        process.told.insert((fd, object.id));
    }
}

/// `open`.
pub fn open() -> Option<usize> {
    point();
    let me = me();
    let (fd, object) = {
        let mut now = now();
        let fd = (0..FDS).find(|fd| !now.processes[me].fds.contains_key(fd))?;
        now.opened += 1;
        let id = now.opened;
        // Two files, so that another opening of the same one is not told by its numbers.
        let inode = 1 + id % 2;
        let object = Object { id, inode };
        now.processes[me].fds.insert(fd, object);
        (fd, object)
    };
    note(&format!("has opened {fd}, {object:?}"));
    if let Some(index) = new_description(object) {
        note(&format!("gives {fd} description {index}"));
        set(fd, Word(u64::from(index)));
    }
    Some(fd)
}

/// `close`.
pub fn close(fd: usize) {
    let known = word(fd);
    note(&format!("closes {fd}, {known:?}"));
    if known.is_file() && replace(fd as i32, known, Word::NONE) {
        holders::let_go(known.description_index());
    }
    point();
    let me = me();
    let process = &mut now().processes[me];
    process.fds.remove(&fd);
    process.excused.remove(&fd);
}

/// `dup`, of a descriptor that nobody closes meanwhile.
pub fn dup(from: usize) -> Option<usize> {
    point();
    let me = me();
    let to = {
        let mut now = now();
        let process = &mut now.processes[me];
        let object = *process.fds.get(&from)?;
        let to = (0..FDS).find(|fd| !process.fds.contains_key(fd))?;
        process.fds.insert(to, object);
        process.told.remove(&(to, object.id));
        // What an inherited one is mistaken for, its duplicate is.
        if process.excused.contains(&from) {
            process.excused.insert(to);
        }
        to
    };
    note(&format!("duplicates {from} to {to}"));
    let known = word(from);
    if known.is_file() && holders::hold(known.description_index()) {
        set(to, known);
    }
    Some(to)
}

/// What each descriptor's word says is what is behind it, in every process that has looked at what it has inherited.
pub fn look() {
    let mut now = now();
    let mut wrong = None;
    for (number, process) in now.processes.iter().enumerate() {
        if process.dead || !process.noticed {
            continue;
        }
        for (fd, object) in &process.fds {
            let word = Word(process.words[*fd]);
            let taken_for = now.objects.get(&word.description_index());
            let same = taken_for.is_some_and(|taken_for| match process.excused.contains(fd) {
                true => taken_for.inode == object.inode,
                false => taken_for == object,
            });
            if word.is_file() && !same {
                wrong = Some(format!(
                    "descriptor {fd} of process {number} is {object:?}, and its description {} is {:?}",
                    word.description_index(),
                    now.objects.get(&word.description_index())
                ));
            }
        }
    }
    if let Some(wrong) = wrong
        && now.mixed.is_none()
    {
        now.history.push("here it is seen".into());
        now.mixed = Some(wrong);
    }
}
