//! The form of messages, and what nonsense does to it and to the machines behind it.

use std::io::ErrorKind;

use super::*;
use crate::client::{self, Entry, Facts, Kind, Mode, Operation};
use crate::ids::{Client, Epoch, File, Key, Node, Server, Version};
use crate::message::{Loss, Outbox, Part, View};
use crate::random::{Random, mix2};
use crate::range::{Range, Right};
use crate::register::Register;
use crate::server;

const EPOCH: Epoch = Epoch(2);
const FILE: File = File(5);

fn view() -> View {
    let servers = vec![Server(1), Server(2)];
    View {
        epoch: EPOCH,
        leaving: vec![Server(3)],
        clients: vec![Client(8), Client(9)],
        active: true,
        losses: vec![Loss {
            epoch: EPOCH,
            before: servers.clone(),
            dead: vec![Server(4)],
        }],
        servers,
        home_lost: EPOCH,
    }
}

/// One message of every kind, in the order of their numbers.
fn samples(key: Key) -> Vec<Message> {
    let number = 1 << 16 | EPOCH.0;
    let mut all = of_members_and_grants(key, number);
    all.extend(of_blocks(key, number));
    let addresses = [0, u8::MAX].map(|place| (place, ([127, 0, 0, 1], 7411).into()));
    let addresses = addresses.into();
    all.push(Message::Servers { addresses });
    all
}

fn of_members_and_grants(key: Key, number: u64) -> Vec<Message> {
    let (epoch, file) = (EPOCH, FILE);
    let range = Range { start: 1, end: 5 };
    vec![
        Message::Alive {
            sent: 1000,
            knows: (epoch, true),
            ready: epoch,
            leaving: false,
            waits: true,
            boot: 1 << 60,
        },
        Message::Member {
            sent: 1000,
            view: Some(view()),
        },
        Message::Gone,
        Message::Expel { client: Client(9) },
        Message::Behind { epoch: Epoch(3) },
        Message::Enter {
            epoch,
            claims: vec![(file, range, Right::Exclusive)],
        },
        Message::Entered { epoch, key },
        Message::Ask {
            epoch,
            number,
            file,
            need: range,
            wish: Range { start: 0, end: 8 },
            right: Right::Shared,
            urgent: true,
        },
        Message::Granted {
            epoch,
            number,
            file,
            range,
            right: Right::Exclusive,
            stamp: 4,
        },
        Message::Recall {
            epoch,
            file,
            range,
            keep: true,
            stamp: 4,
        },
        Message::Release {
            epoch,
            seen: 4,
            parts: vec![(file, range, false)],
        },
    ]
}

fn of_blocks(key: Key, number: u64) -> Vec<Message> {
    let (epoch, file) = (EPOCH, FILE);
    let version = Version {
        epoch: 1,
        stamp: 3,
        change: 77,
    };
    let block = Block {
        place: (file, 1),
        version,
        bytes: (0..32).collect::<Vec<u8>>().into(),
    };
    let part = |block, from, length| Part {
        place: (file, block),
        from,
        length,
    };
    let (blocks, last) = (vec![block.clone()], true);
    let places = vec![(file, 1)];
    vec![
        Message::Read {
            key,
            number,
            parts: vec![part(SIZE_BLOCK, 0, u32::MAX), part(1, 3, 7)],
        },
        Message::Bytes {
            number,
            found: vec![Some(12), None, Some(20)],
            bytes: Rope::from(block.bytes.clone()),
        },
        Message::Write {
            key,
            number,
            blocks: blocks.clone(),
        },
        Message::Patch {
            key,
            number,
            parts: vec![(block, 9)],
        },
        Message::Discard {
            key,
            number,
            file,
            from: 3,
            whole: true,
        },
        Message::Persist { key, number },
        Message::Done { number },
        Message::Offer {
            epoch,
            blocks: vec![((file, 1), version)],
            last,
        },
        Message::Want {
            epoch,
            places: places.clone(),
            last,
        },
        Message::Give {
            epoch,
            blocks,
            last,
        },
        Message::Taken { epoch },
        Message::Rules { reign: 7 },
        Message::Damaged { number, places },
        Message::Full { is_full: true },
    ]
}

#[test]
fn every_message_comes_back_as_it_was() {
    for (at, message) in samples(Key(6)).into_iter().enumerate() {
        let bytes = encode(&message).unwrap();
        assert_eq!(usize::from(bytes[4]), at, "{message:?}");
        assert_eq!(decode(&bytes).unwrap(), message);
    }
}

/// Hosts of one version must understand one another. If this fails, raise the version in [`MARK`] and put the new number here.
#[test]
fn the_form_has_not_changed_without_a_new_version() {
    let samples = samples(Key(6));
    let bytes = { samples.iter() }.flat_map(|message| encode(message).unwrap());
    let sum = bytes.fold(u64::from(MARK[7]), |sum, byte| mix2(sum, u64::from(byte)));
    assert_eq!(sum, 0x8034_f41d_dcd6_5121, "{sum:#x}");
}

#[test]
fn frames_that_lie_are_refused() {
    let mut frame = Vec::new();
    send(&mut frame, b"abc").unwrap();
    assert_eq!(receive(&mut &frame[..]).unwrap().unwrap(), b"abc");
    assert!(receive(&mut &frame[..0]).unwrap().is_none());
    for cut in 1..frame.len() {
        let end = receive(&mut &frame[..cut]).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::UnexpectedEof, "cut at {cut}");
    }
    let long = receive(&mut &(FRAME_MAX as u32 + 1).to_le_bytes()[..]).unwrap_err();
    assert_eq!(long.kind(), ErrorKind::InvalidData);
    let mut mark = MARK;
    expect_mark(&mut &mark[..]).unwrap();
    mark[7] += 1;
    let other = expect_mark(&mut &mark[..]).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidData);
}

#[test]
fn messages_that_cannot_be_are_refused() {
    let (epoch, key, number, file) = (EPOCH, Key(6), 1, FILE);
    let (one, two) = (Range::one(1), Range::one(2));
    let ask = |need, wish| Message::Ask {
        epoch,
        number,
        file,
        need,
        wish,
        right: Right::Shared,
        urgent: false,
    };
    let parts = |start, end| Message::Release {
        epoch,
        seen: 0,
        parts: vec![(file, Range { start, end }, false)],
    };
    let beyond = SIZE_BLOCK + 1;
    let place = (file, beyond);
    let from = beyond;
    let block = |length| Block {
        place: (file, 1),
        version: Version::default(),
        bytes: vec![0; length].into(),
    };
    let bad = [
        ask(one, two),
        parts(3, 3),
        parts(4, 3),
        parts(0, beyond + 1),
        Message::Read {
            key,
            number,
            parts: vec![Part {
                place,
                from: 0,
                length: 1,
            }],
        },
        Message::Discard {
            key,
            number,
            file,
            from,
            whole: false,
        },
        Message::Bytes {
            number,
            found: vec![Some(2)],
            bytes: vec![0; 3].into(),
        },
        Message::Write {
            key,
            number,
            blocks: vec![block(BLOCK_MAX + 1)],
        },
        Message::Patch {
            key,
            number,
            parts: vec![(block(BLOCK_MAX), 1)],
        },
    ];
    for message in bad {
        let bytes = encode(&message).unwrap();
        assert!(decode(&bytes).is_err(), "{message:?}");
    }
    let mut bytes = encode(&ask(one, one)).unwrap();
    bytes.push(0);
    assert!(matches!(decode(&bytes), Err(Fault::Rest(1))));
}

/// A message with some bytes changed, cut off, put in or doubled; sometimes nothing but chance.
fn nonsense(random: &mut Random, samples: &[Message]) -> Vec<u8> {
    if random.chance(50) {
        let length = random.below(80);
        return (0..length).map(|_| random.number() as u8).collect();
    }
    let sample = &samples[random.below(samples.len() as u64) as usize];
    let mut bytes = encode(sample).unwrap();
    for _ in 0..random.below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(8) {
            0 => bytes[at] = random.number() as u8,
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
            2 => bytes[at] ^= 1 << random.below(8),
            3 => bytes.truncate(at),
            4 => bytes.insert(at, random.number() as u8),
            5 | 6 => {
                let large = [u64::MAX, 1 << 63, SIZE_BLOCK, SIZE_BLOCK + 1, 1 << 47];
                let large = large[random.below(5) as usize];
                bytes.splice(at..=at, postcard::to_stdvec(&large).unwrap());
            }
            _ => bytes.extend_from_within(at..),
        }
    }
    bytes
}

#[test]
fn nonsense_is_refused_or_means_something() {
    let mut random = Random::new(1);
    let samples = samples(Key(6));
    let mut read = 0;
    for round in 0..200_000 {
        let bytes = nonsense(&mut random, &samples);
        if let Ok(message) = decode(&bytes) {
            read += 1;
            let again = decode(&encode(&message).unwrap()).unwrap();
            assert_eq!(again, message, "round {round}");
        }
    }
    // Most of it must be messages, or nothing behind the form is tested.
    assert!(read > 50_000, "{read}");
}

fn member(sent: u64) -> Message {
    let view = Some(view());
    Message::Member { sent, view }
}

/// A server of an active epoch, with blocks and locks, and its key.
fn a_server(out: &mut Outbox) -> (server::Server, Key) {
    let config = server::Config {
        copies: 2,
        alive_every: 50,
        term: 400,
        patience: 800,
        secret: 11,
    };
    let mut server = server::Server::new(Server(1), config);
    server.handle(0, Node::Register, member(0), out);
    for client in [8, 9] {
        let enter = Message::Enter {
            epoch: EPOCH,
            claims: Vec::new(),
        };
        server.handle(0, Node::Client(Client(client)), enter, out);
    }
    let told = |(_, message): &(Node, Message)| match message {
        Message::Entered { key, .. } => Some(*key),
        _ => None,
    };
    let key = { out.iter() }.find_map(told).unwrap();
    for message in samples(key) {
        if matches!(message, Message::Ask { .. } | Message::Write { .. }) {
            server.handle(0, Node::Client(Client(8)), message, out);
        }
    }
    (server, key)
}

fn a_client(key: Key, out: &mut Outbox) -> client::Client {
    let config = client::Config {
        block_bytes: 32,
        copies: 2,
        term: 400,
        alive_every: 50,
        cache_blocks: 6,
        flush_interval: 0,
        has_home: false,
        wish_blocks: 4,
    };
    let mut client = client::Client::new(Client(9), config);
    client.handle(0, Node::Register, member(0), out);
    for server in [Server(1), Server(2)] {
        let entered = Message::Entered { epoch: EPOCH, key };
        client.handle(0, Node::Server(server), entered, out);
    }
    client
}

fn operations() -> Vec<Operation> {
    let (file, mode) = (FILE, Mode::Local);
    let (offset, length) = (20, 70);
    let bytes = Rope::from(vec![1; 70]);
    let (parent, name) = (File::ROOT, b"name".to_vec());
    let kind = Kind::Directory;
    let facts = Facts {
        kind,
        ..Facts::default()
    };
    let entry = Entry { file, kind };
    vec![
        Operation::Read {
            file,
            offset,
            length,
            mode,
        },
        Operation::Read {
            file,
            offset,
            length,
            mode: Mode::Remote,
        },
        Operation::Write {
            file,
            offset,
            bytes: bytes.clone(),
            mode: Mode::Remote,
        },
        Operation::Write {
            file,
            offset,
            bytes: bytes.clone(),
            mode,
        },
        Operation::Append { file, bytes },
        Operation::Truncate { file, size: 33 },
        Operation::sync(file),
        Operation::Attributes { file },
        Operation::Remove { file },
        Operation::List { parent },
        Operation::Make {
            parent,
            name: name.clone(),
            facts,
            bytes: name.clone(),
        },
        Operation::Unlink {
            parent,
            name: name.clone(),
            entry,
        },
        Operation::Rename {
            from: (parent, name),
            entry,
            to: (file, b"other".to_vec()),
            replaced: Some(entry),
        },
    ]
}

/// What peers may send: anything that can be decoded, from anybody. No machine panics, whatever it does then.
#[test]
fn machines_live_through_nonsense() {
    let nodes = [
        Node::Register,
        Node::Server(Server(2)),
        Node::Client(Client(8)),
    ];
    let operations = operations();
    // Machines do not get old: a register that says they are gone ends them.
    for seed in 0..4000 {
        let mut random = Random::new(seed);
        let mut out = Outbox::new();
        let (mut server, key) = a_server(&mut out);
        let mut client = a_client(key, &mut out);
        let mut register = Register::new(400, 1);
        let samples = samples(key);
        for round in 0..20 {
            let Ok(message) = decode(&nonsense(&mut random, &samples)) else {
                continue;
            };
            let from = nodes[random.below(3) as usize];
            let now = random.below(500);
            out.clear();
            match random.below(3) {
                0 => server.handle(now, from, message, &mut out),
                1 => register.handle(now, from, message, &mut out),
                _ => client.handle(now, from, message, &mut out),
            }
            let operation = operations[random.below(operations.len() as u64) as usize].clone();
            client.begin(now, round, operation, &mut out);
            // What comes of it has a form, too.
            for (_, message) in &out {
                decode(&encode(message).unwrap()).unwrap();
            }
        }
    }
}
