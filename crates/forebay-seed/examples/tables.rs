//! The tables of `docs/seed.md`: SEED and its rivals on simulated paths.
//!
//!     cargo run --release -p forebay-seed --example tables
//!
//! The same on any day: time is simulated and all that is drawn comes from seeds. Each figure is the median of five seeds.

use forebay_seed::chooser::{Learner, Policy};
use forebay_seed::decision::Curve;
use forebay_seed::rivals::{Better, Fixed, Table};
use forebay_seed::simulation::{Hardware, INFERENCE_NS, Outcome, Sizes, Workload, run};
use forebay_seed::training::Epoch;

/// Seeds of each figure, where the second argument does not say otherwise.
const SEEDS: u64 = 5;
/// Simulated milliseconds of a run with one number of threads.
const RUN_MS: u64 = 3_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Fixed(u64),
    Table,
    Better,
    Seed(u32),
    /// With corrections.
    Corrected(u32),
}

impl Kind {
    fn policy(self, hardware: &Hardware, seed: u64) -> Box<dyn Policy> {
        let bounds = hardware.bounds(seed);
        match self {
            Kind::Fixed(percent) => Box::new(Fixed::new(percent)),
            Kind::Table => Box::new(Table::new(bounds, Curve::default())),
            Kind::Better => Box::new(Better::new(bounds)),
            Kind::Seed(certainty) => Box::new(learner(hardware, certainty, seed)),
            Kind::Corrected(certainty) => {
                Box::new(learner(hardware, certainty, seed).with_corrections())
            }
        }
    }
}

fn learner(hardware: &Hardware, certainty: u32, seed: u64) -> Learner {
    let curve = Curve::new(certainty);
    Learner::new(hardware.bounds(seed), curve, INFERENCE_NS, seed)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median over the seeds of what `of` makes of a run.
fn over_seeds(
    hardware: &Hardware,
    kind: Kind,
    workload: &Workload,
    of: impl Fn(&Outcome) -> f64,
) -> f64 {
    let one = |seed| {
        let mut policy = kind.policy(hardware, seed);
        of(&run(hardware, workload, policy.as_mut(), seed))
    };
    let seeds = std::env::args().nth(2).and_then(|told| told.parse().ok());
    median((1..=seeds.unwrap_or(SEEDS)).map(one).collect())
}

/// Throughput of the second half of a run, GB/s.
fn settled(outcome: &Outcome) -> f64 {
    let late = &outcome.series[outcome.series.len() / 2..];
    let bytes: u64 = late.iter().map(|sample| sample.bytes).sum();
    bytes as f64 / late.iter().map(|sample| sample.ns).sum::<f64>()
}

fn settled_remote(outcome: &Outcome) -> f64 {
    let late = &outcome.series[outcome.series.len() / 2..];
    let remote: u64 = late.iter().map(|sample| sample.remote).sum();
    let requests: u64 = late.iter().map(|sample| sample.requests).sum();
    100.0 * remote as f64 / requests as f64
}

/// Throughput of so many phases, GB/s.
fn part(outcome: &Outcome, first: usize, phases: usize) -> f64 {
    let phases = &outcome.phases[first..first + phases];
    let bytes: u64 = phases.iter().map(|phase| phase.bytes).sum();
    bytes as f64 / phases.iter().map(|phase| phase.ns).sum::<f64>()
}

fn reads(hardware: &Hardware) {
    println!("\n256 KiB reads: throughput against local only, second half of {RUN_MS} ms\n");
    println!(
        "| threads | local only, GB/s | remote only | best fixed ratio | better of both | table | SEED 1 | SEED 3 | SEED 6 | SEED 3, remote | SEED 3, corrected |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for threads in [1, 2, 4, 6, 8, 10, 12, 16, 24, 40] {
        let workload = Workload::reads(256 << 10, threads, RUN_MS);
        let of = |kind| over_seeds(hardware, kind, &workload, settled);
        let local = of(Kind::Fixed(0));
        let fixed = (0..=10).map(|tens| (of(Kind::Fixed(tens * 10)), tens * 10));
        let (best, percent) = fixed.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        print!(
            "| {threads} | {local:.2} | {:.2} ",
            of(Kind::Fixed(100)) / local
        );
        print!("| {:.2} ({percent} % remote) ", best / local);
        for kind in [
            Kind::Better,
            Kind::Table,
            Kind::Seed(1),
            Kind::Seed(3),
            Kind::Seed(6),
        ] {
            print!("| {:.2} ", of(kind) / local);
        }
        let remote = over_seeds(hardware, Kind::Seed(3), &workload, settled_remote);
        println!("| {remote:.0} % | {:.2} |", of(Kind::Corrected(3)) / local);
    }
}

fn mixed(hardware: &Hardware, name: &str, write_percent: usize) {
    let changing = [4, 40, 10, 20, 2, 40, 10, 30];
    println!("\n{name}: throughput, GB/s\n");
    println!(
        "| policy | 2 threads | 10 threads | 20 threads | 40 threads | {changing:?} threads, 500 ms each | the same again, and again |"
    );
    println!("|---|---|---|---|---|---|---|");
    let fixed = (0..=10).map(|tens| Kind::Fixed(tens * 10));
    let kinds = fixed.chain([
        Kind::Better,
        Kind::Table,
        Kind::Seed(1),
        Kind::Seed(3),
        Kind::Seed(6),
        Kind::Corrected(3),
    ]);
    for kind in kinds {
        print!("| {} ", label(kind));
        for threads in [2, 10, 20, 40] {
            let mut workload = Workload::mixed(&[threads], RUN_MS);
            workload.write_percent = write_percent;
            print!("| {:.2} ", over_seeds(hardware, kind, &workload, settled));
        }
        let mut workload = Workload::mixed(&changing.repeat(3), 500);
        workload.write_percent = write_percent;
        for round in [0, 2] {
            let rounds = |outcome: &Outcome| part(outcome, round * changing.len(), changing.len());
            print!("| {:.2} ", over_seeds(hardware, kind, &workload, rounds));
        }
        println!("|");
    }
}

/// 256 KiB reads by numbers of threads that change quickly: where knowing states should pay more than following averages.
fn quick(hardware: &Hardware) {
    const TURNS_MS: [u64; 4] = [2, 5, 20, 100];
    println!(
        "\n256 KiB reads by 2 and 40 threads in turn, GB/s in the second half of {RUN_MS} ms\n"
    );
    print!("| policy ");
    TURNS_MS.iter().for_each(|ms| print!("| {ms} ms each "));
    println!("|\n|---|---|---|---|---|");
    let kinds = [
        Kind::Fixed(0),
        Kind::Fixed(10),
        Kind::Fixed(20),
        Kind::Fixed(30),
        Kind::Fixed(40),
        Kind::Better,
        Kind::Table,
        Kind::Seed(3),
        Kind::Corrected(3),
    ];
    for kind in kinds {
        print!("| {} ", label(kind));
        for ms in TURNS_MS {
            let turns = (RUN_MS / ms / 2) as usize;
            let mut workload = Workload::mixed(&[2, 40].repeat(turns), ms);
            workload.sizes = Sizes::Constant(256 << 10);
            print!("| {:.2} ", over_seeds(hardware, kind, &workload, settled));
        }
        println!("|");
    }
}

fn label(kind: Kind) -> String {
    match kind {
        Kind::Fixed(0) => "local only".into(),
        Kind::Fixed(100) => "remote only".into(),
        Kind::Fixed(percent) => format!("{}:{percent}", 100 - percent),
        Kind::Better => "better of both".into(),
        Kind::Table => "table, certainty 3".into(),
        Kind::Seed(certainty) => format!("SEED, certainty {certainty}"),
        Kind::Corrected(certainty) => format!("SEED corrected, certainty {certainty}"),
    }
}

/// How far and how soon (figures 11b and 11c).
fn certainty(hardware: &Hardware) {
    const THREADS: usize = 24;
    const STEPS: [usize; 8] = [1, 2, 4, 8, 16, 24, 40, 60];
    let workload = Workload::reads(256 << 10, THREADS, RUN_MS);
    let local = over_seeds(hardware, Kind::Fixed(0), &workload, settled);
    println!(
        "\n256 KiB reads, {THREADS} threads: throughput against local only in the 50 ms before\n"
    );
    print!("| certainty ");
    STEPS.iter().for_each(|step| print!("| {} ms ", step * 50));
    println!("| published | error after the first epoch, the 10th, the last |");
    println!("|---|{}", "---|".repeat(STEPS.len() + 2));
    for certainty in [1, 3, 6, 16] {
        print!("| {certainty} ");
        for step in STEPS {
            let at = |outcome: &Outcome| outcome.series[step - 1].gb_per_s();
            let found = over_seeds(hardware, Kind::Seed(certainty), &workload, at);
            print!("| {:.2} ", found / local);
        }
        let mut learner = learner(hardware, certainty, 1);
        run(hardware, &workload, &mut learner, 1);
        let history = learner.trainer().history();
        let published = history.iter().filter(|epoch| epoch.is_published).count();
        let error = |epoch: &Epoch| epoch.error;
        println!(
            "| {published} of {} | {:.2}, {:.2}, {:.2} |",
            history.len(),
            error(&history[0]),
            error(&history[9]),
            error(&history[history.len() - 1])
        );
    }
}

fn shortcut(hardware: &Hardware) {
    println!("\nThe short cut: reads by 4 threads, {INFERENCE_NS} ns for each inference\n");
    println!("| bytes | requests below so many take it | SEED against local only |");
    println!("|---|---|---|");
    for bytes in [4 << 10, 16 << 10, 64 << 10, 256 << 10] {
        let workload = Workload::reads(bytes, 4, 1_000);
        let local = over_seeds(hardware, Kind::Fixed(0), &workload, settled);
        let mut learner = learner(hardware, 3, 1);
        let found = settled(&run(hardware, &workload, &mut learner, 1));
        let below = learner.chooser().shortcut().below();
        println!("| {bytes} | {below} | {:.2} |", found / local);
    }
}

fn main() {
    let hardware = Hardware::paper();
    println!("{hardware:?}, limit {} GB/s", hardware.limit());
    let only = std::env::args().nth(1);
    let wants = |name: &str| only.as_deref().is_none_or(|only| only == name);
    if wants("reads") {
        reads(&hardware);
    }
    if wants("mixed") {
        mixed(&hardware, "Reads of mixed sizes (gamma, mean 1 MB)", 0);
    }
    if wants("quick") {
        quick(&hardware);
    }
    if wants("certainty") {
        certainty(&hardware);
    }
    if wants("shortcut") {
        shortcut(&hardware);
    }
}
