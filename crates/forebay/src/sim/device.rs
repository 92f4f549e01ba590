//! A device for tests: files in memory, power failures, faults at the n-th call, slowness.
//!
//! - [`SimDisk`], [`SimFile`]: files that lie in memory, share a capacity, refuse misaligned direct
//!   requests by panicking, and know what a power failure may leave of them
//! - [`Wrapped`]: any file with something before each of its calls; [`Faulty`] injects errors that a
//!   [`FaultPlan`] chooses, [`Slowed`] adds the time that a [`Pace`] takes
//!
//! - [`Timed`], [`TimedQueue`]: files whose calls take time of a simulation (`super::tasks`) and fail as its dice say
//! - [`Description`]: who has a file open, and the lease that keeps others from opening it
//!
//! None of these has descriptors, so that every queue calls them instead of the kernel.

mod call;
mod descriptions;
mod disk;
mod fault;
mod file;
mod image;
mod pace;
mod queue;
mod station;
mod timed;
mod wrapped;

pub use call::{Call, CallKind, Kinds};
pub use descriptions::{BREAK_TIME, Description};
pub use disk::{SimDisk, SimOptions};
pub use fault::{FaultPlan, Outcome, Repeat};
pub use file::SimFile;
pub use pace::Pace;
pub use queue::TimedQueue;
pub use station::{Station, Weather};
pub use timed::Timed;
pub use wrapped::{Before, Verdict, Wrapped};

use crate::device::DeviceFile;
use std::sync::Arc;

/// A file whose calls fail as a plan says.
pub type Faulty<F> = Wrapped<F, FaultPlan>;
/// A file whose calls take time.
pub type Slowed<F> = Wrapped<F, Pace>;

/// A file whose calls fail as `plan` says; one plan counts the calls of all files that share it.
pub fn faulty<F: DeviceFile + ?Sized>(file: Arc<F>, plan: &Arc<FaultPlan>) -> Arc<Faulty<F>> {
    Arc::new(Wrapped::new(file, Arc::clone(plan)))
}

/// A file whose calls take as long as `pace` says; files that share it share its bandwidth.
pub fn slowed<F: DeviceFile + ?Sized>(file: Arc<F>, pace: &Arc<Pace>) -> Arc<Slowed<F>> {
    Arc::new(Wrapped::new(file, Arc::clone(pace)))
}

#[cfg(test)]
mod tests;
