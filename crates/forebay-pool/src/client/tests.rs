//! Single clients whose pool is played by hand.

mod room;

use std::collections::VecDeque;

use super::{Answer, Client, Config, Failure, Mode, Operation};
use crate::ids::{Client as Id, Epoch, File, Key, Node, SIZE_BLOCK, Server, Version};
use crate::message::{Block, Message, Outbox, View};
use crate::mistakes::{Mistake, plant};
use crate::range::Range;

const FILE: File = File(7);
const SERVER: Node = Node::Server(Server(1));
const EPOCH: Epoch = Epoch(1);
const TERM: u64 = 1000;
const UNIT: u64 = 32;

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
        self.tell(Node::Register, Message::Member { sent, view });
    }

    fn begin(&mut self, id: u64, operation: Operation) {
        let mut out = Outbox::new();
        self.client.begin(self.now, id, operation, &mut out);
        self.sent
            .extend(out.into_iter().map(|(_, message)| message));
    }

    fn recall(&mut self, range: Range, keep: bool) {
        let recall = Message::Recall {
            epoch: EPOCH,
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
            Message::Ask {
                epoch,
                number,
                file,
                need,
                right,
                ..
            } => {
                self.stamp += 1;
                let granted = Message::Granted {
                    epoch,
                    number,
                    file,
                    range: need,
                    right,
                    stamp: self.stamp,
                };
                self.tell(SERVER, granted);
            }
            Message::Read { number, place, .. } => {
                let size = [2 * UNIT, 2 * UNIT, 1, 0, 0, 0, 0, 0].map(u64::to_le_bytes);
                let block = Block {
                    place,
                    version: Version::default(),
                    bytes: if place.1 == SIZE_BLOCK {
                        size.as_flattened().to_vec()
                    } else {
                        vec![bytes; UNIT as usize]
                    },
                };
                let block = Some(block);
                self.tell(SERVER, Message::Bytes { number, block });
            }
            Message::Write { number, .. } => self.tell(SERVER, Message::Done { number }),
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
            if matches!(message, Message::Read { place, .. } if place == (FILE, block)) {
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
        bytes: vec![5; UNIT as usize],
        mode: Mode::Local,
    }
}

/// A client that has appended must give the file's size back, begins to write it, and is told to write a block meanwhile. Then somebody appends, and
/// wants everything: is it given back?
fn gives_everything_back() -> bool {
    let mut desk = Desk::new();
    let bytes = vec![3; UNIT as usize];
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
        Some((2, Ok(Answer::Bytes(bytes)))) => bytes,
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
    let bytes = vec![5; UNIT as usize];
    assert_eq!(ends, [(2, Ok(Answer::Done)), (3, Ok(Answer::Bytes(bytes)))]);
}
