//! Repairing the session after a death (`docs/locking.md`, "Death of a holder").
//!
//! Everybody waits while the session is repaired, so whoever does it should not be stopped in the middle. A user's program may be, by
//! Ctrl-Z or a debugger, at any time. So it asks the keeper, which has a thread for this, and repairs by itself only where no
//! keeper lives, or the keeper is stopped too, or has not done it after [`ASK_PATIENCE`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::frame::header::State;
use crate::ids::{FileId, HeaderId, ThreadId};
use crate::keeper::rebuild::{Dead, Findings, rebuild};
use crate::keeper::run::has_keeper;
use crate::memory::arena::Arena;
use crate::memory::files::LIVE;
use crate::memory::threads::{self, Me};
use crate::session::shared::Shared;
use crate::sync::Ordering;
use crate::sync::time::{Instant, sleep};
use crate::sys::{futex, liveness};

/// How long whoever waits for the dead leaves the repair to the keeper.
const ASK_PATIENCE: Duration = Duration::from_millis(100);
/// How often whoever has asked for a repair looks whether it is done.
const ASK_TICK: Duration = Duration::from_millis(1);
/// How often the keeper's thread looks although nobody has asked it: a wake-up may be lost.
const REPAIRER_TICK: Duration = Duration::from_secs(1);

/// Looks for the dead, and repairs what they left. The caller is idle or parked, and no program of a user's.
pub fn if_needed(shared: &Shared, me: Me<'_>) -> Option<Findings> {
    is_needed(shared, me).then(|| after_death(shared, me))?
}

/// As [`if_needed`], by the keeper if there is one that runs. Returns whether there is nothing to wait for: nobody is left to be seen to, or a
/// repair was tried here.
///
/// Where the caller has waited for `long`, and nobody has died, locks that nobody has are opened by the caller.
pub fn ask(shared: &Shared, me: Me<'_>, long: bool) -> bool {
    if !is_needed(shared, me) {
        shared.repair_wanted.ends();
        if long && threads::has_lock_of_nobody(me.arena) {
            after_damage(shared, me);
        }
        return true;
    }
    let repairs = me.arena.superblock().rebuilds.load(Ordering::Relaxed);
    if shared.repair_wanted.lasts(repairs) > ASK_PATIENCE || !keeper_runs(me.arena) {
        after_death(shared, me);
        return true;
    }
    let bell = &me.arena.superblock().repairs_asked;
    bell.fetch_add(1, Ordering::AcqRel);
    futex::wake(bell);
    false
}

/// As [`ask`], and waits until it is done.
pub fn await_done(shared: &Shared, me: Me<'_>) {
    while !ask(shared, me, false) {
        sleep(ASK_TICK);
    }
}

/// Since when this process waits for a repair. Without a lock, which a child that is forked meanwhile would find taken for ever.
pub struct Wanted {
    base: Instant,
    /// How many repairs there had been, in the upper half, and milliseconds from `base` + 1; 0: it waits for none.
    begun: AtomicU64,
}

impl Default for Wanted {
    fn default() -> Self {
        Wanted {
            base: Instant::now(),
            begun: AtomicU64::new(0),
        }
    }
}

impl Wanted {
    /// How long it has waited for the one after so many repairs: none, if it did not yet.
    fn lasts(&self, repairs: u32) -> Duration {
        let now = self.base.elapsed().as_millis() as u32 + 1;
        let begun = self.begun.load(Relaxed);
        if begun == 0 || (begun >> 32) as u32 != repairs {
            let word = u64::from(repairs) << 32 | u64::from(now);
            self.begun.store(word, Relaxed);
            return Duration::ZERO;
        }
        Duration::from_millis(now.wrapping_sub(begun as u32).into())
    }

    /// It waits for none.
    fn ends(&self) {
        if self.begun.load(Relaxed) != 0 {
            self.begun.store(0, Relaxed);
        }
    }
}

/// Opens locks that nobody has, which say that words of the arena are wrong: a recovery will not believe it.
fn after_damage(shared: &Shared, me: Me<'_>) {
    if after_death(shared, me).is_some() {
        let corruptions = &me.arena.superblock().corruptions;
        corruptions.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the keeper's thread does until it is told to stop: repairs when it is asked to.
pub(super) fn stand_ready(shared: &Arc<Shared>, stop: &AtomicBool) {
    let Ok(me) = shared.me() else { return };
    let bell = &me.arena.superblock().repairs_asked;
    while !stop.load(Relaxed) {
        let seen = bell.load(Ordering::Acquire);
        if shared.keeps.load(Relaxed) {
            if_needed(shared, me);
        }
        futex::wait(bell, seen, REPAIRER_TICK);
    }
}

/// Whether a keeper lives whose process is not stopped, as far as can be told.
fn keeper_runs(arena: &Arena) -> bool {
    let keeper = ThreadId(arena.superblock().keeper.load(Ordering::Acquire));
    let process = |slot: &threads::ThreadSlot| slot.pid.load(Ordering::Relaxed);
    has_keeper(arena)
        && !arena
            .thread(keeper)
            .map(process)
            .is_some_and(liveness::is_stopped)
}

/// Whether somebody has died in the middle of something. Buries those who have not.
fn is_needed(shared: &Shared, me: Me<'_>) -> bool {
    let arena = me.arena;
    let mut owed = threads::gate_is_abandoned(arena)
        || arena.superblock().orphans.load(Ordering::Acquire) != 0
            && has_orphans_of_ours(shared, arena);
    for id in threads::dead(arena) {
        if threads::died_working(arena, id) || threads::is_named(arena, id) {
            owed = true;
        } else {
            // It died between operations and owned nothing.
            threads::bury(me, id);
        }
    }
    owed
}

/// Stops the session and rebuilds. `None`: somebody else is at it, or a thread did not stop in time; the caller goes on
/// waiting and comes back.
pub fn after_death(shared: &Shared, me: Me<'_>) -> Option<Findings> {
    let arena = me.arena;
    let _stop = threads::stop_session_for_rebuild(me)?;
    // Once, after the stop: who dies from here on is the next repair's.
    let gone: Vec<bool> = (0..arena.counts().threads)
        .map(|id| ThreadId(id) != me.id && threads::is_gone(arena, ThreadId(id)))
        .collect();
    // A slot that was free may be taken meanwhile; whoever has it can be in no operation, but can hold a lock or a gate.
    let is_gone =
        |id: ThreadId| gone.get(id.index()).copied().unwrap_or(true) && threads::is_gone(arena, id);
    let landed = land(shared, me, &is_gone);
    let findings = rebuild(
        me,
        &Dead {
            threads: &is_gone,
            landed: &|file| landed.contains(&file),
        },
    );
    settle_intents(shared, me, &is_gone);
    for id in (1..arena.counts().threads).map(ThreadId) {
        if is_gone(id) && threads::is_dead(arena, id) {
            threads::bury(me, id);
        }
    }
    Some(findings)
}

/// Asks the devices of files with flights of the dead to finish what is under way. Returns the files that have.
fn land(shared: &Shared, me: Me<'_>, is_gone: &dyn Fn(ThreadId) -> bool) -> BTreeSet<FileId> {
    let arena = me.arena;
    let mut flying = BTreeSet::new();
    let backed = arena.superblock().headers_backed.load(Ordering::Acquire);
    for header in (0..backed).filter_map(|id| arena.header(HeaderId(id))) {
        let superseded = matches!(header.state(), State::Superseded(by) if is_gone(by));
        let in_flight = header.inflight() != 0 && is_gone(header.flusher());
        if (superseded || in_flight)
            && let Some(identity) = header.identity()
        {
            flying.insert(identity.file);
        }
    }
    flying.retain(|&file| {
        let Some(device) = shared.device(file) else {
            return false;
        };
        // Waiting may change the file's times.
        shared
            .change(me, file, &device, || device.wait_in_flight())
            .is_ok()
    });
    flying
}

/// What the dead were changing is as they left it: remembered, where this process has the file open. Elsewhere the note
/// stays, which makes a recovery look at times instead.
fn settle_intents(shared: &Shared, me: Me<'_>, is_gone: &dyn Fn(ThreadId) -> bool) {
    let threads = me.arena.counts().threads;
    for file in (0..me.arena.counts().files).map(FileId) {
        let entry = me.arena.file_unchecked(file);
        if entry.state.load(Ordering::Acquire) != LIVE || !entry.is_changing(threads) {
            continue;
        }
        let Some(device) = shared.device(file) else {
            continue;
        };
        for dead in (1..threads).map(ThreadId).filter(|&id| is_gone(id)) {
            if entry.has_intent(dead) {
                shared.end_intent(Me { id: dead, ..me }, file, &device);
            }
        }
    }
}

/// Whether flights that an earlier repair could not wait for are in files that this process has open.
fn has_orphans_of_ours(shared: &Shared, arena: &Arena) -> bool {
    let backed = arena.superblock().headers_backed.load(Ordering::Acquire);
    (0..backed)
        .filter_map(|id| arena.header(HeaderId(id)))
        .any(|header| {
            header.inflight() != 0
                && header.flusher() == ThreadId(u32::MAX)
                && header
                    .identity()
                    .is_some_and(|i| shared.device(i.file).is_some())
        })
}

/// Makes waits anywhere in the engine call [`ask`].
pub fn install(shared: &Arc<Shared>) {
    let session = Arc::downgrade(shared);
    shared.arena.set_rescue(Box::new(move |me, long| {
        if let Some(shared) = session.upgrade() {
            ask(&shared, me, long);
        }
    }));
}
