//! Running tasks, killing them, and hearing how they ended.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use generator::Gn;

use super::state::{Condition, Event, Manner, State, install, with};
use super::{COUNTDOWN, CRASHED, Crash, NOW, ON};
use crate::memory::threads::{self, Me};

/// A task's stack, words. Only what is touched has memory.
const STACK_WORDS: usize = 1 << 16;

/// A task that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The task's name.
    pub task: String,
    /// What it panicked with.
    pub what: String,
}

/// The simulation of this operating-system thread.
pub struct Simulation(PhantomData<*const ()>);

/// What a task does. It never leaves the thread of its simulation.
struct Body(Box<dyn FnOnce()>);

// SAFETY: the generator that asks for this is resumed and dropped by the thread that made the body alone: `Simulation`
// and all that lead to it are bound to their thread.
unsafe impl Send for Body {}

impl Simulation {
    /// A simulation without tasks.
    pub fn new(seed: u64, manner: Manner) -> Self {
        install(Some(State::new(seed, manner)));
        NOW.set(0);
        Simulation(PhantomData)
    }

    /// Adds a task.
    pub fn spawn(&self, process: u32, name: &str, body: impl FnOnce() + 'static) {
        let body = Body(Box::new(body));
        let coroutine = Gn::new_opt(STACK_WORDS, move || live(body));
        with(|state| state.add(process, name.to_owned(), coroutine));
    }

    /// Runs until `until` says so, for `time` at most. `Ok(false)`: the time was over first.
    ///
    /// # Errors
    /// The failure of a task, or that everybody waits for nothing.
    pub fn run(&self, time: Duration, until: impl Fn() -> bool) -> Result<bool, Failure> {
        let end = NOW.get().saturating_add(time.as_nanos() as u64);
        loop {
            if until() {
                return Ok(true);
            }
            if NOW.get() >= end {
                return Ok(false);
            }
            while let Some(event) = with(State::next_due) {
                match event {
                    Event::Wake { task, sleep } => with(|state| state.end_sleep(task, sleep)),
                    Event::Call(call) => call(),
                }
            }
            let Some(task) = with(State::next_ready) else {
                return Err(nobody_goes_on());
            };
            take_turn(task);
            if let Some(failure) = with(|state| state.failure.take()) {
                return Err(failure);
            }
        }
    }

    /// Kills a process; its tasks die as they go on.
    pub fn kill(&self, process: u32) {
        with(|state| state.doom(process));
    }

    /// Kills a process at a shared access, after so many of its switches.
    pub fn kill_later(&self, process: u32, switches: u64) {
        with(|state| state.choose_victim(process, switches));
    }

    /// Every task dies where it stands, and what is under way stays as it is.
    pub fn cut_power(&self) {
        with(State::power_off);
        while let Some(task) = with(State::next_ready) {
            take_turn(task);
        }
        with(State::power_on);
    }

    /// Whether no task of a process is left.
    pub fn is_gone(&self, process: u32) -> bool {
        with(|state| state.is_gone(process))
    }

    /// Turns taken.
    pub fn turns(&self) -> u64 {
        with(|state| state.turns)
    }

    /// A number that equal histories have in common.
    pub fn trace(&self) -> u64 {
        with(|state| state.trace)
    }

    /// Has each task print where it is when it goes on, for so many turns.
    ///
    /// # Errors
    /// As for [`Simulation::run`].
    pub fn show_where(&self, turns: u64) -> Result<(), Failure> {
        let until = self.turns() + turns;
        with(|state| state.shows = true);
        let shown = self.run(Duration::from_secs(1), || self.turns() >= until);
        with(|state| state.shows = false);
        shown.map(drop)
    }

    /// The tasks that are still there, and what each does.
    pub fn describe(&self) -> String {
        describe()
    }
}

impl Drop for Simulation {
    /// A task that is left dies: a coroutine that is dropped would unwind as if its process lived.
    fn drop(&mut self) {
        self.cut_power();
        install(None);
    }
}

fn describe() -> String {
    let name = |condition| match condition {
        Condition::Ready => "ready",
        Condition::Waiting => "waiting",
        Condition::Running => "running",
        Condition::Ended => "ended",
    };
    with(|state| {
        let left = state
            .tasks
            .iter()
            .filter(|task| task.condition != Condition::Ended);
        let lines: Vec<String> = left
            .map(|task| format!("{} ({})", task.name, name(task.condition)))
            .collect();
        lines.join(", ")
    })
}

fn nobody_goes_on() -> Failure {
    Failure {
        task: "everybody".into(),
        what: format!("nobody can ever go on: {}", describe()),
    }
}

fn take_turn(task: usize) {
    let mut body = with(|state| {
        state.running = Some(task);
        let countdown = state.draw_countdown();
        COUNTDOWN.set(countdown);
        state.tasks[task].body.take().expect("a task at rest")
    });
    ON.set(true);
    body.resume();
    ON.set(false);
    with(|state| {
        state.running = None;
        if body.is_done() {
            state.tasks[task].condition = Condition::Ended;
        } else {
            state.tasks[task].body = Some(body);
        }
    });
}

/// The life of a task, from its first turn to its end.
fn live(body: Body) {
    // The whole of it, not its field: what may be sent is the body.
    let whole = body;
    if with(State::must_die) {
        super::as_dead(whole);
        return;
    }
    let Body(work) = whole;
    let ended = catch_unwind(AssertUnwindSafe(work));
    CRASHED.set(false);
    // Nobody takes the turn from here on.
    COUNTDOWN.set(u64::MAX);
    let slots = with(State::take_slots);
    match ended {
        Ok(()) => {
            for (_, arena, id) in slots {
                threads::release(Me { arena: &arena, id });
            }
        }
        Err(payload) => {
            for (_, arena, id) in slots {
                threads::slay(&arena, id);
            }
            if !payload.is::<Crash>() {
                with(|state| {
                    state.failure = Some(Failure {
                        task: state.running_name(),
                        what: text_of(payload.as_ref()),
                    });
                });
            }
        }
    }
}

fn text_of(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()));
    text.unwrap_or_else(|| "something that is no text".into())
}
