//! How much a client has under way.

use super::super::names;
use super::super::transfer::{ASKED_MAX, UNANSWERED_MAX};
use super::*;
use crate::client::{Facts, Kind};

/// Bytes that a message writes.
fn written(message: &Message) -> u64 {
    match message {
        Message::Write { blocks, .. } => blocks.iter().map(|block| block.bytes.len() as u64).sum(),
        Message::Patch { parts, .. } => parts
            .iter()
            .map(|(block, _)| block.bytes.len() as u64)
            .sum(),
        _ => 0,
    }
}

const DIRTY: u64 = 44;

impl Desk {
    /// Answers everything, and says how many bytes were under way at most, and how many were written.
    fn settle_and_count(&mut self) -> (u64, u64) {
        let (mut most, mut all) = (0_u64, 0_u64);
        while !self.sent.is_empty() {
            most = most.max(self.sent.iter().map(written).sum());
            let message = self.sent.remove(0).expect("a message");
            all += written(&message);
            self.answer(&message, 1);
        }
        let under_way = (self.client.unanswered, self.client.asked);
        assert_eq!(under_way, (0, 0), "all has been answered");
        (most, all)
    }

    /// Makes the file longer, in memory alone.
    fn make_dirty(&mut self) {
        for block in 0..DIRTY {
            self.begin(block, write(block));
            self.settle();
        }
        self.client.results();
    }

    /// Writes all of it remotely.
    fn write_past(&mut self, id: u64) {
        let write = Operation::Write {
            file: FILE,
            offset: 0,
            bytes: vec![9; (DIRTY * UNIT) as usize].into(),
            mode: Mode::Remote,
        };
        self.begin(id, write);
    }
}

fn is_room_used(most: u64) -> bool {
    (UNANSWERED_MAX / 2..UNANSWERED_MAX + 2 * UNIT).contains(&most)
}

/// Bytes of blocks that a message asks for.
fn asked(message: &Message) -> u64 {
    match message {
        Message::Read { parts, .. } => {
            let length = |part: &Part| u64::from(part.length).min(UNIT);
            parts.iter().map(length).sum()
        }
        _ => 0,
    }
}

#[test]
fn what_is_read_at_once_is_asked_for_as_servers_answer() {
    for mode in [Mode::Local, Mode::Remote] {
        let mut desk = Desk::new();
        let blocks = 3 * ASKED_MAX / UNIT;
        let length = blocks * UNIT;
        for block in 0..blocks {
            desk.begin(block, write(block));
            desk.settle();
        }
        desk.begin(blocks, Operation::sync(FILE));
        desk.settle();
        desk.client.results();
        let all = Range {
            start: 0,
            end: blocks,
        };
        desk.client.drop_blocks(FILE, all);
        let read = Operation::Read {
            file: FILE,
            offset: 0,
            length,
            mode,
        };
        desk.begin(7, read);
        let (mut most, mut all) = (0, 0);
        while !desk.sent.is_empty() {
            most = most.max(desk.sent.iter().map(asked).sum());
            let message = desk.sent.remove(0).expect("a message");
            all += asked(&message);
            desk.answer(&message, 1);
        }
        let results = desk.client.results();
        let [(7, Ok(Answer::Bytes(bytes)))] = &results[..] else {
            panic!("{mode:?}: {results:?}");
        };
        assert_eq!((bytes.len() as u64, all), (length, length), "{mode:?}");
        assert!(
            (ASKED_MAX / 2..=ASKED_MAX).contains(&most),
            "{mode:?}: {most} bytes were under way"
        );
    }
}

#[test]
fn what_is_dirty_is_written_as_servers_answer() {
    let mut desk = Desk::new();
    desk.make_dirty();
    desk.begin(DIRTY, Operation::sync(FILE));
    let (most, all) = desk.settle_and_count();
    assert_eq!(desk.client.results(), [(DIRTY, Ok(Answer::Done))]);
    assert!(all >= DIRTY * UNIT, "{all} bytes were written");
    assert!(is_room_used(most), "{most} bytes were under way");
}

/// A client whose file is at the servers as long as it is going to be.
fn clean() -> Desk {
    let mut desk = Desk::new();
    desk.make_dirty();
    desk.begin(DIRTY, Operation::sync(FILE));
    desk.settle();
    desk.client.results();
    desk
}

#[test]
fn a_long_remote_write_goes_as_servers_answer() {
    let mut desk = clean();
    desk.write_past(1);
    // It waits for the bytes that have not gone as well.
    desk.begin(2, read(DIRTY - 1));
    let (most, all) = desk.settle_and_count();
    let ends = desk.client.results().into_iter().map(|(id, _)| id);
    assert_eq!(ends.collect::<Vec<_>>(), [1, 2]);
    assert_eq!(all, DIRTY * UNIT);
    assert!(is_room_used(most), "{most} bytes were under way");
}

#[test]
fn what_a_new_epoch_forgets_takes_no_room() {
    let mut desk = clean();
    desk.write_past(1);
    desk.sent.clear();
    let epoch = Epoch(2);
    let view = View {
        epoch,
        ..desk.client.view.clone()
    };
    let sent = desk.now;
    desk.tell(
        Node::Register,
        Message::Member {
            sent,
            view: Some(view),
        },
    );
    let key = Key(2);
    desk.tell(SERVER, Message::Entered { epoch, key });
    let (most, all) = desk.settle_and_count();
    assert_eq!(desk.client.results(), [(1, Ok(Answer::Done))]);
    assert_eq!(all, DIRTY * UNIT);
    assert!(is_room_used(most), "{most} bytes were under way");
}

/// Answers that a block of names is not there.
fn no_names(desk: &mut Desk, message: &Message) {
    if let Message::Read { number, .. } = *message {
        let (found, bytes) = (vec![None], Rope::default());
        let answer = Message::Bytes {
            number,
            found,
            bytes,
        };
        desk.tell(SERVER, answer);
    } else {
        desk.answer(message, 1);
    }
}

#[test]
fn names_that_wait_for_room_are_written_together() {
    let mut desk = clean();
    let make = Operation::Make {
        parent: File::ROOT,
        name: b"directory".to_vec(),
        facts: Facts {
            kind: Kind::Directory,
            ..Facts::default()
        },
        bytes: Vec::new(),
    };
    // Its names are to be in another block than its parent's.
    let next = |desk: &Desk| desk.client.clone().next_file(&make).expect("a number");
    while names::needs(&make, next(&desk)).len() < 2 {
        desk.client.files_made += 1;
    }
    desk.make_dirty();
    desk.begin(1, Operation::sync(FILE));
    let full = std::mem::take(&mut desk.sent);
    desk.begin(2, make);
    while let Some(message) = desk.sent.pop_front() {
        no_names(&mut desk, &message);
    }
    assert_eq!(desk.client.results(), []);
    // All but what was used last is too much.
    desk.client.config.cache_blocks = 1;
    desk.sent = full;
    let mut of_names = Vec::new();
    while let Some(message) = desk.sent.pop_front() {
        if let Message::Write { blocks, .. } = &message
            && blocks[0].place.0 == File::NAMES
        {
            of_names.push(blocks.len());
        }
        desk.answer(&message, 1);
    }
    assert_eq!(desk.client.results().len(), 2);
    assert_eq!(of_names, [2]);
}

/// Asks for a file's attributes, and has all answered but what is written; says what was given back meanwhile.
fn look_at(desk: &mut Desk, file: File) -> Vec<File> {
    let mut given = Vec::new();
    desk.begin(file.0, Operation::Attributes { file });
    let mut held = VecDeque::new();
    while let Some(message) = desk.sent.pop_front() {
        match &message {
            Message::Write { .. } => held.push_back(message),
            Message::Release { parts, .. } => given.extend(parts.iter().map(|(file, ..)| *file)),
            _ => desk.answer(&message, 1),
        }
    }
    desk.sent = held;
    let results = desk.client.results();
    assert!(
        matches!(results[..], [(id, Ok(Answer::Attributes(..)))] if id == file.0),
        "{results:?}"
    );
    given
}

#[test]
fn of_many_files_a_few_are_known_and_the_grants_of_the_others_go_back() {
    let mut desk = Desk::new();
    desk.client.config.cache_blocks = 4;
    let mut given = Vec::new();
    for number in 100..2100 {
        given.extend(look_at(&mut desk, File(number)));
        let client = &desk.client;
        let kept = (client.files.len(), client.order.len(), client.cached.len());
        assert!(kept.0 <= 2 && kept.1 <= 2 && kept.2 <= 4, "{kept:?}");
    }
    // Those that were used longest ago, each once.
    assert!(given.into_iter().eq((100..2098).map(File)));
    // One of those that are known is not asked for, and another one is.
    desk.begin(1, Operation::Attributes { file: File(2099) });
    assert!(desk.sent.is_empty());
    desk.client.results();
    desk.begin(100, Operation::Attributes { file: File(100) });
    assert!(matches!(desk.sent.front(), Some(Message::Ask { .. })));
    desk.settle();
    assert_eq!(desk.client.results().len(), 1);
}

#[test]
fn what_the_servers_do_not_have_is_written_before_it_is_forgotten() {
    let mut desk = Desk::new();
    desk.client.config.cache_blocks = 4;
    desk.begin(1, write(2));
    desk.settle();
    // The servers do not answer to what is written, and first that is a draft.
    desk.client.results();
    for number in 100..200 {
        look_at(&mut desk, File(number));
    }
    let state = &desk.client.files[&FILE];
    assert!(state.cache.contains_key(&2) && state.cache[&SIZE_BLOCK].is_owed());
    assert!(desk.client.files.len() <= 3);
    // It has become no newer by that.
    let (_, oldest) = desk.client.order.first_key_value().expect("a file");
    assert_eq!(*oldest, FILE);
    desk.settle();
    for number in 100..200 {
        look_at(&mut desk, File(number));
        desk.settle();
    }
    assert!(!desk.client.files.contains_key(&FILE));
    desk.begin(1, Operation::Attributes { file: FILE });
    assert!(matches!(desk.sent.front(), Some(Message::Ask { .. })));
}
