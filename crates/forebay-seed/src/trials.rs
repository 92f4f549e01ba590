//! Trials out of turn: when the way that is not taken is tried, though what is known of it speaks against it.
//!
//! The curve tries the slower way by lot, and the more rarely the slower it is believed to be ([`crate::decision`]). What is believed
//! may be old: a way that was slow once is then hardly tried, and each trial moves its average by an eighth. Two rules find it again:
//!
//! - *A change.* Where [`ROW`] requests in a row took more than [`LATE`] times what was expected of the way that is taken, the other
//!   way is tried once. Time pays for it: all trials by this rule cost [`TRIALS_COST`] of the requests' time, at the price that is believed.
//! - *A success.* A request the slower way that was faster than what is expected of the other is followed by another one. It cost
//!   nothing itself; a way that is often faster and sometimes much slower has trials in rows, and costs more by the rows' length.
//!
//! Requests of one kind and size class are looked at by themselves.

use crate::decision::TRIALS_COST;
use crate::request::{GROUPS, Mode, Record, Request};

/// A request is late once it took so many times what was expected.
const LATE: f64 = 2.0;
/// So many late requests in a row are a change; one or two happen to whoever waits for a processor.
const ROW: u32 = 4;

/// What leads to trials out of turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trials {
    /// By group: how many of its latest requests were late, one after the other.
    late: [u32; GROUPS],
    /// By group: the next request goes this way.
    is_due: [bool; GROUPS],
    /// By kind and class: what a trial may take.
    credit_ns: [f64; GROUPS / 2],
}

impl Trials {
    /// The mode that is to be tried by this request, if there is one.
    pub fn due(&mut self, request: &Request) -> Option<Mode> {
        let is_due = &mut self.is_due;
        let mut take = |mode: &Mode| std::mem::take(&mut is_due[request.group(*mode).index()]);
        Mode::BOTH.into_iter().find(|mode| take(mode))
    }

    /// A request has ended of which so many nanoseconds were expected by either mode.
    pub fn done(&mut self, expected_ns: [f64; 2], record: &Record) {
        let (mode, group, took_ns) = (record.mode, record.group(), record.latency_ns as f64);
        let [own_ns, other_ns] = [mode, mode.other()].map(|mode| expected_ns[mode as usize]);
        if own_ns > other_ns {
            self.is_due[group.index()] |= took_ns < other_ns;
            return;
        }
        let is_late = took_ns > own_ns * LATE;
        let late = &mut self.late[group.index()];
        *late = if is_late { *late + 1 } else { 0 };
        let credit_ns = &mut self.credit_ns[group.index() / Mode::BOTH.len()];
        *credit_ns += took_ns * TRIALS_COST;
        if *late >= ROW && *credit_ns >= other_ns {
            *credit_ns = 0.0;
            let other = record.request.group(mode.other());
            self.is_due[other.index()] = true;
        }
    }
}
