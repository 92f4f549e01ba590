//! Closing gates: being alone on a file, or in the session (`docs/locking.md`, "Operations and stopping").

use std::time::Duration;

use super::{Inside, Me, PARKED, STOP_PATIENCE, ThreadSlot, is_dead, is_gone};
use crate::ids::{FileId, ThreadId};
use crate::memory::arena::Arena;
use crate::sync::time::Instant;
use crate::sync::{Ordering, fence, planted, relax};
use crate::sys::{liveness, membarrier};

/// Looks at a thread in the way, after each so many of which it is asked whether its process is stopped.
const ASK_ROUNDS: u32 = 256;
/// How long a thread waits for a holder that is not seen to be stopped: longer than anybody has to wait for a core.
const HOLDER_PATIENCE: Duration = Duration::from_secs(60);

/// `false`: there is none to be had, and nothing may be concluded from words.
fn barrier(arena: &Arena) -> bool {
    if arena.fences() {
        fence(Ordering::SeqCst);
        return true;
    }
    membarrier::global_expedited()
}

/// The session is stopped while this lives.
pub struct SessionStop<'a> {
    me: Me<'a>,
}

/// Stops every operation of the session, for a check of what is in it: the engine itself is alone in a session only to rebuild it. `None` if
/// somebody else holds the gate, or a thread did not stop in time; the caller must be idle.
pub fn stop_session(me: Me<'_>) -> Option<SessionStop<'_>> {
    close_session(me, 0)
}

/// As [`stop_session`], for a rebuild: a gate whose holder has died is taken over. It is never just opened, since the dead may
/// have been in the middle of a rebuild; only a rebuild may open it.
pub fn stop_session_for_rebuild(me: Me<'_>) -> Option<SessionStop<'_>> {
    let holder = me.arena.superblock().gate.load(Ordering::Acquire);
    if holder != 0 && !is_gone(me.arena, ThreadId(holder)) {
        return None;
    }
    if holder != 0 && planted!(OpenGate) {
        me.arena.superblock().gate.store(0, Ordering::Release);
        return None;
    }
    if !exploring() && somebody_does_not_run(me.arena) {
        return None;
    }
    close_session(me, holder)
}

fn close_session(me: Me<'_>, from: u32) -> Option<SessionStop<'_>> {
    let gate = &me.arena.superblock().gate;
    gate.compare_exchange(from, me.id.0, Ordering::AcqRel, Ordering::Acquire)
        .ok()?;
    if barrier(me.arena) && wait_for_others(me, |word| word != 0 && word & PARKED == 0) {
        return Some(SessionStop { me });
    }
    // Open, or abandoned still.
    gate.store(from, Ordering::Release);
    None
}

impl Drop for SessionStop<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        self.me.arena.superblock().gate.store(0, Ordering::Release);
    }
}

/// Waits until no thread is in an operation that it had entered before this call: what was taken out of everybody's sight before, nobody
/// looks at any more. No gate is closed, so nobody waits for this; a thread that goes from one operation to the next is seen between
/// two of them. `false`: somebody is in one for too long. The caller must be idle.
pub fn await_operations(me: Me<'_>) -> bool {
    barrier(me.arena) && wait_for_others(me, |word| word != 0 && word & PARKED == 0)
}

/// One file is stopped while this lives.
pub struct FileStop<'a> {
    me: Me<'a>,
    file: FileId,
    is_alone: bool,
}

/// Stops every operation on one file. `None` as for [`stop_session`].
pub fn stop_file<'a>(me: Me<'a>, file: FileId) -> Option<FileStop<'a>> {
    let inside = me.arena.file_unchecked(file).gate.close(me.id)?;
    let mut stop = FileStop {
        me,
        file,
        is_alone: false,
    };
    let here = u64::from(file.0) + 1;
    stop.is_alone = inside == Inside::Nobody
        || barrier(me.arena) && wait_for_others(me, |word| word & !PARKED == here);
    stop.is_alone.then_some(stop)
}

impl Drop for FileStop<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() {
            return;
        }
        let me = self.me;
        let gate = &me.arena.file_unchecked(self.file).gate;
        if self.is_alone {
            gate.open(me.id, me.slot().op.load(Ordering::Relaxed) != 0);
        } else {
            gate.reopen(me.id);
        }
    }
}

/// Whether schedules are explored: then nobody is slow, and a stop that never comes about is a bug.
fn exploring() -> bool {
    #[cfg(feature = "sim")]
    return crate::sim::exploring();
    #[cfg(not(feature = "sim"))]
    false
}

/// Whether the thread's process is stopped, as far as can be told.
pub(super) fn does_not_run(slot: &ThreadSlot) -> bool {
    liveness::is_stopped(slot.pid.load(Ordering::Relaxed))
}

/// Waiting for what somebody has, with a way on where the holder does not go on.
pub struct Waiting {
    begun: Instant,
    round: u32,
    patience: Duration,
}

impl Waiting {
    /// It begins.
    pub fn begin() -> Self {
        Waiting::at_most(HOLDER_PATIENCE)
    }

    /// It begins, and is in vain after so long in any case.
    pub fn at_most(patience: Duration) -> Self {
        Waiting {
            begun: Instant::now(),
            round: 0,
            patience,
        }
    }

    /// Asked each time that the holder still has it; 0 for nobody. Whether that is no use any more: at once where the holder's process
    /// is stopped, as far as can be told, or it has died and a thread that is stopped puts the repair off.
    pub fn is_in_vain(&mut self, arena: &Arena, holder: ThreadId) -> bool {
        self.round += 1;
        if !self.round.is_multiple_of(ASK_ROUNDS) || exploring() {
            return false;
        }
        if self.begun.elapsed() > self.patience {
            return true;
        }
        if holder.0 != 0 && is_gone(arena, holder) {
            // A stopped thread puts the repair off.
            return somebody_does_not_run(arena);
        }
        arena.thread(holder).is_some_and(does_not_run)
    }
}

/// Whether somebody is stopped in the middle of an operation: then a stop of the session would end in nothing, and everybody would have
/// waited for it.
fn somebody_does_not_run(arena: &Arena) -> bool {
    (1..arena.counts().threads).map(ThreadId).any(|id| {
        let slot = arena.thread_unchecked(id);
        let word = slot.op.load(Ordering::Acquire);
        let is_active = word != 0 && word & PARKED == 0;
        is_active && !is_dead(arena, id) && does_not_run(slot)
    })
}

fn wait_for_others(me: Me<'_>, in_the_way: impl Fn(u64) -> bool) -> bool {
    let begun = Instant::now();
    for id in (1..me.arena.counts().threads)
        .map(ThreadId)
        .filter(|&id| id != me.id)
    {
        let slot = me.arena.thread_unchecked(id);
        let mut round = 0;
        // Acquire pairs with the release of `leave` and `park`: what that thread did is seen.
        while in_the_way(slot.op.load(Ordering::Acquire)) && !is_dead(me.arena, id) {
            round += 1;
            relax(round);
            if exploring() {
                continue;
            }
            let is_late = round > 1000 && begun.elapsed() > STOP_PATIENCE;
            if is_late || round.is_multiple_of(ASK_ROUNDS) && does_not_run(slot) {
                return false;
            }
        }
    }
    true
}
