//! Policies that do with less than SEED: what it has to be better than.
//!
//! | policy | knows | chooses |
//! |---|---|---|
//! | [`Fixed`] | nothing | by lot, in a fixed ratio; 0 and 100 are local only and remote only |
//! | [`Table`] | how fast each group was of late | by SEED's curve, and by trials out of turn |
//! | [`Better`] | the same | the faster; one request in [`TRIED_ONE_IN`] goes the other way |

use crate::average::Average;
use crate::bounds::Bounds;
use crate::chooser::{Choice, Policy};
use crate::decision::Curve;
use crate::environment::Environment;
use crate::request::{GROUPS, Mode, Record, Request};
use crate::trials::Trials;

/// So many in a hundred requests go remote.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    remote_percent: u64,
}

impl Fixed {
    /// That ratio; more than 100 is 100.
    pub fn new(remote_percent: u64) -> Self {
        Fixed { remote_percent }
    }
}

impl Policy for Fixed {
    fn choose(
        &mut self,
        _request: &Request,
        _environment: &mut dyn FnMut() -> Environment,
        draw: u64,
    ) -> Choice {
        // The upper bits: a remainder by 100 of few bits would not be even.
        let drawn = ((u128::from(draw) * 100) >> 64) as u64;
        Choice::plain(if drawn < self.remote_percent {
            Mode::Remote
        } else {
            Mode::Local
        })
    }

    fn done(&mut self, _choice: &Choice, _record: &Record) {}
}

/// Moving averages of what the latest requests of each group took, as multiples of their lower bounds.
#[derive(Clone, Debug)]
struct Averages {
    bounds: Bounds,
    times_the_bound: [Average; GROUPS],
}

impl Averages {
    fn new(bounds: Bounds) -> Self {
        Averages {
            bounds,
            times_the_bound: [Average::new(1.0); GROUPS],
        }
    }

    fn predict(&self, request: &Request) -> [f64; 2] {
        Mode::BOTH.map(|mode| {
            let times = self.times_the_bound[request.group(mode).index()].get();
            self.bounds.latency_ns(request, mode) * times
        })
    }

    fn learn(&mut self, record: &Record) {
        let times = 1.0 / f64::from(self.bounds.strength(record));
        self.times_the_bound[record.group().index()].follow(times);
    }
}

/// A plain table of moving averages in the place of the network, and the same curve.
#[derive(Clone, Debug)]
pub struct Table {
    averages: Averages,
    curve: Curve,
    trials: Trials,
}

impl Table {
    /// A table that knows the lower bounds only.
    pub fn new(bounds: Bounds, curve: Curve) -> Self {
        Table {
            averages: Averages::new(bounds),
            curve,
            trials: Trials::default(),
        }
    }
}

impl Policy for Table {
    fn choose(
        &mut self,
        request: &Request,
        _environment: &mut dyn FnMut() -> Environment,
        draw: u64,
    ) -> Choice {
        let [local, remote] = self.averages.predict(request);
        let due = self.trials.due(request);
        Choice::plain(due.unwrap_or_else(|| self.curve.decide(local, remote, draw)))
    }

    fn done(&mut self, _choice: &Choice, record: &Record) {
        let expected_ns = self.averages.predict(&record.request);
        self.trials.done(expected_ns, record);
        self.averages.learn(record);
    }
}

/// One request in so many goes the way that is not the better one.
pub const TRIED_ONE_IN: u64 = 16;

/// The better of both modes by moving averages.
#[derive(Clone, Debug)]
pub struct Better {
    averages: Averages,
}

impl Better {
    /// Averages that know the lower bounds only.
    pub fn new(bounds: Bounds) -> Self {
        Better {
            averages: Averages::new(bounds),
        }
    }
}

impl Policy for Better {
    fn choose(
        &mut self,
        request: &Request,
        _environment: &mut dyn FnMut() -> Environment,
        draw: u64,
    ) -> Choice {
        let [local, remote] = self.averages.predict(request);
        let better = if remote < local {
            Mode::Remote
        } else {
            Mode::Local
        };
        let is_trial = draw.is_multiple_of(TRIED_ONE_IN);
        Choice::plain(if is_trial { better.other() } else { better })
    }

    fn done(&mut self, _choice: &Choice, record: &Record) {
        self.averages.learn(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::request::Kind;

    const REQUEST: Request = Request {
        kind: Kind::Read,
        bytes: 256 << 10,
    };

    /// How many of 1,000 requests a policy sends remote.
    fn remote(policy: &mut dyn Policy) -> usize {
        let mut random = Random::new(1);
        let mut gather = Environment::default;
        let modes = (0..1_000).map(|_| policy.choose(&REQUEST, &mut gather, random.next_u64()));
        modes.filter(|choice| choice.mode == Mode::Remote).count()
    }

    fn taught(policy: &mut dyn Policy, local_ns: u64, remote_ns: u64) {
        for (mode, latency_ns) in [(Mode::Local, local_ns), (Mode::Remote, remote_ns)] {
            let record = Record {
                request: REQUEST,
                mode,
                latency_ns,
            };
            (0..100).for_each(|_| policy.done(&Choice::plain(mode), &record));
        }
    }

    #[test]
    fn a_fixed_ratio_is_kept() {
        assert_eq!(remote(&mut Fixed::new(0)), 0);
        assert_eq!(remote(&mut Fixed::new(100)), 1_000);
        assert!((250..350).contains(&remote(&mut Fixed::new(30))));
    }

    #[test]
    fn averages_follow_what_was_seen() {
        let mut table = Table::new(Bounds::default(), Curve::default());
        let mut better = Better::new(Bounds::default());
        for policy in [&mut table as &mut dyn Policy, &mut better] {
            taught(policy, 100_000, 1_000_000);
            assert!(remote(policy) < 100);
            taught(policy, 1_000_000, 100_000);
            assert!(remote(policy) > 900);
        }
    }

    #[test]
    fn one_request_that_waited_for_a_processor_decides_nothing() {
        let mut table = Table::new(Bounds::default(), Curve::default());
        let mut better = Better::new(Bounds::default());
        for policy in [&mut table as &mut dyn Policy, &mut better] {
            taught(policy, 100_000, 1_000_000);
            let record = Record {
                request: REQUEST,
                mode: Mode::Local,
                latency_ns: 100_000_000,
            };
            policy.done(&Choice::plain(Mode::Local), &record);
            assert!(remote(policy) < 100);
        }
    }
}
