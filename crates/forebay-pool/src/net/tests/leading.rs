//! Callers that read their connection themselves: many of them, with recalls meanwhile, and a server that ends.

use std::sync::Barrier;
use std::thread;

use super::*;
use crate::client::Mode;

fn nameless(pool: &Pool) -> File {
    match pool.run(Operation::MakeNameless) {
        Ok(Answer::Made(Entry { file, .. }, _)) => file,
        _ => panic!("no file"),
    }
}

fn write_remotely(pool: &Pool, file: File, offset: u64, bytes: Vec<u8>) {
    let write = Operation::Write {
        file,
        offset,
        bytes: bytes.into(),
        mode: Mode::Remote,
    };
    pool.run(write).expect("written");
}

fn read_remotely(pool: &Pool, file: File, offset: u64, length: u64) -> Vec<u8> {
    let read = Operation::Read {
        file,
        offset,
        length,
        mode: Mode::Remote,
    };
    match pool.run(read).expect("read") {
        Answer::Bytes(bytes) => bytes.into_vec(),
        _ => panic!("no bytes"),
    }
}

#[test]
fn many_callers_of_two_clients_lead_while_blocks_are_recalled() {
    const THREADS: usize = 8;
    const ROUNDS: u64 = 100;
    let config = config(1);
    let server = Serving::begin(&config, 0).unwrap();
    let pools = [(); 2].map(|()| Pool::join(&config, PATIENCE).unwrap());
    let file = nameless(&pools[0]);
    let block = config.block_bytes;
    // Each has half a block: each block is recalled from the other client again and again.
    let half = block / 2;
    write_remotely(&pools[0], file, 0, vec![0; (block as usize) * THREADS]);
    let begin = Barrier::new(2 * THREADS);
    thread::scope(|scope| {
        for (which, pool) in (0..).zip(&pools) {
            for thread in 0..THREADS as u64 {
                let begin = &begin;
                scope.spawn(move || {
                    let at = thread * block + which * half;
                    begin.wait();
                    for round in 0..ROUNDS {
                        let bytes = vec![(round ^ thread ^ which) as u8; 4096];
                        write_remotely(pool, file, at, bytes.clone());
                        assert!(read_remotely(pool, file, at, 4096) == bytes);
                    }
                });
            }
        }
    });
    drop(pools);
    server.stop();
    server.wait().unwrap();
}

#[test]
fn a_recall_is_heard_by_a_client_whose_threads_ask_for_nothing() {
    let config = config(1);
    let server = Serving::begin(&config, 0).unwrap();
    let [quiet, other] = [(); 2].map(|()| Pool::join(&config, PATIENCE).unwrap());
    let file = nameless(&quiet);
    for round in 0..50 {
        // A caller has led, and leaves.
        write_remotely(&quiet, file, 0, vec![round; 4096]);
        let begun = Instant::now();
        write_remotely(&other, file, 0, vec![!round; 4096]);
        // Long before a term.
        assert!(begun.elapsed() < Duration::from_secs(5), "round {round}");
        assert!(read_remotely(&quiet, file, 0, 4096) == vec![!round; 4096]);
    }
    drop((quiet, other));
    server.stop();
    server.wait().unwrap();
}

#[test]
fn a_caller_that_leads_learns_that_its_server_has_ended() {
    let config = config(1);
    let server = Serving::begin(&config, 0).unwrap();
    let pool = Pool::join(&config, PATIENCE).unwrap();
    let file = nameless(&pool);
    write_remotely(&pool, file, 0, vec![1; 4096]);
    let is_under_way = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let read = || Operation::Read {
                    file,
                    offset: 0,
                    length: 4096,
                    mode: Mode::Remote,
                };
                while pool.run(read()).is_ok() {
                    is_under_way.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_until("reads", || is_under_way.load(Ordering::Relaxed) > 100);
        server.stop();
        server.wait().unwrap();
        // The threads end, or this test does not.
    });
}
