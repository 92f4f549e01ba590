//! Processes and their threads that a seed schedules, one at a time: each access of a shared word is a place where another thread may
//! go on. What a process has for itself is put in place when one of its threads gets its turn, as the kernel does with memory.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_model::SplitMix64;

use crate::table::{self, FDS, PRIVATE};

thread_local! {
    static TASK: Cell<Option<usize>> = const { Cell::new(None) };
    static PROCESS: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Accesses between two draws of who goes on, on average.
const STRIDE: u64 = 3;

/// What the code that is explored sees, or does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Whoever opens a file does not tell children that are being forked.
    UntoldOpening,
    /// A child takes what it finds for its own, whatever is behind its descriptors.
    NoDoubts,
    /// Processes that live are taken for dead.
    EarlyDeath,
    /// Nobody's death is ever seen.
    EternalLife,
    /// A fork counts nothing for the child, which looks only for itself.
    UncountedFork,
    /// A child does not let go of what was counted for it and what it has not inherited.
    KeptForChild,
    /// A holder is taken away by a load and a store.
    TornCount,
}

/// An open file description of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub id: u64,
    pub inode: u64,
}

pub struct Process {
    pub dead: bool,
    /// It has executed another program: its number goes on, and nothing else.
    pub executed: bool,
    /// It has taken notice of being a child.
    pub noticed: bool,
    pub fds: BTreeMap<usize, Object>,
    /// Of these, those that it has from a parent that may not have counted them for it: they may be taken for another opening of the
    /// same file.
    pub excused: BTreeSet<usize>,
    /// Descriptors, and what was behind them, of which children that are being forked have been told.
    pub told: BTreeSet<(usize, u64)>,
    pub words: [u64; FDS],
    /// What is its own while it does not run.
    private: [u32; PRIVATE],
    pub tasks: usize,
}

struct Task {
    process: usize,
    done: bool,
}

pub struct State {
    random: SplitMix64,
    pub bug: Option<Bug>,
    tasks: Vec<Task>,
    pub processes: Vec<Process>,
    running: Option<usize>,
    /// The object that each description was taken for.
    pub objects: BTreeMap<u32, Object>,
    pub opened: u64,
    pub mixed: Option<String>,
    pub turns: u64,
    pub kills: usize,
    /// What has happened, for who looks for the cause of a failure.
    pub history: Vec<String>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
static TURN: Condvar = Condvar::new();

/// Nobody else runs meanwhile.
pub struct Now(MutexGuard<'static, Option<State>>);

impl std::ops::Deref for Now {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().expect("a run")
    }
}

impl std::ops::DerefMut for Now {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("a run")
    }
}

pub fn now() -> Now {
    Now(STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The unwinding of who is killed.
struct Killed;

/// Number of the running process; the observer's, who looks when all is over, is none's.
pub fn me() -> usize {
    PROCESS.get()
}

fn die() -> ! {
    std::panic::resume_unwind(Box::new(Killed))
}

/// Another thread may go on here.
pub fn point() {
    let Some(task) = TASK.get() else { return };
    if std::thread::panicking() {
        return;
    }
    let mut now = now();
    let process = now.tasks[task].process;
    if now.processes[process].dead {
        drop(now);
        die();
    }
    now.turns += 1;
    if now.random.below(STRIDE) == 0 {
        now.hand_on(task);
        now = now.await_turn(task);
        let dead = now.processes[process].dead;
        drop(now);
        if dead {
            die();
        }
    }
}

impl State {
    /// A number below `bound` that the seed decides.
    pub fn draw(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Somebody gets the turn; whose process has its own memory in place then.
    fn hand_on(&mut self, from: usize) {
        let ready: Vec<usize> = (0..self.tasks.len())
            .filter(|&task| !self.tasks[task].done)
            .collect();
        let next = match ready.len() as u64 {
            0 => None,
            many => Some(ready[self.random.below(many) as usize]),
        };
        let old = self.tasks[from].process;
        let new = next.map(|next| self.tasks[next].process);
        if new != Some(old) {
            self.processes[old].private = table::private_now();
            table::put_private(new.map_or([0; PRIVATE], |new| self.processes[new].private));
        }
        self.running = next;
        TURN.notify_all();
    }
}

impl Now {
    fn await_turn(self, task: usize) -> Now {
        let mut guard = self.0;
        while guard.as_ref().expect("a run").running != Some(task) {
            let waited = TURN.wait_timeout(guard, Duration::from_secs(60));
            let (again, time) = waited.unwrap_or_else(PoisonError::into_inner);
            assert!(!time.timed_out(), "somebody hangs");
            guard = again;
        }
        Now(guard)
    }
}

/// Begins a thread of a process. It gets its turn some time.
pub fn spawn(process: usize, body: impl FnOnce() + Send + 'static) {
    let mut now = now();
    let task = now.tasks.len();
    now.tasks.push(Task {
        process,
        done: false,
    });
    now.processes[process].tasks += 1;
    drop(now);
    std::thread::spawn(move || {
        TASK.set(Some(task));
        PROCESS.set(process);
        drop(crate::explored::now().await_turn(task));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            point();
            body();
        }));
        let mut now = crate::explored::now();
        if let Err(payload) = ended
            && !payload.is::<Killed>()
        {
            now.mixed.get_or_insert("a panic".into());
        }
        now.tasks[task].done = true;
        let process = &mut now.processes[process];
        process.tasks -= 1;
        if process.tasks == 0 {
            process.dead = true;
            process.fds.clear();
        }
        now.hand_on(task);
    });
}

/// A process, with a copy of what another one has.
pub fn new_process(like: Option<usize>) -> usize {
    let mut now = now();
    let mut new = Process {
        dead: false,
        executed: false,
        noticed: false,
        fds: BTreeMap::new(),
        excused: BTreeSet::new(),
        told: BTreeSet::new(),
        words: [0; FDS],
        private: [0; PRIVATE],
        tasks: 0,
    };
    if let Some(parent) = like {
        new.words = now.processes[parent].words;
        new.private = table::private_now();
    }
    now.processes.push(new);
    now.processes.len() - 1
}

/// A number below `bound` that the seed decides.
pub fn below(bound: u64) -> u64 {
    now().random.below(bound)
}

/// Runs a family of processes from its first thread on, until all have ended. How many turns it took.
pub fn run(seed: u64, bug: Option<Bug>, first: impl FnOnce() + Send + 'static) -> u64 {
    *STATE.lock().unwrap_or_else(PoisonError::into_inner) = Some(State {
        random: SplitMix64::new(seed),
        bug,
        tasks: Vec::new(),
        processes: Vec::new(),
        running: None,
        objects: BTreeMap::new(),
        opened: 0,
        mixed: None,
        turns: 0,
        kills: 0,
        history: Vec::new(),
    });
    table::put_private([0; PRIVATE]);
    let process = new_process(None);
    now().processes[process].noticed = true;
    spawn(process, first);
    let mut guard = now();
    guard.running = Some(0);
    TURN.notify_all();
    while guard.running.is_some() {
        let waited = TURN.wait_timeout(guard.0, Duration::from_secs(60));
        let (again, time) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!time.timed_out(), "seed {seed}: somebody hangs");
        guard = Now(again);
    }
    guard.turns
}

/// Notes what the running process does.
pub fn note(what: &str) {
    let line = format!("{} {what}", me());
    now().history.push(line);
}

/// Whether a mistake is planted.
pub fn planted(bug: Bug) -> bool {
    now().bug == Some(bug)
}

macro_rules! atomic {
    ($name:ident, $std:ident, $int:ty) => {
        #[derive(Default)]
        #[repr(transparent)]
        pub struct $name(std::sync::atomic::$std);

        #[allow(dead_code)]
        impl $name {
            pub const fn new(value: $int) -> Self {
                Self(std::sync::atomic::$std::new(value))
            }
            /// Without a turn.
            pub fn raw(&self) -> &std::sync::atomic::$std {
                &self.0
            }
            pub fn load(&self, order: Ordering) -> $int {
                point();
                self.0.load(order)
            }
            pub fn store(&self, value: $int, order: Ordering) {
                point();
                self.0.store(value, order)
            }
            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                point();
                self.0.swap(value, order)
            }
            pub fn compare_exchange(
                &self,
                from: $int,
                to: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                point();
                self.0.compare_exchange(from, to, success, failure)
            }
            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                point();
                self.0.fetch_add(value, order)
            }
            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                point();
                self.0.fetch_sub(value, order)
            }
            pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                point();
                self.0.fetch_or(value, order)
            }
            pub fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                point();
                self.0.fetch_and(value, order)
            }
            pub fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                point();
                self.0.fetch_max(value, order)
            }
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                change: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                point();
                if TASK.get().is_some() && planted(Bug::TornCount) {
                    let mut change = change;
                    let was = self.0.load(failure);
                    point();
                    let Some(new) = change(was) else {
                        return Err(was);
                    };
                    self.0.store(new, success);
                    return Ok(was);
                }
                self.0.fetch_update(success, failure, change)
            }
        }
    };
}

use std::sync::atomic::Ordering;
atomic!(AtomicU32, AtomicU32, u32);
atomic!(AtomicU64, AtomicU64, u64);

/// Locks that tell of their holder's death: a process's only thread holds one.
pub mod liveness {
    use super::{AtomicU32, Bug, me, now, point};
    use std::sync::atomic::Ordering::SeqCst;

    #[derive(Default)]
    #[repr(transparent)]
    pub struct Word(AtomicU32);

    pub fn hold(word: &Word) -> bool {
        point();
        let holder = word.0.raw().load(SeqCst);
        let lives = holder != 0 && !super::is_over(holder as usize - 1);
        if !lives {
            word.0.raw().store(me() as u32 + 1, SeqCst);
        }
        !lives
    }

    pub fn owner_died(word: &Word) -> bool {
        point();
        let holder = word.0.raw().load(SeqCst);
        match now().bug {
            Some(Bug::EternalLife) => return false,
            Some(Bug::EarlyDeath) => return true,
            _ => {}
        }
        holder != 0 && super::is_over(holder as usize - 1)
    }
}

/// Whether the program that a process had has ended.
fn is_over(process: usize) -> bool {
    let now = now();
    let it = now.processes.get(process);
    it.is_none_or(|it| it.dead || it.executed)
}

/// Whether a process has ended.
pub fn is_dead(process: usize) -> bool {
    let now = now();
    now.bug != Some(Bug::EternalLife) && now.processes.get(process).is_none_or(|it| it.dead)
}
