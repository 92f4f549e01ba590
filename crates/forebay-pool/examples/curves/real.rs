//! What a message costs real members: processor time, by the kernel's count, of a server's process and a client's on one host.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_pool::client::{Answer, Facts, Mode, Operation};
use forebay_pool::ids::File;
use forebay_pool::net::{Config, Pool, Serving};

const ROUNDS: usize = 5;

/// A pool of one server.
pub fn config(address: &str, block_bytes: u64) -> Config {
    let text = format!("servers = [\"{address}\"]\nblock_bytes = {block_bytes}");
    Config::parse(&text).expect("a pool")
}

/// Serves until its input ends.
pub fn serve(address: &str, block_bytes: &str) {
    let config = config(address, block_bytes.parse().expect("bytes"));
    let serving = Serving::begin(&config, 0).expect("a server");
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).expect("an end");
    serving.stop();
}

/// A server's process.
pub struct Server {
    process: Child,
    pub address: String,
}

impl Server {
    pub fn begin(block_bytes: u64) -> Server {
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let address = address.expect("an address").to_string();
        let process = Command::new(std::env::current_exe().expect("a name"))
            .args(["serve", &address, &block_bytes.to_string()])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a process");
        Server { process, address }
    }

    pub fn end(mut self) {
        drop(self.process.stdin.take());
        self.process.wait().expect("an end");
    }
}

/// Nanoseconds that all threads of a process have been at work.
fn worked(process: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("tasks");
    let times = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    times.sum()
}

fn file(pool: &Pool) -> File {
    let made = pool.run(Operation::Make {
        parent: File::ROOT,
        name: b"file".to_vec(),
        facts: Facts::default(),
        bytes: Vec::new(),
    });
    let Ok(Answer::Made(entry, _)) = made else {
        panic!("{made:?}")
    };
    entry.file
}

/// Prints microseconds of each request: processor time of the server's process and of the client's, and how long it took; medians of rounds.
pub fn rows() {
    let server = Server::begin(1 << 16);
    let config = config(&server.address, 1 << 16);
    let pool = Pool::join(&config, Duration::from_secs(20)).expect("a pool");
    let run = |operation| pool.run(operation).expect("done");
    let file = file(&pool);
    let block = bytes::Bytes::from(vec![3; 1 << 16]);
    let write = |length: u64| {
        let mut bytes = forebay_pool::rope::Rope::default();
        let mut rest = length;
        while rest > 0 {
            let piece = rest.min(1 << 16);
            bytes.push(block.slice(..piece as usize));
            rest -= piece;
        }
        Operation::Write {
            file,
            offset: 0,
            bytes,
            mode: Mode::Remote,
        }
    };
    let read = |length| Operation::Read {
        file,
        offset: 0,
        length,
        mode: Mode::Remote,
    };
    run(write(1 << 20));
    println!("| request | server's processor, µs | client's | all of it took |\n|---|---|---|---|");
    for (what, length, times) in [("4 KiB", 4 << 10, 5000), ("1 MiB", 1 << 20, 200)] {
        for is_read in [true, false] {
            let mut rounds = [const { Vec::new() }; 3];
            for _ in 0..ROUNDS {
                let before = (worked(server.process.id()), worked(std::process::id()));
                let began = Instant::now();
                for _ in 0..times {
                    run(if is_read { read(length) } else { write(length) });
                }
                let took = began.elapsed().as_nanos() as u64;
                let after = (worked(server.process.id()), worked(std::process::id()));
                let all = [after.0 - before.0, after.1 - before.1, took];
                for (time, rounds) in all.into_iter().zip(&mut rounds) {
                    rounds.push(time as f64 / 1e3 / f64::from(times));
                }
            }
            let medians = rounds.map(|mut rounds| {
                rounds.sort_by(f64::total_cmp);
                format!("{:.1}", rounds[ROUNDS / 2])
            });
            let kind = if is_read { "read" } else { "written" };
            println!("| {what} {kind} | {} |", medians.join(" | "));
        }
    }
    drop(pool);
    server.end();
}
