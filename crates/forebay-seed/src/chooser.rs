//! One request after another: predict, choose, learn from what it took.
//!
//! A [`Chooser`] belongs to one thread, or lies under a lock of the caller's. A [`Learner`] is a chooser with its trainer beside it.

use crate::average::Average;
use crate::bounds::Bounds;
use crate::decision::Curve;
use crate::environment::Environment;
use crate::network::Network;
use crate::request::{GROUPS, Mode, Record, Request};
use crate::shortcut::Shortcut;
use crate::training::{Pair, Trainer};
use crate::trials::Trials;

/// What was chosen for a request.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The mode that serves it.
    pub mode: Mode,
    /// What the network was asked with; none where it was not asked.
    pub environment: Option<Environment>,
    /// What it answered for both modes, nanoseconds, before any correction.
    pub predicted_ns: Option<[f64; 2]>,
}

impl Choice {
    /// A mode that no environment has decided.
    pub fn plain(mode: Mode) -> Self {
        Choice {
            mode,
            environment: None,
            predicted_ns: None,
        }
    }
}

/// Chooses modes: SEED, or one of its rivals.
pub trait Policy {
    /// The mode for a request. `environment` gathers what others have done; a policy that does not call it does not pay for it.
    /// All bits of `draw` are drawn by the caller.
    fn choose(
        &mut self,
        request: &Request,
        environment: &mut dyn FnMut() -> Environment,
        draw: u64,
    ) -> Choice;

    /// The request of that choice has ended.
    fn done(&mut self, choice: &Choice, record: &Record);

    /// Learns, where nobody waits for it.
    fn learn(&mut self) {}
}

/// SEED for one request after another.
#[derive(Clone, Debug, Default)]
pub struct Chooser {
    bounds: Bounds,
    curve: Curve,
    network: Option<Network>,
    shortcut: Shortcut,
    corrections: Option<Corrections>,
}

/// The shortest that what corrected one network makes predictions of the next one.
const KEPT_MIN: f64 = 1.0 / 256.0;

/// Moving averages of what requests took, as multiples of what was predicted for them, by group.
///
/// Beyond the paper: between two epochs nothing else tells a network that it is wrong, and what it gets wrong by a tenth moves a tenth
/// of the requests. The averages follow within eight requests of a group; trials see to it that there are some.
#[derive(Clone, Debug)]
struct Corrections {
    times: [Average; GROUPS],
    trials: Trials,
}

impl Corrections {
    fn new() -> Self {
        Corrections {
            times: [Average::new(1.0); GROUPS],
            trials: Trials::default(),
        }
    }

    /// What is expected where that was predicted.
    fn correct(&self, request: &Request, predicted_ns: [f64; 2]) -> [f64; 2] {
        let times = |mode| self.times[request.group(mode).index()].get();
        Mode::BOTH.map(|mode| predicted_ns[mode as usize] * times(mode))
    }

    fn learn(&mut self, predicted_ns: [f64; 2], record: &Record) {
        let expected_ns = self.correct(&record.request, predicted_ns);
        self.trials.done(expected_ns, record);
        let times = record.latency_ns as f64 / predicted_ns[record.mode as usize];
        self.times[record.group().index()].follow(times);
    }
}

impl Chooser {
    /// A chooser that knows the lower bounds and no network yet: until it has one it predicts the bounds themselves.
    pub fn new(bounds: Bounds, curve: Curve) -> Self {
        Chooser {
            bounds,
            curve,
            ..Chooser::default()
        }
    }

    /// Corrects predictions by what the latest requests took instead.
    pub fn with_corrections(mut self) -> Self {
        self.corrections = Some(Corrections::new());
        self
    }

    /// From now on this network predicts. It makes mistakes of its own: what made predictions of another longer is forgotten. What made
    /// them shorter stays. If it is wrong now, requests go that way and tell; nothing tells of a way that is wrongly thought to be slow.
    pub fn adopt(&mut self, network: Network) {
        self.network = Some(network);
        if let Some(corrections) = &mut self.corrections {
            corrections.times =
                { corrections.times }.map(|times| Average::new(times.get().clamp(KEPT_MIN, 1.0)));
        }
    }

    /// The lower bounds.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// The short cut, for people to look at.
    pub fn shortcut(&self) -> &Shortcut {
        &self.shortcut
    }

    /// Notes that so many nanoseconds went into inference.
    pub fn inferred(&mut self, ns: u64) {
        self.shortcut.inferred(ns);
    }

    /// Predicted nanoseconds of a request, local and remote, from an environment.
    pub fn predict(&self, request: &Request, environment: &Environment) -> [f64; 2] {
        let bounds = Mode::BOTH.map(|mode| self.bounds.latency_ns(request, mode));
        let Some(network) = &self.network else {
            return bounds;
        };
        let hidden = network.hidden(environment);
        let strength = |mode| f64::from(network.strength(&hidden, request.group(mode)));
        Mode::BOTH.map(|mode| bounds[mode as usize] / strength(mode))
    }

    /// What a request teaches that the network was asked about.
    pub fn pair(&self, choice: &Choice, record: &Record) -> Option<Pair> {
        choice.environment.map(|environment| Pair {
            environment,
            group: record.group(),
            strength: self.bounds.strength(record),
        })
    }
}

impl Policy for Chooser {
    fn choose(
        &mut self,
        request: &Request,
        environment: &mut dyn FnMut() -> Environment,
        draw: u64,
    ) -> Choice {
        if self.shortcut.takes(request) {
            let latency = |mode| self.shortcut.latency_ns(request, mode, &self.bounds);
            let [local, remote] = Mode::BOTH.map(latency);
            return Choice::plain(self.curve.decide(local, remote, draw));
        }
        let environment = environment();
        let predicted_ns = self.predict(request, &environment);
        let corrections = self.corrections.as_mut();
        let (due, [local, remote]) = corrections.map_or((None, predicted_ns), |corrections| {
            let expected_ns = corrections.correct(request, predicted_ns);
            (corrections.trials.due(request), expected_ns)
        });
        Choice {
            mode: due.unwrap_or_else(|| self.curve.decide(local, remote, draw)),
            environment: Some(environment),
            predicted_ns: Some(predicted_ns),
        }
    }

    fn done(&mut self, choice: &Choice, record: &Record) {
        self.shortcut.done(record);
        if let (Some(corrections), Some(predicted)) = (&mut self.corrections, choice.predicted_ns) {
            corrections.learn(predicted, record);
        }
    }
}

/// A chooser and its trainer in one process.
#[derive(Clone, Debug)]
pub struct Learner {
    chooser: Chooser,
    trainer: Trainer,
    /// What an inference takes, nanoseconds: measured by the caller.
    inference_ns: u64,
}

impl Learner {
    /// A learner that has learnt nothing; the seed decides what its trainer draws.
    pub fn new(bounds: Bounds, curve: Curve, inference_ns: u64, seed: u64) -> Self {
        Learner {
            chooser: Chooser::new(bounds, curve),
            trainer: Trainer::new(seed),
            inference_ns,
        }
    }

    /// The same learner with [`Chooser::with_corrections`].
    pub fn with_corrections(mut self) -> Self {
        self.chooser = self.chooser.with_corrections();
        self
    }

    /// The trainer, for its errors.
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// The chooser.
    pub fn chooser(&self) -> &Chooser {
        &self.chooser
    }
}

impl Policy for Learner {
    fn choose(
        &mut self,
        request: &Request,
        environment: &mut dyn FnMut() -> Environment,
        draw: u64,
    ) -> Choice {
        let choice = self.chooser.choose(request, environment, draw);
        if choice.environment.is_some() {
            self.chooser.inferred(self.inference_ns);
        }
        choice
    }

    fn done(&mut self, choice: &Choice, record: &Record) {
        self.chooser.done(choice, record);
        if let Some(pair) = self.chooser.pair(choice, record) {
            self.trainer.collect(pair);
        }
    }

    fn learn(&mut self) {
        let epoch = self.trainer.epoch();
        if epoch.is_some_and(|epoch| epoch.is_published) {
            let network = self.trainer.published();
            self.chooser
                .adopt(network.expect("it was just published").clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::Line;
    use crate::random::Random;
    use crate::request::Kind;

    fn bounds(local_ns: f64, remote_ns: f64) -> Bounds {
        let mut bounds = Bounds::default();
        for (mode, fixed_ns) in [(Mode::Local, local_ns), (Mode::Remote, remote_ns)] {
            let ns_per_mib = 0.0;
            bounds.set(
                Kind::Read,
                mode,
                Line {
                    fixed_ns,
                    ns_per_mib,
                },
            );
        }
        bounds
    }

    #[test]
    fn without_a_network_the_bounds_predict() {
        let chooser = Chooser::new(bounds(100.0, 300.0), Curve::default());
        let request = Request {
            kind: Kind::Read,
            bytes: 1 << 20,
        };
        assert_eq!(
            chooser.predict(&request, &Environment::default()),
            [100.0, 300.0]
        );
    }

    #[test]
    fn a_network_makes_latencies_longer_than_their_bounds() {
        let mut chooser = Chooser::new(bounds(100.0, 300.0), Curve::default());
        chooser.adopt(Network::untrained(&mut Random::new(1)));
        let request = Request {
            kind: Kind::Read,
            bytes: 1 << 20,
        };
        let [local, remote] = chooser.predict(&request, &Environment::default());
        assert!(local > 100.0 && remote > 300.0, "{local} {remote}");
    }

    #[test]
    fn small_requests_gather_nothing_and_teach_nothing() {
        let mut chooser = Chooser::new(bounds(100.0, 300.0), Curve::default());
        let request = Request {
            kind: Kind::Read,
            bytes: 100,
        };
        let mut gather = || panic!("the environment was gathered");
        let choice = chooser.choose(&request, &mut gather, 0);
        let record = Record {
            request,
            mode: choice.mode,
            latency_ns: 50,
        };
        assert!(chooser.pair(&choice, &record).is_none());
    }

    /// Of 1,000 requests that take so long locally, and three times their bound remotely: how many go remote.
    fn remote_of(chooser: &mut Chooser, local_ns: u64) -> usize {
        let mut random = Random::new(1);
        let request = Request {
            kind: Kind::Read,
            bytes: 1 << 20,
        };
        let mut once = || {
            let mut gather = Environment::default;
            let choice = chooser.choose(&request, &mut gather, random.next_u64());
            let latency_ns = match choice.mode {
                Mode::Local => local_ns,
                Mode::Remote => 300_000,
            };
            let record = Record {
                request,
                mode: choice.mode,
                latency_ns,
            };
            chooser.done(&choice, &record);
            choice.mode
        };
        (0..1_000).filter(|_| once() == Mode::Remote).count()
    }

    #[test]
    fn corrections_follow_what_no_network_foretold() {
        let plain = Chooser::new(bounds(100_000.0, 100_000.0), Curve::default());
        let mut corrected = plain.clone().with_corrections();
        assert!(remote_of(&mut corrected, 100_000) < 150);
        assert!(remote_of(&mut corrected, 3_000_000) > 900);
        let found = remote_of(&mut plain.clone(), 100_000);
        assert!((400..600).contains(&found), "{found}: the bounds alone");
        corrected.corrections.as_mut().unwrap().times[0] = Average::new(0.5);
        corrected.adopt(Network::untrained(&mut Random::new(1)));
        let times = corrected
            .corrections
            .unwrap()
            .times
            .map(|times| times.get());
        assert_eq!(times[0], 0.5, "what is faster than predicted stays so");
        assert_eq!(times[1..], [1.0; GROUPS - 1]);
    }

    /// Local saturates at 16 requests; the learner is told what is under way, and has to find that out.
    #[test]
    fn a_learner_finds_out_which_mode_is_faster_when() {
        let mut random = Random::new(4);
        let mut learner = Learner::new(bounds(1e5, 2e5), Curve::default(), 300, 1);
        let request = Request {
            kind: Kind::Read,
            bytes: 256 << 10,
        };
        let environment = |load: u64| {
            let mut environment = Environment::default();
            let record = Record {
                request,
                mode: Mode::Local,
                latency_ns: 1,
            };
            (0..load).for_each(|_| environment.add(record.to_word()));
            environment
        };
        for turn in 0..12_000 {
            let load = random.below(100) as u64;
            let choice = learner.choose(&request, &mut || environment(load), random.next_u64());
            let latency_ns = match choice.mode {
                Mode::Local => 100_000 * load.max(16) / 16,
                Mode::Remote => 200_000,
            };
            let record = Record {
                request,
                mode: choice.mode,
                latency_ns,
            };
            learner.done(&choice, &record);
            if turn % 1_000 == 999 {
                learner.learn();
            }
        }
        let [local, remote] = learner.chooser().predict(&request, &environment(4));
        assert!(local * 1.5 < remote, "{local} {remote}");
        let [local, remote] = learner.chooser().predict(&request, &environment(96));
        assert!(local > remote * 1.5, "{local} {remote}");
    }
}
