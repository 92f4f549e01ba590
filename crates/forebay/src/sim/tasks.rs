//! One operating-system thread, many logical ones: coroutines that a seed schedules, with a clock of their own.
//!
//! A [`Simulation`] owns tasks, each of a *process* (a number). A task runs until it waits (`sync::relax`, `sync::time::sleep`, a
//! futex, a call of the simulated device) or until a countdown of shared accesses ends ([`point`]); then the dice choose who goes on.
//! Time moves only here: a little with each turn, and to the next timer where everybody waits. So equal seeds make equal
//! histories, which [`Simulation::trace`] tells, and a day of waiting costs nothing.
//!
//! A process that is killed dies as by `kill -9`: each of its tasks unwinds with [`super::Crash`] where it stands, and
//! guards leave the arena alone; a task in the middle of a device call dies at its end, as a thread in the kernel does. When the
//! power goes, every task dies where it stands.
//!
//! Unlike schedule exploration this is not after every interleaving of a few steps, but after long lives: millions of
//! turns, keepers with their real loops, latencies, errors and deaths.

mod run;
mod state;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::{CRASHED, Crash, explore};
use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use state::{Event, with};

pub use run::{Failure, Simulation};
pub use state::Manner;

thread_local! {
    /// Whether a task of a simulation is running on this thread.
    static ON: Cell<bool> = const { Cell::new(false) };
    /// Whether the clock of this thread is a simulation's: the thread that makes its sessions runs none of its tasks, and shall have
    /// no other.
    static HAS_CLOCK: Cell<bool> = const { Cell::new(false) };
    /// Accesses until the running task may lose its turn.
    static COUNTDOWN: Cell<u64> = const { Cell::new(0) };
    /// Nanoseconds since the simulation began.
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// Whether a task is running.
#[inline]
pub fn is_on() -> bool {
    ON.get()
}

/// Whether the clock is a simulation's.
#[inline]
pub fn has_clock() -> bool {
    HAS_CLOCK.get()
}

/// A shared access of a task: perhaps the end of its turn.
#[inline]
pub fn point() {
    match COUNTDOWN.get().checked_sub(1) {
        Some(left) => COUNTDOWN.set(left),
        None => turn_ends(),
    }
}

#[cold]
fn turn_ends() {
    if explore::is_quiet() || CRASHED.get() || std::thread::panicking() {
        return;
    }
    let (away, dies) = with(|state| {
        COUNTDOWN.set(state.draw_countdown());
        (state.draw_absence(), state.is_victim())
    });
    if dies {
        with(|state| state.doom(state.running_process()));
        die();
    }
    switch(away);
}

/// One pause in so many is an absence.
const PAUSE_RARITY: u64 = 6;

/// As [`point`], in the middle of a copy, where others should get far now and then.
pub fn pause() {
    let quiet = explore::is_quiet() || CRASHED.get() || std::thread::panicking();
    if quiet || !dice().is_multiple_of(PAUSE_RARITY) {
        return point();
    }
    let away = with(|state| state.draw_long_absence());
    switch(Some(away));
}

/// Gives the turn away: for this long, or until chance comes back to this task.
fn switch(away: Option<u64>) {
    with(|state| state.leave_turn(away));
    yield_turn();
    if with(|state| state.shows) {
        let name = with(|state| state.running_name());
        eprintln!(
            "{name} is at\n{}",
            std::backtrace::Backtrace::force_capture()
        );
    }
    if with(|state| state.must_die()) {
        die();
    }
}

#[allow(
    deprecated,
    reason = "the scoped form would have to be handed through the whole engine"
)]
fn yield_turn() {
    generator::yield_with(());
}

/// Unwinds as a task that has been killed.
fn die() -> ! {
    CRASHED.set(true);
    // Not a panic: no hook hears of it.
    std::panic::resume_unwind(Box::new(Crash))
}

/// The time, since the simulation began.
pub fn now() -> Duration {
    Duration::from_nanos(NOW.get())
}

/// Waits. Nothing happens in a task that is dying.
pub fn sleep(time: Duration) {
    if !is_on() || CRASHED.get() || std::thread::panicking() {
        return;
    }
    switch(Some(time.as_nanos() as u64));
}

/// What a task does between two looks at a word that another must change.
pub(crate) fn relax(round: u32) {
    let ns = match round {
        0..64 => 200,
        64..256 => 2_000,
        _ => 50_000,
    };
    sleep(Duration::from_nanos(ns));
}

/// Sleeps until woken, for at most `timeout`.
pub(crate) fn wait_on_futex(timeout: Duration) {
    with(|state| state.listen(true));
    sleep(timeout);
    with(|state| state.listen(false));
}

/// Wakes all tasks that sleep on any word: early ends of such sleeps are always allowed.
pub(crate) fn wake_futexes() {
    with(|state| state.wake_listeners());
}

/// A number that the seed decides.
pub fn dice() -> u64 {
    with(|state| state.random.next_u64())
}

/// A number below `bound`, which is not 0.
pub fn below(bound: u64) -> u64 {
    dice() % bound
}

/// Has something done later, by nobody: a device, chance.
pub fn later(time: Duration, what: impl FnOnce() + 'static) {
    with(|state| state.set_timer(time.as_nanos() as u64, Event::Call(Box::new(what))));
}

/// Notes something in the trace.
pub fn note(word: u64) {
    with(|state| state.note(word));
}

/// Turns taken so far.
pub fn turns() -> u64 {
    with(|state| state.turns)
}

/// A call of a device: a task that is killed in it dies at its end. Unless the power goes.
#[must_use]
pub struct DeviceCall(());

/// Begins one.
pub fn device_call() -> DeviceCall {
    with(|state| state.enter_device(1));
    DeviceCall(())
}

impl DeviceCall {
    /// Ends it; here a task dies that was killed meanwhile.
    pub fn end(self) {
        drop(self);
        if !CRASHED.get() && with(|state| state.must_die()) {
            die();
        }
    }
}

impl Drop for DeviceCall {
    fn drop(&mut self) {
        with(|state| state.enter_device(-1));
    }
}

/// The running task's slot in a session, or the one that `take` finds.
pub(crate) fn slot(
    instance: u64,
    arena: &Arc<Arena>,
    take: impl FnOnce() -> Option<ThreadId>,
) -> Option<ThreadId> {
    if let Some(known) = with(|state| state.slot_of(instance)) {
        return Some(known);
    }
    let id = take()?;
    with(|state| state.keep_slot(instance, Arc::clone(arena), id));
    Some(id)
}

/// Drops what a dead process has left: nobody hears of it.
pub fn as_dead<T>(left: T) {
    let before = CRASHED.replace(true);
    drop(left);
    CRASHED.set(before);
}
