//! Running a scenario under many schedules, for a time and a number of iterations.
//!
//! A failure under the random scheduler prints the seed of its iteration: with `SHUTTLE_RANDOM_SEED` set to
//! it the first iteration is that one. Under PCT, run again with the seed that was printed at the beginning.

use std::mem::ManuallyDrop;
use std::sync::Once;
use std::time::Duration;

use forebay::sim;
use forebay_model::fresh_seed;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// Seed of the part of each run that is the same every day.
const SEED: u64 = 0x5eed;
/// A schedule longer than this is taken for one that never ends.
const STEPS_MAX: usize = 4_000_000;

/// How much to explore: iterations for each of the four parts, and a bound on the processor's time for all: beside other work as much is
/// explored as alone.
#[derive(Clone, Copy)]
pub struct Budget {
    pub iterations: usize,
    pub time: Duration,
}

impl Budget {
    pub const EVERYDAY: Budget = Budget {
        iterations: 2000,
        time: Duration::from_millis(1800),
    };

    /// For a while; `FOREBAY_EXPLORE_SECONDS` says how long.
    pub fn long() -> Budget {
        let seconds = std::env::var("FOREBAY_EXPLORE_SECONDS").ok();
        let seconds = seconds.and_then(|s| s.parse().ok()).unwrap_or(120);
        Budget {
            iterations: usize::MAX,
            time: Duration::from_secs(seconds),
        }
    }
}

/// A number that differs from iteration to iteration and is the same when a seed is run again: for choices that
/// schedules do not make.
pub fn dice() -> u64 {
    use shuttle::rand::RngCore;
    shuttle::rand::thread_rng().next_u64()
}

/// Explores `scenario`: random and PCT schedules, with the fixed seed and with a fresh one.
pub fn explore(name: &str, budget: Budget, scenario: fn()) {
    let fresh = fresh_seed();
    for (seed, kind) in [(SEED, "fixed"), (fresh, "fresh")] {
        let depth = 3 + (seed % 3) as usize;
        eprintln!("{name}: {kind} seed {seed}, random then PCT of depth {depth}");
        let quarter = Budget {
            time: budget.time / 4,
            ..budget
        };
        let random = run(
            RandomScheduler::new_from_seed(seed, budget.iterations),
            quarter,
            scenario,
        );
        let pct = run(
            PctScheduler::new_from_seed(seed, depth, budget.iterations),
            quarter,
            scenario,
        );
        eprintln!("{name}: {random} random and {pct} PCT schedules");
    }
}

/// What this thread has taken of a processor so far. All of a scenario's threads are coroutines of this one.
fn taken() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes a `timespec` of this frame's, which nobody else sees.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "a thread has a clock of its own");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Schedules until this thread has taken so much of a processor. A scheduler that is dropped before its iterations are over prints the seed of the
/// last one as that of a failure; here it is one only if there has been a panic.
struct Until<S> {
    scheduler: ManuallyDrop<S>,
    end: Duration,
}

impl<S: Scheduler> Scheduler for Until<S> {
    fn new_execution(&mut self) -> Option<Schedule> {
        if taken() > self.end {
            None
        } else {
            self.scheduler.new_execution()
        }
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        yields: bool,
    ) -> Option<TaskId> {
        self.scheduler.next_task(runnable, current, yields)
    }

    fn next_u64(&mut self) -> u64 {
        self.scheduler.next_u64()
    }
}

impl<S> Drop for Until<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.scheduler) };
        }
    }
}

fn run(scheduler: impl Scheduler + 'static, budget: Budget, scenario: fn()) -> usize {
    static ALLOCATOR: Once = Once::new();
    // SAFETY: sets a parameter of the allocator: arenas come as fresh zeros from the kernel.
    ALLOCATOR.call_once(|| unsafe { _ = libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20) });
    let mut config = Config::new();
    config.stack_size = 512 * 1024;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    // A schedule is as long as a book; its seed is a line.
    config.failure_persistence = FailurePersistence::None;
    let _off = Off;
    let end = taken() + budget.time;
    let scheduler = Until {
        scheduler: ManuallyDrop::new(scheduler),
        end,
    };
    Runner::new(scheduler, config).run(move || {
        sim::set_exploring(false);
        scenario();
        sim::set_exploring(false);
    })
}

/// Nothing is explored outside of a run, whatever ended it.
struct Off;

impl Drop for Off {
    fn drop(&mut self) {
        sim::set_exploring(false);
    }
}

/// Declares scenarios: for each a test of every day and a long one.
#[macro_export]
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        mod everyday {$(
            #[test]
            fn $name() {
                use $crate::explore::{Budget, explore};
                explore(stringify!($name), Budget::EVERYDAY, super::$name);
            }
        )*}
        mod long {$(
            #[test]
            #[ignore = "minutes"]
            fn $name() {
                use $crate::explore::{Budget, explore};
                explore(stringify!($name), Budget::long(), super::$name);
            }
        )*}
    };
}
