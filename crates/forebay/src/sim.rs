//! Test machinery: crash points, schedule exploration, planted bugs. Compiled only with `sim`.
//!
//! [`point`] is called before every access to a shared word. A test arms it on its own thread with
//! [`crash_after`]: the n-th access then unwinds with [`Crash`] instead of happening, and nothing on
//! the way out may touch the arena (guards ask [`crashed`]). What is left in the arena is what a
//! client that was killed there would leave.
//!
//! [`tasks`] runs whole sessions, keepers included, from a seed in one thread. [`device`] has the simulated device: files in memory with power failures, and wrappers that inject
//! faults or slow a file down.

pub mod device;
pub mod explore;
pub mod faults;
pub mod fuzz;
pub mod letters;
pub mod planted;
pub mod tasks;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::device::DeviceFile;
use crate::ids::FileId;
use letters::Letters;

pub use planted::{Bug, plant, plant_everywhere, planted};

thread_local! {
    static COUNTDOWN: Cell<u64> = const { Cell::new(u64::MAX) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
    /// The same of accesses that may change a word.
    static CHANGES_LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    /// What happens when there are none left, instead of a death.
    static VISIT: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    static CHANGES: Cell<u64> = const { Cell::new(0) };
    pub(crate) static CRASHED: Cell<bool> = const { Cell::new(false) };
}

/// What a simulated process finds around it.
pub trait Neighbours: Send + Sync {
    /// Takes a file for the keeper, if there is one.
    fn hand_over(&self, file: FileId, device: &dyn DeviceFile);
    /// Opens the file with this inode number; a lease on it is waited for so long, or for as long as the kernel waits.
    fn open(&self, inode: u64, patience: Option<Duration>) -> Option<Arc<dyn DeviceFile>>;
    /// Where messages to the keeper are put, if there are any in this simulation: closes may be left to it then.
    fn letters(&self) -> Option<&Letters>;
}

/// The payload of the unwinding that stands for a `kill -9`.
#[derive(Debug)]
pub struct Crash;

/// Counts a shared access; crashes the caller where a test asked for it.
#[inline]
pub fn point() {
    if tasks::is_on() {
        tasks::point();
        return;
    }
    if explore::is_on() {
        explore::point();
        return;
    }
    COUNT.set(COUNT.get() + 1);
    let left = COUNTDOWN.get();
    if left == u64::MAX {
        return;
    }
    if left == 0 && !CRASHED.get() {
        die();
    }
    COUNTDOWN.set(left.saturating_sub(1));
}

fn die() -> ! {
    CRASHED.set(true);
    COUNTDOWN.set(u64::MAX);
    CHANGES_LEFT.set(u64::MAX);
    // Not `panic_any`: the hook would print every death.
    std::panic::resume_unwind(Box::new(Crash))
}

/// [`point`] before an access that may change the word: deaths between two of these leave the same behind.
#[inline]
pub fn point_of_change() {
    point();
    CHANGES.set(CHANGES.get() + 1);
    let left = CHANGES_LEFT.get();
    if left == 0 && !CRASHED.get() {
        let Some(visit) = VISIT.take() else { die() };
        CHANGES_LEFT.set(u64::MAX);
        return visit();
    }
    if left != u64::MAX {
        CHANGES_LEFT.set(left.saturating_sub(1));
    }
}

/// [`point`] in the middle of a copy.
pub fn pause() {
    if tasks::is_on() {
        tasks::pause()
    } else if explore::is_on() {
        explore::pause()
    } else {
        point()
    }
}

/// Runs `f` as a client that dies before its `n`-th shared access (counting from 0). Returns `None`
/// when it died, `Some` when it finished first.
pub fn crash_after<T>(n: u64, f: impl FnOnce() -> T) -> Option<T> {
    COUNTDOWN.set(n);
    until_death(f)
}

/// As [`crash_after`], before the `n`-th access that may change a word.
pub fn crash_after_changes<T>(n: u64, f: impl FnOnce() -> T) -> Option<T> {
    CHANGES_LEFT.set(n);
    until_death(f)
}

/// Runs `f`, and `visit` before its `n`-th access that may change a word (counting from 0), if it makes so many. Whether it has, and what `f`
/// returns.
pub fn visit_after_changes<T>(
    n: u64,
    visit: impl FnOnce() + 'static,
    f: impl FnOnce() -> T,
) -> (bool, T) {
    VISIT.set(Some(Box::new(visit)));
    CHANGES_LEFT.set(n);
    let result = f();
    CHANGES_LEFT.set(u64::MAX);
    (VISIT.take().is_none(), result)
}

fn until_death<T>(f: impl FnOnce() -> T) -> Option<T> {
    CRASHED.set(false);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    COUNTDOWN.set(u64::MAX);
    CHANGES_LEFT.set(u64::MAX);
    CRASHED.set(false);
    match result {
        Ok(value) => Some(value),
        Err(payload) if payload.is::<Crash>() => None,
        Err(payload) => std::panic::resume_unwind(payload),
    }
}

/// Whether this thread is unwinding from a simulated death: guards must leave the arena alone.
pub fn crashed() -> bool {
    CRASHED.get()
}

/// Whether somebody writes over the arena beside this process ([`expect_damage`]).
static DAMAGED: AtomicBool = AtomicBool::new(false);

/// Somebody writes over the arena from now on: that what lies in it makes no sense is no mistake of this process's, which looks at it as release
/// builds do.
pub fn expect_damage() {
    DAMAGED.store(true, Ordering::Relaxed);
}

/// Whether [`expect_damage`] was called.
pub fn expects_damage() -> bool {
    DAMAGED.load(Ordering::Relaxed)
}

/// Shared accesses made by this thread so far.
pub fn count() -> u64 {
    COUNT.get()
}

/// Those that may have changed a word.
pub fn changes() -> u64 {
    CHANGES.get()
}

/// Whether schedule exploration drives this thread.
pub fn exploring() -> bool {
    explore::is_on()
}

/// Switches schedule exploration on or off for this operating-system thread.
pub fn set_exploring(on: bool) {
    explore::set(on);
}
