//! Making room when an operation finds no free frame, header or node.
//!
//! In this order: give the arena more memory up to its budget, evict what is clean, wait for a keeper that is writing or flush what
//! is owed, and evict it. A full budget slows callers down to the device's speed and fails nothing (promise 5); it needs the
//! keeper only for what processes owe that have nothing to do. Where nobody writes that, a write goes past memory (`Wait`).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::evict;
use crate::file::core::{Core, Halt};
use crate::file::streams;
use crate::file::throttle;
use crate::flush::{Outcome, Scope, busy};
use crate::ids::FileId;
use crate::member::provision;
use crate::member::shared::Shared;
use crate::memory::files::{HURRY, LIVE};
use crate::memory::regions::{self, Shortage};
use crate::memory::threads::Me;
use crate::sync::time::Instant;
use crate::sync::{Ordering, patience};

/// Frames to free at once, of many or few: more than asked for, so that the next callers find some.
const FRAMES_AT_ONCE: (u32, u32) = (4, 32);
/// The part of the memory that is freed at once.
const AT_ONCE_PARTS: u32 = 64;
/// Ticks for which a block is left alone at first: the thread that has it in hand may be in the middle of it. What was used again is left
/// alone for long (`evict`).
const IDLE_TICKS: u32 = 1;
/// Rounds in a row in which evicting something is enough.
const EVICTIONS_ALONE: u32 = 4;
/// Rounds after which views of the dead are looked for: that asks the system.
const LOOK_FOR_DEAD_ROUNDS: u32 = 16;
/// Rounds in a row without any progress after which the keeper is told to write everything: that looks at all files. Where evicting
/// something is not enough.
const HASTEN_ROUNDS: u32 = 16 * EVICTIONS_ALONE;
/// Rounds in which a thread waits for another one that gives memory to the arena, and those of them that do not sleep. The others do, for
/// 5 ms together and more: that thread is nice and may have to wait for a core, and the kernel, which makes its huge pages, has
/// to come by on every processor, also on that of a thread that would only look again and again.
const PROVISION_ROUNDS: (u32, u32) = (116, 16);
/// Rounds without any progress, and with nothing on its way to a device, after which the arena must be too small for its tables:
/// minutes, since most of them are of a millisecond. On a busy machine the thread that has the blocks in hand may not get a core for one.
const ROUNDS_MAX: u32 = 150_000;

/// How long a write waits for memory, while nobody writes what is owed, before it goes past it, through the kernel; and how long where this process has
/// waited in vain last time.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(20));

/// A write's wait for memory. What fills it may be what nobody writes: owed by processes that have nothing to do while no keeper has their
/// files, or to files that nobody can open any more.
pub(super) struct Wait<'a> {
    shared: &'a Shared,
    /// Since when nothing has been written that anybody owes, and what was owed then.
    still: Option<(Instant, u64)>,
    in_vain: bool,
}

impl<'a> Wait<'a> {
    pub(super) fn new(core: &'a Core) -> Self {
        Wait {
            shared: &core.shared,
            still: None,
            in_vain: false,
        }
    }

    /// Asked each time that there is no memory. Whether it is not waited for any more: a slow device is, for as long as it needs.
    #[cold]
    pub(super) fn is_in_vain(&mut self) -> bool {
        let superblock = self.shared.arena.superblock();
        let owed = superblock.owed_about();
        let is_still = |before: u64| owed >= before && !busy::is_anything_in_flight(superblock);
        let (since, _) = *match &mut self.still {
            Some(still) if is_still(still.1) => still,
            still => still.insert((Instant::now(), owed)),
        };
        let (first, again) = PATIENCE;
        let most = match self.shared.waited_in_vain.load(Relaxed) {
            true => again,
            false => first,
        };
        self.in_vain = since.elapsed() > most;
        if self.in_vain {
            self.shared.waited_in_vain.store(true, Relaxed);
        }
        self.in_vain
    }

    /// What it said last.
    pub(super) fn was_in_vain(&self) -> bool {
        self.in_vain
    }

    /// There was memory.
    pub(super) fn ends(&self) {
        if self.still.is_some() {
            self.shared.waited_in_vain.store(false, Relaxed);
        }
    }
}

/// Makes room, or waits for those that are making it. The caller is in no operation.
pub fn make(core: &Core, me: Me<'_>, round: u32) -> Result<(), Halt> {
    let (most, awake) = PROVISION_ROUNDS;
    let is_late = round >= patience(most);
    if provision::more(&core.shared, me, is_late) {
        return Ok(());
    }
    if !is_late && provision::is_under_way(me) {
        // Memory that is coming is faster than any that has to be flushed first.
        me.wait(if round < awake { round } else { 256 + round });
        return Ok(());
    }
    if round.is_multiple_of(LOOK_FOR_DEAD_ROUNDS) {
        core.shared.unpin_dead(me);
    }
    if regions::look(me.arena) == Shortage::Urgent {
        regions::halve_all(me);
    }
    let frames = at_once(me);
    let idle_ticks = if round < 2 { IDLE_TICKS } else { 0 };
    let evicted = evict::evict(me, frames, idle_ticks) > 0;
    // What was evicted may have been the caller's own header, which this very attempt had linked and found no memory
    // for: that goes round for ever unless something is flushed now and then.
    if evicted && !round.is_multiple_of(EVICTIONS_ALONE) {
        return Ok(());
    }
    core.shared.wake_keeper();
    if throttle::await_request(core, me)
        || flush_some(core, me, u64::from(frames) * 64).pages_written > 0
    {
        evict::evict(me, frames, 0);
        return Ok(());
    }
    if round != 0 && round.is_multiple_of(HASTEN_ROUNDS) {
        hasten_all(me);
        core.shared.wake_keeper();
    }
    me.wait(round);
    if round > ROUNDS_MAX && !busy::is_anything_in_flight(me.arena.superblock()) {
        let free = me.arena.superblock().frames_free.load(Ordering::Relaxed);
        return Err(Halt::Failed(crate::error::SessionFault::Full.error(
            format!(
                "the arena has no room and nothing can be flushed or evicted ({free} frames free); \
             give the session more memory"
            ),
        )));
    }
    Ok(())
}

/// What other processes owe is written once it is too much, or old enough, and may fill the memory without that: the keeper, which has their
/// files, writes everything now.
fn hasten_all(me: Me<'_>) {
    for id in (0..me.arena.counts().files).map(FileId) {
        let entry = me.arena.file_unchecked(id);
        if entry.state.load(Ordering::Acquire) == LIVE
            && entry.owed_pages.load(Ordering::Acquire) != 0
        {
            entry.flags.fetch_or(HURRY, Ordering::AcqRel);
        }
    }
}

fn at_once(me: Me<'_>) -> u32 {
    let backed = me.arena.superblock().frames_backed.load(Ordering::Relaxed);
    let (few, many) = FRAMES_AT_ONCE;
    (backed / AT_ONCE_PARTS).clamp(few, many)
}

/// A thread that brings clean bytes keeps them within their limit. The caller is in no operation.
#[inline]
pub fn keep_clean_within(me: Me<'_>) {
    let excess = me.arena.superblock().clean_excess(0);
    if excess > 0 {
        evict::evict(me, excess, 0);
    }
}

/// Flushes about `pages` pages: of the coldest dirty stream of a file that this process has open; where streams do not say,
/// of this file, or of any other.
pub fn flush_some(core: &Core, me: Me<'_>, pages: u64) -> Outcome {
    let shared = &core.shared;
    let mut flusher = shared.own_flusher();
    let outcome = streams::write_some(shared, me, &mut flusher, pages);
    if outcome.pages_written > 0 {
        return outcome;
    }
    let mut flush =
        |id, device: &_| shared.flush_with(&mut flusher, me, id, device, Scope::some(pages));
    let is_refused = |id| shared.is_refused(shared.arena.file_unchecked(id));
    let mut mine = Outcome::default();
    // What a device has refused a moment ago is tried where nothing else can be written: the keeper whose turn that would be may be stopped.
    for refused in [false, true] {
        let own = (core.id, Arc::clone(&core.device));
        let others = shared.open_devices().filter(|(id, _)| *id != core.id);
        for (id, device) in std::iter::once(own).chain(others) {
            if is_refused(id) != refused {
                continue;
            }
            let outcome = flush(id, &device);
            if outcome.pages_written > 0 {
                return outcome;
            }
            if id == core.id {
                mine = outcome;
            }
        }
    }
    mine
}
