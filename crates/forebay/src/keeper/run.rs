//! The keeper's threads: one for the house (repairs, descriptors, the clock), one that gives memory ahead of need, one that
//! writes back.
//!
//! One process of a session keeps; the keeper's life is that of its house thread, whose slot `superblock.keeper` names. Every
//! process that hosts a keeper runs the house thread; those that find a living keeper stand by, and one of them takes over
//! when it dies. Nothing is lost in between, since clients repair, flush and evict by themselves (`docs/locking.md`).

use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed};
use std::time::Duration;

use crate::file::beside;
use crate::file::streams;
use crate::file::streams::PASS_PAGES;
use crate::file::streams::ticks;
use crate::file::streams::unless_busy;
use crate::file::vanished;
use crate::flush::{Flusher, Scope, due, errors, limit, ring};
use crate::ids::{FileId, ThreadId};
use crate::keeper::budget::{Budget, keep_room};
use crate::keeper::desk::Desk;
use crate::keeper::unfinished::{
    finish_if_unused, finish_unused_files, follow_names, write_what_the_dead_owe,
};
use crate::keeper::{closing, nameless, outsiders, repair};
use crate::member::again::{adopt, adopt_owed_files};
use crate::member::lacks::lacks_anything;
use crate::member::presence;
use crate::member::shared::Shared;
use crate::memory::files::{FileEntry, HURRY};
use crate::memory::threads::{self, Me};
use crate::stream::tracking;
use crate::sync::Ordering;
use crate::sync::time::{Instant, sleep};
use crate::sys::futex;

/// How often a keeper looks around while something is owed, and while nothing is.
const BUSY_TICK: Duration = Duration::from_millis(2);
const IDLE_TICK: Duration = Duration::from_millis(50);
/// How long a new keeper waits for leases that those before him have left: what ends none of them must not keep it from its work.
const ADOPT_PATIENCE: Duration = Duration::from_secs(1);
/// How often memory pressure is looked at.
const PRESSURE_EVERY: Duration = Duration::from_millis(500);

/// None where the arena's name has been removed: another session may have it now, and its socket lies there.
fn desk_of(shared: &Shared) -> Option<Desk> {
    let path = shared.arena_path.as_deref()?;
    let is_there = !presence::is_nameless(shared);
    is_there.then(|| Desk::open(path).ok()).flatten()
}

/// Becomes the keeper if there is none. The desk is open before anybody hears of the new keeper: a client that could not hand
/// its files over then would not try again.
pub fn take_office(shared: &Arc<Shared>, me: Me<'_>, desk: &mut Option<Desk>) -> bool {
    let superblock = me.arena.superblock();
    let word = &superblock.keeper;
    let seen = word.load(Ordering::Acquire);
    if seen == me.id.0 && shared.keeps.load(Relaxed) {
        return true;
    }
    if seen != 0 && seen != me.id.0 && !threads::is_gone(me.arena, ThreadId(seen)) {
        return false;
    }
    if word
        .compare_exchange(seen, me.id.0, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return false;
    }
    *desk = desk_of(shared);
    // First: nobody takes this process's descriptors by an earlier keeper's number.
    superblock.listener.store(0, Ordering::Release);
    superblock.keeper_epoch.fetch_add(1, Ordering::AcqRel);
    outsiders::announce(shared);
    closing::forget_lost(shared);
    adopt_owed_files(shared, Some(ADOPT_PATIENCE));
    shared.keeps.store(true, Relaxed);
    true
}

struct House {
    begun: Instant,
    tick_base: u32,
    desk: Option<Desk>,
    budget: Budget,
    looked_at_pressure: Instant,
    /// The last file whose name was looked at.
    named: Option<FileId>,
}

pub(super) fn house(shared: &Arc<Shared>, stop: &AtomicBool, io_engine: u32) {
    let Ok(me) = shared.me() else { return };
    let mut house = House {
        begun: Instant::now(),
        tick_base: me.arena.superblock().tick.load(Ordering::Relaxed),
        desk: None,
        budget: Budget::new(),
        looked_at_pressure: Instant::now(),
        named: None,
    };
    while !stop.load(Relaxed) {
        if take_office(shared, me, &mut house.desk) {
            let word = &me.arena.superblock().io_engine;
            word.store(io_engine, Ordering::Relaxed);
            house.keep(shared, me);
        } else {
            house.tick_base = me.arena.superblock().tick.load(Ordering::Relaxed);
            house.begun = Instant::now();
            sleep(IDLE_TICK);
        }
    }
    if shared.keeps.load(Relaxed) {
        // First: a client that would leave a file to this keeper flushes it instead. The next one's socket has the same name.
        house.desk = None;
        shared.end_lanes();
        closing::await_none(shared);
        closing::give_all_up(shared);
        write_what_the_dead_owe(shared, me);
        finish_unused_files(shared, me);
    }
    if shared.keeps.swap(false, Relaxed) {
        outsiders::recant(me.arena.superblock());
        let keeper = &me.arena.superblock().keeper;
        let _ = keeper.compare_exchange(me.id.0, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl House {
    /// One round.
    fn keep(&mut self, shared: &Arc<Shared>, me: Me<'_>) {
        let superblock = me.arena.superblock();
        superblock.show_life();
        let tick = self
            .tick_base
            .wrapping_add(self.begun.elapsed().as_millis() as u32);
        superblock.advance_tick(tick);
        repair::if_needed(shared, me);
        limit::set_background(superblock, streams::background_limit(shared));
        keep_room(me);
        if self.looked_at_pressure.elapsed() > PRESSURE_EVERY {
            self.looked_at_pressure = Instant::now();
            self.budget.heed_pressure(shared, me);
            self.budget.rest_if_idle(shared, me);
            // What clients have left that never reached a keeper.
            adopt(shared, |_, entry| lacks_anything(entry));
            finish_unused_files(shared, me);
            self.named = follow_names(shared, me, self.named);
            vanished::tend(shared, me);
            threads::mark_who_executed(me.arena);
            shared.unpin_dead(me);
            nameless::look(shared);
        }
        shared.tend_lanes();
        let owed = superblock.owed_about() != 0;
        let pause = if owed { BUSY_TICK } else { IDLE_TICK };
        self.serve(shared, pause);
    }

    fn serve(&mut self, shared: &Arc<Shared>, pause: Duration) {
        if self.desk.is_none() {
            self.desk = desk_of(shared);
        }
        match &mut self.desk {
            Some(desk) => desk.serve(shared, pause.as_millis() as i32),
            #[cfg(feature = "sim")]
            None if shared.serve_simulated(pause) => {}
            None => sleep(pause),
        }
    }
}

/// What a background pass over a file takes: everything above the background limit, unless streams are written then
/// ([`streams`]); else what has been left alone.
fn background_scope(shared: &Shared, entry: &FileEntry) -> Option<Scope> {
    let superblock = shared.arena.superblock();
    let tick = superblock.tick.load(Ordering::Relaxed);
    if entry.owed_pages.load(Ordering::Acquire) == 0 || !errors::may_retry(entry, tick) {
        return None;
    }
    let above = streams::owes_too_much(shared) && !tracking::orders_flushes(&shared.arena);
    // What nobody has open any more is for outsiders to see: its last writer was killed, or could not write it.
    if above || entry.writers() == 0 {
        return Some(Scope::some(PASS_PAGES));
    }
    Some(Scope {
        dirty_ticks: ticks(shared.config.flush_interval),
        full_idle_ticks: ticks(shared.config.flush_after),
        ..Scope::some(PASS_PAGES)
    })
}

/// Writes full blocks of large requests at once, and everything else when its time has come; what lacks bytes is filled first.
pub(super) fn write_back(shared: &Arc<Shared>, stop: &AtomicBool, mut flusher: Flusher) {
    let Ok(me) = shared.me() else { return };
    let mut cursor = 0;
    let mut leased = closing::Leased::default();
    let mut giving = nameless::Giving::default();
    let mut swept = Instant::now();
    while !stop.load(Relaxed) {
        let seen = shared.work().load(Ordering::Acquire);
        let mut worked = false;
        if shared.keeps.load(Relaxed) {
            repair::if_asked(shared, me);
            if streams::owes_too_much(shared) {
                shared.take_from_lanes();
            }
            worked |= leased.write_some(shared, me, &mut flusher);
            giving.go_on(shared, me);
            worked |= write_hurried(shared, me, &mut flusher);
            worked |= write_eagerly(shared, me, &mut flusher, &mut cursor);
            if !worked || swept.elapsed() > BUSY_TICK * 8 {
                swept = Instant::now();
                worked |= sweep(shared, me, &mut flusher);
            }
        }
        if !worked {
            sleep_on(shared, stop, seen);
        }
    }
    leased.write_the_rest(shared, me, &mut flusher);
}

/// Writes everything of files that somebody waits for.
fn write_hurried(shared: &Arc<Shared>, me: Me<'_>, flusher: &mut Flusher) -> bool {
    let mut worked = false;
    for (id, device) in shared.open_devices() {
        let flags = &shared.arena.file_unchecked(id).flags;
        if flags.load(Ordering::Acquire) & HURRY != 0 {
            let scope = Scope::some(u64::MAX);
            shared.flush_with(flusher, me, id, &device, scope);
            // What could not be written is tried again as what nobody waits for.
            flags.fetch_and(!HURRY, Ordering::AcqRel);
            // Whose last writer has died: outsiders find it as it shall be.
            finish_if_unused(shared, me, id, device);
            worked = true;
        }
    }
    worked
}

/// Drains the ring of hints: neighbours of one file become one request each, several under way at once.
fn write_eagerly(
    shared: &Arc<Shared>,
    me: Me<'_>,
    flusher: &mut Flusher,
    cursor: &mut u64,
) -> bool {
    let hints = &me.arena.superblock().eager;
    let mut worked = false;
    let mut next = ring::pop(hints, cursor);
    while let Some(first) = next.take() {
        worked = true;
        // Where nothing is owed any more it would be no change of ours, and the file be remembered as an outsider has made it meanwhile.
        let owed = &me.arena.file_unchecked(first.file).owed_pages;
        let owes = owed.load(Ordering::Acquire) != 0;
        let Some(device) = shared.device(first.file).filter(|_| owes) else {
            next = ring::pop(hints, cursor);
            continue;
        };
        let mut given = Some(first.block);
        let more = || {
            if let Some(block) = given.take() {
                return Some(block);
            }
            if next.is_some() {
                return None;
            }
            let hint = ring::pop(hints, cursor)?;
            if hint.file == first.file {
                return Some(hint.block);
            }
            next = Some(hint);
            None
        };
        shared.change(me, first.file, &device, || {
            flusher.flush_stream(me, first.file, &device, more)
        });
        if next.is_none() {
            next = ring::pop(hints, cursor);
        }
    }
    worked
}

/// One pass over all files of which something is due.
pub fn sweep(shared: &Arc<Shared>, me: Me<'_>, flusher: &mut Flusher) -> bool {
    let coldest = streams::write_coldest(shared, me, flusher);
    // Whether others keep a device busy is asked while nothing of this pass is under way.
    let is_due = |id: FileId| {
        let scope = background_scope(shared, shared.arena.file_unchecked(id))?;
        let scope = unless_busy(shared, &shared.device(id)?, scope)?;
        due::is_any(me, id, &scope).then_some((id, scope))
    };
    let due: Vec<_> = shared.open_files().into_iter().filter_map(is_due).collect();
    let written = beside::for_each(shared, me, flusher, &due, |me, flusher, &(id, scope)| {
        // Held only while it is flushed: a close may be waiting for it.
        let device = shared.device(id)?;
        let outcome = shared.flush_with(flusher, me, id, &device, scope);
        Some(outcome.pages_written)
    });
    coldest + written.into_iter().flatten().sum::<u64>() > 0
}

/// Sleeps until work comes, or for a tick: a lost hint costs no more than that.
fn sleep_on(shared: &Shared, stop: &AtomicBool, seen: u32) {
    if stop.load(Relaxed) {
        return;
    }
    let superblock = shared.arena.superblock();
    // What devices have refused counts: writers do not know of it, and would tell again and again.
    if !limit::is_above_background(superblock) {
        limit::listen(superblock);
    }
    superblock.sleeping.store(1, Ordering::Release);
    let owed = superblock.owed_about() != 0;
    let timeout = if owed { BUSY_TICK * 4 } else { IDLE_TICK };
    futex::wait(shared.work(), seen, timeout);
    superblock.sleeping.store(0, Ordering::Release);
}
