//! What a simulation knows: tasks, timers, dice.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use generator::Generator;

use super::{HAS_CLOCK, NOW};
use crate::ids::ThreadId;
use crate::memory::arena::Arena;
use crate::random::Random;

/// How a simulation schedules.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Shared accesses between two switches, on average.
    pub accesses: u64,
    /// One switch in so many is an absence: others get far.
    pub absence_rarity: u64,
    /// The longest absence, ns.
    pub absence_ns: u64,
}

/// What a timer does.
pub(super) enum Event {
    /// Wakes a task, unless it has been woken since.
    Wake { task: usize, sleep: u64 },
    /// Calls somebody outside of all tasks.
    Call(Box<dyn FnOnce()>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Ready,
    Waiting,
    Running,
    Ended,
}

pub(super) struct Task {
    pub(super) name: String,
    pub(super) process: u32,
    /// `None` while it runs.
    pub(super) body: Option<Generator<'static, (), ()>>,
    pub(super) condition: Condition,
    /// Counts its sleeps: a timer of an earlier one means nothing.
    sleep: u64,
    doomed: bool,
    device_calls: i32,
    listens: bool,
    slots: Vec<(u64, Arc<Arena>, ThreadId)>,
}

pub(super) struct State {
    pub(super) random: Random,
    manner: Manner,
    pub(super) tasks: Vec<Task>,
    ready: Vec<usize>,
    timers: BTreeMap<(u64, u64), Event>,
    numbered: u64,
    pub(super) running: Option<usize>,
    pub(super) turns: u64,
    pub(super) trace: u64,
    pub(super) failure: Option<super::Failure>,
    /// The process that dies at a shared access, and the switches until then.
    victim: Option<(u32, u64)>,
    power_is_off: bool,
    /// Tasks say where they are as they go on.
    pub(super) shows: bool,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// The simulation of this thread; nothing in `f` may switch.
pub(super) fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(|state| f(state.as_mut().expect("a simulation on this thread")))
}

/// Makes a state this thread's, or takes it away.
pub(super) fn install(state: Option<State>) {
    STATE.with_borrow_mut(|place| {
        assert!(
            place.is_none() || state.is_none(),
            "one simulation a thread"
        );
        HAS_CLOCK.set(state.is_some());
        *place = state;
    });
}

impl State {
    pub(super) fn new(seed: u64, manner: Manner) -> Self {
        State {
            random: Random::new(seed),
            manner,
            tasks: Vec::new(),
            ready: Vec::new(),
            timers: BTreeMap::new(),
            numbered: 0,
            running: None,
            turns: 0,
            trace: seed,
            failure: None,
            victim: None,
            power_is_off: false,
            shows: false,
        }
    }

    pub(super) fn add(&mut self, process: u32, name: String, body: Generator<'static, (), ()>) {
        self.ready.push(self.tasks.len());
        self.tasks.push(Task {
            name,
            process,
            body: Some(body),
            condition: Condition::Ready,
            sleep: 0,
            doomed: false,
            device_calls: 0,
            listens: false,
            slots: Vec::new(),
        });
    }

    fn task(&mut self) -> &mut Task {
        let running = self.running.expect("a running task");
        &mut self.tasks[running]
    }

    pub(super) fn running_process(&self) -> u32 {
        self.running
            .map_or(u32::MAX, |task| self.tasks[task].process)
    }

    pub(super) fn running_name(&self) -> String {
        let name = |task: usize| self.tasks[task].name.clone();
        self.running.map(name).unwrap_or_default()
    }

    /// Mixes a word into the trace.
    pub(super) fn note(&mut self, word: u64) {
        self.trace = (self.trace ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }

    /// Somewhere about the average, seldom far from it.
    pub(super) fn draw_countdown(&mut self) -> u64 {
        self.random.next_u64() % (2 * self.manner.accesses + 1)
    }

    pub(super) fn draw_absence(&mut self) -> Option<u64> {
        let away = self.random.next_u64();
        let long = away.is_multiple_of(self.manner.absence_rarity);
        long.then(|| away / self.manner.absence_rarity % self.manner.absence_ns)
    }

    pub(super) fn draw_long_absence(&mut self) -> u64 {
        self.random.next_u64() % self.manner.absence_ns
    }

    /// Whether the running task is the one that is to die now.
    pub(super) fn is_victim(&mut self) -> bool {
        let process = self.running_process();
        match &mut self.victim {
            Some((victim, left)) if *victim == process => {
                if *left == 0 {
                    self.victim = None;
                    return true;
                }
                *left -= 1;
                false
            }
            _ => false,
        }
    }

    pub(super) fn choose_victim(&mut self, process: u32, switches: u64) {
        self.victim = Some((process, switches));
    }

    /// The running task waits: for a time, or for its next turn.
    pub(super) fn leave_turn(&mut self, away: Option<u64>) {
        let running = self.running.expect("a running task");
        match away {
            None => {
                self.tasks[running].condition = Condition::Ready;
                self.ready.push(running);
            }
            Some(ns) => {
                let task = &mut self.tasks[running];
                task.condition = Condition::Waiting;
                task.sleep += 1;
                let sleep = task.sleep;
                self.set_timer(
                    ns,
                    Event::Wake {
                        task: running,
                        sleep,
                    },
                );
            }
        }
    }

    pub(super) fn set_timer(&mut self, ns: u64, event: Event) {
        self.numbered += 1;
        self.timers
            .insert((NOW.get().saturating_add(ns), self.numbered), event);
    }

    pub(super) fn wake(&mut self, task: usize) {
        if self.tasks[task].condition == Condition::Waiting {
            self.tasks[task].condition = Condition::Ready;
            self.ready.push(task);
        }
    }

    pub(super) fn listen(&mut self, listens: bool) {
        self.task().listens = listens;
    }

    pub(super) fn wake_listeners(&mut self) {
        for task in 0..self.tasks.len() {
            if self.tasks[task].listens {
                self.wake(task);
            }
        }
    }

    pub(super) fn enter_device(&mut self, change: i32) {
        if let Some(running) = self.running {
            self.tasks[running].device_calls += change;
        }
    }

    /// Whether the running task has been killed and can die here.
    pub(super) fn must_die(&mut self) -> bool {
        // Timers do things outside of all tasks.
        let Some(running) = self.running else {
            return false;
        };
        let task = &self.tasks[running];
        task.doomed && (self.power_is_off || task.device_calls == 0)
    }

    /// Kills a process: its tasks die when they go on.
    pub(super) fn doom(&mut self, process: u32) {
        for index in 0..self.tasks.len() {
            let task = &mut self.tasks[index];
            if task.process == process && task.condition != Condition::Ended {
                task.doomed = true;
                if task.device_calls == 0 || self.power_is_off {
                    self.wake(index);
                }
            }
        }
    }

    /// Nobody lives on, and no device does anything any more.
    pub(super) fn power_off(&mut self) {
        self.power_is_off = true;
        self.timers.clear();
        for index in 0..self.tasks.len() {
            let process = self.tasks[index].process;
            self.doom(process);
        }
    }

    pub(super) fn power_on(&mut self) {
        self.power_is_off = false;
    }

    pub(super) fn is_gone(&self, process: u32) -> bool {
        self.tasks
            .iter()
            .all(|task| task.process != process || task.condition == Condition::Ended)
    }

    pub(super) fn slot_of(&mut self, instance: u64) -> Option<ThreadId> {
        let slots = &self.task().slots;
        slots
            .iter()
            .find(|slot| slot.0 == instance)
            .map(|slot| slot.2)
    }

    pub(super) fn keep_slot(&mut self, instance: u64, arena: Arc<Arena>, id: ThreadId) {
        self.task().slots.push((instance, arena, id));
    }

    pub(super) fn take_slots(&mut self) -> Vec<(u64, Arc<Arena>, ThreadId)> {
        std::mem::take(&mut self.task().slots)
    }

    /// The task with the next turn: chosen among those that can, after what is due has happened.
    pub(super) fn next_ready(&mut self) -> Option<usize> {
        if self.ready.is_empty() {
            return None;
        }
        let place = self.random.below(self.ready.len());
        let task = self.ready.swap_remove(place);
        self.tasks[task].condition = Condition::Running;
        self.turns += 1;
        NOW.set(NOW.get() + 50 + self.random.next_u64() % 400);
        self.note(task as u64 ^ NOW.get() << 8);
        Some(task)
    }

    /// The next event that is due; where nobody can go on, time passes until there is one. `None`: nothing is due, or nothing
    /// will ever be.
    pub(super) fn next_due(&mut self) -> Option<Event> {
        let (&(time, number), _) = self.timers.first_key_value()?;
        if time > NOW.get() {
            if !self.ready.is_empty() {
                return None;
            }
            NOW.set(time);
        }
        self.timers.remove(&(time, number))
    }

    /// Wakes a task whose sleep has ended.
    pub(super) fn end_sleep(&mut self, task: usize, sleep: u64) {
        if self.tasks[task].sleep == sleep {
            self.wake(task);
        }
    }
}
