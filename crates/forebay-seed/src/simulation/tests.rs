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

/// A pool whose local path gives so much, and whose remote requests wait so long before their bytes move.
fn pool(local_gb_per_s: f64, remote_fixed_ns: f64) -> Hardware {
    let path = |fixed_ns, speed| PathModel {
        fixed_ns,
        one: speed,
        all: speed,
        jitter: 0.1,
    };
    Hardware {
        paths: [path(1_000.0, local_gb_per_s), path(remote_fixed_ns, 2.5)],
    }
}

const HELD: f64 = 1.0;
const FREE: f64 = 40.0;
const AT_ONCE_NS: f64 = 50_000.0;
/// What a remote request waits for processors that local ones have taken up.
const STARVED_NS: f64 = 20e6;

/// What the policies that learn do one after the other with each of these paths, 256 KiB reads by eight threads for so many ms.
fn by_and_by(phases: &[(Hardware, u64)]) -> Vec<(&'static str, Vec<Outcome>)> {
    let bounds = pool(FREE, AT_ONCE_NS).bounds(1);
    let learner = |certainty| {
        let curve = Curve::new(certainty);
        Box::new(Learner::new(bounds, curve, INFERENCE_NS, 1).with_corrections())
    };
    let policies: [(&str, Box<dyn Policy>); 4] = [
        ("table", Box::new(Table::new(bounds, Curve::default()))),
        ("better", Box::new(Better::new(bounds))),
        ("seed", learner(3)),
        ("seed:6", learner(6)),
    ];
    let each = policies.into_iter().map(|(name, mut policy)| {
        let outcomes = phases.iter().enumerate().map(|(at, (hardware, ms))| {
            let workload = Workload::reads(256 << 10, 8, *ms);
            run(hardware, &workload, &mut *policy, at as u64)
        });
        (name, outcomes.collect())
    });
    each.collect()
}

/// The share of remote requests in each 50 ms.
fn remote_shares(outcome: &Outcome) -> Vec<f64> {
    let samples = outcome.series.iter();
    samples.map(|sample| sample.remote_share()).collect()
}

/// Local memory becomes slow. The remote path is fast, but all that is known of it is from when it was starved.
#[test]
fn what_was_starved_is_found_once_the_taken_path_becomes_slow() {
    let (held, free) = (pool(HELD, AT_ONCE_NS), pool(FREE, STARVED_NS));
    for (name, outcomes) in by_and_by(&[(held, 1_000), (free, 2_000), (held, 400)]) {
        let free = outcomes[1].series.last().unwrap().remote_share();
        assert!(free < 0.1, "{name}: {free} past a free memory");
        let shares = remote_shares(&outcomes[2]);
        assert!(
            shares[2..].iter().all(|share| *share > 0.5),
            "{name}: {shares:?}"
        );
    }
}

/// The taken path stays as it is, so nothing tells that the other has become fast but trials by lot.
#[test]
fn what_has_become_fast_is_found_while_nothing_else_changes() {
    let (starved, held) = (pool(HELD, STARVED_NS), pool(HELD, AT_ONCE_NS));
    for (name, outcomes) in by_and_by(&[(starved, 2_000), (held, 3_000)]) {
        let shares = remote_shares(&outcomes[1]);
        let late = &shares[shares.len() - 10..];
        assert!(late.iter().all(|share| *share > 0.5), "{name}: {shares:?}");
    }
}

/// The other way round nothing old is in the way: what is known of the remote path is right.
#[test]
fn a_path_that_becomes_slow_is_left_at_once() {
    let (free, held) = (pool(FREE, AT_ONCE_NS), pool(HELD, AT_ONCE_NS));
    for (name, outcomes) in by_and_by(&[(free, 1_000), (held, 400)]) {
        let shares = remote_shares(&outcomes[1]);
        assert!(
            shares[1..].iter().all(|share| *share > 0.5),
            "{name}: {shares:?}"
        );
    }
}

/// Local speeds that change all the time ask for trials each time; the path that they would try is truly slow.
#[test]
fn trials_of_a_slow_path_cost_little_whatever_changes() {
    let phases: Vec<(Hardware, u64)> = (0..40)
        .map(|at| (pool([FREE, HELD][at % 2], STARVED_NS), 200))
        .collect();
    for (name, outcomes) in by_and_by(&phases) {
        let late = &outcomes[10..];
        let tried: u64 = late.iter().map(|outcome| outcome.whole().remote).sum();
        let part = tried as f64 * STARVED_NS / (late.len() as f64 * 200e6 * 8.0);
        // "better" tries one in sixteen, whatever it costs.
        assert!(part < 0.01 || name == "better", "{name}: {part}");
    }
}
