//! Writers at the limit on owed bytes: the only place where a writer waits for memory that is not short (promise 5).
//!
//! A keeper that lives and gets on is waited for: it has many requests under way, and a writer that flushed beside it would
//! do so one request at a time, while it could copy. Progress never needs it (decision 0005): a writer flushes by itself, the
//! coldest stream first, if there is no keeper, if it carries nothing out for [`PATIENCE`] (stopped, without the files in question,
//! or with a device so slow that a request takes longer), and from then on until the keeper has got on.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::file::core::{Core, Halt};
use crate::file::{room, streams};
use crate::flush::busy;
use crate::flush::limit::{self, Room};
use crate::member::presence::has_keeper;
use crate::memory::threads::Me;
use crate::sync::Ordering;
use crate::sync::time::Instant;

/// Waits above the limits in which nothing comes or is on its way to the device, after which a writer goes on.
const IDLE_ROUNDS_MAX: u32 = 64;
/// A keeper that carries nothing out for so long is not waited for.
const PATIENCE: Duration = Duration::from_millis(20);
/// Pages that a writer flushes at once where it does so by itself.
const PAGES_AT_ONCE: u64 = 512;

/// Above the limit on owed bytes the writer waits for those that flush, or does so itself. Above the lower one the keeper hears of it.
#[inline]
pub(super) fn throttle(core: &Core, me: Me<'_>) -> Result<(), Halt> {
    let superblock = me.arena.superblock();
    limit::look(superblock);
    if exceeded(core, me).is_none() {
        return Ok(());
    }
    slow_down(core, me)
}

/// What there is no room in.
#[inline]
fn exceeded(core: &Core, me: Me<'_>) -> Option<Room> {
    let superblock = me.arena.superblock();
    if core.entry().owed_pages.load(Ordering::Relaxed) >= core.shared.file_owed_pages_max {
        return Some(Room::Any);
    }
    let limit = superblock.owed_pages_max.load(Ordering::Relaxed);
    if superblock.owed_about() < limit {
        return None;
    }
    exceeded_in_session(core, limit)
}

/// As [`exceeded`], where the session owes as much as `limit`. What devices have refused is waited for by those that write to such files.
fn exceeded_in_session(core: &Core, limit: u64) -> Option<Room> {
    let shared = &core.shared;
    if shared.is_refused(core.entry()) {
        return Some(Room::Session);
    }
    match shared.refused_pages() {
        0 => Some(Room::Session),
        // A thread that makes room does not reckon with those.
        _ => (shared.owed_in_reach() >= limit).then_some(Room::Any),
    }
}

#[cold]
fn slow_down(core: &Core, me: Me<'_>) -> Result<(), Halt> {
    core.shared.wake_keeper();
    let superblock = me.arena.superblock();
    let device = core.device.caps().device;
    let (mut idle_rounds, mut round) = (0, 0);
    while idle_rounds < IDLE_ROUNDS_MAX {
        if core.shared.is_refused(core.entry()) {
            // Whatever others get written is no room for this one, which is slowed down all the same.
            idle_rounds += 1;
            me.wait(300 + idle_rounds);
            if exceeded(core, me).is_none() {
                break;
            }
            continue;
        }
        if await_keeper(core, me) {
            break;
        }
        let outcome = room::flush_some(core, me, PAGES_AT_ONCE);
        me.settle_owed();
        if exceeded(core, me).is_none() {
            break;
        }
        if outcome.pages_written == 0 {
            // All in flight by others, or failing: their speed is ours. A failing device is reported by sync; memory's own
            // limit still holds, so going on is safe.
            let waits = outcome.errno.is_none() && busy::inflight_bytes(superblock, device) > 0;
            idle_rounds = if waits { 0 } else { idle_rounds + 1 };
            round += 1;
            me.wait(300 + round);
        }
    }
    Ok(())
}

/// Waits while the keeper makes room, as long as it gets on. Whether there is room.
fn await_keeper(core: &Core, me: Me<'_>) -> bool {
    let superblock = me.arena.superblock();
    let mut vigil = Vigil::begin(core, me);
    while vigil.is_worth_it() && !core.shared.is_refused(core.entry()) {
        let Some(room) = exceeded(core, me) else {
            return true;
        };
        limit::await_room(superblock, room, || exceeded(core, me).is_none());
        vigil.look();
    }
    exceeded(core, me).is_none()
}

/// Waits for one request of a keeper that is writing back, for a thread that needs memory and finds none that is clean. Whether it came.
pub(super) fn await_request(core: &Core, me: Me<'_>) -> bool {
    let superblock = me.arena.superblock();
    let mut vigil = Vigil::begin(core, me);
    let begun = vigil.kept;
    let above = || limit::is_above_background(superblock) && streams::owes_too_much(&core.shared);
    while above() && vigil.kept == begun && vigil.is_worth_it() {
        limit::await_room(superblock, Room::Any, || false);
        vigil.look();
    }
    vigil.kept != begun
}

/// Watching the keeper, for as long as it gets on.
struct Vigil<'a> {
    core: &'a Core,
    me: Me<'a>,
    /// Requests that it had carried out at the last look, and when that had changed.
    kept: u32,
    since: Instant,
}

impl<'a> Vigil<'a> {
    fn begin(core: &'a Core, me: Me<'a>) -> Self {
        let kept = me.arena.superblock().kept.load(Ordering::Acquire);
        Vigil {
            core,
            me,
            kept,
            since: Instant::now(),
        }
    }

    /// Whether there is a keeper, and nobody here has waited in vain since it did something.
    fn is_worth_it(&self) -> bool {
        let stalled_at = self.core.shared.keeper_stalled_at.load(Relaxed);
        stalled_at != u64::from(self.kept) && has_keeper(self.me.arena)
    }

    fn look(&mut self) {
        let kept = self.me.arena.superblock().kept.load(Ordering::Acquire);
        if kept != self.kept {
            (self.kept, self.since) = (kept, Instant::now());
        } else if self.since.elapsed() > PATIENCE {
            let stalled_at = &self.core.shared.keeper_stalled_at;
            stalled_at.store(kept.into(), Relaxed);
        } else {
            // After a death a repair may be needed.
            self.me.wait(8);
        }
    }
}
