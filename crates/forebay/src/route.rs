//! Routes: for each write request, which bytes go to memory and which to the device, and why.
//!
//! A route is chosen by a pure function of a [`WriteRequest`] and a [`Situation`], which answers
//! with a [`Plan`]; the engine then only acts. So a policy can be tested with a table, replayed from
//! a log, and exchanged without touching the engine. A policy is one file:
//!
//! | name        | rule                                              | source                        |
//! |-------------|---------------------------------------------------|-------------------------------|
//! | `auto`      | the least predicted time                          | ours; the default             |
//! | `threshold` | long requests split, short ones to memory         | WSBuffer 3.3, Algorithm 1     |
//! | `lustre`    | a whole request direct or buffered                | AutoIO as in WSBuffer 4.1, 4.2|
//! | `direct`    | every aligned block direct                        | baseline                      |
//! | `scrap`     | everything to memory                              | baseline                      |
//! | `kernel`    | everything to the kernel                          | baseline, and the way out     |
//!
//! A route does not read clocks, counters or files: its caller fills the situation. It does
//! not reserve space, throttle or decide a file's mode either; a file whose space cannot be reserved
//! is in kernel mode before a route is asked.

use std::fmt;

mod auto;
mod direct;
mod globs;
mod kernel;
mod lustre;
mod plan;
mod scrap;
#[cfg(test)]
mod tests;
mod threshold;

pub use crate::flush::speeds::{CopySpeed, DeviceSpeed, Speeds};
pub use auto::Auto;
pub use direct::Direct;
pub use globs::{GlobError, Overrides};
pub use kernel::Kernel;
pub use lustre::Lustre;
pub use plan::{Flaw, Part, Plan, Way, aligned_middle};
pub use scrap::Scrap;
pub use threshold::Threshold;

/// One write as the caller asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// First byte in the file. `offset + len` must not exceed `u64::MAX`.
    pub offset: u64,
    /// Bytes to write. A request of no bytes has a plan without parts.
    pub len: u64,
    /// The user's memory fits the device's memory alignment (`Caps::memory_align`) wherever an
    /// aligned middle would begin, and may change while it is written (`Caps::stable_writes`), so that a
    /// direct write needs no bounce copy.
    pub memory_aligned: bool,
}

impl WriteRequest {
    /// One past the last byte. Panics where the sum does not fit, which no file's size can reach.
    pub fn end(&self) -> u64 {
        self.offset
            .checked_add(self.len)
            .expect("a request ends within 64 bits")
    }
}

/// How full the dirty budget is: dirty bytes over their limit, 0 (none) to 1 (at the limit), kept as
/// an integer so that plans are the same on every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pressure(u16);

impl Pressure {
    /// Parts in a whole: pressure 1 is this many.
    pub const WHOLE: u16 = 1024;
    /// Nothing is dirty.
    pub const NONE: Pressure = Pressure(0);
    /// At the limit, or over it.
    pub const FULL: Pressure = Pressure(Self::WHOLE);

    /// Pressure of `dirty_bytes` against `limit_bytes`. Over the limit is full, and so is any
    /// number of bytes against no limit at all (0).
    pub fn of(dirty_bytes: u64, limit_bytes: u64) -> Self {
        if dirty_bytes >= limit_bytes {
            return Self::FULL;
        }
        let parts = u128::from(dirty_bytes) * u128::from(Self::WHOLE) / u128::from(limit_bytes);
        Pressure(parts as u16)
    }

    /// The pressure in 1024ths, at most [`Pressure::WHOLE`].
    pub fn parts(self) -> u16 {
        self.0
    }
}

/// What a route may know of the moment, all of it cheap to come by and filled by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Dirty bytes against their limit: the file's or the session's, whichever is nearer.
    pub memory_pressure: Pressure,
    /// The same, should the request's bytes be added to them.
    pub pressure_after: Pressure,
    /// More bytes are in flight to the device than `busy_bytes` of the configuration (WSBuffer 3.4).
    pub device_busy: bool,
    /// Bytes of the request's range that lie dirty in memory already: overwriting them there adds
    /// nothing that the device must take.
    pub cached_bytes: u64,
    /// What giving memory to as many frames as the request needs and does not find takes, nanoseconds. 0 where they are ready.
    pub provide_ns: u64,
    /// Large requests before this one on the device: now and then one goes another way than the others, so that it is known how
    /// fast that is.
    pub turn: u64,
    /// The device's speed, as [`Speeds`] estimates it.
    pub device: DeviceSpeed,
    /// The speed of copying, as [`Speeds`] estimates it.
    pub copy: CopySpeed,
    /// The request ends beyond the file's logical size.
    pub extends: bool,
    /// Space for the range is not known to be allocated.
    pub hole: bool,
    /// The bytes must be on the device when the call returns (`O_SYNC`, `RWF_DSYNC`), or will probably be waited for right after: the
    /// file was synced after its last large write.
    pub sync: bool,
    /// A flush and the sync after it take the device one request more than the flush alone, and a direct write and its sync take more: so on a mounted
    /// store ([`crate::device::DeviceFile::has_sync_and_stat`]).
    pub flush_syncs: bool,
}

/// A policy: answers requests with plans. Pure: the same arguments give the same plan.
pub trait Route: fmt::Debug + Send + Sync {
    /// The name that configuration, globs and reports use.
    fn name(&self) -> &'static str;

    /// Which parts of the request go which way. The parts cover the request exactly, in file order;
    /// direct parts begin and end on blocks ([`Plan::check`]).
    fn plan(&self, request: &WriteRequest, situation: &Situation) -> Plan;

    /// Requests shorter than this many bytes go to memory whatever the situation, not eagerly, so
    /// that the hot path need not fill one. 0: always ask.
    fn quick_scrap_below(&self) -> u64;
}

/// What a user may set about routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteOptions {
    /// `threshold` and `lustre`: bytes from which a request is worth sending to the device at once.
    pub direct_bytes_min: u64,
}

impl Default for RouteOptions {
    fn default() -> Self {
        RouteOptions {
            direct_bytes_min: crate::limits::DIRECT_BYTES_MIN as u64,
        }
    }
}

/// The route used where nobody asked for another.
pub const DEFAULT_NAME: &str = "auto";

/// Every route's name, the default first.
pub const NAMES: [&str; 6] = [
    DEFAULT_NAME,
    "threshold",
    "lustre",
    "direct",
    "scrap",
    "kernel",
];

/// A name that no route has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no route is called {name:?}; there are {}", NAMES.join(", "))]
pub struct UnknownRoute {
    /// The name as it was given.
    pub name: String,
}

/// The route of that name. Names are lower case and exact.
pub fn by_name(name: &str, options: &RouteOptions) -> Result<Box<dyn Route>, UnknownRoute> {
    Ok(match name {
        "auto" => Box::new(Auto),
        "threshold" => Box::new(Threshold::new(options.direct_bytes_min)),
        "lustre" => Box::new(Lustre::new(options.direct_bytes_min)),
        "direct" => Box::new(Direct),
        "scrap" => Box::new(Scrap),
        "kernel" => Box::new(Kernel),
        _ => {
            return Err(UnknownRoute {
                name: name.to_owned(),
            });
        }
    })
}
