//! Reads and writes of another process's memory by libfabric, beside libfabric's own program for that.
//!
//!     cargo run --release -p forebay-pool --example fabric -- tcp [FI_RMA_BW]
//!
//! Two processes read, or write, each other's memory, as `fi_rma_bw` of fabtests does: so many requests at once (the window), then their ends. Where its
//! path is told, it does the same in turn. Microseconds for one request, medians of rounds.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_pool::fabric::{Fabric, Key, Peer, Provider};

const HOST: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
const LIMIT: Duration = Duration::from_secs(20);
const SIZE: usize = 16 << 20;
const ROUNDS: usize = 5;
/// What is done before time counts.
const WARM: usize = 16;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

/// What one side does: `count` requests, `window` at once.
#[derive(Clone, Copy)]
struct Task {
    is_read: bool,
    size: usize,
    window: usize,
    count: usize,
}

struct Side {
    fabric: Fabric,
    peer: Peer,
    key: Key,
}

impl Side {
    /// Microseconds for one request.
    fn run(&self, task: Task) -> f64 {
        let mut buffers: Vec<Vec<u8>> = vec![vec![1; task.size]; task.window];
        let sent = Bytes::from(vec![2; task.size]);
        let mut begun = Instant::now();
        let rounds = task.count / task.window;
        for round in 0..rounds + WARM {
            if round == WARM {
                begun = Instant::now();
            }
            if task.is_read {
                let wanted = buffers.drain(..).map(|into| (self.key, 0, into));
                let read = self.fabric.read_all(&self.peer, wanted.collect(), LIMIT);
                buffers = read.expect("bytes");
            } else {
                let all = vec![(self.key, 0, sent.clone()); task.window];
                let written = self.fabric.write_all(&self.peer, all, LIMIT);
                written.expect("room");
            }
        }
        begun.elapsed().as_secs_f64() * 1e6 / (rounds * task.window) as f64
    }
}

/// The other side: it says where it is, hears where this one is, and does what it is told.
fn other(provider: Provider) {
    let fabric = Fabric::open(provider, HOST).expect("an endpoint");
    let (_region, key) = fabric.share(SIZE).expect("memory");
    let own = postcard::to_stdvec(&(fabric.address(), key)).expect("bytes");
    println!("{}", hex(&own));
    let mut lines = std::io::stdin().lines().map_while(Result::ok);
    let there = of_hex(&lines.next().expect("an address"));
    let (address, key): (Vec<u8>, Key) = postcard::from_bytes(&there).expect("an address");
    let peer = fabric.peer(&address).expect("an address");
    let side = Side { fabric, peer, key };
    for line in lines {
        let numbers: Vec<usize> = { line.split(' ') }
            .map(|number| number.parse().expect("a number"))
            .collect();
        side.run(Task {
            is_read: numbers[0] == 1,
            size: numbers[1],
            window: numbers[2],
            count: numbers[3],
        });
        println!("done");
    }
}

/// What libfabric's program says of the same.
fn theirs(program: &str, provider: Provider, task: Task) -> f64 {
    let begin = |host: Option<&str>| {
        let size = task.size.to_string();
        let (window, count) = (task.window.to_string(), task.count.to_string());
        let warm = (WARM * task.window).to_string();
        let mut command = Command::new(program);
        command.args(["-p", provider.name(), "-e", "rdm", "-m", "-U", "-S", &size]);
        command.args(["-W", &window, "-I", &count, "-w", &warm]);
        command.args(["-o", if task.is_read { "read" } else { "write" }]);
        command.args(host);
        if provider == Provider::Tcp && host.is_none() {
            command.args(["-s", "127.0.0.1"]);
        }
        command.stdout(Stdio::piped()).spawn().expect("fi_rma_bw")
    };
    let server = begin(None);
    std::thread::sleep(Duration::from_millis(300));
    let client = begin(Some("127.0.0.1"));
    let told = client.wait_with_output().expect("its output");
    server.wait_with_output().expect("its output");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let time = { told.split_once("usec/xfer: ") }
        .and_then(|(_, behind)| behind.split(',').next()?.parse().ok());
    time.unwrap_or_else(|| panic!("{told}"))
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn start(provider: Provider) -> (Child, Side) {
    let program = std::env::current_exe().expect("itself");
    let child = Command::new(program)
        .args([provider.name(), "other"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.expect("a process");
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.as_mut().expect("its output"));
    out.read_line(&mut line).expect("its address");
    let there = of_hex(line.trim_end());
    let (address, key): (Vec<u8>, Key) = postcard::from_bytes(&there).expect("an address");
    let fabric = Fabric::open(provider, HOST).expect("an endpoint");
    let peer = fabric.peer(&address).expect("an address");
    (child, Side { fabric, peer, key })
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let provider: Provider = arguments[1].parse().expect("a provider");
    let program = arguments.get(2);
    if program.is_some_and(|word| word == "other") {
        return other(provider);
    }
    let (mut child, side) = start(provider);
    let (_region, key) = side.fabric.share(SIZE).expect("memory");
    let own = postcard::to_stdvec(&(side.fabric.address(), key)).expect("bytes");
    let mut to = child.stdin.take().expect("its input");
    let mut from = BufReader::new(child.stdout.take().expect("its output"));
    writeln!(to, "{}", hex(&own)).expect("it hears");
    println!("| {provider}, microseconds | window | this | fi_rma_bw |\n|---|---|---|---|");
    for (size, count) in [(4 << 10, 2048), (1 << 20, 256)] {
        for window in [1, 16] {
            for is_read in [true, false] {
                let task = Task {
                    is_read,
                    size,
                    window,
                    count,
                };
                let (mut ours, mut other) = (Vec::new(), Vec::new());
                for _ in 0..ROUNDS {
                    writeln!(to, "{} {size} {window} {count}", u8::from(is_read))
                        .expect("it hears");
                    ours.push(side.run(task));
                    let mut line = String::new();
                    from.read_line(&mut line).expect("it has done it");
                    if let Some(program) = program {
                        other.push(theirs(program, provider, task));
                    }
                }
                let kind = if is_read { "read" } else { "written" };
                let theirs = program.map(|_| format!("{:.1}", median(other)));
                let theirs = theirs.unwrap_or_default();
                let what = format!("{} KiB {kind}", size >> 10);
                println!("| {what} | {window} | {:.1} | {theirs} |", median(ours));
            }
        }
    }
    drop(to);
    child.wait().expect("it ends");
}
