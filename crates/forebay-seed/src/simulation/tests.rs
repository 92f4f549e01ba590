//! The simulator holds its own laws, and policies do on it what they are for. All runs come from seeds and simulated time.

use super::*;
use crate::chooser::{Choice, Learner, Policy};
use crate::decision::Curve;
use crate::request::{Kind, Mode, Record, Request};
use crate::rivals::{Better, Fixed, Table};

fn learner(hardware: &Hardware) -> Learner {
    Learner::new(hardware.bounds(1), Curve::default(), INFERENCE_NS, 1)
}

#[test]
fn a_lone_thread_gets_one_requests_speed() {
    let hardware = Hardware::paper();
    for (remote, path) in [(0, &hardware.paths[0]), (100, &hardware.paths[1])] {
        let workload = Workload::reads(1 << 20, 1, 200);
        let outcome = run(&hardware, &workload, &mut Fixed::new(remote), 1);
        let found = outcome.whole().gb_per_s();
        // Half of the jitter, and the fixed time.
        assert!(found < path.one && found > path.one * 0.93, "{found}");
        assert_eq!(outcome.whole().remote_share(), remote as f64 / 100.0);
    }
}

#[test]
fn many_threads_share_a_path_and_none_exceeds_it() {
    let hardware = Hardware::paper();
    for (remote, limit) in [(0, 16.0), (100, 8.0), (40, 24.0)] {
        let workload = Workload::reads(256 << 10, 40, 200);
        let outcome = run(&hardware, &workload, &mut Fixed::new(remote), 1);
        let found = outcome.whole().gb_per_s();
        assert!(found < limit && found > limit * 0.75, "{remote}: {found}");
    }
}

#[test]
fn time_is_all_accounted_for() {
    let hardware = Hardware::paper();
    let workload = Workload::mixed(&[3, 0, 9], 70);
    let outcome = run(&hardware, &workload, &mut Fixed::new(30), 1);
    let lengths: Vec<f64> = outcome.phases.iter().map(|phase| phase.ns).collect();
    assert!(
        lengths.iter().all(|ns| (ns - 70e6).abs() < 1.0),
        "{lengths:?}"
    );
    let sampled: f64 = outcome.series.iter().map(|sample| sample.ns).sum();
    assert!((sampled - 210e6).abs() < 1.0);
    let bytes: u64 = outcome.series.iter().map(|sample| sample.bytes).sum();
    assert_eq!(bytes, outcome.whole().bytes);
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let hardware = Hardware::paper();
    let workload = Workload::mixed(&[2, 12], 150);
    let once = |seed| run(&hardware, &workload, &mut learner(&hardware), seed);
    assert_eq!(once(1), once(1));
    assert_ne!(once(1), once(2));
}

/// The last third of a run: after what it took to learn.
fn settled(outcome: &Outcome) -> f64 {
    let late = &outcome.series[outcome.series.len() * 2 / 3..];
    let bytes: u64 = late.iter().map(|sample| sample.bytes).sum();
    bytes as f64 / late.iter().map(|sample| sample.ns).sum::<f64>()
}

#[test]
fn where_local_saturates_seed_uses_both_paths() {
    let hardware = Hardware::paper();
    let workload = Workload::reads(256 << 10, 16, 1_000);
    let local = run(&hardware, &workload, &mut Fixed::new(0), 1);
    let mut learner = learner(&hardware);
    let seed = run(&hardware, &workload, &mut learner, 1);
    assert!(learner.trainer().published().is_some());
    let times = settled(&seed) / settled(&local);
    assert!(times > 1.2, "{times}");
}

#[test]
fn a_lone_thread_loses_little() {
    let hardware = Hardware::paper();
    let workload = Workload::reads(256 << 10, 1, 1_000);
    let local = run(&hardware, &workload, &mut Fixed::new(0), 1);
    let seed = run(&hardware, &workload, &mut learner(&hardware), 1);
    let times = settled(&seed) / settled(&local);
    assert!(times > 0.9, "{times}");
}

#[test]
fn every_adaptive_policy_follows_the_number_of_threads() {
    let hardware = Hardware::paper();
    let workload = Workload::mixed(&[2, 32, 2, 32], 500);
    let bounds = hardware.bounds(1);
    let mut table = Table::new(bounds, Curve::default());
    let mut better = Better::new(bounds);
    let mut seed = learner(&hardware);
    let policies: [(&str, &mut dyn Policy); 3] = [
        ("seed", &mut seed),
        ("table", &mut table),
        ("better", &mut better),
    ];
    for (name, policy) in policies {
        let outcome = run(&hardware, &workload, policy, 1);
        let shares: Vec<f64> = outcome.phases.iter().map(|p| p.remote_share()).collect();
        assert!(
            shares[2] < 0.2,
            "{name}: few threads stay local: {shares:?}"
        );
        assert!(shares[3] > 0.2, "{name}: many use both: {shares:?}");
    }
}

/// A remote path that is believed to be twenty times slower than it is: only by trials is it found.
#[test]
fn a_path_that_was_slow_is_found_again() {
    let hardware = Hardware::paper();
    let workload = Workload::reads(1 << 20, 24, 12_000);
    let late = |curve: Curve| {
        let mut table = Table::new(hardware.bounds(1), curve);
        let record = Record {
            request: Request {
                kind: Kind::Read,
                bytes: 1 << 20,
            },
            mode: Mode::Remote,
            latency_ns: 30_000_000,
        };
        (0..100).for_each(|_| table.done(&Choice::plain(Mode::Remote), &record));
        let outcome = run(&hardware, &workload, &mut table, 2);
        outcome.series.last().unwrap().remote_share()
    };
    let found = late(Curve::default());
    assert!(found > 0.2, "{found}");
    assert_eq!(late(Curve::default().without_trials()), 0.0);
}
