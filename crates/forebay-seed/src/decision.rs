//! The decision: from two predicted latencies to a mode, by chance (3.2.4 of the paper).
//!
//! ```text
//! r = local / (local + remote)        u(x) = sin(π x - π / 2) / 2 + 1 / 2        P(remote) = u(u(...u(r)))     n times
//! ```
//!
//! *n* is the certainty. Equal latencies are a toss; the more the latencies differ, the surer is the faster mode. What is drawn
//! against the odds is the exploration from which the network learns.
//!
//! Beyond the paper: where the latencies differ by far, the curve is 0 to all purposes, and a mode that was slow once would never be
//! tried again. So the slower mode always has a small probability, such that all trials together cost [`TRIALS_COST`] of the time.

use crate::request::Mode;

/// The certainty where nobody asked for another: the paper's.
pub const CERTAINTY_DEFAULT: u32 = 3;
/// The largest certainty of the paper's figure 5; larger ones are no different.
pub const CERTAINTY_MAX: u32 = 16;
/// What trials of the slower mode may cost, as a part of the time that requests take.
pub const TRIALS_COST: f64 = 1.0 / 256.0;

/// The curve of a certainty.
#[derive(Clone, Copy, Debug)]
pub struct Curve {
    certainty: u32,
    trials_cost: f64,
}

impl Default for Curve {
    fn default() -> Self {
        Curve::new(CERTAINTY_DEFAULT)
    }
}

impl Curve {
    /// The curve of that certainty, which is brought between 1 and [`CERTAINTY_MAX`].
    pub fn new(certainty: u32) -> Self {
        Curve {
            certainty: certainty.clamp(1, CERTAINTY_MAX),
            trials_cost: TRIALS_COST,
        }
    }

    /// The paper's curve, without trials.
    pub fn without_trials(self) -> Self {
        Curve {
            trials_cost: 0.0,
            ..self
        }
    }

    /// How certain.
    pub fn certainty(&self) -> u32 {
        self.certainty
    }

    /// How probable the remote mode is for these two latencies, in any unit, both above 0.
    pub fn probability_remote(&self, local: f64, remote: f64) -> f64 {
        let ratio = local / (local + remote);
        let mut probability = ratio;
        for _ in 0..self.certainty {
            probability = 0.5 - 0.5 * (std::f64::consts::PI * probability).cos();
        }
        if ratio < 0.5 {
            probability.max(self.trials_cost * local / remote)
        } else {
            probability.min(1.0 - self.trials_cost * remote / local)
        }
    }

    /// The mode for these two latencies; all bits of `draw` are drawn by the caller.
    pub fn decide(&self, local: f64, remote: f64, draw: u64) -> Mode {
        let drawn = (draw >> 11) as f64 / (1_u64 << 53) as f64;
        if drawn < self.probability_remote(local, remote) {
            Mode::Remote
        } else {
            Mode::Local
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use proptest::prelude::*;

    #[test]
    fn the_curve_is_the_papers() {
        // u(1/4) = (1 - cos(π/4)) / 2, and so on.
        let expected = [(1, 0.146_447), (2, 0.051_991), (3, 0.006_655)];
        for (certainty, probability) in expected {
            let curve = Curve::new(certainty).without_trials();
            let found = curve.probability_remote(1.0, 3.0);
            assert!((found - probability).abs() < 1e-5, "{certainty}: {found}");
        }
    }

    #[test]
    fn trials_cost_no_more_than_they_may() {
        for times in [2.0, 10.0, 1e3, 1e9] {
            let probability = Curve::new(16).probability_remote(1.0, times);
            assert!(probability > 0.0);
            assert!(probability * times <= TRIALS_COST * 1.000_001, "{times}");
        }
    }

    #[test]
    fn chance_follows_the_probability() {
        let mut random = Random::new(1);
        let curve = Curve::new(3);
        let remote = |local, far| {
            let drawn = (0..20_000).map(|_| curve.decide(local, far, random.next_u64()));
            drawn.filter(|mode| *mode == Mode::Remote).count()
        };
        let mut remote = remote;
        assert!((9_700..10_300).contains(&remote(5.0, 5.0)));
        assert!((30..250).contains(&remote(1.0, 3.0)));
        assert!((19_750..19_970).contains(&remote(3.0, 1.0)));
    }

    proptest! {
        #[test]
        fn it_is_unbiased_and_rises(local in 1.0_f64..1e10, remote in 1.0_f64..1e10, n in 0_u32..20) {
            let curve = Curve::new(n);
            let there = curve.probability_remote(local, remote);
            let back = curve.probability_remote(remote, local);
            prop_assert!((0.0..=1.0).contains(&there));
            prop_assert!((there + back - 1.0).abs() < 1e-9, "{there} {back}");
            prop_assert!(curve.probability_remote(local * 1.5, remote) >= there - 1e-9);
            prop_assert_eq!(there > 0.5, local > remote && there != 0.5);
        }
    }
}
