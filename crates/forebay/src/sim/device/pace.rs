//! Slowness: a latency for each call and a bandwidth that files share, so that a test finds time to
//! kill something while requests are in flight.

use super::call::Call;
use super::wrapped::{Before, Verdict};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long calls take beyond what they take anyway.
#[derive(Debug)]
pub struct Pace {
    latency: Duration,
    /// `None` for no limit.
    bytes_per_second: Option<u64>,
    /// When the device has moved all bytes asked for so far.
    idle_at: Mutex<Instant>,
}

impl Pace {
    /// Each call takes `latency` at least; bytes of reads and writes pass one after the other at
    /// `bytes_per_second`, which is not 0.
    pub fn new(latency: Duration, bytes_per_second: Option<u64>) -> Arc<Self> {
        assert_ne!(bytes_per_second, Some(0), "such a device never finishes");
        Arc::new(Self {
            latency,
            bytes_per_second,
            idle_at: Mutex::new(Instant::now()),
        })
    }

    /// When a transfer of so many bytes that starts now is done.
    fn transferred_at(&self, bytes: u64) -> Instant {
        let now = Instant::now();
        let Some(rate) = self.bytes_per_second else {
            return now;
        };
        let mut idle_at = self.idle_at.lock().unwrap_or_else(PoisonError::into_inner);
        let time = Duration::from_secs_f64(bytes as f64 / rate as f64);
        *idle_at = now.max(*idle_at) + time;
        *idle_at
    }
}

impl Before for Pace {
    fn before(&self, call: &Call) -> Verdict {
        use super::call::Kinds;
        let moves = Kinds::READS.contains(call.kind) || Kinds::WRITES.contains(call.kind);
        let bytes = if moves { call.len } else { 0 };
        let until = self.transferred_at(bytes) + self.latency;
        thread::sleep(until.saturating_duration_since(Instant::now()));
        Verdict::Proceed
    }
}
