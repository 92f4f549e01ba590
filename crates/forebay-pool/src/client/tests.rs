//! Single clients whose pool is played by hand.

mod ageing;
mod cutting;
mod damage;
mod full;
mod growth;
mod limits;
mod losses;
mod room;

use std::collections::VecDeque;

use super::{Answer, Client, Config, Failure, Mode, Operation};
use crate::ids::{Client as Id, Epoch, File, Key, Node, SIZE_BLOCK, Server, Version};
use crate::message::{Message, Outbox, Part, View};
use crate::mistakes::{Mistake, plant};
use crate::placement::keeper_of_locks;
use crate::range::{Range, Right};
use crate::rope::Rope;

const FILE: File = File(7);
const SERVER: Node = Node::Server(Server(1));
const EPOCH: Epoch = Epoch(1);
const TERM: u64 = 1000;
const UNIT: u64 = 32;

/// A right as a server without other clients grants it, which counts its answers; `ask` is the request.
pub(super) fn granted(ask: &Message, stamp: u64) -> Message {
    let Message::Ask {
        epoch,
        number,
        file,
        need,
        right,
        ..
    } = *ask
    else {
        panic!("{ask:?} is no request for a right");
    };
    Message::Granted {
        epoch,
        number,
        file,
        range: need,
        right,
        stamp,
    }
}

/// A client, and what it has sent that nobody has answered.
struct Desk {
    client: Client,
    now: u64,
    sent: VecDeque<Message>,
    stamp: u64,
}

impl Desk {
    fn new() -> Desk {
        let config = Config {
            block_bytes: UNIT,
            copies: 1,
            term: TERM,
            alive_every: 100,
            cache_blocks: 64,
            flush_interval: 0,
            has_home: false,
            wish_blocks: 1,
        };
        let mut desk = Desk {
            client: Client::new(Id(9), config),
            now: 0,
            sent: VecDeque::new(),
            stamp: 0,
        };
        desk.member();
        let key = Key(1);
        desk.tell(SERVER, Message::Entered { epoch: EPOCH, key });
        desk.sent.clear();
        desk
    }

    fn tell(&mut self, from: Node, message: Message) {
        let mut out = Outbox::new();
        self.client.handle(self.now, from, message, &mut out);
        self.sent
            .extend(out.into_iter().map(|(_, message)| message));
    }

    fn member(&mut self) {
        let view = View {
            epoch: EPOCH,
            servers: vec![Server(1)],
            clients: vec![Id(9)],
            active: true,
            ..View::default()
        };
        let sent = self.now;
        self.tell(
            Node::Register,
            Message::Member {
                sent,
                view: Some(view),
            },
        );
    }

    fn begin(&mut self, id: u64, operation: Operation) {
        let mut out = Outbox::new();
        self.client.begin(self.now, id, operation, &mut out);
        self.sent
            .extend(out.into_iter().map(|(_, message)| message));
    }

    fn recall(&mut self, range: Range, keep: bool) {
        self.recall_in(EPOCH, range, keep);
    }

    fn recall_in(&mut self, epoch: Epoch, range: Range, keep: bool) {
        let recall = Message::Recall {
            epoch,
            file: FILE,
            range,
            keep,
            stamp: self.stamp,
        };
        self.tell(SERVER, recall);
    }

    /// Answers one message as a server without other clients does; a block that is read holds `bytes`, or the size of two blocks.
    fn answer(&mut self, message: &Message, bytes: u8) {
        match *message {
            Message::Ask { .. } => {
                self.stamp += 1;
                self.tell(SERVER, granted(message, self.stamp));
            }
            Message::Read {
                number, ref parts, ..
            } => {
                let size = [2 * UNIT, 2 * UNIT, 1, 0, 0, 0, 0, 0].map(u64::to_le_bytes);
                let mut found = Vec::new();
                let mut all = Rope::default();
                for part in parts {
                    let block = if part.place.0 == File::NAMES {
                        Vec::new()
                    } else if part.place.1 == SIZE_BLOCK {
                        size.as_flattened().to_vec()
                    } else {
                        vec![bytes; UNIT as usize]
                    };
                    let end = block
                        .len()
                        .min(part.from.saturating_add(part.length) as usize);
                    let block = block[part.from as usize..end].to_vec();
                    found.push(Some(block.len() as u32));
                    all.push(block.into());
                }
                let answer = Message::Bytes {
                    number,
                    found,
                    bytes: all,
                };
                self.tell(SERVER, answer);
            }
            Message::Write { number, .. }
            | Message::Patch { number, .. }
            | Message::Persist { number, .. } => self.tell(SERVER, Message::Done { number }),
            _ => {}
        }
    }

    /// Answers everything, and says what was released meanwhile.
    fn settle(&mut self) -> Vec<Range> {
        let mut released = Vec::new();
        while let Some(message) = self.sent.pop_front() {
            if let Message::Release { parts, .. } = &message {
                released.extend(parts.iter().map(|(_, range, _)| *range));
            }
            self.answer(&message, 1);
        }
        released
    }

    /// Answers everything up to the reading of a block, which is returned unanswered.
    fn settle_up_to_read_of(&mut self, block: u64) -> Option<Message> {
        while let Some(message) = self.sent.pop_front() {
            let is_read = |part: &Part| part.place == (FILE, block);
            if matches!(&message, Message::Read { parts, .. } if parts.iter().any(is_read)) {
                return Some(message);
            }
            self.answer(&message, 1);
        }
        None
    }
}

fn read(block: u64) -> Operation {
    Operation::Read {
        file: FILE,
        offset: block * UNIT,
        length: UNIT,
        mode: Mode::Local,
    }
}

fn write(block: u64) -> Operation {
    Operation::Write {
        file: FILE,
        offset: block * UNIT,
        bytes: vec![5; UNIT as usize].into(),
        mode: Mode::Local,
    }
}

/// A client that has appended must give the file's size back, begins to write it, and is told to write a block meanwhile. Then somebody appends, and
/// wants everything: is it given back?
fn gives_everything_back() -> bool {
    let mut desk = Desk::new();
    let bytes = vec![3; UNIT as usize].into();
    desk.begin(1, Operation::Append { file: FILE, bytes });
    desk.settle();
    assert_eq!(desk.client.results(), [(1, Ok(Answer::At(2 * UNIT)))]);
    desk.recall(Range::one(SIZE_BLOCK), false);
    desk.begin(2, write(2));
    let all = Range {
        start: 2,
        end: SIZE_BLOCK + 1,
    };
    desk.recall(all, false);
    let is_given = desk.settle().contains(&all);
    is_given && desk.client.results() == [(2, Ok(Answer::Done))]
}

#[test]
fn an_operation_never_waits_for_a_recall_that_waits_for_it() {
    assert!(gives_everything_back());
    plant(Some(Mistake::WaitsForItsOwnRecall));
    let is_given = gives_everything_back();
    plant(None);
    assert!(!is_given, "the mistake is not found");
}

/// A read is cut off while its block is under way. The block is given back, and others change it. What does the next read see?
fn byte_after_a_cut() -> Vec<u8> {
    let mut desk = Desk::new();
    desk.begin(1, read(0));
    let late = desk.settle_up_to_read_of(0).expect("the block is read");
    desk.now += TERM;
    let mut out = Outbox::new();
    desk.client.tick(desk.now, &mut out);
    assert_eq!(desk.client.results(), [(1, Err(Failure::CutOff))]);
    desk.member();
    desk.recall(Range::one(0), false);
    assert_eq!(desk.settle(), [Range::one(0)]);
    desk.answer(&late, 0);
    desk.begin(2, read(0));
    desk.settle();
    match desk.client.results().pop() {
        Some((2, Ok(Answer::Bytes(bytes)))) => bytes.into_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_that_come_after_their_grant_has_gone_do_not_count() {
    assert_eq!(byte_after_a_cut(), [1; UNIT as usize]);
    plant(Some(Mistake::TakesLateBytes));
    let bytes = byte_after_a_cut();
    plant(None);
    assert_eq!(bytes, [0; UNIT as usize], "the mistake is not found");
}

#[test]
fn bytes_that_come_late_overwrite_nothing() {
    let mut desk = Desk::new();
    desk.begin(1, read(0));
    let late = desk.settle_up_to_read_of(0).expect("the block is read");
    desk.now += TERM;
    let mut out = Outbox::new();
    desk.client.tick(desk.now, &mut out);
    desk.member();
    desk.begin(2, write(0));
    desk.settle();
    desk.answer(&late, 0);
    desk.begin(3, read(0));
    desk.settle();
    let ends: Vec<_> = desk.client.results().split_off(1);
    let bytes = vec![5; UNIT as usize].into();
    assert_eq!(ends, [(2, Ok(Answer::Done)), (3, Ok(Answer::Bytes(bytes)))]);
}

fn remote_read(offset: u64, length: u64) -> Operation {
    Operation::Read {
        file: FILE,
        offset,
        length,
        mode: Mode::Remote,
    }
}

/// Parts of blocks that a client asks for.
fn asked_for(desk: &Desk) -> Vec<(u64, u32, u32)> {
    let parts = desk.sent.iter().flat_map(|message| match message {
        Message::Read { parts, .. } => parts.as_slice(),
        other => panic!("{other:?}"),
    });
    parts
        .map(|part| (part.place.1, part.from, part.length))
        .collect()
}

#[test]
fn a_remote_read_moves_its_bytes_alone_and_leaves_memory_as_it_is() {
    let mut desk = Desk::new();
    desk.begin(1, read(0));
    desk.begin(2, write(1));
    desk.settle();
    desk.client.results();
    desk.begin(3, remote_read(4, 8));
    assert_eq!(asked_for(&desk), [(0, 4, 8)]);
    desk.settle();
    // What the servers do not have yet is taken from here.
    desk.begin(4, remote_read(UNIT - 4, 8));
    assert_eq!(asked_for(&desk), [(0, UNIT as u32 - 4, 4)]);
    desk.settle();
    desk.begin(5, remote_read(UNIT, 8));
    desk.begin(6, read(0));
    assert!(desk.sent.is_empty(), "{:?}", desk.sent);
    let bytes = |bytes: &[u8]| Ok(Answer::Bytes(bytes.to_vec().into()));
    let ends = [
        (3, bytes(&[1; 8])),
        (4, bytes(&[1, 1, 1, 1, 5, 5, 5, 5])),
        (5, bytes(&[5; 8])),
        (6, bytes(&[1; UNIT as usize])),
    ];
    assert_eq!(desk.client.results(), ends);
}

#[test]
fn a_remote_write_moves_its_bytes_alone_and_leaves_nothing_old() {
    let mut desk = Desk::new();
    let write = |offset, length| Operation::Write {
        file: FILE,
        offset,
        bytes: vec![9; length].into(),
        mode: Mode::Remote,
    };
    desk.begin(1, read(0));
    desk.begin(2, write(0, 1));
    desk.settle();
    desk.begin(3, read(0));
    desk.settle();
    desk.begin(4, write(3, 5));
    match desk.sent.make_contiguous() {
        [Message::Patch { parts, .. }] => {
            let [(block, 3)] = &parts[..] else {
                panic!("{parts:?}")
            };
            assert_eq!((block.place, &block.bytes[..]), ((FILE, 0), &[9; 5][..]));
        }
        other => panic!("{other:?}"),
    }
    // It waits for the write that is under way, and then for the new bytes.
    desk.begin(5, read(0));
    assert_eq!(desk.sent.len(), 1);
    desk.settle();
    let ends = desk.client.results().into_iter().map(|(id, _)| id);
    assert_eq!(ends.collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
}

#[test]
fn remote_operations_do_not_wait_for_one_another() {
    let mut desk = Desk::new();
    desk.begin(1, write(0));
    desk.begin(2, write(1));
    desk.begin(3, Operation::sync(FILE));
    desk.settle();
    desk.client.results();
    let write = Operation::Write {
        file: FILE,
        offset: UNIT,
        bytes: vec![9; 5].into(),
        mode: Mode::Remote,
    };
    desk.begin(4, remote_read(0, 8));
    desk.begin(5, remote_read(8, 8));
    desk.begin(6, write);
    assert_eq!(desk.sent.len(), 3, "{:?}", desk.sent);
    // This one is in the way of the write.
    desk.begin(7, remote_read(UNIT, 8));
    assert_eq!(desk.sent.len(), 3, "{:?}", desk.sent);
    desk.settle();
    assert_eq!(desk.client.results().len(), 4);
}

/// Versions of what a client writes and has not been answered, as it was sent last.
fn versions(desk: &Desk) -> Vec<Version> {
    let blocks = desk.sent.iter().filter_map(|message| match message {
        Message::Write { blocks, .. } => Some(blocks[0].version),
        Message::Patch { parts, .. } => Some(parts[0].0.version),
        _ => None,
    });
    blocks.collect()
}

/// Of two copies the one that was sent later was once newer, by a grant that its client had got meanwhile.
#[test]
fn what_is_sent_again_is_no_newer_than_it_was() {
    for mode in [Mode::Local, Mode::Remote] {
        let mut desk = Desk::new();
        let write_first = Operation::Write {
            file: FILE,
            offset: 0,
            bytes: vec![9; UNIT as usize].into(),
            mode,
        };
        desk.begin(1, write_first);
        while versions(&desk).is_empty() {
            match desk.sent.pop_front() {
                Some(message) => desk.answer(&message, 1),
                None => desk.recall(Range::one(0), false),
            }
        }
        let first = versions(&desk);
        desk.sent.clear();
        // The next block's grant becomes one with this one's.
        desk.begin(3, write(1));
        while let Some(message) = desk.sent.pop_front() {
            if matches!(message, Message::Ask { .. }) {
                desk.answer(&message, 1);
            }
        }
        let locks = &desk.client.files[&FILE].locks;
        assert!(locks.stamp((), 0) > Some(first[0].stamp), "{mode:?}");
        let mut out = Outbox::new();
        desk.client.connected(SERVER, &mut out);
        desk.sent
            .extend(out.into_iter().map(|(_, message)| message));
        assert_eq!(versions(&desk), first, "{mode:?}");
    }
}

/// A client cuts a file, up to where it has the blocks discarded; the number of that.
fn cut(desk: &mut Desk) -> u64 {
    let (file, size) = (FILE, 0);
    desk.begin(1, Operation::Truncate { file, size });
    while let Some(message) = desk.sent.pop_front() {
        if let Message::Discard { number, .. } = message {
            return number;
        }
        desk.answer(&message, 1);
    }
    panic!("nothing is discarded");
}

/// An epoch of the same members is active.
fn begins(desk: &mut Desk, epoch: Epoch) {
    let view = View {
        epoch,
        servers: vec![Server(1)],
        clients: vec![Id(9)],
        active: true,
        ..View::default()
    };
    desk.tell(
        Node::Register,
        Message::Member {
            sent: 0,
            view: Some(view),
        },
    );
}

/// The second one would come after what is written when the first is answered.
#[test]
fn who_is_let_in_twice_sends_what_is_under_way_once() {
    let mut desk = Desk::new();
    cut(&mut desk);
    desk.sent.clear();
    let epoch = Epoch(EPOCH.0 + 1);
    begins(&mut desk, epoch);
    let count = |desk: &mut Desk| {
        let sent = desk.sent.drain(..);
        let is_that = |message: &Message| matches!(message, Message::Discard { .. });
        sent.filter(is_that).count()
    };
    for once in [1, 0] {
        let key = Key(2);
        desk.tell(SERVER, Message::Entered { epoch, key });
        assert_eq!(count(&mut desk), once);
    }
    // A new connection has got nothing yet.
    let mut out = Outbox::new();
    desk.client.connected(SERVER, &mut out);
    desk.sent
        .extend(out.into_iter().map(|(_, message)| message));
    assert_eq!(count(&mut desk), 1);
}

/// A new ruler's epochs begin at a multiple of 2^32: the low bits say nothing of which ruler's it is.
#[test]
fn an_answer_of_an_epoch_of_the_ruler_before_does_not_count() {
    let mut desk = Desk::new();
    let number = cut(&mut desk);
    let epoch = Epoch((1 << 32) + EPOCH.0);
    begins(&mut desk, epoch);
    desk.sent.clear();
    desk.tell(SERVER, Message::Done { number });
    let key = Key(2);
    desk.tell(SERVER, Message::Entered { epoch, key });
    let is_discard = |message: &Message| matches!(message, Message::Discard { .. });
    assert!(desk.sent.iter().any(is_discard));
}

#[test]
fn each_server_is_told_what_the_client_has_of_its_files() {
    let mut desk = Desk::new();
    for file in 2..30 {
        let granted = Message::Granted {
            epoch: EPOCH,
            number: 0,
            file: File(file),
            range: Range::one(file),
            right: Right::Shared,
            stamp: file,
        };
        desk.tell(SERVER, granted);
    }
    let servers: Vec<Server> = (1..=5).map(Server).collect();
    let view = View {
        epoch: Epoch(2),
        servers: servers.clone(),
        clients: vec![Id(9)],
        active: true,
        ..View::default()
    };
    let (mut out, sent) = (Outbox::new(), desk.now);
    let member = Message::Member {
        sent,
        view: Some(view),
    };
    desk.client
        .handle(desk.now, Node::Register, member, &mut out);
    for server in servers {
        let files = (2..30).map(File);
        let kept =
            files.filter(|file| keeper_of_locks(&desk.client.view.servers, *file) == Some(server));
        let claims: Vec<_> = kept
            .map(|file| (file, Range::one(file.0), Right::Shared))
            .collect();
        assert!(!claims.is_empty());
        let enter = (
            Node::Server(server),
            Message::Enter {
                epoch: Epoch(2),
                claims,
            },
        );
        assert!(out.contains(&enter), "{enter:?}");
        // As after a new connection.
        let mut again = Outbox::new();
        desk.client.connected(Node::Server(server), &mut again);
        assert_eq!(again, [enter]);
    }
}

#[test]
fn what_a_client_has_goes_before_it_leaves_and_when_it_is_given_up_or_cut_off() {
    let ends: [fn(&mut Desk); 3] = [
        |desk| desk.client.leave(&mut Outbox::new()),
        |desk| desk.tell(Node::Register, Message::Gone),
        |desk| desk.client.tick(desk.now + 2 * TERM, &mut Outbox::new()),
    ];
    for end in ends {
        let mut desk = Desk::new();
        desk.client.note_what_goes();
        desk.begin(1, read(0));
        desk.settle();
        assert!(desk.client.what_goes().is_empty());
        end(&mut desk);
        assert!(desk.client.what_goes().contains(&FILE));
        // Once: each tick finds it cut off.
        desk.client.tick(desk.now + 3 * TERM, &mut Outbox::new());
        assert!(desk.client.what_goes().is_empty());
    }
}
