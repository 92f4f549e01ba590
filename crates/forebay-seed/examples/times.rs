//! What SEED costs a request: nanoseconds of gathering, inference and decision, and of an epoch of training.
//!
//!     cargo run --release -p forebay-seed --example times
//!
//! Medians of 31 rounds, with the fastest and the slowest.

use std::hint::black_box;
use std::time::Instant;

use forebay_seed::chooser::{Chooser, Policy};
use forebay_seed::environment::{Environment, Log};
use forebay_seed::random::Random;
use forebay_seed::{Bounds, Curve, Kind, Mode, Network, Pair, Record, Request, Trainer};

const ROUNDS: usize = 31;

/// Times `work` of so many turns, and prints nanoseconds a turn.
fn time(name: &str, turns: u32, mut work: impl FnMut()) {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            (0..turns).for_each(|_| work());
            began.elapsed().as_nanos() as f64 / f64::from(turns)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    let (least, median, most) = (rounds[0], rounds[ROUNDS / 2], rounds[ROUNDS - 1]);
    println!("| {name} | {median:.0} | {least:.0} | {most:.0} |");
}

/// Logs of so many threads, of all sizes in both modes.
fn logs(threads: usize, random: &mut Random) -> Vec<Log> {
    let mut log = || {
        let mut log = Log::default();
        for _ in 0..4 {
            log.note(&record(random), 1);
        }
        log
    };
    (0..threads).map(|_| log()).collect()
}

fn record(random: &mut Random) -> Record {
    Record {
        request: Request {
            kind: Kind::BOTH[random.below(2)],
            bytes: 4096 << random.below(12),
        },
        mode: Mode::BOTH[random.below(2)],
        latency_ns: 1 + random.next_u64() % 1_000_000,
    }
}

fn main() {
    let mut random = Random::new(1);
    println!("| what | median, ns | fastest | slowest |");
    println!("|---|---|---|---|");
    for threads in [1, 4, 16, 64] {
        let logs = logs(threads, &mut random);
        let name = format!("gathering the environment of {threads} threads");
        time(&name, 10_000, || {
            black_box(Environment::of(black_box(&logs), 1));
        });
    }
    let mut chooser = Chooser::new(Bounds::default(), Curve::default());
    chooser.adopt(Network::untrained(&mut random));
    for threads in [1, 16, 64] {
        let environment = Environment::of(&logs(threads, &mut random), 1);
        let groups = environment.counts().iter().filter(|count| **count > 0);
        let name = format!("inference, both modes, {} groups", groups.count());
        let request = record(&mut random).request;
        time(&name, 10_000, || {
            black_box(chooser.predict(black_box(&request), black_box(&environment)));
        });
    }
    let curve = Curve::default();
    time("decision", 10_000, || {
        black_box(curve.decide(black_box(70_000.0), black_box(90_000.0), black_box(1 << 60)));
    });
    for threads in [1, 16] {
        let logs = logs(threads, &mut random);
        let name = format!("all of a request's choice, {threads} threads");
        let request = Request {
            kind: Kind::Read,
            bytes: 256 << 10,
        };
        time(&name, 10_000, || {
            let mut gather = || Environment::of(black_box(&logs), 1);
            black_box(chooser.choose(&request, &mut gather, 1 << 60));
        });
    }
    let mut trainer = Trainer::new(1);
    time("an epoch of 4,096 pairs", 1, || {
        for _ in 0..6_000 {
            let environment = Environment::of(&logs(8, &mut random), 1);
            let group = record(&mut random).group();
            trainer.collect(Pair {
                environment,
                group,
                strength: 0.5,
            });
        }
        black_box(trainer.epoch());
    });
}
