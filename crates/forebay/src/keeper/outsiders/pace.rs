//! How long an outsider waits: while what it waits for goes on, and not for longer than a second while nothing does.
//!
//! What it waits for is that the file's bytes are with the kernel. The worker gives one file after the other to it, and that goes on while the file that
//! it is at owes less and less, or is at the device: a call of the worker's has ended since the last look, or somebody's has not. It does not where
//! a program of the session stands in the way that is stopped, or waits for memory of its own; what others do with other files, or the device with
//! what they write meanwhile, changes nothing then. The worker leaves a file that does not go on, so that others get their turn.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::{Duration, Instant};

use super::lanes::{Lane, key_of};
use super::{Guard, TICK, Waiting};
use crate::file::settle;
use crate::ids::{FileId, ThreadId};
use crate::member::shared::Shared;
use crate::memory::threads::{self, Me};
use crate::sync::Ordering;

/// How long an outsider waits at most: as long as for a lease of the kernel's.
pub const PATIENCE: Duration = Duration::from_secs(45);
/// How long it waits while nothing goes on.
pub const STILL_MAX: Duration = Duration::from_secs(1);
/// How long it waits while nothing goes on with another file, which the worker is about to leave: a thread that is to be alone on a file gives up
/// after two seconds.
const LEAVE_MAX: Duration = Duration::from_millis(2500);

/// What adds to the number of a turn.
const NEXT: u64 = 1 << 32;

/// The file that the worker is at.
#[derive(Default)]
pub struct Turn {
    /// The file + 1, or 0, below; above how many turns have begun and ended.
    word: AtomicU64,
    /// The worker's slot.
    worker: AtomicU32,
    /// Somebody else has the file in hand, and is not at the device.
    is_held_up: AtomicBool,
    /// The last turn with which nothing went on.
    still: AtomicU64,
}

/// The worker is at a file until this is dropped.
pub struct Taken<'a>(&'a Turn);

impl Turn {
    /// The worker begins with a file.
    pub fn take(&self, me: Me<'_>, file: FileId) -> Taken<'_> {
        self.worker.store(me.id.0, Relaxed);
        self.is_held_up.store(false, Relaxed);
        self.pass_on(u64::from(file.0) + 1);
        Taken(self)
    }

    fn pass_on(&self, file: u64) {
        let word = self.word.load(Relaxed) & !(NEXT - 1);
        self.word.store(word.wrapping_add(NEXT) | file, Release);
    }

    /// Whether nothing has gone on for so long with the file that the worker is at, and somebody waits.
    pub fn stands_still(&self) -> bool {
        self.still.load(Relaxed) == self.word.load(Relaxed)
    }

    fn file(word: u64) -> Option<FileId> {
        let file = (word & (NEXT - 1)).checked_sub(1)?;
        Some(FileId(file as u32))
    }
}

impl Taken<'_> {
    /// It could not be had at once: looks whether a thread has it that does not let go.
    pub fn look_who_has_it(&self, me: Me<'_>, file: FileId) {
        let is_held_up = !settle::is_at_rest(me, file) && threads::is_in_the_way(me, file);
        self.0.is_held_up.store(is_held_up, Relaxed);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.pass_on(0);
    }
}

/// What the guard's thread has seen of each lane.
#[derive(Default)]
pub struct Paces(HashMap<u64, Pace>);

impl Paces {
    /// Looks once more whether that goes on what outsiders wait for.
    pub fn look(&mut self, guard: &Guard, shared: &Shared) {
        let lanes = guard.lanes.all();
        self.0
            .retain(|key, _| lanes.iter().any(|lane| lane.key == *key));
        for lane in lanes {
            let pace = self.0.entry(lane.key).or_insert_with(Pace::new);
            pace.look(guard, &lane, shared);
        }
    }

    /// Whether somebody has waited for long enough.
    pub fn is_over(&self, who: &Waiting) -> bool {
        let pace = self.0.get(&key_of(who.inode.0));
        pace.map_or(who.since.elapsed() > STILL_MAX, |pace| {
            pace.is_over(who.file, who.since)
        })
    }
}

/// What it has seen so far of one.
struct Pace {
    looked: Instant,
    /// For how long nothing has gone on.
    still: Duration,
    turn: u64,
    /// Pages that the file of this turn has owed, at least.
    least: u64,
    /// The worker's calls of a device.
    calls: u64,
}

impl Pace {
    /// Nobody waits.
    fn new() -> Self {
        Pace {
            looked: Instant::now(),
            still: Duration::ZERO,
            turn: 0,
            least: 0,
            calls: 0,
        }
    }

    fn look(&mut self, guard: &Guard, lane: &Lane, shared: &Shared) {
        // A thread that gets no processor for a while has seen nothing, and those that it looks at get none either.
        let passed = self.looked.elapsed().min(TICK);
        self.looked = Instant::now();
        let has_waiting = guard.has_waiting_at(lane.key);
        self.still = match !has_waiting || self.goes_on(guard, &lane.turn, shared) {
            true => Duration::ZERO,
            false => self.still + passed,
        };
        if self.still >= STILL_MAX {
            lane.turn.still.store(self.turn, Relaxed);
        }
    }

    fn goes_on(&mut self, guard: &Guard, turn: &Turn, shared: &Shared) -> bool {
        let arena = &shared.arena;
        let word = turn.word.load(Acquire);
        let is_new = std::mem::replace(&mut self.turn, word) != word;
        let Some(file) = Turn::file(word) else {
            return is_new;
        };
        let owed = arena
            .file_unchecked(file)
            .owed_pages
            .load(Ordering::Acquire);
        let calls = threads::calls_of(arena, ThreadId(turn.worker.load(Relaxed)));
        let owes_less = owed < self.least;
        let has_called = std::mem::replace(&mut self.calls, calls) != calls;
        self.least = if is_new { owed } else { owed.min(self.least) };
        // What the dead were at is theirs until somebody repairs it, and no keeper does so where a guard stands in.
        let counts = !guard.relieves && !turn.is_held_up.load(Relaxed);
        let is_at_device = || has_called || threads::is_anybody_at_device(arena, file);
        is_new || owes_less || counts && is_at_device()
    }

    fn is_over(&self, file: FileId, since: Instant) -> bool {
        let waited = since.elapsed();
        let most = match Turn::file(self.turn) {
            Some(other) if other != file => LEAVE_MAX,
            _ => STILL_MAX,
        };
        waited > PATIENCE || waited > STILL_MAX && self.still >= most
    }
}
