//! Lists of requests, made before the clock starts, and what a file must hold after them.

use std::ops::Range;

use crate::memory::{Generation, PAGE, Random, Source};

/// One write or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where in the file.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

impl Request {
    fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// The order and form of a workload's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One after the other, all `len` bytes.
    Sequential {
        /// Bytes of each request.
        len: u32,
    },
    /// Every page at most once, in random order.
    RandomPages,
    /// 100 bytes short at either end of distinct pages, in order or at random.
    RaggedPages {
        /// Whether the pages follow each other.
        sequential: bool,
    },
    /// One after the other, each of `len` bytes, give or take a tenth.
    RaggedRun {
        /// The middle length.
        len: u32,
    },
}

/// Bytes left untouched at either end of a page by [`Shape::RaggedPages`].
pub const RAGGED_EDGE: u64 = 100;

/// Makes the requests: over `span` bytes of file, until `bytes` are asked for. Requests never overlap.
pub fn make(shape: Shape, span: u64, bytes: u64) -> Vec<Request> {
    let page = PAGE as u64;
    let page_count = (bytes.min(span) / page) as usize;
    let mut random = Random::new(span ^ bytes.rotate_left(17));
    match shape {
        Shape::Sequential { len } => (0..bytes / u64::from(len))
            .map(|i| Request {
                offset: i * u64::from(len),
                len,
            })
            .collect(),
        Shape::RandomPages => distinct_pages(span / page, page_count, &mut random)
            .map(|index| Request {
                offset: index * page,
                len: PAGE as u32,
            })
            .collect(),
        Shape::RaggedPages { sequential } => {
            let indexes: Vec<u64> = if sequential {
                (0..page_count as u64).collect()
            } else {
                distinct_pages(span / page, page_count, &mut random).collect()
            };
            let len = (page - 2 * RAGGED_EDGE) as u32;
            let at = |index| Request {
                offset: index * page + RAGGED_EDGE,
                len,
            };
            indexes.into_iter().map(at).collect()
        }
        Shape::RaggedRun { len } => {
            let (mut requests, mut offset) = (Vec::new(), 0);
            while offset < bytes {
                let tenth = u64::from(len / 10);
                let len =
                    (u64::from(len) - tenth + random.below(2 * tenth + 1)).min(bytes - offset);
                requests.push(Request {
                    offset,
                    len: len as u32,
                });
                offset += len;
            }
            requests
        }
    }
}

/// `count` different numbers below `bound`, in random order: the front of a Fisher-Yates shuffle.
fn distinct_pages(bound: u64, count: usize, random: &mut Random) -> impl Iterator<Item = u64> {
    let mut all: Vec<u32> = (0..bound as u32).collect();
    for i in 0..count {
        let j = i + random.below((all.len() - i) as u64) as usize;
        all.swap(i, j);
    }
    all.truncate(count);
    all.into_iter().map(u64::from)
}

/// What a file must hold: `base` everywhere (or zeros), with the requests laid over it.
pub struct Expected<'a> {
    /// Where bytes come from.
    pub source: &'a Source,
    /// The file's size.
    pub len: u64,
    /// What was there before the measured requests; `None` for zeros.
    pub base: Option<Generation>,
    /// What the requests wrote; `None` if they only read.
    pub written: Option<Generation>,
    by_offset: Vec<Request>,
}

impl<'a> Expected<'a> {
    /// The expectation for a file of `len` bytes after `requests`, which may be in any order but
    /// do not overlap.
    pub fn new(source: &'a Source, len: u64, requests: &[Request]) -> Self {
        let mut by_offset = requests.to_vec();
        by_offset.sort_by_key(|request| request.offset);
        debug_assert!(
            by_offset
                .windows(2)
                .all(|pair| pair[0].end() <= pair[1].offset)
        );
        Expected {
            source,
            len,
            base: None,
            written: None,
            by_offset,
        }
    }

    /// Fills `bytes` with what the file must hold from `offset` on.
    pub fn fill(&self, offset: u64, bytes: &mut [u8]) {
        match self.base {
            Some(base) => bytes.copy_from_slice(self.source.at(base, offset, bytes.len())),
            None => bytes.fill(0),
        }
        let Some(written) = self.written else { return };
        let end = offset + bytes.len() as u64;
        let first = self
            .by_offset
            .partition_point(|request| request.end() <= offset);
        for request in self.by_offset[first..]
            .iter()
            .take_while(|request| request.offset < end)
        {
            let (from, to) = (request.offset.max(offset), request.end().min(end));
            let new = self.source.at(written, from, (to - from) as usize);
            bytes[(from - offset) as usize..(to - offset) as usize].copy_from_slice(new);
        }
    }

    /// The parts of the file to compare, in `chunk`s: all of it, or, where the requests cover less
    /// than an eighth, the page of each request and the page after it.
    pub fn parts(&self, chunk: u64) -> Vec<Range<u64>> {
        let asked: u64 = self
            .by_offset
            .iter()
            .map(|request| u64::from(request.len))
            .sum();
        if asked >= self.len / 8 {
            let starts = (0..self.len).step_by(chunk as usize);
            return starts
                .map(|start| start..(start + chunk).min(self.len))
                .collect();
        }
        let page = PAGE as u64;
        let around = |request: &Request| {
            let start = request.offset / page * page;
            start..(request.end().next_multiple_of(page) + page).min(self.len)
        };
        self.by_offset.iter().map(around).collect()
    }
}

#[cfg(test)]
mod tests;
