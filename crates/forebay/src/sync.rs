//! The one door to shared atomics.
//!
//! The types have the layout of the standard ones, so they may lie in raw shared memory. In a plain
//! build they are the standard ones with no cost. With the `sim` feature every access first calls
//! [`crate::sim::point`], which is where a test kills a client before its n-th shared access, and
//! where schedule exploration and simulations switch threads.

pub mod time;

pub use std::sync::atomic::Ordering;

#[inline(always)]
fn point() {
    #[cfg(feature = "sim")]
    crate::sim::point();
}

/// Before an access that may change the word.
#[inline(always)]
fn point_of_change() {
    #[cfg(feature = "sim")]
    crate::sim::point_of_change();
}

/// Whether a test has planted this bug; never, in a plain build.
#[cfg(feature = "sim")]
macro_rules! planted {
    ($bug:ident) => {
        crate::sim::planted(crate::sim::Bug::$bug)
    };
}
#[cfg(not(feature = "sim"))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}
pub(crate) use planted;

macro_rules! atomic {
    ($name:ident, $std:ident, $int:ty) => {
        /// A shared word; see the module's documentation.
        #[repr(transparent)]
        #[derive(Debug, Default)]
        pub struct $name(std::sync::atomic::$std);

        #[allow(missing_docs)]
        impl $name {
            pub const fn new(value: $int) -> Self {
                Self(std::sync::atomic::$std::new(value))
            }
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $int {
                point();
                self.0.load(order)
            }
            #[inline(always)]
            pub fn store(&self, value: $int, order: Ordering) {
                point_of_change();
                self.0.store(value, order)
            }
            #[inline(always)]
            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                point_of_change();
                self.0.swap(value, order)
            }
            #[inline(always)]
            pub fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                point_of_change();
                self.0.compare_exchange(current, new, success, failure)
            }
            #[inline(always)]
            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                point_of_change();
                self.0.fetch_add(value, order)
            }
            #[inline(always)]
            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                point_of_change();
                self.0.fetch_sub(value, order)
            }
            #[inline(always)]
            pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                point_of_change();
                self.0.fetch_or(value, order)
            }
            #[inline(always)]
            pub fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                point_of_change();
                self.0.fetch_and(value, order)
            }
            #[inline(always)]
            pub fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                point_of_change();
                self.0.fetch_max(value, order)
            }
            /// Address of the word, for futex calls.
            pub fn as_ptr(&self) -> *mut $int {
                self.0.as_ptr()
            }
        }
    };
}

atomic!(AtomicU32, AtomicU32, u32);
atomic!(AtomicU64, AtomicU64, u64);

/// A fence; pairs are named where it is used.
#[inline(always)]
pub fn fence(order: Ordering) {
    std::sync::atomic::fence(order)
}

/// Rounds of [`relax`] that keep the core.
pub const SPINS: u32 = 64;

/// What a thread does between two looks at a word that another thread must change.
///
/// `round` counts the looks so far: spin first, then give the core away, then sleep for a moment.
/// Under schedule exploration it always lets another thread run.
pub fn relax(round: u32) {
    #[cfg(feature = "sim")]
    if crate::sim::tasks::is_on() {
        crate::sim::tasks::relax(round);
        return;
    }
    #[cfg(feature = "shuttle")]
    if crate::sim::exploring() {
        shuttle::thread::yield_now();
        return;
    }
    match round {
        0..SPINS => std::hint::spin_loop(),
        SPINS..256 => std::thread::yield_now(),
        // The longer it has waited, the less it asks: a thousand threads that look every 50 us leave no time to the one that they wait for.
        256..512 => sleep_micros(50),
        512..768 => sleep_micros(250),
        _ => sleep_micros(1000),
    }
}

fn sleep_micros(micros: u64) {
    std::thread::sleep(std::time::Duration::from_micros(micros));
}

/// How often to look at a word before giving up for now: fewer times under exploration, so that what comes after giving
/// up is explored as well.
#[inline(always)]
pub fn patience(rounds: u32) -> u32 {
    #[cfg(feature = "shuttle")]
    if crate::sim::exploring() {
        return 3;
    }
    rounds
}
