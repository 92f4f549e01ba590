//! What readers ask the keeper to read ahead: a few words in the file's entry, one for each part of a block.
//!
//! ```text
//! none --> asked --> taken(thread) --> none         by compare-and-swap of the one word, each
//!   ^        |            |
//!   +--------+            +--> given up --> none    a reader has waited long enough: nobody waits any more
//!   taken back by a reader that needs it now
//! ```
//!
//! All of it is hints: a word that is lost, or overwritten by a newer one, costs a reader the read that it would have been
//! spared. Bytes come into memory by the protocol of fills (`docs/locking.md`), whatever these words say.

use crate::ids::{BlockIndex, ThreadId};
use crate::limits::BLOCK_PAGES;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Asks that a file has room for: two windows of whole blocks.
pub const ASKS: usize = 64;

/// Pages of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The block.
    pub block: BlockIndex,
    /// The first page.
    pub first: u8,
    /// The last page.
    pub last: u8,
}

impl Ask {
    /// All pages of a block.
    pub fn whole(block: BlockIndex) -> Self {
        Ask {
            block,
            first: 0,
            last: BLOCK_PAGES as u8 - 1,
        }
    }

    /// The pages.
    pub fn pages(&self) -> u64 {
        let (first, last) = (u32::from(self.first), u32::from(self.last));
        u64::MAX >> (BLOCK_PAGES as u32 - 1 - (last - first)) << first
    }
}

/// How far an ask has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nobody has begun.
    Asked,
    /// This thread reads it.
    Taken(ThreadId),
    /// It may still be read; nobody waits for it.
    GivenUp(ThreadId),
}

const ASKED: u64 = 1;
const TAKEN: u64 = 2;
const GIVEN_UP: u64 = 3;
const KIND_BITS: u32 = 2;
const PAGE_BITS: u32 = 6;
const THREAD_BITS: u32 = 12;
const FIRST_AT: u32 = KIND_BITS;
const LAST_AT: u32 = FIRST_AT + PAGE_BITS;
const THREAD_AT: u32 = LAST_AT + PAGE_BITS;
const BLOCK_AT: u32 = THREAD_AT + THREAD_BITS;

const _: () = assert!(BLOCK_AT + 32 <= u64::BITS && BLOCK_PAGES == 1 << PAGE_BITS);
const _: () = assert!(crate::limits::THREADS_MAX <= 1 << THREAD_BITS);

fn pack(ask: Ask, stage: Stage) -> u64 {
    let (kind, thread) = match stage {
        Stage::Asked => (ASKED, 0),
        Stage::Taken(thread) => (TAKEN, thread.0),
        Stage::GivenUp(thread) => (GIVEN_UP, thread.0),
    };
    kind | u64::from(ask.first) << FIRST_AT
        | u64::from(ask.last) << LAST_AT
        | u64::from(thread) << THREAD_AT
        | u64::from(ask.block.0) << BLOCK_AT
}

fn unpack(word: u64) -> Option<(Ask, Stage)> {
    let page = |at: u32| (word >> at) as u8 & (BLOCK_PAGES as u8 - 1);
    let thread = ThreadId((word >> THREAD_AT) as u32 & ((1 << THREAD_BITS) - 1));
    let stage = match word & ((1 << KIND_BITS) - 1) {
        ASKED => Stage::Asked,
        TAKEN => Stage::Taken(thread),
        GIVEN_UP => Stage::GivenUp(thread),
        _ => return None,
    };
    let ask = Ask {
        block: BlockIndex((word >> BLOCK_AT) as u32),
        first: page(FIRST_AT),
        last: page(LAST_AT),
    };
    (ask.first <= ask.last).then_some((ask, stage))
}

/// The asks of one file, in its entry.
#[repr(C)]
pub struct Asks {
    words: [AtomicU64; ASKS],
    /// Where the next one goes; the oldest is there.
    next: AtomicU32,
    /// The keeper (its epoch + 1) that cannot read the file, or 0.
    refused: AtomicU32,
}

/// A word that covers what a reader wants.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    slot: usize,
    word: u64,
    /// How far it has come.
    pub stage: Stage,
}

impl Asks {
    fn change(&self, slot: usize, from: u64, to: u64) -> bool {
        self.words[slot]
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Asks. An older ask that nobody has begun gives way. `false`: all words are taken.
    pub fn ask(&self, ask: Ask) -> bool {
        for _ in 0..ASKS {
            let slot = self.next.fetch_add(1, Ordering::Relaxed) as usize % ASKS;
            let seen = self.words[slot].load(Ordering::Relaxed);
            let free = unpack(seen).is_none_or(|(_, stage)| stage == Stage::Asked);
            if free && self.change(slot, seen, pack(ask, Stage::Asked)) {
                return true;
            }
        }
        false
    }

    /// Takes the ask that has waited longest, to carry it out: its slot.
    pub fn take(&self, by: ThreadId) -> Option<(usize, Ask)> {
        let oldest = self.next.load(Ordering::Acquire) as usize;
        for slot in (oldest..oldest + ASKS).map(|slot| slot % ASKS) {
            let seen = self.words[slot].load(Ordering::Acquire);
            if let Some((ask, Stage::Asked)) = unpack(seen)
                && self.change(slot, seen, pack(ask, Stage::Taken(by)))
            {
                return Some((slot, ask));
            }
        }
        None
    }

    /// What was taken has been read, or will not be.
    pub fn end(&self, slot: usize, ask: Ask, by: ThreadId) {
        for stage in [Stage::Taken(by), Stage::GivenUp(by)] {
            if self.change(slot, pack(ask, stage), 0) {
                return;
            }
        }
    }

    /// An ask that covers some of these pages, and has not been given up.
    pub fn covering(&self, block: BlockIndex, pages: u64) -> Option<Found> {
        (0..ASKS).find_map(|slot| {
            let word = self.words[slot].load(Ordering::Acquire);
            let (ask, stage) = unpack(word)?;
            let covers = ask.block == block && ask.pages() & pages != 0;
            let live = !matches!(stage, Stage::GivenUp(_));
            (covers && live).then_some(Found { slot, word, stage })
        })
    }

    /// A reader reads by itself what nobody has begun. `false`: somebody has, meanwhile.
    pub fn take_back(&self, found: &Found) -> bool {
        self.change(found.slot, found.word, 0)
    }

    /// A reader has waited for long enough: neither it nor anybody else waits for this one any more.
    pub fn give_up(&self, found: &Found) {
        if let Some((ask, Stage::Taken(by))) = unpack(found.word) {
            self.change(found.slot, found.word, pack(ask, Stage::GivenUp(by)));
        }
    }

    /// Takes back what nobody has begun of blocks `from..until`.
    pub fn withdraw(&self, from: u64, until: u64) {
        for (slot, word) in self.words.iter().enumerate() {
            let seen = word.load(Ordering::Relaxed);
            if let Some((ask, Stage::Asked)) = unpack(seen)
                && (from..until).contains(&u64::from(ask.block.0))
            {
                self.change(slot, seen, 0);
            }
        }
    }

    /// Takes away what threads that are gone had begun.
    pub fn forget(&self, is_gone: impl Fn(ThreadId) -> bool) {
        for (slot, word) in self.words.iter().enumerate() {
            let seen = word.load(Ordering::Relaxed);
            let gone = match unpack(seen) {
                Some((_, Stage::Taken(by) | Stage::GivenUp(by))) => is_gone(by),
                Some((_, Stage::Asked)) => false,
                None => seen != 0,
            };
            if gone {
                self.change(slot, seen, 0);
            }
        }
    }

    /// Nothing is asked: the entry is being made.
    pub fn clear(&self) {
        self.words
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        self.refused.store(0, Ordering::Relaxed);
    }

    /// The keeper of this epoch cannot read the file: it is not asked again.
    pub fn refuse(&self, epoch: u32) {
        self.refused.store(epoch.wrapping_add(1), Ordering::Relaxed);
        self.withdraw(0, u64::MAX);
    }

    /// By now it can.
    pub fn accept(&self) {
        self.refused.store(0, Ordering::Relaxed);
    }

    /// Whether the keeper of this epoch has said that it cannot.
    pub fn is_refused_by(&self, epoch: u32) -> bool {
        self.refused.load(Ordering::Relaxed) == epoch.wrapping_add(1)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
