//! What grants and locks cost: requests within a grant beside the same bytes without a pool, and locks of a file by how many have parts of it.
//!
//!     cargo run --release -p forebay-pool --example leases [requests]

use std::hint::black_box;
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_pool::client::{Answer, Facts, Mode, Operation};
use forebay_pool::ids::{Client, File};
use forebay_pool::locks::{Queue, Request};
use forebay_pool::net::{Config, Pool, Serving};
use forebay_pool::range::{Range, Right};
use forebay_pool::rope::Rope;

const ROUNDS: usize = 51;
/// The file's blocks, and who has parts of it.
const BLOCKS: u64 = 1_000_000;
const HOLDERS: u32 = 1_000;

/// Does all of it in turn, so many times in each round: nanoseconds of one, the median of the rounds and the fastest.
fn rounds(times: u32, work: &mut [&mut dyn FnMut()]) -> Vec<(u128, u128)> {
    let mut all = vec![Vec::new(); work.len()];
    for _ in 0..ROUNDS {
        for (work, rounds) in work.iter_mut().zip(&mut all) {
            let began = Instant::now();
            (0..times).for_each(|_| work());
            rounds.push(began.elapsed().as_nanos() / u128::from(times));
        }
    }
    let sorted = all.into_iter().map(|mut rounds| {
        rounds.sort_unstable();
        (rounds[ROUNDS / 2], rounds[0])
    });
    sorted.collect()
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

/// Requests whose grants and blocks are in this client.
fn requests() {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let address = address.expect("an address");
    let config = Config::parse(&format!("servers = [\"{address}\"]")).expect("a pool");
    let serving = Serving::begin(&config, 0).expect("a server");
    let pool = Pool::join(&config, Duration::from_secs(10)).expect("a pool");
    let run = |operation| pool.run(operation).expect("done");
    let file = file(&pool);
    let write = |bytes: &[u8]| Operation::Write {
        file,
        offset: 0,
        bytes: Rope::from(Bytes::copy_from_slice(bytes)),
        mode: Mode::Local,
    };
    let block = vec![3_u8; 1 << 16];
    run(write(&block));
    run(Operation::sync(file));
    println!(
        "| request | within a grant: median, fastest, ns | the same bytes without a pool |\n|---|---|---|"
    );
    // A program's own memory, which its threads share.
    let own: Mutex<Vec<u8>> = Mutex::new(block.clone());
    for (what, length) in [("8 bytes", 8), ("4 KiB", 4 << 10), ("64 KiB", 1 << 16)] {
        let times = if length > 4096 { 300 } else { 3000 };
        let mut here = || {
            let read = Operation::Read {
                file,
                offset: 0,
                length: length as u64,
                mode: Mode::Local,
            };
            if let Answer::Bytes(bytes) = run(read) {
                black_box(bytes.into_vec());
            }
        };
        let mut there = || {
            let own = own.lock().expect("nobody panics");
            black_box(own[..length].to_vec());
        };
        let read = rounds(times, &mut [&mut here, &mut there]);
        let bytes = &block[..length];
        let mut here = || drop(black_box(run(write(bytes))));
        let mut there =
            || own.lock().expect("nobody panics")[..length].copy_from_slice(black_box(bytes));
        let written = rounds(times, &mut [&mut here, &mut there]);
        for (kind, rows) in [("read", read), ("written", written)] {
            let [(median, fastest), (own_median, own_fastest)] = rows[..] else {
                continue;
            };
            println!("| {what} {kind} | {median}, {fastest} | {own_median}, {own_fastest} |");
        }
        run(Operation::sync(file));
    }
    let mut attributes = || drop(black_box(run(Operation::Attributes { file })));
    let rows = rounds(3000, &mut [&mut attributes]);
    println!(
        "| a file's size and attributes | {}, {} | |",
        rows[0].0, rows[0].1
    );
    drop(pool);
    serving.stop();
    serving.wait().expect("an end in good order");
}

fn ask(queue: &mut Queue<Client>, holder: u32, range: Range, stamp: &mut u64) -> usize {
    let request = Request {
        holder: Client(holder),
        number: 1,
        need: range,
        wish: range,
        right: Right::Exclusive,
        urgent: false,
    };
    let outcome = queue.ask(request, 0, stamp);
    outcome.granted.len() + outcome.recalls.len()
}

/// A file in which a thousand holders have so many blocks in all, none beside another of the same holder's.
fn file_of(grants: u64) -> (Queue<Client>, u64) {
    let (mut queue, mut stamp) = (Queue::default(), 0);
    let step = BLOCKS / grants;
    for nth in 0..grants {
        let holder = (nth % u64::from(HOLDERS)) as u32;
        ask(&mut queue, holder, Range::one(nth * step), &mut stamp);
    }
    assert_eq!(queue.locks().len() as u64, grants);
    (queue, stamp)
}

/// By how many grants the file has: a lock and an unlock of one block that is free, and what it takes to find that a block is not.
fn locks() {
    println!(
        "| grants of the file | a lock and an unlock, ns | a block that another one has: asked for, given back, got, given back |\n|---|---|---|"
    );
    for grants in [10, 100, 1_000, 10_000, 100_000, 500_000] {
        let (mut queue, mut stamp) = file_of(grants);
        let (mut other, mut other_stamp) = (queue.clone(), stamp);
        let step = BLOCKS / grants;
        let (mut at, mut other_at) = (0, 0);
        let mut free = || {
            at = (at + 7919) % grants;
            let block = Range::one(at * step + 1);
            assert_eq!(ask(&mut queue, HOLDERS, block, &mut stamp), 1);
            queue.release((Client(HOLDERS), block), (u64::MAX, false), 0, &mut stamp);
        };
        let mut taken = || {
            other_at = (other_at + 7919) % grants;
            let block = Range::one(other_at * step);
            let holder = (other_at % u64::from(HOLDERS)) as u32;
            ask(&mut other, HOLDERS, block, &mut other_stamp);
            for holder in [holder, HOLDERS] {
                other.release(
                    (Client(holder), block),
                    (u64::MAX, false),
                    0,
                    &mut other_stamp,
                );
            }
            ask(&mut other, holder, block, &mut other_stamp);
        };
        let rows = rounds(5_000, &mut [&mut free, &mut taken]);
        println!(
            "| {grants} | {}, {} | {}, {} |",
            rows[0].0, rows[0].1, rows[1].0, rows[1].1
        );
    }
}

/// By how many grants of others a request touches, in a file that has a hundred thousand.
fn wide_locks() {
    println!(
        "| grants that a request touches | it is asked for, and all of them are recalled, ns | for each |\n|---|---|---|"
    );
    for touched in [1, 10, 100, 1_000] {
        let (queue, stamp) = file_of(100_000);
        let range = Range::new(0, touched * 10).expect("blocks");
        let mut times: Vec<u128> = (0..ROUNDS)
            .map(|_| {
                let (mut queue, mut stamp) = (queue.clone(), stamp);
                let began = Instant::now();
                let recalled = ask(&mut queue, HOLDERS, range, &mut stamp);
                let took = began.elapsed().as_nanos();
                assert_eq!(recalled as u64, touched);
                took
            })
            .collect();
        times.sort_unstable();
        let median = times[ROUNDS / 2];
        println!(
            "| {touched} | {median}, {} | {} |",
            times[0],
            median / u128::from(touched)
        );
    }
}

fn main() {
    requests();
    if std::env::args().any(|argument| argument == "requests") {
        return;
    }
    println!();
    locks();
    println!();
    wide_locks();
}
