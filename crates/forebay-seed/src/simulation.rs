//! Two paths and many threads in simulated time, to compare policies: the same seed gives the same run on any day.
//!
//! Each thread makes one request after another. A request waits the path's fixed time, then its bytes move at the path's speed for one
//! request, or at an equal share of the path's whole speed where too many move (`paths`). Processors are not simulated: threads are
//! as many as the workload says, and training takes no time; a network that was asked costs its thread [`INFERENCE_NS`].

mod paths;
mod run;
#[cfg(test)]
mod tests;

pub use paths::{Hardware, PathModel};
pub use run::run;

use crate::random::Random;

/// Nanoseconds of an inference with the gathering before it, as measured for sixteen threads (`docs/seed.md`).
pub const INFERENCE_NS: u64 = 500;
/// How often a policy learns, simulated nanoseconds: an epoch of a full trainer takes a core about half of that.
pub const LEARN_EVERY_NS: f64 = 50e6;
/// Length of a sample of [`Outcome::series`], simulated nanoseconds.
pub const SAMPLE_NS: f64 = 50e6;

/// How many bytes requests have.
#[derive(Clone, Copy, Debug)]
pub enum Sizes {
    /// All the same.
    Constant(u64),
    /// The gamma distribution of shape 1.5 (filebench's), with that mean; at least 4 KiB.
    Gamma {
        /// Mean, bytes.
        mean: f64,
    },
}

impl Sizes {
    fn draw(&self, random: &mut Random) -> u64 {
        const SHAPE: f64 = 1.5;
        match *self {
            Sizes::Constant(bytes) => bytes,
            Sizes::Gamma { mean } => (random.gamma(SHAPE) * mean / SHAPE).max(4096.0) as u64,
        }
    }
}

/// A time with the same number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// How long, simulated milliseconds.
    pub ms: u64,
    /// Threads that make requests.
    pub threads: usize,
}

/// What threads do.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Sizes of the requests.
    pub sizes: Sizes,
    /// So many in a hundred requests write.
    pub write_percent: usize,
    /// One after the other; requests that are under way at the end of a phase end in the next.
    pub phases: Vec<Phase>,
}

impl Workload {
    /// Reads of so many bytes by so many threads.
    pub fn reads(bytes: u64, threads: usize, ms: u64) -> Self {
        Workload {
            sizes: Sizes::Constant(bytes),
            write_percent: 0,
            phases: vec![Phase { ms, threads }],
        }
    }

    /// Reads of mixed sizes, 1 MB in the mean, by changing numbers of threads, each for so long.
    pub fn mixed(threads: &[usize], ms: u64) -> Self {
        Workload {
            sizes: Sizes::Gamma { mean: 1e6 },
            write_percent: 0,
            phases: threads
                .iter()
                .map(|threads| Phase {
                    ms,
                    threads: *threads,
                })
                .collect(),
        }
    }
}

/// What was measured in a time: requests count where they end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// How long, simulated nanoseconds.
    pub ns: f64,
    /// Bytes of the requests that have ended.
    pub bytes: u64,
    /// How many.
    pub requests: u64,
    /// How many of them were remote.
    pub remote: u64,
    /// The sum of their latencies, nanoseconds.
    pub latency_ns: f64,
}

impl Measured {
    /// Throughput, gigabytes per second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.ns
    }

    /// Part of the requests that were remote.
    pub fn remote_share(&self) -> f64 {
        self.remote as f64 / self.requests.max(1) as f64
    }
}

/// What a run has measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// By phase.
    pub phases: Vec<Measured>,
    /// By time, in steps of [`SAMPLE_NS`]; the last may be shorter.
    pub series: Vec<Measured>,
}

impl Outcome {
    /// The whole run as one.
    pub fn whole(&self) -> Measured {
        self.phases
            .iter()
            .fold(Measured::default(), |a, b| Measured {
                ns: a.ns + b.ns,
                bytes: a.bytes + b.bytes,
                requests: a.requests + b.requests,
                remote: a.remote + b.remote,
                latency_ns: a.latency_ns + b.latency_ns,
            })
    }
}
