//! The arena checker: whether everything in an arena agrees with everything else.
//!
//! Reads only, over an arena in which nobody is at work: after a repair, by `forebay doctor`, and by tests. Each
//! frame, small frame, header and node is free, in a living thread's hands, or linked to exactly one thing; hints lead to
//! all that is free; what is counted as owed is the sum of what headers owe. Nothing read is trusted: every index is
//! checked, every walk is bounded, and garbage makes problems, never a panic.

pub mod doubt;
mod memory;
mod pins;
mod streams;
mod tables;

use std::collections::HashMap;

use crate::frame::header::{Look, State};
use crate::ids::{FrameId, HeaderId, SmallId, ThreadId};
use crate::memory::arena::Arena;
use crate::memory::superblock::MAGIC;
use crate::memory::threads;
use crate::sync::Ordering;

/// Problems listed at most; the rest are counted.
const PROBLEMS_MAX: usize = 64;

/// What an arena in order holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// Files in the table.
    pub files: u32,
    /// Files with a note that somebody changes them. The dead leave such notes, and only a repair that has the file open
    /// takes them back; elsewhere they stay, and a recovery goes by the file's times.
    pub files_noted: u32,
    /// Headers that describe blocks.
    pub headers_linked: u32,
    /// Headers free.
    pub headers_free: u32,
    /// Headers in living threads' hands.
    pub headers_held: u32,
    /// Frames that hold a block.
    pub frames_linked: u32,
    /// Frames free.
    pub frames_free: u32,
    /// Frames carved into small frames.
    pub frames_carved: u32,
    /// Frames in living threads' hands.
    pub frames_held: u32,
    /// Frames that views hold.
    pub frames_pinned: u32,
    /// Of these, frames that no header has any more.
    pub frames_viewed: u32,
    /// Small frames in use.
    pub smalls_linked: u32,
    /// Small frames free and in files' stocks.
    pub smalls_stocked: u32,
    /// Nodes in trees.
    pub nodes_linked: u32,
    /// Pages owed to devices, whole frames counted as 64.
    pub owed_pages: u64,
}

/// Checks an arena in which nobody is at work.
///
/// # Errors
/// A line for each problem, the first few in full.
pub fn check(arena: &Arena) -> Result<Report, Vec<String>> {
    let mut check = Check::new(arena);
    check.words();
    check.look_at_headers();
    check.headers();
    check.memory();
    check.pins();
    check.trees();
    check.sums();
    check.streams();
    if check.problems.is_empty() && check.more == 0 {
        return Ok(check.report);
    }
    if check.more > 0 {
        check.problems.push(format!("and {} more", check.more));
    }
    Err(check.problems)
}

struct Check<'a> {
    arena: &'a Arena,
    looks: Vec<Look>,
    /// The header that claims each frame and small frame.
    frames: HashMap<FrameId, HeaderId>,
    smalls: HashMap<SmallId, HeaderId>,
    /// Parts of carved frames that are in files' stocks.
    stocked: HashMap<FrameId, u64>,
    /// Free frames of each region.
    free: HashMap<u32, u32>,
    report: Report,
    problems: Vec<String>,
    more: usize,
}

impl<'a> Check<'a> {
    fn new(arena: &'a Arena) -> Self {
        Check {
            arena,
            looks: Vec::new(),
            frames: HashMap::new(),
            smalls: HashMap::new(),
            stocked: HashMap::new(),
            free: HashMap::new(),
            report: Report::default(),
            problems: Vec::new(),
            more: 0,
        }
    }

    fn problem(&mut self, text: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text);
        } else {
            self.more += 1;
        }
    }

    fn must(&mut self, fine: bool, text: impl FnOnce() -> String) {
        if !fine {
            self.problem(text());
        }
    }

    /// Whether a thread that a word names can still act on it.
    fn lives(&self, id: ThreadId) -> bool {
        id != ThreadId::NOBODY && !threads::is_gone(self.arena, id)
    }

    /// The superblock's own words, and the thread slots.
    fn words(&mut self) {
        let superblock = self.arena.superblock();
        let counts = *self.arena.counts();
        let load = |word: &crate::sync::AtomicU32| word.load(Ordering::Acquire);
        self.must(superblock.magic.load(Ordering::Acquire) == MAGIC, || {
            "bad magic".into()
        });
        self.must(superblock.counts() == counts, || {
            "counts have changed".into()
        });
        let limits = [
            (
                "headers_backed",
                load(&superblock.headers_backed),
                counts.headers,
            ),
            ("nodes_backed", load(&superblock.nodes_backed), counts.nodes),
            (
                "frames_backed",
                load(&superblock.frames_backed),
                counts.frames,
            ),
            ("frames_max", load(&superblock.frames_max), counts.frames),
        ];
        for (name, value, most) in limits {
            self.must(value <= most, || {
                format!("{name} is {value}, beyond {most}")
            });
        }
        let locks = [
            ("session gate", load(&superblock.gate)),
            ("table lock", load(&superblock.table_lock)),
        ];
        for (name, holder) in locks {
            let held = holder != 0;
            self.must(!held, || {
                format!("{name} is held by {holder} in an idle arena")
            });
        }
        for dead in threads::dead(self.arena) {
            self.problem(format!("thread {} is dead and not buried", dead.id.0));
        }
    }

    fn look_at_headers(&mut self) {
        let backed = self
            .arena
            .superblock()
            .headers_backed
            .load(Ordering::Acquire);
        let backed = backed.min(self.arena.counts().headers);
        self.looks = (0..backed)
            .filter_map(|id| self.arena.header(HeaderId(id)))
            .map(|header| header.look())
            .collect();
    }

    /// Linked headers with their numbers.
    fn linked(&self) -> impl Iterator<Item = (HeaderId, &Look)> {
        let is_linked = |look: &Look| matches!(look.state, State::Linked | State::Superseded(_));
        let numbered = self.looks.iter().enumerate();
        numbered
            .filter(move |(_, look)| is_linked(look))
            .map(|(id, look)| (HeaderId(id as u32), look))
    }
}

#[cfg(test)]
mod tests;
