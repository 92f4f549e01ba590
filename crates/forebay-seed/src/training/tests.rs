//! Gradients against finite differences, learning of devices that are known, and what is published when.

use super::*;
use crate::request::{Kind, Mode, Record, Request};

fn request(kind: Kind, bytes: u64) -> Request {
    Request { kind, bytes }
}

/// An environment in which so many requests of 256 KiB went each way.
fn environment(local: u64, remote: u64) -> Environment {
    let mut environment = Environment::default();
    for (mode, count) in [(Mode::Local, local), (Mode::Remote, remote)] {
        let record = Record {
            request: request(Kind::Read, 256 << 10),
            mode,
            latency_ns: 1,
        };
        (0..count).for_each(|_| environment.add(record.to_word()));
    }
    environment
}

fn pair(local: u64, remote: u64, mode: Mode, strength: f32) -> Pair {
    Pair {
        environment: environment(local, remote),
        group: request(Kind::Read, 256 << 10).group(mode),
        strength,
    }
}

/// A device that serves 20 of the requests at their full speed, and shares it among more.
fn of_a_device(random: &mut Random) -> Pair {
    let (local, remote) = (random.below(64) as u64, random.below(64) as u64);
    let mode = Mode::BOTH[random.below(2)];
    let load = if mode == Mode::Local { local } else { remote };
    pair(local, remote, mode, (20.0 / load.max(20) as f32).min(1.0))
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let mut random = Random::new(11);
    let mut compared = 0;
    for case in 0..8 {
        let network = Network::untrained(&mut random);
        let pair = pair(9, 40, Mode::BOTH[case % 2], 0.3 + case as f32 / 20.0);
        let mut gradient = Gradient::new();
        gradient.add(&network, &pair);
        let loss = |network: &Network| 0.5 * f64::from(off_by(Some(network), &pair)).powi(2);
        for i in (0..PARAMETERS).filter(|i| gradient.0[*i].abs() > 1e-3) {
            let shifted = |by: f32| {
                let mut other = network.clone();
                other.parameters_mut()[i] += by;
                loss(&other)
            };
            let step = 1e-2;
            let expected = (shifted(step) - shifted(-step)) / f64::from(2.0 * step);
            let found = f64::from(gradient.0[i]);
            let near = (found - expected).abs() < 0.1 * expected.abs().max(0.01);
            assert!(near, "case {case}, parameter {i}: {found}, not {expected}");
            compared += 1;
        }
    }
    assert!(compared > 200, "{compared} compared");
}

#[test]
fn it_learns_a_device_that_saturates() {
    let mut random = Random::new(2);
    let mut trainer = Trainer::new(1);
    let mut errors = Vec::new();
    for _ in 0..20 {
        (0..1_000).for_each(|_| trainer.collect(of_a_device(&mut random)));
        errors.push(trainer.epoch().unwrap().error);
    }
    let last = *errors.last().unwrap();
    assert!(last < 0.1 && last < errors[0] / 4.0, "{errors:?}");
    let network = trainer.published().unwrap();
    let strength = |local, remote, mode| {
        let pair = pair(local, remote, mode, 1.0);
        network.strength(&network.hidden(&pair.environment), pair.group)
    };
    assert!(strength(60, 4, Mode::Local) < 0.45);
    assert!(strength(60, 4, Mode::Remote) > 0.8);
    assert!(strength(4, 60, Mode::Local) > 0.8);
}

#[test]
fn nothing_is_published_that_is_not_better() {
    // Strengths that nothing foretells: after a while no network predicts them better than the one before.
    let mut random = Random::new(5);
    let mut trainer = Trainer::new(1);
    for _ in 0..40 {
        for _ in 0..300 {
            let strength = 0.01 + 0.99 * random.unit() as f32;
            trainer.collect(pair(4, 4, Mode::BOTH[random.below(2)], strength));
        }
        let before = trainer.published().cloned();
        let epoch = trainer.epoch().unwrap();
        let is_better = epoch.error < epoch.error_published * (1.0 - BETTER);
        assert_eq!(epoch.is_published, is_better, "{epoch:?}");
        assert_eq!(trainer.published() != before.as_ref(), is_better);
    }
    let late = trainer.history().iter().skip(20);
    let published = late.filter(|epoch| epoch.is_published).count();
    assert!(published <= 5, "{:?}", trainer.history());
}

#[test]
fn few_new_pairs_are_no_epoch() {
    let mut trainer = Trainer::new(1);
    assert_eq!(trainer.epoch(), None);
    (1..NEW_MIN).for_each(|_| trainer.collect(pair(1, 1, Mode::Local, 0.5)));
    assert_eq!(trainer.epoch(), None);
    trainer.collect(pair(1, 1, Mode::Local, 0.5));
    assert!(trainer.epoch().is_some());
    assert_eq!(trainer.epoch(), None);
}

#[test]
fn rare_pairs_are_kept_and_counted_as_much() {
    let mut trainer = Trainer::new(1);
    // Alone beside local requests a remote one is fast; beside many remote ones it is slow. The first is rare.
    (0..60).for_each(|_| trainer.collect(pair(40, 0, Mode::Remote, 1.0)));
    for _ in 0..20 {
        (0..1_000).for_each(|_| trainer.collect(pair(0, 40, Mode::Remote, 0.2)));
        trainer.epoch();
    }
    let network = trainer.published().unwrap();
    let strength = |local, remote| {
        let pair = pair(local, remote, Mode::Remote, 1.0);
        network.strength(&network.hidden(&pair.environment), pair.group)
    };
    assert!(strength(40, 0) > 0.8, "{}", strength(40, 0));
    assert!(strength(0, 40) < 0.25, "{}", strength(0, 40));
}

#[test]
fn what_is_no_strength_is_no_pair() {
    let mut trainer = Trainer::new(1);
    for strength in [f32::NAN, 0.0, -1.0, 1.5, f32::INFINITY] {
        trainer.collect(pair(1, 1, Mode::Local, strength));
    }
    assert_eq!(trainer.collected, 0);
}
