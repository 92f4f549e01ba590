//! Simulated memory: keeps what was stored, and when what was flushed and fenced, so that a test can ask what
//! memory may hold after a crash.
//!
//! Two machines are simulated. *DAX*: a store reaches memory at any time, each line of 64 bytes for itself,
//! and within a line in the order of its stores, word by word. What was flushed or streamed before a fence is
//! there after it; bytes of files need a fence of their own writer (`For::Data`), which no other thread's
//! fence stands in for, and so does metadata where it belongs (`For::Home`): the next commit may be another thread's. *File*: sectors of 512 bytes reach the disk at any time, flushes and fences do
//! nothing, and a sync brings everything.
//!
//! What a program stores to a window is noticed when the store does something next, and is a store like others.
//!
//! A call of one kind can be left out: that is the bug which a canary plants.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{AddAssign, Range};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::errno::Result;
use crate::medium::{Durability, For, Medium};

const PAGE: usize = 4096;

/// Calls that can be left out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Call {
    Flush,
    /// A flush of this block alone, where several have one purpose.
    FlushOf(u64),
    Fence,
    Sync,
}

/// What happened to the memory.
#[derive(Clone, Debug)]
pub enum Event {
    Store {
        at: usize,
        bytes: Vec<u8>,
        streamed: Option<For>,
    },
    Flush {
        at: usize,
        length: usize,
        purpose: For,
    },
    Fence {
        purpose: For,
    },
    Sync,
    /// So many operations have been called, and so many of them are durable by promise.
    Mark {
        called: usize,
        durable: usize,
    },
}

/// What memory holds. A large store may be had without a part of it that nobody is to touch.
#[derive(Clone)]
pub struct Image {
    pub bytes: Vec<u8>,
    /// Where bytes are left out.
    pub gap: Range<usize>,
}

impl From<Vec<u8>> for Image {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, gap: 0..0 }
    }
}

struct Inside {
    /// What was stored last, as far as it is known: a program stores to its windows without a word.
    bytes: Vec<u8>,
    /// What was stored last. Views and windows lead here, so it is touched by address only.
    memory: *mut [u8],
    /// Pages that windows have been in.
    windows: BTreeSet<usize>,
    events: Option<Vec<Event>>,
    /// Flushes, fences and syncs that were called, left out or not.
    calls: BTreeSet<(Call, For)>,
}

// SAFETY: what `memory` leads to is this value's own, and lives as long.
unsafe impl Send for Inside {}

impl Inside {
    fn new(bytes: Vec<u8>, events: Option<Vec<Event>>) -> Self {
        Self {
            memory: Box::into_raw(bytes.clone().into_boxed_slice()),
            bytes,
            windows: BTreeSet::new(),
            events,
            calls: BTreeSet::new(),
        }
    }

    fn place(&self, at: usize, length: usize) -> *mut u8 {
        assert!(at + length <= self.bytes.len(), "{length} bytes at {at}");
        self.memory.cast::<u8>().wrapping_add(at)
    }

    /// Notes what programs have stored to windows: word by word, as it reaches memory.
    fn notice(&mut self) {
        for start in self.windows.iter().map(|page| page * PAGE) {
            // SAFETY: within the memory, which lives; a test does not store to a window while something else happens to the store.
            let now = unsafe { std::slice::from_raw_parts(self.place(start, PAGE), PAGE) };
            if now == &self.bytes[start..start + PAGE] {
                continue;
            }
            for (at, word) in (start..).step_by(8).zip(now.chunks(8)) {
                if *word == self.bytes[at..at + 8] {
                    continue;
                }
                self.bytes[at..at + 8].copy_from_slice(word);
                if let Some(events) = &mut self.events {
                    let (bytes, streamed) = (word.to_vec(), None);
                    events.push(Event::Store {
                        at,
                        bytes,
                        streamed,
                    });
                }
            }
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, and dropped once; views and windows have kept the medium, and are gone.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

/// Simulated memory.
pub struct Simulated {
    durability: Durability,
    omitted: Option<(Call, For)>,
    gap: Range<usize>,
    inside: Mutex<Inside>,
}

impl Simulated {
    pub fn new(image: impl Into<Image>, durability: Durability) -> Arc<Self> {
        let Image { bytes, gap } = image.into();
        let inside = Mutex::new(Inside::new(bytes, None));
        Arc::new(Self {
            durability,
            omitted: None,
            gap,
            inside,
        })
    }

    /// Records from now on, and leaves out calls of one kind.
    pub fn recording(
        image: impl Into<Image>,
        durability: Durability,
        omitted: Option<(Call, For)>,
    ) -> Arc<Self> {
        let Image { bytes, gap } = image.into();
        let inside = Mutex::new(Inside::new(bytes, Some(Vec::new())));
        Arc::new(Self {
            durability,
            omitted,
            gap,
            inside,
        })
    }

    /// Where a byte of the store lies among those that there are.
    fn within(&self, at: u64) -> usize {
        let at = at as usize;
        assert!(!self.gap.contains(&at), "{at}: left out");
        if at < self.gap.start {
            at
        } else {
            at - self.gap.len()
        }
    }

    pub fn image(&self) -> Image {
        let gap = self.gap.clone();
        let bytes = self.bytes();
        Image { bytes, gap }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    /// What was called to make something durable.
    pub fn calls(&self) -> BTreeSet<(Call, For)> {
        self.lock().calls.clone()
    }

    /// Notes a call. Whether it is left out.
    fn omits(&self, call: Call, purpose: For) -> bool {
        self.lock().calls.insert((call, purpose));
        self.omitted == Some((call, purpose))
    }

    pub fn mark(&self, called: usize, durable: usize) {
        self.event(Event::Mark { called, durable });
    }

    /// How much has happened.
    pub fn events_count(&self) -> usize {
        self.lock().events.as_ref().map_or(0, Vec::len)
    }

    pub fn events(&self) -> Vec<Event> {
        self.lock().events.clone().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        let inside = self.inside.lock();
        let mut inside = inside.unwrap_or_else(|poisoned| poisoned.into_inner());
        inside.notice();
        inside
    }

    fn event(&self, event: Event) {
        if let Some(events) = &mut self.lock().events {
            events.push(event);
        }
    }

    fn store(&self, at: u64, bytes: &[u8], streamed: Option<For>) {
        let at = self.within(at);
        let mut inside = self.lock();
        inside.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        let to = inside.place(at, bytes.len());
        // SAFETY: within the memory, which lives; no view and no window has these bytes, or the store has a bug that tests see.
        unsafe { bytes.as_ptr().copy_to(to, bytes.len()) };
        if let Some(events) = &mut inside.events {
            events.push(Event::Store {
                at,
                bytes: bytes.to_vec(),
                streamed,
            });
        }
    }
}

impl Medium for Simulated {
    fn length(&self) -> u64 {
        (self.lock().bytes.len() + self.gap.len()) as u64
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn address(&self, at: u64, length: usize, writable: bool) -> *mut u8 {
        let (at, mut inside) = (self.within(at), self.lock());
        if writable {
            inside
                .windows
                .extend(at / PAGE..(at + length).div_ceil(PAGE));
        }
        inside.place(at, length)
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let at = self.within(at);
        into.copy_from_slice(&self.lock().bytes[at..at + into.len()]);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.store(at, bytes, None);
    }

    fn stream(&self, at: u64, bytes: &[u8], purpose: For) {
        self.store(at, bytes, Some(purpose));
    }

    fn flush(&self, at: u64, length: u64, purpose: For) {
        let block = Call::FlushOf(at / PAGE as u64);
        let is_tail = purpose == For::Tail;
        if !(self.omits(Call::Flush, purpose) || is_tail && self.omits(block, purpose)) {
            let (at, length) = (self.within(at), length as usize);
            self.event(Event::Flush {
                at,
                length,
                purpose,
            });
        }
    }

    fn fence(&self, purpose: For) {
        assert!(
            matches!(purpose, For::Data | For::Home),
            "fences of whoever stores: {purpose:?}"
        );
        if !self.omits(Call::Fence, purpose) {
            self.event(Event::Fence { purpose });
        }
    }

    fn sync(&self, purpose: For) -> Result<()> {
        if !self.omits(Call::Sync, purpose) {
            self.event(Event::Sync);
        }
        Ok(())
    }
}

/// A line, or a sector, that memory may hold in several versions.
#[derive(Clone)]
struct Line {
    /// The oldest that it may be.
    base: Vec<u8>,
    /// Each later one, as a change of the one before: where, and the bytes. A store of what is there already makes none.
    changes: Vec<(usize, Vec<u8>)>,
    /// What the last change has left.
    last: Vec<u8>,
    /// Changes that are on their way by the committer, by writers of data, and by who has committed before.
    flushed: [usize; 3],
}

impl Line {
    fn version(&self, number: usize) -> Vec<u8> {
        let mut bytes = self.base.clone();
        for (at, new) in &self.changes[..number] {
            bytes[*at..*at + new.len()].copy_from_slice(new);
        }
        bytes
    }

    fn settle(&mut self, whose: usize) {
        let settled = self.flushed[whose];
        self.base = self.version(settled);
        self.changes.drain(..settled);
        self.flushed = self.flushed.map(|flushed| flushed.saturating_sub(settled));
    }
}

/// Memory in the course of recorded events: what is certain, and what may be.
#[derive(Clone)]
pub struct Course {
    durability: Durability,
    certain: Vec<u8>,
    lines: BTreeMap<usize, Line>,
}

impl Course {
    pub fn new(start: Vec<u8>, durability: Durability) -> Self {
        Self {
            durability,
            certain: start,
            lines: BTreeMap::new(),
        }
    }

    fn line_bytes(&self) -> usize {
        match self.durability {
            Durability::Dax => 64,
            Durability::Fdatasync => 512,
        }
    }

    /// Stores are cut into words, which reach memory one after the other.
    fn word_bytes(&self) -> usize {
        match self.durability {
            Durability::Dax => 8,
            Durability::Fdatasync => 512,
        }
    }

    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Store {
                at,
                bytes,
                streamed,
            } => self.store(*at, bytes, *streamed),
            Event::Flush {
                at,
                length,
                purpose,
            } => self.flush(*at, *length, *purpose),
            Event::Fence { purpose } => self.settle(whose(*purpose)),
            // A committer's `sfence` says nothing of what other threads have streamed.
            Event::Sync if self.durability == Durability::Dax => self.settle(COMMITTER),
            Event::Sync => {
                for (line, pending) in std::mem::take(&mut self.lines) {
                    let last = pending.version(pending.changes.len());
                    self.certain[line..line + last.len()].copy_from_slice(&last);
                }
            }
            Event::Mark { .. } => {}
        }
    }

    /// The process is killed: nobody's fence says anything any more of what it has flushed and streamed.
    pub fn killed(&mut self) {
        self.lines
            .values_mut()
            .for_each(|line| line.flushed = [0; 3]);
    }

    fn store(&mut self, at: usize, bytes: &[u8], streamed: Option<For>) {
        let (size, word) = (self.line_bytes(), self.word_bytes());
        let mut from = 0;
        while from < bytes.len() {
            let place = at + from;
            let start = place / size * size;
            let until = (bytes.len() - from).min(word - place % word);
            let base = &self.certain[start..start + size];
            let line = self.lines.entry(start).or_insert_with(|| Line {
                base: base.to_vec(),
                changes: Vec::new(),
                last: base.to_vec(),
                flushed: [0; 3],
            });
            let (new, at) = (&bytes[from..from + until], place - start);
            if line.last[at..at + until] != *new {
                line.last[at..at + until].copy_from_slice(new);
                line.changes.push((at, new.to_vec()));
            }
            if let Some(purpose) = streamed {
                line.flushed[whose(purpose)] = line.changes.len();
            }
            from += until;
        }
    }

    fn flush(&mut self, at: usize, length: usize, purpose: For) {
        if self.durability == Durability::Dax {
            for (_, line) in self.lines.range_mut(at / 64 * 64..at + length) {
                line.flushed[whose(purpose)] = line.changes.len();
            }
        }
    }

    fn settle(&mut self, whose: usize) {
        if self.durability == Durability::Fdatasync {
            return;
        }
        for (start, line) in &mut self.lines {
            line.settle(whose);
            self.certain[*start..*start + line.base.len()].copy_from_slice(&line.base);
        }
        self.lines.retain(|_, line| !line.changes.is_empty());
    }

    /// What memory may hold now: all of it if that is at most `limit` states, else as many by chance and the
    /// extremes of each line. Each goes to `see`.
    pub fn states(
        &self,
        limit: usize,
        random: &mut Random,
        mut see: impl FnMut(Vec<u8>),
    ) -> Explored {
        let lines: Vec<(usize, &Line)> = self
            .lines
            .iter()
            .map(|(start, line)| (*start, line))
            .collect();
        let counts: Vec<usize> = lines
            .iter()
            .map(|(_, line)| line.changes.len() + 1)
            .collect();
        let all = counts
            .iter()
            .try_fold(1usize, |all, count| all.checked_mul(*count));
        let is_whole = all.is_some_and(|all| all <= limit);
        let mut states = 0;
        let image = |choice: &[usize]| {
            let mut bytes = self.certain.clone();
            for ((start, line), version) in lines.iter().zip(choice) {
                let version = line.version(*version);
                bytes[*start..*start + version.len()].copy_from_slice(&version);
            }
            states += 1;
            see(bytes);
        };
        if is_whole {
            enumerate(&counts, image);
        } else {
            sample(&counts, limit, random, image);
        }
        Explored {
            states,
            whole: usize::from(is_whole),
            sampled: usize::from(!is_whole),
        }
    }
}

/// How many states were seen, and of how many moments: of some all that memory may hold, of others a sample.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Explored {
    pub states: usize,
    pub whole: usize,
    pub sampled: usize,
}

impl AddAssign for Explored {
    fn add_assign(&mut self, other: Self) {
        self.states += other.states;
        self.whole += other.whole;
        self.sampled += other.sampled;
    }
}

/// Each choice of a version for each line, of so many.
fn enumerate(counts: &[usize], mut image: impl FnMut(&[usize])) {
    let mut choice = vec![0; counts.len()];
    loop {
        image(&choice);
        let Some(next) = (0..counts.len()).find(|line| choice[*line] + 1 < counts[*line]) else {
            return;
        };
        choice[next] += 1;
        choice[..next].fill(0);
    }
}

/// Choices by chance, and the extremes of each line.
fn sample(counts: &[usize], limit: usize, random: &mut Random, mut image: impl FnMut(&[usize])) {
    let full: Vec<usize> = counts.iter().map(|count| count - 1).collect();
    image(&vec![0; counts.len()]);
    image(&full);
    for turn in 0..limit / 2 {
        let line = random.below(counts.len());
        let mut choice = if turn % 2 == 0 {
            full.clone()
        } else {
            vec![0; counts.len()]
        };
        choice[line] = if turn % 2 == 0 {
            random.below(counts[line])
        } else {
            full[line]
        };
        image(&choice);
        let share = random.below(5);
        let chosen = counts.iter().map(|count| match random.below(4) {
            part if part < share => count - 1,
            3 => random.below(*count),
            _ => 0,
        });
        image(&chosen.collect::<Vec<_>>());
    }
}

const COMMITTER: usize = 0;
const WRITERS: usize = 1;
const HOMES: usize = 2;

fn whose(purpose: For) -> usize {
    match purpose {
        For::Data => WRITERS,
        For::Home => HOMES,
        _ => COMMITTER,
    }
}

/// Numbers that follow from a seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x6a09_e667_f3bc_c908)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}
