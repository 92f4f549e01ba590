//! Blocks of names that no client of ours has written.

use super::*;
use crate::client::{Config, Mode};
use crate::ids::{Client as Id, Key, Node, Server};
use crate::message::{Message, View};

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
    client.handle(0, Node::Register, Message::Member { sent, view }, &mut out);
    let entered = Message::Entered { epoch, key };
    client.handle(0, Node::Server(Server(1)), entered, &mut out);
    client
}

#[test]
fn names_are_no_file_that_has_a_number() {
    let file = File::NAMES;
    let operations = [
        Operation::Attributes { file },
        Operation::Sync { file },
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
