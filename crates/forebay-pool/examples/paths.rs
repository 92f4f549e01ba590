//! The two ways of a pool's requests, on one host: what each takes beside bare TCP, and how the policies choose between them.
//!
//!     cargo run --release -p forebay-pool --example paths -- alone
//!     cargo run --release -p forebay-pool --example paths -- mixed MB_PER_S
//!
//! `alone`: remote and local requests within a grant, and the same bytes over a bare connection, in turn; medians of rounds.
//! `mixed`: reads of mixed sizes by each policy, by one to four threads, in turn; local memory is held down to so many MB/s, or
//! not at all if that is 0.

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

const PATHS: [&str; 13] = [
    "local", "ratio:10", "ratio:20", "ratio:30", "ratio:40", "ratio:50", "ratio:60", "ratio:80",
    "remote", "better", "table", "paper", "seed",
];
const THREADS: [usize; 3] = [1, 2, 4];
const FILE: u64 = 8 << 20;
const MIXED_ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(500);

/// Reads of mixed sizes by so many threads for a while; says MB/s.
fn reads(files: &Files, all: &[File], seed: u64, time: Duration) -> f64 {
    let done = AtomicU64::new(0);
    let began = Instant::now();
    thread::scope(|scope| {
        for (at, file) in all.iter().enumerate() {
            let done = &done;
            scope.spawn(move || {
                let mut random = Random::new(seed << 8 | at as u64);
                while began.elapsed() < time {
                    let bytes = (random.gamma(1.5) * 1e6 / 1.5).clamp(4096.0, 6e6) as u64;
                    let offset = random.below((FILE - bytes) as usize) as u64;
                    let read = files.read(*file, offset, bytes).expect("read");
                    done.fetch_add(read.len() as u64, Ordering::Relaxed);
                }
            });
        }
    });
    done.into_inner() as f64 / 1e6 / began.elapsed().as_secs_f64()
}

fn mixed(mb_per_s: u64) {
    let (config, serving) = serve();
    let first = Files::join(&config, PATIENCE).expect("a pool");
    let names = [b"one".as_slice(), b"two", b"three", b"four"];
    let all: Vec<File> = names.iter().map(|name| file(&first, name)).collect();
    for file in &all {
        first
            .write(*file, 0, &vec![5; FILE as usize])
            .expect("written");
        first.sync(*file).expect("synced");
    }
    let hosts = PATHS.map(|path| {
        let path = path.to_string().try_into().expect("a path");
        let config = Config {
            path,
            ..config.clone()
        };
        let files = Files::join(&config, PATIENCE).expect("a pool");
        for file in &all {
            let (file, offset, length, mode) = (*file, 0, FILE, Mode::Local);
            let read = Operation::Read {
                file,
                offset,
                length,
                mode,
            };
            files.pool().run(read).expect("read");
        }
        files.pool().limit_local(mb_per_s * 1_000_000);
        files
    });
    println!(
        "| policy | 1 thread | 2 threads | 4 threads | reads past memory |\n|---|---|---|---|---|"
    );
    let mut table = vec![Vec::new(); PATHS.len()];
    for threads in THREADS {
        let mut rounds = vec![Vec::new(); PATHS.len()];
        for round in 0..=MIXED_ROUNDS {
            for (files, rounds) in hosts.iter().zip(&mut rounds) {
                let speed = reads(files, &all[..threads], round as u64, ROUND);
                // In the first one policies learn.
                if round > 0 {
                    rounds.push(speed);
                }
            }
        }
        for (rounds, row) in rounds.iter_mut().zip(&mut table) {
            rounds.sort_by(f64::total_cmp);
            row.push(rounds[MIXED_ROUNDS / 2]);
        }
    }
    for ((path, row), files) in PATHS.iter().zip(&table).zip(&hosts) {
        let counts = files.pool().counts();
        let [local, remote] = counts.reads.map(|count| count as f64);
        let speeds: Vec<String> = row.iter().map(|speed| format!("{speed:.0}")).collect();
        println!(
            "| {path} | {} | {:.0} % |",
            speeds.join(" | "),
            100.0 * remote / (local + remote)
        );
    }
    drop(hosts);
    drop(first);
    serving.stop();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["alone"] => alone(),
        ["mixed", speed] => mixed(speed.parse().expect("MB/s")),
        _ => println!("paths alone | paths mixed MB_PER_S"),
    }
}
