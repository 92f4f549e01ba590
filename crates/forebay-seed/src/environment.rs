//! The environment: what all threads have done last, counted by group (3.2.1, 3.2.2 of the paper).
//!
//! Every thread has a [`Log`] of its four latest requests, which all others read. Their owner hands the
//! words to [`Environment::add`] one by one; nothing else of a log is needed.
//!
//! Beyond the paper: a thread that is idle is left out, for its four latest requests would else count as load for ever. It is idle
//! once it has not ended a request for [`IDLE_TIMES`] as long as its latest took: so the measure is the path's own.

use crate::request::{GROUPS, Mode, Record};

/// Latest requests of each thread that count.
pub const LATEST: usize = 4;
/// A thread is idle, and its log does not count, once nothing has ended in it for so many times its latest latency, ...
pub const IDLE_TIMES: u64 = 16;
/// ... and at least so many nanoseconds.
pub const IDLE_NS_MIN: u64 = 1_000_000;

/// A thread's latest requests, the oldest overwritten first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log {
    words: [u64; LATEST],
    ended: usize,
    last_ns: u64,
    idle_after_ns: u64,
}

impl Log {
    /// Notes a request that has ended at that time.
    pub fn note(&mut self, record: &Record, now_ns: u64) {
        self.words[self.ended % LATEST] = record.to_word();
        self.ended = self.ended.wrapping_add(1);
        self.last_ns = now_ns;
        self.idle_after_ns = (record.latency_ns.saturating_mul(IDLE_TIMES)).max(IDLE_NS_MIN);
    }

    /// Adds what is in the log, unless its thread is idle.
    pub fn add_to(&self, environment: &mut Environment, now_ns: u64) {
        if now_ns.saturating_sub(self.last_ns) <= self.idle_after_ns {
            self.words.iter().for_each(|word| environment.add(*word));
        }
    }
}

/// How many of the latest requests belong to each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Environment {
    counts: [u16; GROUPS],
}

impl Default for Environment {
    fn default() -> Self {
        Environment {
            counts: [0; GROUPS],
        }
    }
}

impl Environment {
    /// What all these logs say.
    pub fn of<'a>(logs: impl IntoIterator<Item = &'a Log>, now_ns: u64) -> Self {
        let mut environment = Environment::default();
        logs.into_iter()
            .for_each(|log| log.add_to(&mut environment, now_ns));
        environment
    }

    /// Counts the record in a word, if there is one.
    pub fn add(&mut self, word: u64) {
        if let Some(record) = Record::from_word(word) {
            let count = &mut self.counts[record.group().index()];
            *count = count.saturating_add(1);
        }
    }

    /// Requests counted, by group.
    pub fn counts(&self) -> &[u16; GROUPS] {
        &self.counts
    }

    /// How much of what is counted was remote, 0 to 1; a half where nothing is.
    pub fn remote_share(&self) -> f32 {
        let sum = |mode: Mode| {
            let counts = self.counts.iter().skip(mode as usize).step_by(2);
            counts.map(|count| u32::from(*count)).sum::<u32>() as f32
        };
        let (local, remote) = (sum(Mode::Local), sum(Mode::Remote));
        if local + remote == 0.0 {
            0.5
        } else {
            remote / (local + remote)
        }
    }

    /// The counts as the network takes them: the root of each, so that forty threads are not forty times as large as one.
    pub fn inputs(&self) -> [f32; GROUPS] {
        self.counts.map(|count| (f32::from(count) * SCALE).sqrt())
    }
}

/// Four threads that do the same are 1.
const SCALE: f32 = 1.0 / 16.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Kind, Request};

    fn record(bytes: u64, mode: Mode) -> Record {
        let request = Request {
            kind: Kind::Read,
            bytes,
        };
        Record {
            request,
            mode,
            latency_ns: 1000,
        }
    }

    #[test]
    fn only_the_four_latest_count() {
        let mut log = Log::default();
        (0..9).for_each(|_| log.note(&record(4096, Mode::Local), 1));
        (0..3).for_each(|_| log.note(&record(1 << 20, Mode::Remote), 2));
        let environment = Environment::of([&log, &log], 3);
        let count = |record: Record| environment.counts()[record.group().index()];
        assert_eq!(count(record(4096, Mode::Local)), 2);
        assert_eq!(count(record(1 << 20, Mode::Remote)), 6);
        assert_eq!(environment.counts().iter().sum::<u16>(), 8);
        assert_eq!(environment.remote_share(), 0.75);
    }

    #[test]
    fn a_thread_that_is_idle_does_not_count() {
        for (latency_ns, idle_after_ns) in [(1_000, IDLE_NS_MIN), (1_000_000, 16_000_000)] {
            let mut log = Log::default();
            let record = record(4096, Mode::Local);
            let record = Record {
                latency_ns,
                ..record
            };
            log.note(&record, 1_000);
            let counts = |now_ns| Environment::of([&log], now_ns) != Environment::default();
            assert!(counts(1_000 + idle_after_ns));
            assert!(!counts(1_001 + idle_after_ns));
        }
    }

    #[test]
    fn counts_stop_at_their_largest() {
        let mut environment = Environment::default();
        let word = record(4096, Mode::Local).to_word();
        (0..70_000).for_each(|_| environment.add(word));
        environment.add(0);
        assert_eq!(environment.counts().iter().max(), Some(&u16::MAX));
        assert!(environment.inputs().iter().all(|input| input.is_finite()));
    }
}
