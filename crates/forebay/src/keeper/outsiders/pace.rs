//! How long an outsider waits: while what it waits for goes on, and not for longer than a second while nothing does.
//!
//! What it waits for is that the file's bytes are with the kernel. That goes on while files owe less and less, or the session has
//! requests under way at a device. It does not where a program of the session stands in the way that is stopped, or waits for memory of its own.

use std::time::{Duration, Instant};

use super::{Guard, TICK, locked};
use crate::flush::busy;
use crate::session::shared::Shared;
use crate::sync::Ordering;

/// How long an outsider waits at most: as long as for a lease of the kernel's.
pub const PATIENCE: Duration = Duration::from_secs(45);
/// How long it waits while nothing goes on.
pub const STILL_MAX: Duration = Duration::from_secs(1);

/// Whether somebody has waited for long enough.
pub fn is_over(since: Instant, stands_still: bool) -> bool {
    let waited = since.elapsed();
    waited > PATIENCE || stands_still && waited > STILL_MAX
}

/// What the guard's thread has seen so far.
pub struct Pace {
    looked: Instant,
    /// For how long nothing has gone on.
    still: Duration,
    waiting: usize,
}

impl Pace {
    /// Nobody waits.
    pub fn new() -> Self {
        Pace {
            looked: Instant::now(),
            still: Duration::ZERO,
            waiting: 0,
        }
    }

    /// Looks once more. Whether nothing goes on of what outsiders wait for.
    pub fn stands_still(&mut self, guard: &Guard, shared: &Shared) -> bool {
        // A thread that gets no processor for a while has seen nothing, and those that it looks at get none either.
        let passed = self.looked.elapsed().min(TICK);
        self.looked = Instant::now();
        let superblock = shared.arena.superblock();
        let mut waiting = locked(&guard.waiting);
        let mut goes_on = waiting.len() < self.waiting || waiting.is_empty();
        self.waiting = waiting.len();
        for who in waiting.iter_mut() {
            let entry = shared.arena.file_unchecked(who.file);
            let owed = entry.owed_pages.load(Ordering::Acquire);
            // What the dead had under way is counted until somebody repairs it, and no keeper does so where a guard stands in.
            let under_way = !guard.relieves && busy::inflight_bytes(superblock, who.inode.0) != 0;
            goes_on |= owed < who.least || under_way;
            who.least = who.least.min(owed);
        }
        self.still = match goes_on {
            true => Duration::ZERO,
            false => self.still + passed,
        };
        self.still >= STILL_MAX
    }
}
