//! Blocks of names that no client of ours has written.

use std::collections::BTreeMap;

use super::*;
use crate::client::tests::granted;
use crate::client::{Config, Mode};
use crate::ids::{Client as Id, Key, Node, Server};
use crate::message::{Message, View};
use crate::rope::Rope;

fn entry(file: u64) -> Entry {
    Entry {
        file: File(file),
        kind: Kind::File,
    }
}

#[test]
fn records_that_make_no_sense_are_passed_over() {
    let mut block = Vec::new();
    let bad: [&[u8]; 5] = [b"..", b".", b"../x", b"a\0b", &[b'x'; 256]];
    for name in bad {
        add(&mut block, File::ROOT, name, entry(5));
    }
    add(&mut block, File::ROOT, b"names", entry(File::NAMES.0));
    add(&mut block, File(6), b"", itself(File(6)));
    add(&mut block, File::ROOT, b"good", entry(7));
    let seen: Vec<_> = { records(&block) }
        .map(|record| (record.name, record.entry.file))
        .collect();
    assert_eq!(seen, [(&b""[..], File(6)), (&b"good"[..], File(7))]);
    // What is changed lies where it lay.
    let good = records(&block).last().expect("a record");
    assert_eq!(block.len(), good.end);
    assert_eq!(good.end - good.begin, HEAD + 4);
}

/// A client that is in a pool with one server.
fn member() -> Client {
    let config = Config {
        block_bytes: 32,
        copies: 1,
        term: 1000,
        alive_every: 100,
        cache_blocks: 64,
        flush_interval: 0,
        has_home: false,
        wish_blocks: 1,
    };
    let mut client = Client::new(Id(9), config);
    let view = View {
        epoch: Epoch(1),
        servers: vec![Server(1)],
        clients: vec![Id(9)],
        active: true,
        ..View::default()
    };
    let (epoch, key) = (view.epoch, Key(1));
    let mut out = Outbox::new();
    let sent = 0;
    client.handle(
        0,
        Node::Register,
        Message::Member {
            sent,
            view: Some(view),
        },
        &mut out,
    );
    let entered = Message::Entered { epoch, key };
    client.handle(0, Node::Server(Server(1)), entered, &mut out);
    client
}

#[test]
fn names_are_no_file_that_has_a_number() {
    let file = File::NAMES;
    let operations = [
        Operation::Attributes { file },
        Operation::sync(file),
        Operation::Remove { file },
        Operation::Truncate { file, size: 0 },
        Operation::Read {
            file,
            offset: 0,
            length: 1,
            mode: Mode::Local,
        },
    ];
    let mut client = member();
    for (id, operation) in (0..).zip(operations) {
        client.begin(0, id, operation, &mut Outbox::new());
        assert_eq!(client.results(), [(id, Err(Failure::Gone))]);
    }
}

/// Blocks of names in a home.
type Stored = BTreeMap<u64, Vec<u8>>;

const SERVER: Node = Node::Server(Server(1));

/// Has a client do an operation. The server stores the first block of names of the write that ends it, and is killed.
fn killed_in_the_middle(client: &mut Client, operation: Operation, stored: &mut Stored) {
    let result = result_of(client, operation, stored, true);
    assert_eq!(result, None, "nothing was written");
}

/// What becomes of an operation; nothing if the server is killed when it stores names.
fn result_of(
    client: &mut Client,
    operation: Operation,
    stored: &mut Stored,
    is_killed: bool,
) -> Option<Result<Answer, Failure>> {
    let mut out = Outbox::new();
    client.begin(0, 1, operation, &mut out);
    let mut stamp = 0;
    while !out.is_empty() {
        let (_, message) = out.remove(0);
        let answer = match message {
            Message::Ask { .. } => {
                stamp += 1;
                granted(&message, stamp)
            }
            Message::Read { number, parts, .. } => {
                let (mut found, mut bytes) = (Vec::new(), Rope::default());
                for part in parts {
                    let block = stored.get(&part.place.1);
                    found.push(block.map(|block| block.len() as u32));
                    block
                        .into_iter()
                        .for_each(|block| bytes.push(block.clone().into()));
                }
                Message::Bytes {
                    number,
                    found,
                    bytes,
                }
            }
            Message::Write { number, blocks, .. } if blocks[0].place.0 != File::NAMES => {
                Message::Done { number }
            }
            Message::Write { blocks, .. } if is_killed => {
                assert_eq!(blocks.len(), 2);
                let first = &blocks[0];
                stored.insert(first.place.1, first.bytes.to_vec());
                return None;
            }
            Message::Write { number, blocks, .. } => {
                for block in blocks {
                    stored.insert(block.place.1, block.bytes.to_vec());
                }
                Message::Done { number }
            }
            _ => continue,
        };
        client.handle(0, SERVER, answer, &mut out);
    }
    Some(client.results().pop().expect("a result").1)
}

/// Directories of which no two have a block together.
fn apart() -> Vec<File> {
    let mut all: Vec<File> = Vec::new();
    for file in (10..100).map(File) {
        if all.iter().all(|other| block_of(*other) != block_of(file)) {
            all.push(file);
        }
    }
    assert_eq!(all.len() as u64, BLOCKS);
    all
}

/// A home with empty directories.
fn home(directories: &[File]) -> Stored {
    let mut stored = Stored::new();
    for directory in directories {
        let block = stored.entry(block_of(*directory)).or_default();
        add(block, *directory, b"", itself(*directory));
    }
    stored
}

/// How often this stands behind a name, or a directory for itself if there is no name.
fn count(stored: &Stored, entry: Entry, is_named: bool) -> usize {
    let all = stored.values().flat_map(|block| records(block));
    let of = all.filter(|record| record.entry == entry && record.name.is_empty() != is_named);
    of.count()
}

/// Two directories, in each order of their blocks.
fn pairs() -> impl Iterator<Item = (File, File)> {
    let all = apart();
    let of = move |one: File| all.clone().into_iter().map(move |other| (one, other));
    let pairs = apart().into_iter().flat_map(of);
    pairs.filter(|(one, other)| one != other)
}

#[test]
fn a_file_whose_move_ends_in_the_middle_has_a_name() {
    for (from, to) in pairs() {
        let mut stored = home(&[from, to]);
        let block = stored.entry(block_of(from)).or_default();
        add(block, from, b"old", entry(7));
        let rename = Operation::Rename {
            from: (from, b"old".to_vec()),
            entry: entry(7),
            to: (to, b"new".to_vec()),
            replaced: None,
        };
        killed_in_the_middle(&mut member(), rename, &mut stored);
        assert_eq!(count(&stored, entry(7), true), 2, "{from:?} to {to:?}");
    }
}

#[test]
fn no_name_stands_for_half_a_directory() {
    for (parent, other) in pairs() {
        // One that goes.
        let mut stored = home(&[parent, other]);
        let block = stored.entry(block_of(parent)).or_default();
        add(block, parent, b"gone", itself(other));
        let unlink = Operation::Unlink {
            parent,
            name: b"gone".to_vec(),
            entry: itself(other),
        };
        killed_in_the_middle(&mut member(), unlink, &mut stored);
        assert_eq!(count(&stored, itself(other), true), 0, "{parent:?}");
        // One that comes, where the other one would be.
        let make = Operation::Make {
            parent,
            name: b"new".to_vec(),
            facts: Facts {
                kind: Kind::Directory,
                ..Facts::default()
            },
            bytes: Vec::new(),
        };
        let mut client = member();
        let made = loop {
            let made = client.clone().next_file(&make).expect("a number");
            if block_of(made) == block_of(other) {
                break itself(made);
            }
            client.files_made += 1;
        };
        let mut stored = home(&[parent]);
        killed_in_the_middle(&mut client, make, &mut stored);
        assert_eq!(count(&stored, made, true), 0, "{parent:?}");
        assert_eq!(count(&stored, made, false), 1, "{parent:?}");
    }
}

/// A home with a full directory, with the files 7 and 8 as `old` and `other`, and another one with file 9 as `far`.
fn with_full((full, near): (File, File)) -> Stored {
    let mut stored = home(&[full, near]);
    add(
        stored.entry(block_of(near)).or_default(),
        near,
        b"far",
        entry(9),
    );
    let block = stored.entry(block_of(full)).or_default();
    add(block, full, b"old", entry(7));
    add(block, full, b"other", entry(8));
    let mut number = 0_u64;
    while block.len() < BLOCK_MAX {
        number += 1;
        let room = BLOCK_MAX - block.len() - HEAD;
        // The last one leaves room for none.
        let length = match room {
            ..=255 => room,
            256..=300 => 100,
            _ => 255,
        };
        add(
            block,
            full,
            format!("{number:0length$}").as_bytes(),
            entry(number + 9),
        );
    }
    assert_eq!(block.len(), BLOCK_MAX);
    stored
}

#[test]
fn names_of_a_full_directory_change_as_far_as_what_goes_makes_room() {
    let (full, near) = pairs().next().expect("two");
    let rename = |from: (File, &[u8]), moved, to: &[u8], replaced: Option<u64>| Operation::Rename {
        from: (from.0, from.1.to_vec()),
        entry: entry(moved),
        to: (full, to.to_vec()),
        replaced: replaced.map(entry),
    };
    let (done, is_full) = (Ok(Answer::Done), Err(Failure::Full));
    let cases = [
        (rename((full, b"old"), 7, b"new", None), &done),
        (rename((full, b"old"), 7, b"o", None), &done),
        (rename((full, b"old"), 7, b"other", Some(8)), &done),
        (rename((near, b"far"), 9, b"other", Some(8)), &done),
        (rename((full, b"old"), 7, b"longer", None), &is_full),
        (rename((near, b"far"), 9, b"n", None), &is_full),
    ];
    for (number, (operation, expected)) in cases.into_iter().enumerate() {
        let before = with_full((full, near));
        let mut stored = before.clone();
        let result = result_of(&mut member(), operation, &mut stored, false);
        assert_eq!(result.as_ref(), Some(expected), "{number}");
        assert!(stored[&block_of(full)].len() <= BLOCK_MAX, "{number}");
        for moved in [7, 9] {
            assert_eq!(count(&stored, entry(moved), true), 1, "{number}");
        }
        assert_eq!(stored == before, expected.is_err(), "{number}");
    }
}
