//! The short cut for small requests (3.2.3 of the paper): below a size, the latency of the request before of the same group is the
//! prediction, and no network is asked.
//!
//! The size follows what inference costs. Over a window of requests, the nanoseconds of inference are held against all that the
//! requests took: above one part in [`SHARE`] the size doubles. It halves once it would stay below that with the inferences of those
//! requests that would then ask the network. So it comes to rest.

use crate::bounds::Bounds;
use crate::request::{GROUPS, Mode, Record, Request};

/// What inference may take of the requests' time: one part in so many.
pub const SHARE: u64 = 50;
/// Requests of a window.
const WINDOW: u32 = 1_024;
/// The smallest size but 0: below it the size is 0.
const SMALLEST: u64 = 1_024;
/// The largest size: longer requests always ask the network.
const LARGEST: u64 = 1 << 20;

/// Latencies before, and the size below which they are the prediction.
#[derive(Clone, Debug)]
pub struct Shortcut {
    before_ns: [u64; GROUPS],
    below: u64,
    window: Window,
    /// What one inference took of late, nanoseconds.
    one_ns: u64,
}

/// Sums of the requests since the size was looked at last.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    requests: u32,
    requests_ns: u64,
    inferences: u64,
    inference_ns: u64,
    /// Requests that would ask the network if the size were the half.
    would_ask: u64,
}

impl Default for Shortcut {
    fn default() -> Self {
        Shortcut {
            before_ns: [0; GROUPS],
            below: SMALLEST,
            window: Window::default(),
            one_ns: 0,
        }
    }
}

impl Shortcut {
    /// Requests of fewer bytes take the short cut.
    pub fn below(&self) -> u64 {
        self.below
    }

    /// Whether the request takes it.
    pub fn takes(&self, request: &Request) -> bool {
        request.bytes < self.below
    }

    /// The latency before of the request's group, or the lower bound if there was none.
    pub fn latency_ns(&self, request: &Request, mode: Mode, bounds: &Bounds) -> f64 {
        match self.before_ns[request.group(mode).index()] {
            0 => bounds.latency_ns(request, mode),
            before => before as f64,
        }
    }

    /// Notes an inference that took so many nanoseconds.
    pub fn inferred(&mut self, ns: u64) {
        self.window.inferences += 1;
        self.window.inference_ns = self.window.inference_ns.saturating_add(ns);
    }

    /// Notes a request that has ended, and at the end of a window moves the size.
    pub fn done(&mut self, record: &Record) {
        self.before_ns[record.group().index()] = record.latency_ns;
        let (window, bytes) = (&mut self.window, record.request.bytes);
        window.requests += 1;
        window.requests_ns = window.requests_ns.saturating_add(record.latency_ns);
        window.would_ask += u64::from((half(self.below)..self.below).contains(&bytes));
        if window.requests == WINDOW {
            let window = std::mem::take(&mut self.window);
            if let Some(mean) = window.inference_ns.checked_div(window.inferences) {
                self.one_ns = mean;
            }
            self.below = window.moved(self.below, self.one_ns);
        }
    }
}

impl Window {
    fn moved(&self, below: u64, one_ns: u64) -> u64 {
        let allowed = self.requests_ns / SHARE;
        let more = self.would_ask.saturating_mul(one_ns);
        if self.inference_ns > allowed {
            (below * 2).clamp(SMALLEST, LARGEST)
        } else if self.inference_ns.saturating_add(more) <= allowed {
            half(below)
        } else {
            below
        }
    }
}

fn half(below: u64) -> u64 {
    if below > SMALLEST { below / 2 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Kind;
    use proptest::prelude::*;

    fn record(bytes: u64, latency_ns: u64) -> Record {
        let request = Request {
            kind: Kind::Read,
            bytes,
        };
        Record {
            request,
            mode: Mode::Local,
            latency_ns,
        }
    }

    /// So many windows of requests that take this long, each inference 300 ns where one is made.
    fn run(shortcut: &mut Shortcut, windows: u32, bytes: u64, latency_ns: u64) {
        for _ in 0..windows * WINDOW {
            let record = record(bytes, latency_ns);
            if !shortcut.takes(&record.request) {
                shortcut.inferred(300);
            }
            shortcut.done(&record);
        }
    }

    #[test]
    fn small_requests_take_it_and_large_ones_do_not() {
        let mut shortcut = Shortcut::default();
        run(&mut shortcut, 20, 4096, 1_000);
        for _ in 0..5 {
            // It has come to rest.
            assert_eq!(shortcut.below(), 8192);
            run(&mut shortcut, 1, 4096, 1_000);
        }
        run(&mut shortcut, 20, 256 << 10, 100_000);
        assert_eq!(shortcut.below(), 0, "inference is cheap against these");
    }

    #[test]
    fn the_prediction_is_the_latency_before() {
        let mut shortcut = Shortcut::default();
        let bounds = Bounds::default();
        let request = record(4096, 0).request;
        let bound = bounds.latency_ns(&request, Mode::Local);
        assert_eq!(shortcut.latency_ns(&request, Mode::Local, &bounds), bound);
        shortcut.done(&record(4096, 77));
        assert_eq!(shortcut.latency_ns(&request, Mode::Local, &bounds), 77.0);
        assert_ne!(shortcut.latency_ns(&request, Mode::Remote, &bounds), 77.0);
    }

    proptest! {
        #[test]
        fn the_size_stays_within_its_bounds(
            windows in proptest::collection::vec(any::<(u64, u64, u64, u64)>(), 0..100)
        ) {
            let mut below = SMALLEST;
            for (inference_ns, requests_ns, would_ask, one_ns) in windows {
                let window = Window { inference_ns, requests_ns, would_ask, ..Window::default() };
                let next = window.moved(below, one_ns);
                prop_assert!(next == 0 || (SMALLEST..=LARGEST).contains(&next));
                prop_assert!(inference_ns <= requests_ns / SHARE || next >= below);
                below = next;
            }
        }
    }
}
