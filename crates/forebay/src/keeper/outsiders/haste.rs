//! How long outsiders wait for a guard that stands in for a keeper that is stopped.
//!
//! Such a keeper may have any page in flight and any lock, and goes on at any moment. Files that are at rest are given to the kernel all the same,
//! one after the other, as its guard does. For the others, all of them together, outsiders wait for about [`ALL_MAX`]: once that is used up each is
//! tried, and hardly waited for; and if the worker stands still nobody waits at all.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::locked;

/// What files that cannot be had may cost, all of them together.
const ALL_MAX: Duration = Duration::from_millis(100);
/// What each of them may cost, in the beginning and then. One that is at rest has to be written in that time.
const TRY_MAX: Duration = Duration::from_millis(30);
const HASTY_MAX: Duration = Duration::from_millis(10);
/// After so long at one file the worker stands still, or the device does: until it is back, nobody waits.
const STILL_MAX: Duration = Duration::from_millis(200);
/// How long an outsider waits at most, also where one file after the other is had.
pub const EACH_MAX: Duration = Duration::from_millis(300);

/// What a guard knows of the haste that it is in.
#[derive(Default)]
pub struct Haste {
    /// The keeper lives.
    is_needed: AtomicBool,
    /// Another guard sees to those that come.
    leaves: AtomicBool,
    spent: Mutex<Spent>,
}

#[derive(Default)]
struct Spent {
    in_vain: Duration,
    /// Since when the worker is at a file.
    since: Option<Instant>,
}

impl Spent {
    /// How long a try may take.
    fn most(&self) -> Duration {
        match self.in_vain < ALL_MAX {
            true => TRY_MAX,
            false => HASTY_MAX,
        }
    }
}

impl Haste {
    /// Whether the keeper is only stopped.
    pub fn is_needed(&self) -> bool {
        self.is_needed.load(Relaxed)
    }

    /// Says whether it is.
    pub fn set(&self, is_needed: bool) {
        self.is_needed.store(is_needed, Relaxed);
    }

    /// Those that come from now on are left to the keeper.
    pub fn leave(&self) {
        self.leaves.store(true, Relaxed);
    }

    /// See [`Haste::leave`].
    pub fn leaves(&self) -> bool {
        self.leaves.load(Relaxed)
    }

    /// Tries to have a file, which takes about as long as it is told to, unless it stands still. `has` says whether it has it.
    pub fn try_one(&self, has: impl FnOnce(Duration) -> bool) {
        let begun = Instant::now();
        let most = {
            let mut spent = locked(&self.spent);
            spent.since = Some(begun);
            spent.most()
        };
        let done = has(most);
        let mut spent = locked(&self.spent);
        spent.since = None;
        if !done {
            spent.in_vain += begun.elapsed();
        }
    }

    /// Whether a program that has waited for so long is let in.
    pub fn is_over(&self, waited: Duration) -> bool {
        let since = || locked(&self.spent).since;
        let takes_long = || since().is_some_and(|at| at.elapsed() > STILL_MAX);
        self.is_needed() && (waited > EACH_MAX || takes_long())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_had_is_waited_for_once() {
        let haste = Haste::default();
        haste.set(true);
        let mut mosts = Vec::new();
        // What has been spent in vain: at least, and at most. A sleep may take longer than it should.
        let (mut least, mut most) = (Duration::ZERO, Duration::ZERO);
        for has in [true, false, false, false, false, false] {
            let (before, mut slept) = (most, Duration::ZERO);
            let begun = Instant::now();
            haste.try_one(|most| {
                mosts.push(most);
                let begun = Instant::now();
                std::thread::sleep(most + Duration::from_millis(1));
                slept = begun.elapsed();
                has
            });
            let told = mosts[mosts.len() - 1];
            assert!(before >= ALL_MAX || told == TRY_MAX, "after {before:?}");
            assert!(least < ALL_MAX || told == HASTY_MAX, "after {least:?}");
            if !has {
                (least, most) = (least + slept, most + begun.elapsed());
            }
        }
        assert_eq!(mosts[..2], [TRY_MAX; 2]);
        assert_eq!(mosts[5], HASTY_MAX);
        assert!(!haste.is_over(Duration::ZERO));
        haste.try_one(|_| {
            std::thread::sleep(STILL_MAX + Duration::from_millis(1));
            assert!(haste.is_over(Duration::ZERO), "it stands still");
            false
        });
        assert!(haste.is_over(EACH_MAX * 2));
        haste.set(false);
        assert!(!haste.is_over(EACH_MAX * 2));
    }
}
