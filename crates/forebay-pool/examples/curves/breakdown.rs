//! Clients that write different blocks of one file, by the lock of the whole file, by locks of blocks, and by memory under leases.

use bytes::Bytes;
use forebay_pool::client::{Answer, Mode, Operation};
use forebay_pool::ids::File;
use forebay_pool::rope::Rope;

use crate::world::{Costs, MS, Size, US, World};

/// What a client writes at once, and how many of these are in its part of the file.
const WRITTEN: u64 = 4096;
const PART: u64 = 32;
const CLIENTS: [u32; 4] = [1, 2, 4, 8];
const FILE: u64 = 8 * PART * WRITTEN;
/// A program syncs after so many writes.
const SYNCED: u64 = 16;
const BEFORE: u64 = 50 * MS;
const MEASURED: u64 = 500 * MS;

#[derive(Clone, Copy)]
struct How {
    name: &'static str,
    /// The file is one block: its lock is the file's.
    is_whole: bool,
    mode: Mode,
    /// Clients have every other block, and no runs of them.
    is_mixed: bool,
}

const HOW: [How; 5] = [
    How {
        name: "the file's lock, past memory",
        is_whole: true,
        mode: Mode::Remote,
        is_mixed: false,
    },
    How {
        name: "locks of blocks, past memory",
        is_whole: false,
        mode: Mode::Remote,
        is_mixed: false,
    },
    How {
        name: "the same, blocks by turns",
        is_whole: false,
        mode: Mode::Remote,
        is_mixed: true,
    },
    How {
        name: "locks of blocks, by memory",
        is_whole: false,
        mode: Mode::Local,
        is_mixed: false,
    },
    How {
        name: "the same, blocks by turns",
        is_whole: false,
        mode: Mode::Local,
        is_mixed: true,
    },
];

fn write(file: File, at: u64, bytes: &Bytes, mode: Mode) -> Operation {
    let mut rope = Rope::default();
    rope.push(bytes.clone());
    Operation::Write {
        file,
        offset: at,
        bytes: rope,
        mode,
    }
}

/// Does one thing, and says what came of it.
fn one(world: &mut World, operation: Operation) -> Answer {
    world.begin(world.now, 0, 0, operation);
    assert!(world.step(world.now + 10_000 * MS), "no answer");
    let ended = world.ended.pop().expect("an end");
    ended.result.expect("done")
}

/// Writes for each ms, and the messages of each.
fn speed(how: How, clients: u32, costs: Costs) -> (f64, f64) {
    let size = Size {
        servers: 4,
        clients,
        copies: 1,
        block_bytes: if how.is_whole { FILE } else { WRITTEN },
        wish_blocks: 16,
    };
    let mut world = World::new(size, costs);
    while !world.is_settled() {
        world.step(world.now + 10 * MS);
    }
    let Answer::Made(entry, _) = one(&mut world, Operation::MakeNameless) else {
        panic!("no file")
    };
    let file = entry.file;
    let all = Bytes::from(vec![1; FILE as usize]);
    one(&mut world, write(file, 0, &all, Mode::Local));
    one(&mut world, Operation::sync(file));
    let bytes = Bytes::from(vec![2; WRITTEN as usize]);
    let mut counts = vec![0_u64; clients as usize];
    let mut next = |world: &mut World, client: u32| {
        let count = &mut counts[client as usize];
        *count += 1;
        let operation = if count.is_multiple_of(SYNCED + 1) {
            Operation::sync(file)
        } else {
            let block = *count * 7 % PART;
            let block = if how.is_mixed {
                block * u64::from(clients) + u64::from(client)
            } else {
                block + u64::from(client) * PART
            };
            write(file, block * WRITTEN, &bytes, how.mode)
        };
        let is_write = matches!(operation, Operation::Write { .. });
        world.begin(world.now + US, client, u64::from(is_write), operation);
    };
    (0..clients).for_each(|client| next(&mut world, client));
    let mut done = 0_u64;
    for (until, counts) in [(BEFORE, false), (MEASURED, true)] {
        let until = world.now + until;
        world.forget_counts();
        while world.step(until) {
            for ended in std::mem::take(&mut world.ended) {
                ended.result.expect("done");
                done += if counts { ended.number } else { 0 };
                next(&mut world, ended.client);
            }
        }
    }
    let messages = world.counts.messages as f64 / done as f64;
    (done as f64 / (MEASURED / MS) as f64, messages)
}

pub fn rows(costs: Costs) {
    println!(
        "| writes for each ms, messages for each write | 1 client | 2 | 4 | 8 |\n|---|---|---|---|---|"
    );
    for how in HOW {
        let speeds = CLIENTS.map(|clients| {
            let (speed, messages) = speed(how, clients, costs);
            format!("{speed:.1}, {messages:.1}")
        });
        println!("| {} | {} |", how.name, speeds.join(" | "));
    }
}
