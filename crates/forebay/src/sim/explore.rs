//! Schedule exploration: where the threads of a test take turns, and how one of them dies.
//!
//! Under exploration the threads of a test are coroutines on one operating-system thread, and every
//! access to a shared word is a place where another may go on. Some stretches of code are *quiet*: they
//! only look at what their caller has locked, so turns within them would make schedules longer and find
//! nothing.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::{CRASHED, Crash};

/// Turns that a thread gives away at most, now and then, so that others get far.
const LONG_TURNS: u32 = 300;

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
    static QUIET: Cell<u32> = const { Cell::new(0) };
    /// Every so many accesses of a long walk is a turn.
    static STRIDE: Cell<u32> = const { Cell::new(1) };
    static SKIPPED: Cell<u32> = const { Cell::new(0) };
    static DICE: Cell<u32> = const { Cell::new(1) };
    /// The thread that is to die, and its accesses until then.
    static VICTIM: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
}

/// Whether exploration drives this operating-system thread.
#[inline]
pub fn is_on() -> bool {
    ON.get()
}

/// Switches exploration on or off.
pub fn set(on: bool) {
    ON.set(on);
    if on {
        DICE.set(first_dice());
    }
    QUIET.set(0);
    STRIDE.set(1);
    SKIPPED.set(0);
    VICTIM.set(None);
}

/// A shared access: perhaps this thread's last, perhaps another's turn.
pub fn point() {
    if QUIET.get() > 0 || CRASHED.get() || std::thread::panicking() {
        return;
    }
    if STRIDE.get() > 1 {
        SKIPPED.set(SKIPPED.get() + 1);
        if !SKIPPED.get().is_multiple_of(STRIDE.get()) {
            return;
        }
    }
    if let Some((victim, left)) = VICTIM.get()
        && victim == current()
    {
        if left == 0 {
            VICTIM.set(None);
            CRASHED.set(true);
            // Not a panic: no hook hears of it.
            resume_unwind(Box::new(Crash));
        }
        VICTIM.set(Some((victim, left - 1)));
    }
    linger(256, LONG_TURNS);
}

/// As [`point`], in the middle of a copy, where others should get far now and then.
pub fn pause() {
    point();
    if QUIET.get() == 0 && !CRASHED.get() && !std::thread::panicking() {
        linger(8, 4 * LONG_TURNS);
    }
}

/// Most turns are short; one in `rarity` may last for `longest`.
fn linger(rarity: u32, longest: u32) {
    let mut dice = DICE.get();
    dice ^= dice << 13;
    dice ^= dice >> 17;
    dice ^= dice << 5;
    DICE.set(dice);
    let turns = if dice.is_multiple_of(rarity) {
        dice / rarity % longest
    } else {
        0
    };
    (0..=turns).for_each(|_| switch());
}

#[cfg(feature = "shuttle")]
fn first_dice() -> u32 {
    use shuttle::rand::RngCore;
    shuttle::rand::thread_rng().next_u32() | 1
}

#[cfg(not(feature = "shuttle"))]
fn first_dice() -> u32 {
    1
}

#[cfg(feature = "shuttle")]
fn switch() {
    // Shuttle has no time, so this is a place to switch and nothing more. Yielding would tell schedulers that this
    // thread waits for another one.
    shuttle::thread::sleep(std::time::Duration::ZERO);
}

#[cfg(not(feature = "shuttle"))]
fn switch() {}

#[cfg(feature = "shuttle")]
fn current() -> usize {
    usize::from(shuttle::current::me())
}

#[cfg(not(feature = "shuttle"))]
fn current() -> usize {
    0
}

/// Runs `f` as a thread that dies before its `n`-th shared access. `None` when it died. One thread at a time can be
/// chosen to die.
pub fn die_after<T>(n: u64, f: impl FnOnce() -> T) -> Option<T> {
    VICTIM.set(Some((current(), n)));
    let result = catch_unwind(AssertUnwindSafe(f));
    if VICTIM.get().is_some_and(|(victim, _)| victim == current()) {
        VICTIM.set(None);
    }
    match result {
        Ok(value) => Some(value),
        Err(payload) if payload.is::<Crash>() => {
            CRASHED.set(false);
            None
        }
        Err(payload) => resume_unwind(payload),
    }
}

/// Whether turns are to be taken elsewhere.
pub(super) fn is_quiet() -> bool {
    QUIET.get() > 0
}

/// No turns while this lives.
pub struct Quiet(());

/// Makes what follows quiet: it looks at what the caller has locked, or at what only this thread has.
#[must_use]
pub fn quiet() -> Quiet {
    QUIET.set(QUIET.get() + 1);
    Quiet(())
}

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.set(QUIET.get().saturating_sub(1));
    }
}

/// Fewer turns while this lives.
pub struct Sparse(());

/// Makes turns of what follows rare: a walk over a whole table. One thread at a time walks so.
#[must_use]
pub fn sparse(stride: u32) -> Sparse {
    STRIDE.set(stride);
    Sparse(())
}

impl Drop for Sparse {
    fn drop(&mut self) {
        STRIDE.set(1);
    }
}
