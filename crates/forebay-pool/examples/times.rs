//! What requests of a pool take on one host, beside bare TCP: medians, and the fastest of ten rounds.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use forebay_pool::client::{Answer, Facts, Mode, Operation};
use forebay_pool::ids::{Client, File};
use forebay_pool::locks::{Queue, Request};
use forebay_pool::net::{Config, Pool, Serving};
use forebay_pool::range::{Range, Right};

const ROUNDS: usize = 10;

/// Runs `work` so many times in each round; prints nanoseconds of one: the median of the rounds, and the fastest.
fn row(what: &str, times: u32, mut work: impl FnMut()) {
    let mut rounds: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            (0..times).for_each(|_| work());
            began.elapsed().as_nanos() / u128::from(times)
        })
        .collect();
    rounds.sort_unstable();
    println!("| {what} | {} | {} |", rounds[ROUNDS / 2], rounds[0]);
}

/// A peer that answers each word with so many bytes.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody");
        stream.set_nodelay(true).expect("an option");
        let mut word = [0; 8];
        while stream.read_exact(&mut word).is_ok() {
            let bytes = vec![7; u64::from_le_bytes(word) as usize];
            stream.write_all(&bytes).expect("somebody reads");
        }
    });
    address
}

fn bare_tcp() {
    let mut stream = TcpStream::connect(echo()).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    for (what, bytes, times) in [("4 KiB", 4 << 10, 2000), ("1 MiB", 1 << 20, 100)] {
        let mut into = vec![0; bytes];
        row(&format!("{what} by bare TCP"), times, || {
            stream
                .write_all(&(bytes as u64).to_le_bytes())
                .expect("sent");
            stream.read_exact(&mut into).expect("received");
        });
    }
}

fn pool() {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let address = address.expect("an address");
    let config = Config::parse(&format!("servers = [\"{address}\"]")).expect("a pool");
    let serving = Serving::begin(&config, 0).expect("a server");
    let pool = Pool::join(&config, Duration::from_secs(10)).expect("a pool");
    let made = pool.run(Operation::Make {
        parent: File::ROOT,
        name: b"file".to_vec(),
        facts: Facts::default(),
        bytes: Vec::new(),
    });
    let Ok(Answer::Made(entry, _)) = made else {
        panic!("{made:?}")
    };
    let file = entry.file;
    let done = |operation| pool.run(operation).expect("done");
    let write = |bytes: u64, mode| Operation::Write {
        file,
        offset: 0,
        bytes: vec![3; bytes as usize].into(),
        mode,
    };
    let read = |length, mode| Operation::Read {
        file,
        offset: 0,
        length,
        mode,
    };
    done(write(1 << 20, Mode::Remote));
    for (what, bytes, times) in [("4 KiB", 4 << 10, 2000), ("1 MiB", 1 << 20, 100)] {
        row(&format!("{what} read remotely"), times, || {
            black_box(done(read(bytes, Mode::Remote)));
        });
        row(&format!("{what} written remotely"), times, || {
            black_box(done(write(bytes, Mode::Remote)));
        });
        done(read(bytes, Mode::Local));
        row(&format!("{what} read within a grant"), times * 10, || {
            black_box(done(read(bytes, Mode::Local)));
        });
    }
    let mut from = vec![5_u8; 4 << 10];
    row("4 KiB copied into new memory", 20_000, || {
        from[0] ^= 1;
        black_box(black_box(&from).clone());
    });
    row("8 bytes read within a grant", 20_000, || {
        black_box(done(read(8, Mode::Local)));
    });
    row("a name looked up within a grant", 20_000, || {
        black_box(done(Operation::LookUp {
            parent: File::ROOT,
            name: b"file".to_vec(),
        }));
    });
    drop(pool);
    serving.stop();
    serving.wait().expect("an end in good order");
}

/// A lock and an unlock of one block, in a file of a million blocks of which so many holders have one each.
fn locks() {
    for holders in [10, 100, 1_000, 10_000, 100_000] {
        let mut queue: Queue<Client> = Queue::default();
        let mut stamp = 0;
        let mut ask = |queue: &mut Queue<Client>, holder: u32, block: u64| {
            let request = Request {
                holder: Client(holder),
                number: u64::from(holder),
                need: Range::one(block),
                wish: Range::one(block),
                right: Right::Exclusive,
                urgent: false,
            };
            black_box(queue.ask(request, 0, &mut stamp));
        };
        for holder in 0..holders {
            ask(&mut queue, holder, u64::from(holder) * 10);
        }
        let mut at = 0;
        row(
            &format!("a lock and an unlock, {holders} holders"),
            20_000,
            || {
                at = (at + 7919) % u64::from(holders);
                ask(&mut queue, holders, at * 10 + 5);
                let end = (Client(holders), Range::one(at * 10 + 5));
                black_box(queue.release(end, (u64::MAX, false), 0, &mut 0));
            },
        );
    }
}

fn main() {
    println!("| what | median, ns | fastest, ns |\n|---|---|---|");
    bare_tcp();
    pool();
    locks();
}
