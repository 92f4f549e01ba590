//! Processes that write different blocks of one file, on this host as it is: by the lock of the whole file, by locks of blocks under leases, and by policies
//! that choose between memory and the server (the steps of the paper's figure 12). What `breakdown` has in simulated time.
//!
//! The file's lock is had by a pool in which the file is one block. By memory that block moves as a whole wherever the lock goes; past memory only what is
//! written does.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_pool::client::Facts;
use forebay_pool::files::Files;
use forebay_pool::ids::File;
use forebay_pool::net::Config;

use crate::real::{Server, config};

const FILE: u64 = 1 << 20;
const CLIENTS: [u64; 3] = [1, 2, 4];
/// Each client's, however many there are.
const PART: u64 = FILE / 4;
/// What a client writes at once: also a block, where blocks have locks.
const WRITTEN: [u64; 2] = [4 << 10, 64 << 10];
/// A program syncs after so many writes.
const SYNCED: u64 = 16;
const BEFORE: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(1);
const ROUNDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(20);

/// By name: whether the file is one block, and the way of its clients.
const HOW: [(&str, bool, &str); 6] = [
    ("the file's lock, by memory", true, "local"),
    ("the file's lock, past memory", true, "remote"),
    ("blocks' locks, by memory under leases", false, "local"),
    ("blocks' locks, past memory", false, "remote"),
    ("the same, chosen by `table`", false, "table"),
    ("the same, chosen by `seed`", false, "seed"),
];

/// Where a client's write goes: all places of its part come before one comes again.
fn place(client: u64, count: u64, written: u64) -> u64 {
    client * PART + count * 7 * written % PART
}

/// A client's process: says that it is there, waits until it is told to go, writes, and says how many writes have ended while it was measured, and how many
/// have gone by memory and past it.
pub fn write(arguments: &[&str]) {
    let [address, block_bytes, path, rest @ ..] = arguments else {
        panic!("an address, a block's size, a path")
    };
    let [client, written, mb_per_s] = rest else {
        panic!("a client, what is written, a speed")
    };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let (client, written) = (number(client), number(written));
    let config = Config {
        path: path.to_string().try_into().expect("a path"),
        ..config(address, number(block_bytes))
    };
    let files = Files::join(&config, PATIENCE).expect("a pool");
    let file = files.find(b"file").expect("a file").file;
    files.pool().limit_local(number(mb_per_s) * 1_000_000);
    println!("ready");
    let mut go = String::new();
    std::io::stdin().read_line(&mut go).expect("a word");
    let bytes = vec![client as u8 + 1; written as usize];
    let (mut count, mut measured) = (0, 0);
    let began = Instant::now();
    while began.elapsed() < BEFORE + MEASURED {
        files
            .write(file, place(client, count, written), &bytes)
            .expect("written");
        count += 1;
        let ended = began.elapsed();
        measured += u64::from((BEFORE..BEFORE + MEASURED).contains(&ended));
        if count % SYNCED == 0 {
            files.sync(file).expect("synced");
        }
    }
    files.sync(file).expect("synced");
    let [local, remote] = files.pool().counts().writes;
    println!("{measured} {local} {remote}");
}

/// A pool of one server, and this process in it.
struct Scene {
    server: Server,
    block_bytes: u64,
    files: Files,
    file: File,
}

impl Scene {
    fn new(block_bytes: u64) -> Scene {
        let server = Server::begin(block_bytes);
        let config = config(&server.address, block_bytes);
        let files = Files::join(&config, PATIENCE).expect("a pool");
        let made = files.make(File::ROOT, b"file", Facts::default());
        let file = made.expect("a file").0.file;
        Scene {
            server,
            block_bytes,
            files,
            file,
        }
    }

    fn client(&self, path: &str, client: u64, written: u64, mb_per_s: u64) -> Child {
        let numbers = [client, written, mb_per_s].map(|number| number.to_string());
        Command::new(std::env::current_exe().expect("a name"))
            .args(["write", &self.server.address])
            .args([&self.block_bytes.to_string(), path])
            .args(numbers)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process")
    }

    /// Writes of all clients that ended while they were measured, a second; and how many of a hundred have gone past memory.
    fn round(&self, path: &str, clients: u64, written: u64, mb_per_s: u64) -> (f64, f64) {
        let zeros = vec![0; FILE as usize];
        self.files.write(self.file, 0, &zeros).expect("written");
        self.files.sync(self.file).expect("synced");
        let all = (0..clients).map(|client| {
            let mut process = self.client(path, client, written, mb_per_s);
            let mut said = BufReader::new(process.stdout.take().expect("a pipe")).lines();
            let first = said.next().expect("a word").expect("a word");
            assert_eq!(first, "ready");
            (process, said)
        });
        let mut all: Vec<_> = all.collect();
        for (process, _) in &mut all {
            let mut stdin = process.stdin.take().expect("a pipe");
            stdin.write_all(b"go\n").expect("somebody reads");
        }
        let mut sums = [0_u64; 3];
        let mut expected = zeros;
        for (client, (mut process, mut said)) in (0..).zip(all) {
            let line = said.next().expect("an end").expect("an end");
            let numbers = line.split(' ').map(|word| word.parse().expect("a number"));
            let numbers: Vec<u64> = numbers.collect();
            sums.iter_mut()
                .zip(&numbers)
                .for_each(|(sum, number)| *sum += number);
            for count in 0..numbers[1] + numbers[2] {
                let at = place(client, count, written) as usize;
                expected[at..at + written as usize].fill(client as u8 + 1);
            }
            assert!(process.wait().expect("an end").success());
        }
        let bytes = self.files.read(self.file, 0, FILE).expect("read");
        assert!(bytes == expected, "not what has been written");
        let [measured, local, remote] = sums.map(|sum| sum as f64);
        let past = 100.0 * remote / (local + remote);
        (measured / MEASURED.as_secs_f64(), past)
    }

    fn end(self) {
        drop(self.files);
        self.server.end();
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Prints writes of all clients for each ms, medians of rounds in turn with the slowest and the fastest, and how many of a hundred go past memory.
pub fn rows(mb_per_s: u64) {
    let whole = Scene::new(FILE);
    for written in WRITTEN {
        let parts = Scene::new(written);
        let mut all = vec![vec![Vec::new(); CLIENTS.len()]; HOW.len()];
        for _ in 0..ROUNDS {
            for ((_, is_whole, path), columns) in HOW.iter().zip(&mut all) {
                let scene = if *is_whole { &whole } else { &parts };
                for (clients, column) in CLIENTS.iter().zip(columns) {
                    column.push(scene.round(path, *clients, written, mb_per_s));
                }
            }
        }
        let heads = CLIENTS.map(|clients| format!("{clients}"));
        println!(
            "| {} KiB: writes for each ms; past memory | {} |\n|---|---|---|---|",
            written >> 10,
            heads.join(" | ")
        );
        for ((name, ..), columns) in HOW.iter().zip(all) {
            let columns = columns.into_iter().map(|rounds| {
                let (speeds, past): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
                let least = speeds.iter().copied().fold(f64::MAX, f64::min);
                let most = speeds.iter().copied().fold(0.0, f64::max);
                let [median, least, most] = [median(speeds), least, most].map(|speed| speed / 1e3);
                let past = self::median(past);
                format!("{median:.2} ({least:.2} to {most:.2}); {past:.0} %")
            });
            println!("| {name} | {} |", columns.collect::<Vec<_>>().join(" | "));
        }
        println!();
        parts.end();
    }
    whole.end();
}
