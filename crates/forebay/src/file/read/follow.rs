//! A reader's part in reading ahead: recognising streams, asking the keeper, waiting for what it is reading.
//!
//! Nothing here is on the way of a read that finds its bytes in memory, but for a glance at its stream's marks when it comes to
//! another block. Nothing depends on the keeper: what it has not begun the reader reads by itself, what it has begun is waited
//! for as long as the keeper lives, and not for long.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use super::choice::{Choice, Way};
use super::{Manner, straight};
use crate::file::core::Core;
use crate::file::quick::{Recent, Stream};
use crate::flush::ring;
use crate::frame::header::Identity;
use crate::frame::slots;
use crate::ids::{BlockIndex, ThreadId};
use crate::limits::BLOCK_BYTES;
use crate::memory::asks::{Ask, Stage};
use crate::memory::superblock::Superblock;
use crate::memory::threads::{Me, is_gone};
use crate::stream::pattern::{Advice, Bounds, Plan, Run, Tracker};
use crate::sync::time::Instant;
use crate::sync::{Ordering, patience};
use crate::sys::futex;

/// How long a reader waits for what the keeper has begun to read.
const WAIT_MAX: Duration = Duration::from_millis(30);
/// How long it sleeps at once: then it looks whether the keeper lives.
const SLEEP_MAX: Duration = Duration::from_millis(2);
/// Ticks for which nobody waits any more once somebody has waited for so long: the thread that reads ahead gets no processor, perhaps.
const LATE_TICKS: u32 = 100;
/// The share of memory that one window may have: one part in so many.
const WINDOW_SHARE: u32 = 8;

/// What an open description knows of its reads.
#[derive(Default)]
pub struct Ahead {
    /// A thread that finds it taken does without.
    tracker: Mutex<Tracker>,
    /// Which way its large reads go.
    pub choice: Choice,
    advice: AtomicU8,
    /// The keeper that has been lent the device file, where it only reads.
    lent: AtomicU32,
}

impl Ahead {
    /// What the program has said.
    pub fn advice(&self) -> Advice {
        match self.advice.load(Relaxed) {
            1 => Advice::Sequential,
            2 => Advice::Random,
            _ => Advice::Normal,
        }
    }

    /// Notes what the program says.
    pub fn set_advice(&self, advice: Advice) {
        let word = match advice {
            Advice::Normal => 0,
            Advice::Sequential => 1,
            Advice::Random => 2,
        };
        self.advice.store(word, Relaxed);
        if let Ok(mut tracker) = self.tracker.try_lock() {
            tracker.forget();
        }
    }
}

/// A read that has reached the slow way.
#[derive(Clone, Copy)]
pub struct Read<'a> {
    /// What its description remembers.
    pub recent: &'a Recent,
    /// Of its thread.
    pub stream: &'a Stream,
    /// The keeper that its description was handed to.
    pub handed: &'a AtomicU32,
}

impl Read<'_> {
    /// Looks whether the read belongs to a stream, and has what comes next read ahead. How the read shall go.
    pub fn follow(
        &self,
        core: &Core,
        me: Me<'_>,
        offset: u64,
        len: usize,
        follows: bool,
    ) -> Manner {
        let size = core.entry().size.load(Ordering::Relaxed);
        let bounds = Bounds {
            window_max: window_max(core, me),
            size,
            advice: self.recent.ahead.advice(),
        };
        let ahead = &self.recent.ahead;
        let may_pass = straight::is_wanted(core, len);
        let teaches = may_pass && follows;
        let has_ahead = bounds.window_max > 0
            && bounds.advice != Advice::Random
            && me.arena.superblock().ahead.load(Ordering::Relaxed) != 0;
        // What goes past memory is not to be read into it ahead.
        let past = may_pass && (!follows || ahead.choice.way(core, has_ahead) == Way::Past);
        let plain = Manner {
            sequential: follows,
            past,
            teaches,
            passes_by: self.stream.passes_by(),
        };
        if bounds.window_max == 0 || offset >= size || len == 0 || past {
            return plain;
        }
        let len = (len as u64).min(size - offset);
        let Ok(mut tracker) = ahead.tracker.try_lock() else {
            return plain;
        };
        let plan = tracker.note(offset, len, &bounds);
        drop(tracker);
        self.carry_out(core, me, &plan);
        Manner {
            sequential: (follows || plan.recognised) && bounds.advice != Advice::Random,
            ..plain
        }
    }

    fn carry_out(&self, core: &Core, me: Me<'_>, plan: &Plan) {
        if let Some(block) = plan.mark {
            self.stream.mark(block);
        }
        if !plan.given_up.is_empty() {
            let asks = &core.entry().asks;
            asks.withdraw(plan.given_up.start, plan.given_up.end);
        }
        let ahead = &self.recent.ahead;
        ask(core, me, ahead, self.handed, &plan.run);
    }
}

/// The longest window, blocks: as configured, and a small share of the memory that may hold what is read. 0: nothing is read ahead.
fn window_max(core: &Core, me: Me<'_>) -> u32 {
    let configured = core.shared.config.read_ahead.div_ceil(BLOCK_BYTES as u64);
    let configured = u32::try_from(configured).unwrap_or(u32::MAX);
    let superblock = me.arena.superblock();
    let memory = superblock.frames_max.load(Ordering::Relaxed);
    let clean = superblock.clean_frames_max.load(Ordering::Relaxed);
    configured.min((memory.min(clean) / WINDOW_SHARE).max(1))
}

/// Asks the keeper to read what is not in memory. Best effort.
pub fn ask(core: &Core, me: Me<'_>, ahead: &Ahead, handed: &AtomicU32, run: &Run) {
    let superblock = me.arena.superblock();
    let asks = &core.entry().asks;
    let epoch = superblock.keeper_epoch.load(Ordering::Relaxed);
    if *run == Run::None || superblock.ahead.load(Ordering::Relaxed) == 0 {
        return;
    }
    if !core.device.is_writable() {
        core.shared.lend(core.id, core.device.as_ref(), &ahead.lent);
    }
    if asks.is_refused_by(epoch) {
        return;
    }
    let mut first = None;
    {
        let Ok(_operation) = me.enter(core.id) else {
            return;
        };
        run.for_each(|part| {
            if !is_in_memory(core, me, part) && asks.ask(part) {
                first.get_or_insert(part.block);
            }
        });
    }
    let Some(block) = first else { return };
    if core.device.is_writable() {
        // A reader owes nothing.
        let _ = core.shared.hand_over(core.id, core.device.as_ref(), handed);
    }
    let file = core.id;
    ring::push(&superblock.ahead_files, Identity { file, block });
    wake(me);
}

/// Inside an operation.
fn is_in_memory(core: &Core, me: Me<'_>, part: Ask) -> bool {
    let identity = Identity {
        file: core.id,
        block: part.block,
    };
    slots::lookup(me.arena, core.entry(), part.block)
        .and_then(|id| me.arena.header(id)?.peek(identity))
        .is_some_and(|peek| part.pages() & !peek.valid == 0)
}

/// Wakes the thread that reads ahead, if it sleeps.
pub fn wake(me: Me<'_>) {
    let superblock = me.arena.superblock();
    superblock.ahead_work.fetch_add(1, Ordering::AcqRel);
    if superblock.ahead_sleeping.load(Ordering::Acquire) != 0 {
        futex::wake(&superblock.ahead_work);
    }
}

/// What a reader has done for a segment that was not in memory, and how long it has been waiting.
#[derive(Default)]
pub struct Patience {
    /// It was not in memory.
    pub missed: bool,
    /// So often it has been read from the device.
    pub reads: u32,
    since: Option<Instant>,
    rounds: u32,
}

impl Patience {
    fn is_over(&mut self, superblock: &Superblock) -> bool {
        let tick = superblock.tick.load(Ordering::Relaxed);
        let late = &superblock.ahead_late;
        let left = late.load(Ordering::Relaxed).wrapping_sub(tick);
        if (1..=LATE_TICKS).contains(&left) {
            return true;
        }
        self.rounds += 1;
        let since = self.since.get_or_insert_with(Instant::now);
        // Under exploration rounds are counted.
        let over = self.rounds > patience(u32::MAX) || since.elapsed() > WAIT_MAX;
        if over {
            late.store(tick.wrapping_add(LATE_TICKS), Ordering::Relaxed);
        }
        over
    }
}

/// Whether pages that a reader misses are being read by the keeper, and worth waiting for. What has been asked and not begun
/// is taken back: the reader is here first. Where it is to wait, how many such reads had ended before it looked.
pub fn waits(
    core: &Core,
    me: Me<'_>,
    block: BlockIndex,
    pages: u64,
    left: &mut Patience,
) -> Option<u32> {
    let superblock = me.arena.superblock();
    if superblock.ahead.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let ends = superblock.ahead_ends.load(Ordering::Acquire);
    let asks = &core.entry().asks;
    let found = asks.covering(block, pages)?;
    let reads = |by: ThreadId| !is_gone(me.arena, by);
    match found.stage {
        // Somebody has just begun.
        Stage::Asked => (!asks.take_back(&found)).then_some(ends.wrapping_sub(1)),
        Stage::Taken(by) if reads(by) && !left.is_over(superblock) => Some(ends),
        Stage::Taken(_) | Stage::GivenUp(_) => {
            asks.give_up(&found);
            None
        }
    }
}

/// Sleeps until one more read has ended, or for a while. In no operation.
pub fn sleep(me: Me<'_>, ends: u32) {
    let superblock = me.arena.superblock();
    if superblock.ahead_ends.load(Ordering::Acquire) != ends {
        return;
    }
    if cfg!(feature = "shuttle") {
        me.wait(1);
        return;
    }
    // Before the kernel looks at the other word: a thread that changes that one looks at this one afterwards.
    superblock.ahead_awaited.swap(1, Ordering::SeqCst);
    futex::wait(&superblock.ahead_ends, ends, SLEEP_MAX);
}

/// What was read ahead of a block has come, or will not: a thread that waits for it looks again.
pub fn ended(me: Me<'_>) {
    let superblock = me.arena.superblock();
    superblock.ahead_ends.fetch_add(1, Ordering::SeqCst);
    if superblock.ahead_awaited.swap(0, Ordering::SeqCst) != 0 {
        futex::wake(&superblock.ahead_ends);
    }
}
