//! Repairing the session after a death (`docs/locking.md`, "Death of a holder").
//!
//! Everybody waits while the session is repaired, so the process that does it should not be stopped in the middle. A user's program may be, by
//! Ctrl-Z or a debugger, at any time. So it leaves the repair to the keeper, and repairs by itself only where no keeper lives, where the
//! keeper is stopped too, or where that has not done it after `ASK_PATIENCE`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::device::DeviceFile;
use crate::frame::header::{NOBODYS, State};
use crate::ids::{FileId, HeaderId, ThreadId};
use crate::keeper::rebuild::{Dead, Findings, rebuild};
use crate::member::presence::{has_keeper, keeper_process};
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::memory::files::LIVE;
use crate::memory::threads::{self, Me};
use crate::sync::Ordering;
use crate::sync::time::sleep;
use crate::sys::liveness;

/// How long a thread that waits for the dead leaves the repair to the keeper.
const ASK_PATIENCE: Duration = Duration::from_millis(100);
/// How often a thread that has asked for a repair looks whether it is done.
const ASK_TICK: Duration = Duration::from_millis(1);

/// Waits for what the dead had under way in a device file. Whether all of it has landed.
pub(super) type Land<'l> = &'l dyn Fn(FileId, &Arc<dyn DeviceFile>) -> bool;

/// Looks for the dead, and repairs what they left. The caller is idle or parked, and no program of a user's where a keeper lives.
pub fn if_needed(shared: &Shared, me: Me<'_>) -> Option<Findings> {
    is_needed(shared, me).then(|| after_death(shared, me))?
}

/// As [`if_needed`]; for a caller that knows more of the files' devices.
pub(super) fn if_needed_with(shared: &Shared, me: Me<'_>, land: Land<'_>) -> Option<Findings> {
    is_needed(shared, me).then(|| after_death_with(shared, me, land))?
}

/// As [`if_needed`], by the keeper if there is one that runs. Whether there is nothing to wait for: nobody is left to be seen to, or a repair
/// was tried here.
fn ask(shared: &Shared, me: Me<'_>) -> bool {
    if !is_needed(shared, me) {
        return true;
    }
    let repairs = me.arena.superblock().rebuilds.load(Ordering::Acquire);
    let waited = shared.repair_wanted.since(repairs);
    if waited > ASK_PATIENCE || !keeper_runs(me.arena) {
        after_death(shared, me);
        return true;
    }
    me.arena
        .superblock()
        .repair_asked
        .store(1, Ordering::Release);
    shared.wake_keeper();
    false
}

/// For a thread of the keeper's, often: repairs if anybody has asked for it.
pub(super) fn if_asked(shared: &Shared, me: Me<'_>) {
    let asked = &me.arena.superblock().repair_asked;
    if asked.load(Ordering::Relaxed) != 0 && asked.swap(0, Ordering::AcqRel) != 0 {
        if_needed(shared, me);
    }
}

/// As [`if_needed`], by the keeper if there is one that runs: that is waited for.
pub fn await_done(shared: &Shared, me: Me<'_>) {
    while !ask(shared, me) {
        sleep(ASK_TICK);
    }
}

/// Whether a keeper lives whose process is not stopped, as far as can be told.
fn keeper_runs(arena: &Arena) -> bool {
    has_keeper(arena) && !liveness::is_stopped(keeper_process(arena))
}

/// Whether somebody has died in the middle of something. Buries those that have not.
fn is_needed(shared: &Shared, me: Me<'_>) -> bool {
    let arena = me.arena;
    let mut owed = threads::gate_is_abandoned(arena)
        || arena.superblock().orphans.load(Ordering::Acquire) != 0
            && shared.unlanded.may_try()
            && has_orphans_of_ours(shared, arena);
    for dead in threads::dead(arena) {
        if threads::died_working(arena, dead.id) || threads::is_named(arena, dead.id) {
            owed = true;
        } else {
            // It died between operations and owned nothing.
            threads::bury(me, dead);
        }
    }
    owed
}

/// For a thread that has waited for long, though nobody has died: rebuilds where a lock is nobody's or a slot leads to no header. That says
/// that words of the arena are wrong: a recovery will not believe it.
fn mend_what_is_written_over(shared: &Shared, me: Me<'_>, rebuilds: u32) {
    if !threads::is_written_over(me.arena) {
        return;
    }
    // Read before anybody is buried here: a thread that has died since it was seen that nobody has, has the lock, and nothing is wrong.
    let explained = is_death_under_way(me.arena, rebuilds);
    if after_death(shared, me).is_some() && !explained {
        let corruptions = &me.arena.superblock().corruptions;
        corruptions.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether anybody has died and is not repaired after, or has been repaired after since the session had been rebuilt so often.
fn is_death_under_way(arena: &Arena, rebuilds: u32) -> bool {
    let superblock = arena.superblock();
    // In the order in which a death goes through these.
    !threads::dead(arena).is_empty()
        || superblock.orphans.load(Ordering::Acquire) != 0
        || superblock.gate.load(Ordering::Acquire) != 0
        || superblock.rebuilds.load(Ordering::Acquire) != rebuilds
}

/// Stops the session and rebuilds. `None`: somebody else is at it, or a thread did not stop in time; the caller goes on
/// waiting and comes back.
pub fn after_death(shared: &Shared, me: Me<'_>) -> Option<Findings> {
    after_death_with(shared, me, &|file, device| {
        wait_for_flights(shared, me, file, device)
    })
}

/// As [`after_death`]; for a caller that knows more of the files' devices.
pub(super) fn after_death_with(
    shared: &Shared,
    me: Me<'_>,
    land_file: Land<'_>,
) -> Option<Findings> {
    let arena = me.arena;
    let _stop = threads::stop_session_for_rebuild(me)?;
    // Once, after the stop: a thread that dies from here on is the next repair's, also where a slot that was free is taken
    // meanwhile. The thread that has it can be in no operation, but can hold a lock or a gate.
    let gone: Vec<Option<u32>> = (0..arena.counts().threads)
        .map(|id| threads::last_life(arena, ThreadId(id)).filter(|_| ThreadId(id) != me.id))
        .collect();
    let is_gone = |id: ThreadId| match gone.get(id.index()) {
        Some(&life) => life.is_some() && threads::last_life(arena, id) == life,
        None => true,
    };
    let landed = land(shared, me, &is_gone, land_file);
    let findings = rebuild(
        me,
        &Dead {
            threads: &is_gone,
            landed: &|file| landed.contains(&file),
        },
    );
    settle_intents(shared, me, &is_gone);
    for id in (1..arena.counts().threads).map(ThreadId) {
        if let Some(dead) = threads::dead_of(arena, id).filter(|_| is_gone(id)) {
            threads::bury(me, dead);
        }
    }
    Some(findings)
}

/// Asks the devices of files with flights of the dead to finish what is under way. Returns the files that have.
fn land(
    shared: &Shared,
    me: Me<'_>,
    is_gone: &dyn Fn(ThreadId) -> bool,
    land_file: Land<'_>,
) -> BTreeSet<FileId> {
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
        let device = shared.device(file);
        device.is_some_and(|device| land_file(file, &device))
    });
    flying
}

/// Asks a device to finish what is under way. Whether it has.
pub(super) fn wait_for_flights(
    shared: &Shared,
    me: Me<'_>,
    file: FileId,
    device: &Arc<dyn DeviceFile>,
) -> bool {
    // Waiting may change the file's times.
    let landed = shared.change(me, file, device, || device.wait_in_flight());
    if landed.is_err() {
        shared.unlanded.note();
    }
    landed.is_ok()
}

/// What the dead were changing is as they left it: remembered, where this process has a file that is open. Elsewhere a note stays, which makes
/// a recovery look at times instead, and the next opening at the file: outsiders may have changed it since the death.
fn settle_intents(shared: &Shared, me: Me<'_>, is_gone: &dyn Fn(ThreadId) -> bool) {
    let threads = me.arena.counts().threads;
    for file in (0..me.arena.counts().files).map(FileId) {
        let entry = me.arena.file_unchecked(file);
        if entry.state.load(Ordering::Acquire) != LIVE || !entry.is_changing(threads) {
            continue;
        }
        let device = shared.device(file).filter(|_| shared.is_open(file));
        for dead in (1..threads).map(ThreadId).filter(|&id| is_gone(id)) {
            if !entry.has_intent(dead) {
                continue;
            }
            match &device {
                Some(device) => shared.end_intent(Me { id: dead, ..me }, file, device, None),
                None => entry.leave_intent(dead),
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
                && header.flusher() == NOBODYS
                && header
                    .identity()
                    .is_some_and(|i| shared.device(i.file).is_some())
        })
}

/// Makes waits anywhere in the engine look for the dead.
pub fn install(shared: &Arc<Shared>) {
    let session = Arc::downgrade(shared);
    shared.arena.set_rescue(Box::new(move |me, long| {
        let Some(shared) = session.upgrade() else {
            return;
        };
        let rebuilds = me.arena.superblock().rebuilds.load(Ordering::Acquire);
        if long && !is_needed(&shared, me) {
            mend_what_is_written_over(&shared, me, rebuilds);
        } else {
            ask(&shared, me);
        }
    }));
}
