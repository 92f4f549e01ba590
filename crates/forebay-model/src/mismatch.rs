//! What to tell a person when contents are not what the model says: where, what should be there and
//! who wrote it, what is there and who probably wrote that, and what happened before.

use std::fmt;

use crate::model::{Change, Model};
use crate::{BLOCK_BYTES, Op, PAGE_BYTES, byte_at};

/// Operations shown before the one that failed.
const TAIL_OPS: usize = 12;
/// Operations shown that touched the differing byte.
const TOUCHING_OPS: usize = 6;
/// Bytes looked at to guess who wrote what was found.
pub(crate) const SAMPLE_BYTES: usize = 16;
/// Fewer equal bytes than this say little about who wrote them.
const SAMPLE_BYTES_MIN: usize = 4;

/// Why a byte should have the value that it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nothing ever touched it: zero.
    Hole,
    /// Truncated, punched or extended over: zero.
    Zeroed {
        /// Index of the operation in the list.
        op: usize,
    },
    /// A write.
    Written {
        /// Index of the operation in the list.
        op: usize,
        /// The write's seed.
        seed: u32,
    },
}

/// Where a wrong byte probably comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    /// Zeros: a hole, or bytes that were lost.
    Zeros,
    /// What this write put here: out of date, or not allowed any more.
    Written {
        /// Index of the operation in the list.
        op: usize,
        /// The write's seed.
        seed: u32,
        /// Bytes from here on that agree with it.
        agreeing: usize,
    },
    /// What this write put elsewhere.
    Misplaced {
        /// Index of the operation in the list.
        op: usize,
        /// The write's seed.
        seed: u32,
        /// The file where it belongs.
        file: u8,
        /// The offset where it belongs.
        offset: u64,
    },
    /// No write of this list made these bytes.
    Unknown,
}

/// The first byte that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position in the file.
    pub offset: u64,
    /// What the model holds, or one of the values that it would accept.
    pub expected: u8,
    /// What was found.
    pub actual: u8,
    /// Why that was expected.
    pub expected_from: Origin,
    /// Where the found byte probably comes from.
    pub actual_from: Guess,
}

/// Everything that is known about a mismatch.
#[derive(Clone, Debug)]
pub struct Details {
    /// One sentence: what was compared, and how it differs.
    pub what: String,
    /// The file, where there is one.
    pub file: Option<u8>,
    /// The first differing byte, where bytes differ.
    pub place: Option<Place>,
    /// The last operations, with their indices in the list.
    pub tail: Vec<(usize, Op)>,
    /// The last operations that touched the differing byte.
    pub touching: Vec<(usize, Op)>,
}

/// Contents that are not what the model says. Its `Display` is a report of some lines.
#[derive(Clone)]
pub struct Mismatch(Box<Details>);

impl Mismatch {
    /// A mismatch about which there is no more to say than one sentence.
    pub fn plain(what: String, file: Option<u8>) -> Self {
        let (tail, touching) = (Vec::new(), Vec::new());
        Mismatch(Box::new(Details {
            what,
            file,
            place: None,
            tail,
            touching,
        }))
    }

    /// What is known.
    pub fn details(&self) -> &Details {
        &self.0
    }

    /// Says which worker of a plan found it, and at which operation of its list.
    pub(crate) fn by_worker(mut self, worker: usize, index: usize, op: &Op) -> Self {
        self.0.what = format!("worker {worker}: {}", self.0.what);
        self.0.tail = vec![(index, op.clone())];
        self
    }

    pub(crate) fn at(mut self, place: Place) -> Self {
        self.0.place = Some(place);
        self
    }
}

impl std::error::Error for Mismatch {}

impl fmt::Debug for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = self.details();
        write!(f, "{}", details.what)?;
        if let Some(place) = &details.place {
            let file = details.file.unwrap_or_default();
            let (page, block) = (place.offset / PAGE_BYTES, place.offset / BLOCK_BYTES);
            write!(
                f,
                "\n  file {file}, offset {} = block {block}, page {page} ",
                place.offset
            )?;
            write!(f, "({} of the block)", page % (BLOCK_BYTES / PAGE_BYTES))?;
            write!(f, ", byte {} of the page", place.offset % PAGE_BYTES)?;
            write!(
                f,
                "\n  expected {:#04x}: {}",
                place.expected, place.expected_from
            )?;
            write!(
                f,
                "\n  found    {:#04x}: {}",
                place.actual, place.actual_from
            )?;
        }
        for (title, list) in [
            ("operations on that byte", &details.touching),
            ("last operations", &details.tail),
        ] {
            if !list.is_empty() {
                write!(f, "\n  {title}:")?;
            }
            for (index, op) in list {
                write!(f, "\n    {index:5} {op:?}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Hole => write!(f, "never written"),
            Origin::Zeroed { op } => write!(f, "made zero by operation {op}"),
            Origin::Written { op, seed } => write!(f, "written by operation {op}, seed {seed}"),
        }
    }
}

impl fmt::Display for Guess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Guess::Zeros => write!(f, "zeros: lost, or never written"),
            Guess::Written { op, seed, agreeing } => {
                write!(
                    f,
                    "as written by operation {op}, seed {seed} ({agreeing} bytes agree)"
                )
            }
            Guess::Misplaced {
                op,
                seed,
                file,
                offset,
            } => {
                write!(
                    f,
                    "belongs to file {file}, offset {offset} (operation {op}, seed {seed})"
                )
            }
            Guess::Unknown => write!(f, "no write of this list"),
        }
    }
}

impl Model {
    /// A mismatch with the last operations attached.
    pub(crate) fn mismatch(&self, what: String, file: Option<u8>) -> Mismatch {
        let mut mismatch = Mismatch::plain(what, file);
        mismatch.0.tail = self.last_ops(TAIL_OPS, |_| true);
        mismatch
    }

    /// A mismatch about the byte at `offset`; `found` is what was found from there on.
    pub(crate) fn byte_mismatch(
        &self,
        what: String,
        file: u8,
        offset: u64,
        expected: u8,
        found: &[u8],
    ) -> Mismatch {
        let sample = &found[..found.len().min(SAMPLE_BYTES)];
        let mut mismatch = self.mismatch(what, Some(file)).at(Place {
            offset,
            expected,
            actual: sample[0],
            expected_from: self.origin(file, offset),
            actual_from: self.guess(file, offset, sample),
        });
        let history = &self.file(file).history;
        let touched = |i: usize| history.iter().any(|c| c.op == i && c.covers(offset));
        mismatch.0.touching = self.last_ops(TOUCHING_OPS, touched);
        mismatch
    }

    fn last_ops(&self, count: usize, keep: impl Fn(usize) -> bool) -> Vec<(usize, Op)> {
        let all = self
            .applied()
            .iter()
            .enumerate()
            .rev()
            .filter(|(i, _)| keep(*i));
        let mut last: Vec<_> = all.take(count).map(|(i, op)| (i, op.clone())).collect();
        last.reverse();
        last
    }

    fn origin(&self, file: u8, offset: u64) -> Origin {
        let change = self
            .file(file)
            .history
            .iter()
            .rev()
            .find(|c| c.covers(offset));
        match change {
            None => Origin::Hole,
            Some(Change { op, seed: None, .. }) => Origin::Zeroed { op: *op },
            Some(Change {
                op,
                seed: Some(seed),
                ..
            }) => Origin::Written {
                op: *op,
                seed: *seed,
            },
        }
    }

    fn guess(&self, file: u8, offset: u64, sample: &[u8]) -> Guess {
        if sample[0] == 0 {
            return Guess::Zeros;
        }
        let mut best = (0, Guess::Unknown);
        for change in self
            .file(file)
            .history
            .iter()
            .rev()
            .filter(|c| c.covers(offset))
        {
            let Some(seed) = change.seed else { continue };
            let agreeing = change.agreeing(seed, offset, sample);
            if agreeing > best.0 {
                best = (
                    agreeing,
                    Guess::Written {
                        op: change.op,
                        seed,
                        agreeing,
                    },
                );
            }
        }
        if best.0 >= SAMPLE_BYTES_MIN.min(sample.len()) {
            return best.1;
        }
        self.guess_misplaced(offset, sample).unwrap_or(best.1)
    }

    /// Looks for the sample at the same place of other pages, which is where most mistakes put it.
    fn guess_misplaced(&self, offset: u64, sample: &[u8]) -> Option<Guess> {
        if sample.len() < SAMPLE_BYTES_MIN {
            return None;
        }
        for file in 0..self.files() as u8 {
            for change in &self.file(file).history {
                let Some(seed) = change.seed else { continue };
                let first = change.start - change.start % PAGE_BYTES + offset % PAGE_BYTES;
                let places = (first..change.end).step_by(PAGE_BYTES as usize);
                for place in places.filter(|&p| p >= change.start) {
                    if change.agreeing(seed, place, sample) >= SAMPLE_BYTES_MIN {
                        return Some(Guess::Misplaced {
                            op: change.op,
                            seed,
                            file,
                            offset: place,
                        });
                    }
                }
            }
        }
        None
    }
}

impl Change {
    pub(crate) fn covers(&self, offset: u64) -> bool {
        (self.start..self.end).contains(&offset)
    }

    /// How many bytes of `sample`, found at `offset`, are what this write puts there.
    fn agreeing(&self, seed: u32, offset: u64, sample: &[u8]) -> usize {
        let agrees = |&(i, &byte): &(usize, &u8)| {
            let at = offset + i as u64;
            at < self.end && byte == byte_at(seed, at)
        };
        sample.iter().enumerate().take_while(agrees).count()
    }
}
