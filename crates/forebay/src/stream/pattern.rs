//! Recognising streams among the reads of an open description.
//!
//! A [`Tracker`] is told of reads that find something missing, of large ones, and of those that reach a block at which it
//! asked to be told (a *mark*): what is in memory is read without it. It follows a few streams at once: ascending, descending,
//! and reads at equal distances. Of a stream that it has recognised it says what to read ahead: a window that doubles each time that
//! the stream has used up half of what was read ahead.
//!
//! Source: StreamCache 4.1 follows the pages that are cached, to write back and evict by streams; recognising who reads is what
//! kernels do. One stream pointer becomes a handful here, since one description may be read in several places.

use crate::ids::BlockIndex;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::memory::asks::Ask;

/// Streams that a description's reads are told apart into.
const STREAMS: usize = 8;
/// Longest gap between two requests of a stream.
const GAP_MAX: u64 = 4 * PAGE_BYTES as u64;
/// Requests that go on where the one before has ended, after which it is a stream.
const FOLLOWERS_MIN: u32 = 2;
/// Requests at equal distances, after which they are a stream.
const EQUAL_MIN: u32 = 2;
/// Equal distances up to this are a stream with gaps: whole blocks are read ahead.
const STRIDE_DENSE_MAX: u64 = 64 * 1024;
/// Equal distances beyond this are taken for chance.
const STRIDE_MAX: u64 = 64 * 1024 * 1024;
/// Parts of a stream of equal distances that are read ahead at most.
const PARTS_MAX: u32 = 16;
/// Blocks that are read ahead of a stream first.
const WINDOW_MIN: u32 = 2;
/// A request of this many bytes brings its whole block, so that the next that is told of is in another block; and it counts for
/// more than one.
pub const LARGE_BYTES: u64 = 64 * 1024;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What a program has said about its reads (`posix_fadvise`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// Nothing.
    #[default]
    Normal,
    /// One after the other: read ahead from the first one on.
    Sequential,
    /// Anywhere: nothing is read ahead.
    Random,
}

/// What reads may come to.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Longest window, blocks; at least 1.
    pub window_max: u32,
    /// The file's size, bytes.
    pub size: u64,
    /// What the program has said.
    pub advice: Advice,
}

/// What is to be read ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Run {
    /// Nothing.
    #[default]
    None,
    /// `count` blocks from `first` on, upwards or downwards.
    Blocks {
        /// The block that is needed first.
        first: u32,
        /// How many.
        count: u32,
        /// Whether the next one is the one below.
        down: bool,
    },
    /// `count` parts of `len` bytes, `stride` bytes from start to start.
    Parts {
        /// Where the first one begins.
        start: u64,
        /// Bytes of one.
        len: u64,
        /// From one to the next; below zero downwards.
        stride: i64,
        /// How many.
        count: u32,
    },
}

impl Run {
    /// Calls `ask` for each part of a block, in the order in which they are needed.
    pub fn for_each(&self, mut ask: impl FnMut(Ask)) {
        match *self {
            Run::None => {}
            Run::Blocks { first, count, down } => {
                let at = |index| if down { first - index } else { first + index };
                (0..count).for_each(|index| ask(Ask::whole(BlockIndex(at(index)))));
            }
            Run::Parts {
                start,
                len,
                stride,
                count,
            } => (0..i64::from(count)).for_each(|index| {
                let start = start.wrapping_add_signed(stride * index);
                parts_of(start, start + len).for_each(&mut ask);
            }),
        }
    }
}

/// The pages that the bytes `start..end` touch, a block at a time.
fn parts_of(start: u64, end: u64) -> impl Iterator<Item = Ask> {
    (start / BLOCK..=(end - 1) / BLOCK).map(move |block| {
        let page = |byte: u64| (byte / PAGE_BYTES as u64) as u8;
        let from = start.max(block * BLOCK) - block * BLOCK;
        let last = (end - 1).min(block * BLOCK + BLOCK - 1) - block * BLOCK;
        Ask {
            block: BlockIndex(block as u32),
            first: page(from),
            last: page(last),
        }
    })
}

/// What comes of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to read ahead.
    pub run: Run,
    /// The block at which to be told again.
    pub mark: Option<u32>,
    /// The read belongs to a stream: its block is worth a frame.
    pub recognised: bool,
    /// Blocks of a stream that has been given up, asked for and perhaps not read yet.
    pub given_up: std::ops::Range<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Empty,
    /// One request.
    New,
    Up,
    Down,
    Strided,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    kind: Kind,
    /// The last request.
    start: u64,
    end: u64,
    /// Up to where it has been asked for: the end of blocks, the start of those downwards, the start of the last part.
    frontier: u64,
    /// From the start of one request to that of the next.
    stride: i64,
    /// Requests that were as expected.
    hits: u32,
    /// Blocks or parts in the window; 0 before the first.
    window: u32,
    /// When it was last used.
    used: u64,
}

/// A request, and how often the ones before it were at the same distance from one another.
#[derive(Clone, Copy, Debug, Default)]
struct Stray {
    start: u64,
    len: u64,
    stride: i64,
    equal: u32,
}

impl Stray {
    /// The request after this one.
    fn then(self, start: u64, len: u64) -> Stray {
        let stride = start.wrapping_sub(self.start) as i64;
        let far = stride == 0 || stride.unsigned_abs() > STRIDE_MAX;
        let equal = !far && stride == self.stride && len == self.len;
        Stray {
            start,
            len,
            stride: if far { 0 } else { stride },
            equal: if equal { self.equal + 1 } else { 0 },
        }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Tracker {
    streams: [Stream; STREAMS],
    /// The last request that went on with none of them.
    stray: Stray,
    clock: u64,
}

impl Tracker {
    /// A read of `len` bytes at `offset` has reached the slow way; `len` is not 0.
    pub fn note(&mut self, offset: u64, len: u64, bounds: &Bounds) -> Plan {
        if bounds.advice == Advice::Random {
            return Plan::default();
        }
        self.clock += 1;
        let end = offset.saturating_add(len);
        let found = self.streams.iter().position(|s| s.expects(offset, end));
        let (index, given_up) = match found {
            Some(index) => (index, 0..0),
            None => self.replace(offset, end),
        };
        let stream = &mut self.streams[index];
        stream.used = self.clock;
        if found.is_some() {
            stream.goes_on(offset, end);
        }
        Plan {
            given_up,
            ..stream.plan(bounds)
        }
    }

    /// All that was asked for and perhaps not read yet is not wanted any more.
    pub fn forget(&mut self) {
        self.streams = Default::default();
        self.stray = Stray::default();
    }

    /// A new stream in the place of the one that has not been used for longest.
    fn replace(&mut self, offset: u64, end: u64) -> (usize, std::ops::Range<u64>) {
        let oldest = (0..STREAMS).min_by_key(|&index| self.streams[index].used);
        let index = oldest.unwrap_or(0);
        let given_up = self.streams[index].ahead();
        self.stray = self.stray.then(offset, end - offset);
        let new = Stream {
            start: offset,
            end,
            ..Stream::default()
        };
        let stride = self.stray.stride;
        let dense = (0..=STRIDE_DENSE_MAX as i64).contains(&stride);
        self.streams[index] = match self.stray.equal {
            // A reader that begins at the beginning mostly goes on.
            ..EQUAL_MIN => Stream {
                kind: Kind::New,
                hits: u32::from(offset == 0),
                ..new
            },
            equal => Stream {
                kind: if dense { Kind::Up } else { Kind::Strided },
                frontier: if dense { end } else { offset },
                hits: equal,
                stride,
                ..new
            },
        };
        (index, given_up)
    }
}

impl Stream {
    /// Whether a request goes on where the last has ended, or within what has been asked for since.
    fn expects(&self, offset: u64, end: u64) -> bool {
        let gap = GAP_MAX.max(self.stride.unsigned_abs());
        match self.kind {
            Kind::Empty => false,
            Kind::New => self.follows(offset) || self.precedes(end),
            Kind::Up => offset >= self.start && offset <= self.end.max(self.frontier) + gap,
            Kind::Down => {
                let low = self.start.min(self.frontier);
                end <= self.end && end >= low.saturating_sub(GAP_MAX)
            }
            Kind::Strided => self.steps_to(offset).is_some(),
        }
    }

    fn is_large(&self) -> bool {
        self.end - self.start >= LARGE_BYTES
    }

    fn follows(&self, offset: u64) -> bool {
        let block_end = self.end.next_multiple_of(BLOCK);
        let reach = if self.is_large() { block_end } else { self.end };
        (self.end..=reach + GAP_MAX).contains(&offset)
    }

    fn precedes(&self, end: u64) -> bool {
        let block = self.start / BLOCK * BLOCK;
        let reach = if self.is_large() { block } else { self.start };
        end <= self.start && end >= reach.saturating_sub(GAP_MAX)
    }

    /// How many distances a request is away from the last, if it is a whole number that may be expected.
    fn steps_to(&self, offset: u64) -> Option<u32> {
        let away = offset.wrapping_sub(self.start) as i64;
        let asked = (self.frontier.wrapping_sub(self.start) as i64) / self.stride;
        let steps = away.checked_div(self.stride)?;
        let fits = steps >= 1 && steps <= asked.max(0) + 1 && steps * self.stride == away;
        fits.then_some(steps as u32)
    }

    fn goes_on(&mut self, offset: u64, end: u64) {
        let len = end - offset;
        let large = u32::from(len >= LARGE_BYTES);
        match self.kind {
            Kind::New if self.follows(offset) => {
                (self.kind, self.hits) = (Kind::Up, self.hits + 1 + large);
                self.frontier = end;
            }
            Kind::New if self.precedes(end) => {
                (self.kind, self.hits) = (Kind::Down, self.hits + 1 + large);
                self.frontier = offset;
            }
            Kind::New | Kind::Empty => {}
            Kind::Up | Kind::Down | Kind::Strided => {
                self.hits = self.hits.saturating_add(1 + large);
            }
        }
        (self.start, self.end) = (offset, end);
    }

    fn plan(&mut self, bounds: &Bounds) -> Plan {
        let told = bounds.advice == Advice::Sequential;
        if told && self.kind == Kind::New {
            (self.kind, self.frontier) = (Kind::Up, self.end);
        }
        let recognised = told || self.hits >= FOLLOWERS_MIN;
        let plan = match self.kind {
            Kind::Up if recognised => self.up(bounds),
            Kind::Down if recognised => self.down(bounds),
            Kind::Strided => self.parts(bounds),
            _ => Plan::default(),
        };
        let is_run = matches!(self.kind, Kind::Up | Kind::Down);
        Plan {
            recognised: recognised && is_run,
            ..plan
        }
    }

    /// The window, doubled, if no more than half of it lies ahead. `None`: enough does.
    fn widened(&mut self, ahead: u64, max: u32, told: bool) -> Option<u32> {
        if self.window > 0 && ahead > u64::from(self.window / 2) {
            return None;
        }
        self.window = match self.window {
            0 if told => max,
            // Twice what one request takes.
            0 => WINDOW_MIN
                .max(2 * ((self.end - self.start) / BLOCK) as u32)
                .min(max),
            window => (window * 2).min(max),
        };
        Some(self.window)
    }

    fn up(&mut self, bounds: &Bounds) -> Plan {
        let told = bounds.advice == Advice::Sequential;
        let here = (self.end - 1) / BLOCK + 1;
        let asked = self.frontier.div_ceil(BLOCK).max(here);
        let until = bounds.size.div_ceil(BLOCK);
        let Some(window) = self.widened(asked - here, bounds.window_max, told) else {
            return Plan::default();
        };
        let target = (here + u64::from(window)).min(until).max(asked);
        self.frontier = target * BLOCK;
        let half = u64::from(window / 2);
        let mark = (target - 1).saturating_sub(half).max(here);
        Plan {
            run: blocks(asked, target - asked, false),
            mark: (target < until).then_some(mark as u32),
            ..Plan::default()
        }
    }

    fn down(&mut self, bounds: &Bounds) -> Plan {
        let told = bounds.advice == Advice::Sequential;
        let here = self.start / BLOCK;
        let asked = (self.frontier / BLOCK).min(here);
        let Some(window) = self.widened(here - asked, bounds.window_max, told) else {
            return Plan::default();
        };
        let target = here.saturating_sub(u64::from(window)).min(asked);
        self.frontier = target * BLOCK;
        let mark = (target + u64::from(window / 2)).min(here.saturating_sub(1));
        Plan {
            run: blocks(asked.saturating_sub(1), asked - target, true),
            mark: (target > 0).then_some(mark as u32),
            ..Plan::default()
        }
    }

    fn parts(&mut self, bounds: &Bounds) -> Plan {
        let len = self.end - self.start;
        let stride = self.stride;
        let asked = ((self.frontier.wrapping_sub(self.start) as i64) / stride).max(0);
        let max = (u64::from(bounds.window_max) * BLOCK / len.max(1)).min(u64::from(PARTS_MAX));
        // Those that share a block with the one that was marked are not told of.
        let told_late = BLOCK / stride.unsigned_abs();
        let ahead = (asked as u64).saturating_sub(told_late);
        let Some(window) = self.widened(ahead, max.max(1) as u32, false) else {
            return Plan::default();
        };
        let start_of = |step: i64| self.start.checked_add_signed(stride.checked_mul(step)?);
        let is_in = |step: i64| start_of(step).is_some_and(|start| start < bounds.size);
        let until = (asked + 1..=i64::from(window)).take_while(|&step| is_in(step));
        let count = until.count() as u32;
        let (Some(first), Some(last)) = (start_of(asked + 1), start_of(asked + i64::from(count)))
        else {
            return Plan::default();
        };
        if count == 0 {
            return Plan::default();
        }
        self.frontier = last;
        let mark = start_of((asked + i64::from(count) - i64::from(window / 2)).max(1));
        Plan {
            run: Run::Parts {
                start: first,
                len: len.min(bounds.size.saturating_sub(first)),
                stride,
                count,
            },
            mark: mark.map(|start| (start / BLOCK) as u32),
            ..Plan::default()
        }
    }

    /// Blocks that were asked for and lie ahead.
    fn ahead(&self) -> std::ops::Range<u64> {
        match self.kind {
            Kind::Empty | Kind::New => 0..0,
            Kind::Up => self.end / BLOCK..self.frontier.div_ceil(BLOCK),
            Kind::Down => self.frontier / BLOCK..self.start.div_ceil(BLOCK),
            Kind::Strided => {
                let (low, high) = (self.start.min(self.frontier), self.start.max(self.frontier));
                low / BLOCK..high / BLOCK + 1
            }
        }
    }
}

fn blocks(first: u64, count: u64, down: bool) -> Run {
    if count == 0 {
        return Run::None;
    }
    Run::Blocks {
        first: first as u32,
        count: count as u32,
        down,
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
