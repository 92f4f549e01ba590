//! A header as a value, for code that looks at all of them at once: the arena checker.

use crate::frame::header::{Header, Identity, State};
use crate::frame::page::{PageWord, Ragged};
use crate::ids::{FrameId, ThreadId};
use crate::limits::BLOCK_PAGES;
use crate::sync::Ordering;

/// What a header's words said, each at the moment it was read.
#[derive(Clone, Debug)]
pub struct Look {
    /// The holder of the lock.
    pub holder: Option<ThreadId>,
    /// The state word.
    pub state: State,
    /// File and block.
    pub identity: Option<Identity>,
    /// Pages all of whose bytes are in memory.
    pub valid: u64,
    /// Pages with bytes that the device lacks.
    pub dirty: u64,
    /// Pages in flight.
    pub inflight: u64,
    /// Whose write is in flight.
    pub flusher: ThreadId,
    /// The frame.
    pub frame: Option<FrameId>,
    /// Pages charged.
    pub charged: u32,
    /// The pages' words.
    pub pages: [PageWord; BLOCK_PAGES],
}

impl Header {
    /// Reads every word once, without the lock.
    pub fn look(&self) -> Look {
        Look {
            holder: self.holder(),
            state: self.state(),
            identity: self.identity(),
            valid: self.valid.load(Ordering::Acquire),
            dirty: self.dirty.load(Ordering::Acquire),
            inflight: self.inflight(),
            flusher: self.flusher(),
            frame: self
                .frame
                .load(Ordering::Acquire)
                .checked_sub(1)
                .map(FrameId),
            charged: self.charged(),
            pages: std::array::from_fn(|i| PageWord(self.pages[i].load(Ordering::Acquire))),
        }
    }
}

impl Look {
    /// Pages that owe bytes to the device.
    pub fn owed(&self) -> u64 {
        self.dirty | self.inflight
    }

    /// Pages that have a small frame.
    pub fn small_pages(&self) -> u64 {
        self.pages_where(|word| word.small().is_some())
    }

    /// Pages of which a word says that some bytes are in memory.
    pub fn ragged_words(&self) -> u64 {
        self.pages_where(|word| word.ragged() != Ragged::None)
    }

    /// Pages whose word passes a test.
    pub fn pages_where(&self, test: impl Fn(PageWord) -> bool) -> u64 {
        let passes = |i: &usize| test(self.pages[*i]);
        (0..BLOCK_PAGES)
            .filter(passes)
            .fold(0, |mask, i| mask | 1 << i)
    }

    /// What the charge should be: a frame counts whole, small frames by the page.
    pub fn charge_due(&self) -> u32 {
        match self.owed() {
            0 => 0,
            _ if self.frame.is_some() => BLOCK_PAGES as u32,
            owed => owed.count_ones(),
        }
    }
}
