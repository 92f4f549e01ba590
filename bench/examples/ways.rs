//! Memory or the device for each large write: the route `auto`, fixed rules, and what learns (SEED of Conflux, and its rivals).
//!
//!     cargo run --release -p forebay-bench --example ways -- DIRECTORY [ROUNDS]
//!
//! DIRECTORY lies on the file system to be measured, with 4 GiB of space. The policies take turns in each round; a learner keeps what it
//! has learnt from round to round, and round 0, which does not count, is its school. Medians of GB/s until the last write returned and
//! until all was durable, and how much of the bytes went to the device at once.
//!
//! What a learner is told of a request is how long its caller waited, and the sync with it where the work syncs each: that is what a
//! front end can see. It does not see what the device owes when the last request has returned.
//!
//! What this does not measure: reads. What is in memory is read from there by every policy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay::config::Options;
use forebay::route::{Auto, Direct, Plan, Route, Scrap, Situation, Way, WriteRequest};
use forebay::{Config, File, OpenOptions, Session};
use forebay_seed::chooser::Policy;
use forebay_seed::random::Random;
use forebay_seed::rivals::{Better, Table};
use forebay_seed::{
    Bounds, Choice, Chooser, Curve, Environment, Kind, Log, Mode, Record, Request, Trainer,
};

const MEBI: u64 = 1 << 20;
const BLOCK: u64 = 256 << 10;
/// Bytes of a run.
const TOTAL: u64 = 1024 * MEBI;
/// How often a network learns at most.
const EPOCH_EVERY: Duration = Duration::from_millis(100);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What is written.
#[derive(Clone, Copy)]
struct Work {
    name: &'static str,
    /// MiB of the session.
    memory: u64,
    threads: u64,
    /// Bytes of each file, which are written over and over.
    span: u64,
    /// The mean of a gamma distribution, or all alike.
    bytes: (u64, bool),
    in_order: bool,
    syncs_each: bool,
}

const WORKS: [Work; 6] = {
    let in_order = Work {
        name: "1 MiB in order, room for all",
        memory: 4096,
        threads: 1,
        span: TOTAL,
        bytes: (MEBI, false),
        in_order: true,
        syncs_each: false,
    };
    [
        in_order,
        Work {
            name: "the same, memory for a quarter",
            memory: 256,
            ..in_order
        },
        Work {
            name: "mixed sizes, mean 1 MiB, at random over 512 MiB, memory for half",
            memory: 256,
            span: 512 * MEBI,
            bytes: (MEBI, true),
            in_order: false,
            ..in_order
        },
        Work {
            name: "the same, two threads and files",
            memory: 256,
            threads: 2,
            span: 256 * MEBI,
            bytes: (MEBI, true),
            in_order: false,
            ..in_order
        },
        Work {
            name: "over 64 MiB again and again, room for all",
            memory: 4096,
            span: 64 * MEBI,
            ..in_order
        },
        Work {
            name: "1 MiB in order, each synced",
            memory: 4096,
            syncs_each: true,
            ..in_order
        },
    ]
};

const SIDES: [&str; 8] = [
    "auto", "memory", "device", "seed 1", "seed 3", "paper", "table", "better",
];

/// Sends a file's whole blocks where it was told last.
#[derive(Debug, Default)]
struct Told {
    to_device: AtomicBool,
}

impl Route for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn plan(&self, request: &WriteRequest, _: &Situation) -> Plan {
        let split = || Plan::split(request);
        let direct = self.to_device.load(Relaxed).then(split).flatten();
        direct.unwrap_or(Plan::whole(request, Way::SCRAP))
    }

    fn quick_scrap_below(&self) -> u64 {
        BLOCK
    }
}

/// What chooses, for all threads of a run and for all rounds.
enum Chooses {
    Route(Arc<dyn Route>),
    Seed(Box<Chooser>, Vec<forebay_seed::Pair>),
    Rival(Box<dyn Policy + Send>),
}

fn chooser(side: &str, bounds: Bounds) -> Chooses {
    let curve = |certainty| Curve::new(certainty);
    let seed = |chooser| Chooses::Seed(Box::new(chooser), Vec::new());
    match side {
        "auto" => Chooses::Route(Arc::new(Auto)),
        "memory" => Chooses::Route(Arc::new(Scrap)),
        "device" => Chooses::Route(Arc::new(Direct)),
        "seed 1" => seed(Chooser::new(bounds, curve(1)).with_corrections()),
        "seed 3" => seed(Chooser::new(bounds, curve(3)).with_corrections()),
        "paper" => seed(Chooser::new(bounds, curve(3))),
        "table" => Chooses::Rival(Box::new(Table::new(bounds, curve(3)))),
        _ => Chooses::Rival(Box::new(Better::new(bounds))),
    }
}

impl Chooses {
    fn policy(&mut self) -> Option<&mut dyn Policy> {
        match self {
            Chooses::Route(_) => None,
            Chooses::Seed(chooser, _) => Some(&mut **chooser),
            Chooses::Rival(rival) => Some(&mut **rival),
        }
    }

    fn done(&mut self, choice: &Choice, record: &Record) {
        if let Some(policy) = self.policy() {
            policy.done(choice, record);
        }
        if let Chooses::Seed(chooser, pairs) = self {
            pairs.extend(chooser.pair(choice, record));
        }
    }
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().expect("no thread has panicked")
}

/// A session with so much memory, and files in a directory of the measured file system.
struct World {
    session: Session,
    directory: PathBuf,
}

impl World {
    fn new(directory: &Path, memory: u64) -> Result<Self, Failure> {
        let mut options = Options::default();
        options.set("memory", &format!("{memory}MiB"))?;
        let config = Config::builder().options(options).build()?;
        let session = Session::open(Config {
            session: format!("ways-{}", std::process::id()),
            ..config
        })?;
        Ok(World {
            session,
            directory: directory.to_owned(),
        })
    }

    fn file(&self, name: &str, route: Arc<dyn Route>) -> Result<File, Failure> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = self
            .session
            .open_file(self.directory.join(name), &options)?;
        if let Some(reason) = file.kernel_reason() {
            return Err(format!("not managed: {reason}").into());
        }
        Ok(file.routed_by(route))
    }

    /// What requests take alone, with their syncs or without: SEED's lower bounds.
    fn bounds(&self, syncs_each: bool) -> Result<Bounds, Failure> {
        let told = Arc::new(Told::default());
        let file = self.file("bounds", told.clone())?;
        let bytes = vec![1; 4 * MEBI as usize];
        let mut records = Vec::new();
        for turn in 0..8 {
            for mode in Mode::BOTH {
                for len in [BLOCK, MEBI, 4 * MEBI] {
                    told.to_device.store(mode == Mode::Remote, Relaxed);
                    let begun = Instant::now();
                    file.write_at(&bytes[..len as usize], 0)?;
                    if syncs_each {
                        file.sync_data()?;
                    }
                    let latency_ns = begun.elapsed().as_nanos() as u64;
                    if turn > 0 {
                        let request = Request {
                            kind: Kind::Write,
                            bytes: len,
                        };
                        records.push(Record {
                            request,
                            mode,
                            latency_ns,
                        });
                    }
                    file.sync_data()?;
                }
            }
        }
        file.close()?;
        std::fs::remove_file(self.directory.join("bounds"))?;
        Ok(Bounds::measured(&records))
    }
}

/// Offset and length of each request of a thread: whole blocks.
fn requests(work: &Work, seed: u64) -> Vec<(u64, u64)> {
    let mut random = Random::new(seed);
    let (mean, is_gamma) = work.bytes;
    let (mut at, mut left, mut found) = (0, TOTAL / work.threads, Vec::new());
    while left > 0 {
        let bytes = if is_gamma {
            let blocks = (random.gamma(2.0) / 2.0 * (mean / BLOCK) as f64).round() as u64;
            blocks.clamp(1, 32) * BLOCK
        } else {
            mean
        };
        let bytes = bytes.min(left).min(work.span);
        if !work.in_order {
            at = random.below(((work.span - bytes) / BLOCK + 1) as usize) as u64 * BLOCK;
        } else if at + bytes > work.span {
            at = 0;
        }
        found.push((at, bytes));
        at += bytes;
        left -= bytes;
    }
    found
}

/// Seconds until the last write returned and until all was durable, and the share of the bytes that went to the device at once.
type Outcome = [f64; 3];

/// A thread's file, and what says which way its writes go.
struct Writer {
    file: File,
    told: Arc<Told>,
    /// Whether a learner tells it; else the file has a route that decides by itself.
    learns: bool,
    number: u64,
}

impl Writer {
    fn new(work: &Work, world: &World, chooses: &Chooses, number: u64) -> Result<Self, Failure> {
        let told = Arc::new(Told::default());
        let route: Arc<dyn Route> = match chooses {
            Chooses::Route(route) => Arc::clone(route),
            _ => told.clone(),
        };
        let file = world.file(&number.to_string(), route)?;
        if !work.in_order {
            // Blocks that have no space yet go another way.
            let bytes = vec![number as u8; 32 * BLOCK as usize];
            for offset in (0..work.span).step_by(bytes.len()) {
                file.write_at(&bytes, offset)?;
            }
            file.sync_data()?;
        }
        Ok(Writer {
            file,
            told,
            learns: !matches!(chooses, Chooses::Route(_)),
            number,
        })
    }

    /// When the last write has returned, and when all was durable.
    fn run(self, work: &Work, run: &Run) -> Result<(Duration, Duration), Failure> {
        let bytes = vec![self.number as u8; 32 * BLOCK as usize];
        let mut random = Random::new(self.number);
        for (offset, len) in requests(work, self.number) {
            let request = Request {
                kind: Kind::Write,
                bytes: len,
            };
            let choice = self.learns.then(|| run.choose(&request, random.next_u64()));
            let to_device = choice.is_some_and(|choice| choice.mode == Mode::Remote);
            self.told.to_device.store(to_device, Relaxed);
            let begun = Instant::now();
            self.file.write_at(&bytes[..len as usize], offset)?;
            if work.syncs_each {
                self.file.sync_data()?;
            }
            if let Some(choice) = choice {
                let record = Record {
                    request,
                    mode: choice.mode,
                    latency_ns: begun.elapsed().as_nanos() as u64,
                };
                run.done(&choice, &record, self.number);
            }
        }
        let returned = run.begun.elapsed();
        self.file.sync_data()?;
        let durable = run.begun.elapsed();
        self.file.close()?;
        Ok((returned, durable))
    }
}

/// What the threads of a run share.
struct Run<'a> {
    chooses: &'a Mutex<Chooses>,
    logs: Vec<Mutex<Log>>,
    begun: Instant,
}

impl Run<'_> {
    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn choose(&self, request: &Request, draw: u64) -> Choice {
        let now_ns = self.now_ns();
        let mut gather = || {
            let logs: Vec<Log> = self.logs.iter().map(|log| *locked(log)).collect();
            Environment::of(&logs, now_ns)
        };
        let mut chooses = locked(self.chooses);
        let policy = chooses.policy().expect("it learns");
        policy.choose(request, &mut gather, draw)
    }

    fn done(&self, choice: &Choice, record: &Record, thread: u64) {
        locked(&self.logs[thread as usize]).note(record, self.now_ns());
        locked(self.chooses).done(choice, record);
    }
}

fn run(work: &Work, world: &World, chooses: &Mutex<Chooses>) -> Result<Outcome, Failure> {
    let writers = (0..work.threads)
        .map(|number| Writer::new(work, world, &locked(chooses), number))
        .collect::<Result<Vec<_>, Failure>>()?;
    let before = world.session.stats().direct_bytes;
    let run = Run {
        chooses,
        logs: writers.iter().map(|_| Mutex::default()).collect(),
        begun: Instant::now(),
    };
    let times = std::thread::scope(|scope| {
        let run = &run;
        let start = |writer: Writer| scope.spawn(move || writer.run(work, run));
        let started: Vec<_> = writers.into_iter().map(start).collect();
        let joined = started.into_iter().map(|it| it.join().expect("no panic"));
        joined.collect::<Result<Vec<_>, Failure>>()
    })?;
    let direct = world.session.stats().direct_bytes - before;
    let returned = times.iter().map(|it| it.0).max().unwrap_or_default();
    let durable = times.iter().map(|it| it.1).max().unwrap_or_default();
    for number in 0..work.threads {
        std::fs::remove_file(world.directory.join(number.to_string()))?;
    }
    let share = direct as f64 / TOTAL as f64;
    Ok([returned.as_secs_f64(), durable.as_secs_f64(), share])
}

/// Trains until it is over.
fn train(chooses: &Mutex<Chooses>, is_over: &AtomicBool, trainer: &mut Trainer) {
    while !is_over.load(Relaxed) {
        std::thread::sleep(EPOCH_EVERY);
        if let Chooses::Seed(_, pairs) = &mut *locked(chooses) {
            std::mem::take(pairs)
                .into_iter()
                .for_each(|pair| trainer.collect(pair));
        }
        if trainer.epoch().is_some_and(|epoch| epoch.is_published)
            && let Some(network) = trainer.published().cloned()
            && let Chooses::Seed(chooser, _) = &mut *locked(chooses)
        {
            chooser.adopt(network);
        }
    }
}

fn measure(work: &Work, directory: &Path, rounds: usize) -> Result<(), Failure> {
    let bounds = World::new(directory, work.memory)?.bounds(work.syncs_each)?;
    let mut known: Vec<(Mutex<Chooses>, Trainer)> = SIDES
        .iter()
        .map(|side| (Mutex::new(chooser(side, bounds)), Trainer::new(1)))
        .collect();
    let mut found: BTreeMap<usize, Vec<Outcome>> = BTreeMap::new();
    for round in 0..=rounds {
        for (side, (chooses, trainer)) in known.iter_mut().enumerate() {
            let world = World::new(directory, work.memory)?;
            world.session.warm((work.memory * MEBI / 2).min(TOTAL))?;
            let is_over = AtomicBool::new(false);
            let outcome = std::thread::scope(|scope| {
                let (chooses, is_over) = (&*chooses, &is_over);
                if matches!(&*locked(chooses), Chooses::Seed(..)) {
                    scope.spawn(move || train(chooses, is_over, trainer));
                }
                let outcome = run(work, &world, chooses);
                is_over.store(true, Relaxed);
                outcome
            })?;
            if round > 0 {
                found.entry(side).or_default().push(outcome);
            }
        }
        eprint!(".");
    }
    eprintln!();
    let median = |side: usize, what: usize| {
        let mut all: Vec<f64> = found[&side].iter().map(|it| it[what]).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let gbps = |side: usize, what| format!("{:.2}", TOTAL as f64 / median(side, what) / 1e9);
    let percent = |side| format!("{:.0} %", 100.0 * median(side, 2));
    let row = |name: &str, cell: &dyn Fn(usize) -> String| {
        let cells: Vec<String> = (0..SIDES.len()).map(cell).collect();
        println!("| {name} | {} |", cells.join(" | "));
    };
    row(&format!("{}: returned", work.name), &|side| gbps(side, 0));
    row("durable", &|side| gbps(side, 1));
    row("to the device at once", &|side| percent(side));
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("ways DIRECTORY [ROUNDS]")?;
    let rounds = arguments.next().map_or(Ok(3), |rounds| rounds.parse())?;
    println!("| work, GB/s | {} |", SIDES.join(" | "));
    println!("|---{}|", "|---".repeat(SIDES.len()));
    for work in &WORKS {
        measure(work, Path::new(&directory), rounds)?;
    }
    Ok(())
}
