//! A workload is data: what the file is before, which requests, what "done" means, which quantities
//! to show and what the engine is to reach. [`crate::rows`] lists them, [`crate::run`] runs them.

use serde::Serialize;

use crate::meter::DeviceBytes;
use crate::requests::{Request, Shape, make};
use crate::sides::{SideKind, SideStats};

/// The file at the start of the timed region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Not there.
    Fresh,
    /// Full size, space allocated, never written; not in memory.
    Preallocated,
    /// Written and durable; not in memory.
    Cold,
    /// Written and durable; read through the side itself, so that it is in the side's memory.
    InMemory,
}

/// What is asked of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes, then sync, then close.
    WriteSyncClose,
    /// Writes, then close, then a sync by a descriptor of the kernel's.
    WriteCloseSync,
    /// Reads.
    Read,
}

/// What one run showed.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Run {
    /// Seconds until the last request returned.
    pub returned_s: f64,
    /// Seconds until the file was closed, where that came before the sync.
    pub closed_s: Option<f64>,
    /// Seconds until all was durable.
    pub durable_s: Option<f64>,
    /// Requests made.
    pub requests: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// CPU seconds of this process until all was durable.
    pub process_cpu_s: f64,
    /// CPU seconds of the whole machine until all was durable.
    pub machine_cpu_s: f64,
    /// Memory held for the file's bytes before the sync.
    pub memory_held: Option<u64>,
    /// Bytes the device moved until all was durable, by its own count.
    pub device: Option<DeviceBytes>,
    /// What the engine counted until all was durable.
    pub engine: Option<SideStats>,
}

/// A quantity computed from a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Microseconds for each request, until the last returned.
    TimeReturned,
    /// Microseconds for each request, until all was durable.
    TimeDurable,
    /// GB/s until the last request returned.
    SpeedReturned,
    /// GB/s until the file was closed.
    SpeedClosed,
    /// GB/s until all was durable.
    SpeedDurable,
    /// Bytes through memory for each byte written.
    MemoryWritten,
    /// Memory held before the sync for each byte that waits to be written.
    MemoryHeld,
    /// Device bytes for each byte written, by the device's count.
    DeviceWritten,
    /// Device bytes for each byte written, by the engine's count.
    EngineDeviceWritten,
}

impl Metric {
    /// The quantity in this run, if it was measured.
    pub fn of(self, run: &Run) -> Option<f64> {
        let micros = |seconds: f64| seconds * 1e6 / run.requests as f64;
        let speed = |seconds: f64| run.bytes as f64 / seconds / 1e9;
        let share = |part: u64| part as f64 / run.bytes as f64;
        match self {
            Metric::TimeReturned => Some(micros(run.returned_s)),
            Metric::TimeDurable => run.durable_s.map(micros),
            Metric::SpeedReturned => Some(speed(run.returned_s)),
            Metric::SpeedClosed => run.closed_s.map(speed),
            Metric::SpeedDurable => run.durable_s.map(speed),
            // The kernel's every byte goes through its page cache.
            Metric::MemoryWritten => Some(run.engine.map_or(1.0, |engine| {
                share(engine.scrap_bytes + engine.kernel_bytes)
            })),
            Metric::MemoryHeld => run.memory_held.map(share),
            Metric::DeviceWritten => run.device.map(|device| share(device.written)),
            Metric::EngineDeviceWritten => {
                run.engine.map(|engine| share(engine.device_write_bytes))
            }
        }
    }

    /// What it is, with the moment that counts as done.
    pub fn label(self) -> &'static str {
        match self {
            Metric::TimeReturned => "time per request, done = returned",
            Metric::TimeDurable => "time per request, done = durable",
            Metric::SpeedReturned => "bandwidth, done = returned",
            Metric::SpeedClosed => "bandwidth, done = closed",
            Metric::SpeedDurable => "bandwidth, done = durable",
            Metric::MemoryWritten => "bytes through memory per byte written",
            Metric::MemoryHeld => "memory held before the sync per dirty byte",
            Metric::DeviceWritten => "device bytes per byte written, counted by the device",
            Metric::EngineDeviceWritten => "device bytes per byte written, counted by the engine",
        }
    }

    /// The unit, empty for a share.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::TimeReturned | Metric::TimeDurable => "µs",
            Metric::SpeedReturned | Metric::SpeedClosed | Metric::SpeedDurable => "GB/s",
            _ => "",
        }
    }

    /// How many times better `value` is than `baseline`.
    pub fn ratio(self, value: f64, baseline: f64) -> f64 {
        match self.unit() {
            "GB/s" => value / baseline,
            _ => baseline / value,
        }
    }
}

/// What the engine is to reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// At least so many times as good as the plain kernel in the same run.
    Times(f64),
    /// At most this value.
    AtMost(f64),
}

impl Target {
    /// Whether a median and its ratio to the kernel's reach it.
    pub fn met(self, value: f64, ratio: f64) -> bool {
        match self {
            Target::Times(times) => ratio >= times,
            Target::AtMost(most) => value <= most,
        }
    }
}

/// A quantity to show, and its target if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// The quantity.
    pub metric: Metric,
    /// What the engine is to reach.
    pub target: Option<Target>,
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Row and variant, as in `write-sync-1m fresh`.
    pub name: String,
    /// The parties; the plain kernel first.
    pub sides: Vec<SideKind>,
    /// The file at the start.
    pub before: Before,
    /// The requests' form.
    pub shape: Shape,
    /// What is done with them.
    pub operation: Operation,
    /// The part of the file that requests fall on; its size, unless it is fresh.
    pub span: u64,
    /// Bytes asked for, all requests together.
    pub bytes: u64,
    /// The bytes begin where no device takes them from.
    pub unaligned: bool,
    /// Quantities to show.
    pub lines: Vec<Line>,
}

impl Workload {
    /// The requests, the same for every side and run.
    pub fn requests(&self) -> Vec<Request> {
        make(self.shape, self.span, self.bytes)
    }

    /// Whether the bytes come from memory larger than any processor's cache: programs that write
    /// in MiB write data that they have, not a small buffer that they fill again and again.
    pub fn writes_from_large_memory(&self) -> bool {
        match self.shape {
            Shape::Sequential { len } | Shape::RaggedRun { len } => len >= 1 << 20,
            Shape::RandomPages | Shape::RaggedPages { .. } => false,
        }
    }

    /// Whether a line asks how much memory is held before the sync.
    pub fn weighs_memory(&self) -> bool {
        self.lines
            .iter()
            .any(|line| line.metric == Metric::MemoryHeld)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_above_one_when_better() {
        assert_eq!(Metric::TimeReturned.ratio(1.0, 4.0), 4.0);
        assert_eq!(Metric::SpeedDurable.ratio(4.0, 1.0), 4.0);
        assert_eq!(Metric::MemoryWritten.ratio(0.25, 1.0), 4.0);
    }

    #[test]
    fn metrics_follow_the_run() {
        let run = Run {
            returned_s: 2.0,
            durable_s: Some(4.0),
            requests: 1_000_000,
            bytes: 4_000_000_000,
            engine: Some(SideStats {
                scrap_bytes: 1_000_000_000,
                ..SideStats::default()
            }),
            ..Run::default()
        };
        assert_eq!(Metric::TimeReturned.of(&run), Some(2.0));
        assert_eq!(Metric::SpeedDurable.of(&run), Some(1.0));
        assert_eq!(Metric::SpeedClosed.of(&run), None);
        assert_eq!(Metric::MemoryWritten.of(&run), Some(0.25));
    }

    #[test]
    fn targets_are_reached_at_the_mark() {
        assert!(Target::Times(2.0).met(9.0, 2.0));
        assert!(!Target::Times(2.0).met(9.0, 1.99));
        assert!(Target::AtMost(0.177).met(0.177, 0.1));
        assert!(!Target::AtMost(0.177).met(0.2, 5.0));
    }
}
