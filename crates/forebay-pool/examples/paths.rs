//! The two ways of a pool's requests, on one host: what each takes beside bare TCP, and how the policies choose between them.
//!
//!     cargo run --release -p forebay-pool --example paths -- alone
//!     cargo run --release -p forebay-pool --example paths -- mixed MB_PER_S
//!     cargo run --release -p forebay-pool --example paths -- equal MB_PER_S
//!     cargo run --release -p forebay-pool --example paths -- soon MB_PER_S
//!
//! `alone`: remote and local requests within a grant, and the same bytes over a bare connection, in turn; medians of rounds.
//! `mixed`: reads of mixed sizes by each policy, by one to four threads, in turn, and by a number of threads that changes; local memory is held down
//! to so many MB/s, or not at all if that is 0. Takes some six minutes, and 4 GiB of memory.
//! `equal`: the same of reads of 256 KiB by one to sixteen threads. Takes some eight minutes.
//! `soon`: how fast reads of 256 KiB are by and by, by moving averages and three certainties of SEED: once a client has joined, and after what it has to notice. Takes some
//! five minutes.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_pool::client::{Answer, Facts, Mode, Operation};
use forebay_pool::files::Files;
use forebay_pool::ids::File;
use forebay_pool::net::{Config, Pool, Serving};
use forebay_seed::random::Random;

const PATIENCE: Duration = Duration::from_secs(20);

/// A pool of one server in this process.
fn serve() -> (Config, Serving) {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let address = address.expect("an address");
    let config = Config::parse(&format!("servers = [\"{address}\"]\ncache_blocks = 4096"));
    let config = config.expect("a pool");
    let serving = Serving::begin(&config, 0).expect("a server");
    (config, serving)
}

fn file(files: &Files, name: &[u8]) -> File {
    let made = files.make(File::ROOT, name, Facts::default());
    made.expect("a file").0.file
}

/// A peer that takes a word with two lengths, then so many bytes, and answers with so many.
fn peer() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody");
        stream.set_nodelay(true).expect("an option");
        let mut bytes = vec![7; 1 << 20];
        let mut word = [0; 8];
        while stream.read_exact(&mut word).is_ok() {
            let [takes, gives] = [0, 4].map(|at| {
                let length = word[at..at + 4].try_into().expect("four bytes");
                u32::from_le_bytes(length) as usize
            });
            stream.read_exact(&mut bytes[..takes]).expect("bytes");
            stream.write_all(&bytes[..gives]).expect("somebody reads");
        }
    });
    address
}

struct Bare(TcpStream, Vec<u8>);

impl Bare {
    fn new() -> Bare {
        let stream = TcpStream::connect(peer()).expect("a connection");
        stream.set_nodelay(true).expect("an option");
        Bare(stream, vec![3; (1 << 20) + 8])
    }

    fn exchange(&mut self, gives: usize, takes: usize) {
        self.1[..4].copy_from_slice(&(gives as u32).to_le_bytes());
        self.1[4..8].copy_from_slice(&(takes as u32).to_le_bytes());
        self.0.write_all(&self.1[..8 + gives]).expect("sent");
        self.0.read_exact(&mut self.1[..takes]).expect("received");
    }
}

const ROUNDS: usize = 15;

/// What is timed, and by which name.
type Row<'a> = (String, Box<dyn FnMut() + 'a>);

/// Does all of it in turn, so many times in each round; prints microseconds: the median of the rounds, and the fastest.
fn rows(times: u32, work: &mut [Row<'_>]) {
    let mut all = vec![Vec::new(); work.len()];
    for _ in 0..ROUNDS {
        for ((_, work), rounds) in work.iter_mut().zip(&mut all) {
            let began = Instant::now();
            (0..times).for_each(|_| work());
            rounds.push(began.elapsed().as_nanos() as f64 / 1e3 / f64::from(times));
        }
    }
    for ((what, _), rounds) in work.iter().zip(&mut all) {
        rounds.sort_by(f64::total_cmp);
        println!("| {what} | {:.1} | {:.1} |", rounds[ROUNDS / 2], rounds[0]);
    }
}

fn alone() {
    let (config, serving) = serve();
    let pool = &Pool::join(&config, PATIENCE).expect("a pool");
    let files = Files::join(&config, PATIENCE).expect("a pool");
    let file = file(&files, b"file");
    let run = |operation| {
        // A program has its bytes side by side.
        if let Answer::Bytes(bytes) = pool.run(operation).expect("done") {
            black_box(bytes.into_vec());
        }
    };
    let write = |bytes: &[u8], mode| Operation::Write {
        file,
        offset: 0,
        bytes: bytes.to_vec().into(),
        mode,
    };
    let read = |length, mode| Operation::Read {
        file,
        offset: 0,
        length,
        mode,
    };
    let bytes = vec![3; 1 << 20];
    run(write(&bytes, Mode::Remote));
    println!("| what | median, µs | fastest, µs |\n|---|---|---|");
    for (what, length, times) in [("4 KiB", 4 << 10, 1000), ("1 MiB", 1 << 20, 50)] {
        let (mut reads, mut writes) = (Bare::new(), Bare::new());
        let bytes = &bytes[..length];
        let name = |rest: &str| format!("{what} {rest}");
        rows(
            times,
            &mut [
                (
                    name("read by bare TCP"),
                    Box::new(|| reads.exchange(0, length)),
                ),
                (
                    name("read remotely"),
                    Box::new(|| run(read(length as u64, Mode::Remote))),
                ),
                (
                    name("written by bare TCP"),
                    Box::new(|| writes.exchange(length, 8)),
                ),
                (
                    name("written remotely"),
                    Box::new(|| run(write(bytes, Mode::Remote))),
                ),
            ],
        );
        run(read(length as u64, Mode::Local));
        let mut local: [Row<'_>; 2] = [
            (
                name("read locally"),
                Box::new(|| run(read(length as u64, Mode::Local))),
            ),
            (
                name("written locally"),
                Box::new(|| run(write(bytes, Mode::Local))),
            ),
        ];
        rows(times, &mut local);
        run(Operation::sync(file));
    }
    drop(files);
    serving.stop();
}

const PATHS: [&str; 17] = [
    "local", "ratio:10", "ratio:20", "ratio:30", "ratio:40", "ratio:50", "ratio:60", "ratio:70",
    "ratio:80", "ratio:90", "remote", "better", "table", "paper", "seed:1", "seed", "seed:6",
];
/// After one in which policies learn.
const READ_ROUNDS: usize = 5;

/// What threads read, each in a file of its own.
struct Reads {
    file: u64,
    bytes: fn(&mut Random) -> u64,
}

const MIXED: Reads = Reads {
    file: 8 << 20,
    bytes: |random| (random.gamma(1.5) * 1e6 / 1.5).clamp(4096.0, 6e6) as u64,
};
const EQUAL: Reads = Reads {
    file: 2 << 20,
    bytes: |_| 256 << 10,
};

/// A column of a table: so many threads, one number after the other, each for so long.
type Column<'a> = (&'a [usize], Duration);

const HALF: Duration = Duration::from_millis(500);
const CHANGING: Column<'_> = (&[1, 16, 4, 8, 2, 16, 4, 12], Duration::from_millis(200));

impl Reads {
    /// So many threads read for a while. Returns how many bytes of reads have ended in each slice of it, and, last, after it.
    fn run(
        &self,
        files: &Files,
        all: &[File],
        seed: u64,
        (time, slice): (Duration, Duration),
    ) -> Vec<u64> {
        let slices = (time.as_nanos() / slice.as_nanos()) as usize;
        let done: Vec<AtomicU64> = (0..=slices).map(|_| AtomicU64::new(0)).collect();
        let began = Instant::now();
        thread::scope(|scope| {
            for (at, file) in all.iter().enumerate() {
                let done = &done;
                scope.spawn(move || {
                    let mut random = Random::new(seed << 8 | at as u64);
                    while began.elapsed() < time {
                        let bytes = (self.bytes)(&mut random);
                        let offset = random.below((self.file - bytes) as usize) as u64;
                        let read = files.read(*file, offset, bytes).expect("read");
                        let at = (began.elapsed().as_nanos() / slice.as_nanos()) as usize;
                        done[at.min(slices)].fetch_add(read.len() as u64, Ordering::Relaxed);
                    }
                });
            }
        });
        done.into_iter().map(AtomicU64::into_inner).collect()
    }

    /// MB/s of one round of a column.
    fn round(&self, files: &Files, all: &[File], round: usize, column: Column<'_>) -> f64 {
        let began = Instant::now();
        let (numbers, time) = column;
        let run = |threads: &usize| self.run(files, &all[..*threads], round as u64, (time, time));
        let bytes: u64 = numbers.iter().flat_map(run).sum();
        bytes as f64 / 1e6 / began.elapsed().as_secs_f64()
    }

    /// So many files.
    fn files(&self, config: &Config, count: usize) -> Vec<File> {
        let first = Files::join(config, PATIENCE).expect("a pool");
        let all = (0..count).map(|number| {
            let file = file(&first, number.to_string().as_bytes());
            let bytes = vec![5; self.file as usize];
            first.write(file, 0, &bytes).expect("written");
            first.sync(file).expect("synced");
            file
        });
        all.collect()
    }

    /// A new client of a policy, which has these files in its memory.
    fn host(&self, config: &Config, path: &str, all: &[File], mb_per_s: u64) -> Files {
        let path = path.to_string().try_into().expect("a path");
        let config = Config {
            path,
            ..config.clone()
        };
        let files = Files::join(&config, PATIENCE).expect("a pool");
        for file in all {
            let read = Operation::Read {
                file: *file,
                offset: 0,
                length: self.file,
                mode: Mode::Local,
            };
            files.pool().run(read).expect("read");
        }
        files.pool().limit_local(mb_per_s * 1_000_000);
        files
    }

    /// So many files, and a client of each policy.
    fn hosts(&self, config: &Config, count: usize, mb_per_s: u64) -> (Vec<File>, Vec<Files>) {
        let all = self.files(config, count);
        let host = |path: &&str| self.host(config, path, &all, mb_per_s);
        let hosts = PATHS.iter().map(host).collect();
        (all, hosts)
    }

    /// A row for each policy: medians of the columns, in MB/s.
    fn table(&self, hosts: &[Files], all: &[File], columns: &[Column<'_>]) {
        let ways = |files: &Files| files.pool().counts().reads.map(|count| count as f64);
        let before: Vec<[f64; 2]> = hosts.iter().map(ways).collect();
        let mut table = vec![Vec::new(); hosts.len()];
        for column in columns {
            let mut rounds = vec![Vec::new(); hosts.len()];
            for round in 0..=READ_ROUNDS {
                for (files, rounds) in hosts.iter().zip(&mut rounds) {
                    let speed = self.round(files, all, round, *column);
                    if round > 0 {
                        rounds.push(speed);
                    }
                }
            }
            for (rounds, row) in rounds.iter_mut().zip(&mut table) {
                rounds.sort_by(f64::total_cmp);
                row.push(rounds[READ_ROUNDS / 2]);
            }
        }
        let heads = columns.iter().map(|(numbers, time)| match numbers {
            [threads] => format!("threads: {threads}"),
            numbers => format!("threads: {numbers:?}, {time:?} each"),
        });
        let heads: Vec<String> = heads.collect();
        println!("| policy | {} | reads past memory |", heads.join(" | "));
        println!("|---|{}---|", "---|".repeat(heads.len()));
        for (((path, row), files), before) in PATHS.iter().zip(&table).zip(hosts).zip(before) {
            let [after, before] = [ways(files), before];
            let [local, remote] = [0, 1].map(|way| after[way] - before[way]);
            let speeds: Vec<String> = row.iter().map(|speed| format!("{speed:.0}")).collect();
            println!(
                "| {path} | {} | {:.0} % |",
                speeds.join(" | "),
                100.0 * remote / (local + remote)
            );
        }
    }
}

fn mixed(mb_per_s: u64) {
    let (config, serving) = serve();
    let (all, hosts) = MIXED.hosts(&config, 16, mb_per_s);
    MIXED.table(&hosts, &all, &[(&[1], HALF), (&[2], HALF), (&[4], HALF)]);
    println!();
    MIXED.table(&hosts, &all, &[CHANGING]);
    drop(hosts);
    serving.stop();
}

fn equal(mb_per_s: u64) {
    let (config, serving) = serve();
    let (all, hosts) = EQUAL.hosts(&config, 16, mb_per_s);
    let numbers: [&[usize]; 5] = [&[1], &[2], &[4], &[8], &[16]];
    EQUAL.table(&hosts, &all, &numbers.map(|threads| (threads, HALF)));
    println!();
    EQUAL.table(&hosts, &all, &[CHANGING]);
    drop(hosts);
    serving.stop();
}

/// What a client of `soon` goes through, one after the other, for so long each: how many threads read, and whether local memory is held down.
const PHASES: [(&str, usize, bool); 5] = [
    ("it has joined, 8 threads", 8, true),
    ("1 thread", 1, true),
    ("8 threads again", 8, true),
    ("local memory is held down no more", 8, false),
    ("it is held down again", 8, true),
];
const PHASE: Duration = Duration::from_secs(2);
const SLICE: Duration = Duration::from_millis(50);
/// Which slices are shown, by their ends.
const SHOWN_MS: [u64; 7] = [50, 100, 200, 400, 800, 1200, 2000];
const SOON_PATHS: [&str; 6] = ["local", "better", "table", "seed:1", "seed", "seed:6"];

fn soon(mb_per_s: u64) {
    let (config, serving) = serve();
    let all = EQUAL.files(&config, 8);
    // By policy, phase and slice, the speeds of all rounds; and the networks that were published of those trained.
    let mut speeds = vec![vec![vec![Vec::new(); SHOWN_MS.len()]; PHASES.len()]; SOON_PATHS.len()];
    let mut trained = vec![[0; 2]; SOON_PATHS.len()];
    for round in 0..READ_ROUNDS as u64 {
        for (path, (speeds, trained)) in SOON_PATHS.iter().zip(speeds.iter_mut().zip(&mut trained))
        {
            let files = EQUAL.host(&config, path, &all, mb_per_s);
            for ((_, threads, is_held), speeds) in PHASES.iter().zip(speeds) {
                let limit = if *is_held { mb_per_s * 1_000_000 } else { 0 };
                files.pool().limit_local(limit);
                let done = EQUAL.run(&files, &all[..*threads], round, (PHASE, SLICE));
                for (shown, speeds) in SHOWN_MS.iter().zip(speeds) {
                    let bytes = done[(*shown as u128 / SLICE.as_millis()) as usize - 1];
                    speeds.push(bytes as f64 / 1e6 / SLICE.as_secs_f64());
                }
            }
            let counts = files.pool().counts();
            trained[0] += counts.published;
            trained[1] += counts.epochs;
        }
    }
    for (at, (phase, ..)) in PHASES.iter().enumerate() {
        let heads = SHOWN_MS.map(|shown| format!("{shown} ms"));
        println!("| {phase}: MB/s after | {} |", heads.join(" | "));
        println!("|{}", "---|".repeat(SHOWN_MS.len() + 1));
        for (path, phases) in SOON_PATHS.iter().zip(&mut speeds) {
            let medians = phases[at].iter_mut().map(|rounds| {
                rounds.sort_by(f64::total_cmp);
                format!("{:.0}", rounds[rounds.len() / 2])
            });
            println!("| {path} | {} |", medians.collect::<Vec<_>>().join(" | "));
        }
        println!();
    }
    for (path, [published, epochs]) in SOON_PATHS.iter().zip(trained) {
        println!("{path}: published {published} of {epochs}");
    }
    serving.stop();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["alone"] => alone(),
        ["mixed", speed] => mixed(speed.parse().expect("MB/s")),
        ["equal", speed] => equal(speed.parse().expect("MB/s")),
        ["soon", speed] => soon(speed.parse().expect("MB/s")),
        _ => println!(
            "paths alone | paths mixed MB_PER_S | paths equal MB_PER_S | paths soon MB_PER_S"
        ),
    }
}
