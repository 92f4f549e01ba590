//! What a client does where servers have no memory for new blocks.

use super::*;

/// Of a file of three blocks the last one is a hole: how an operation ends.
fn result(desk: &mut Desk, operation: Operation) -> Result<Answer, Failure> {
    desk.begin(1, operation);
    while let Some(message) = desk.sent.pop_front() {
        let is_hole = |part: &Part| part.place.0 == FILE && (2..SIZE_BLOCK).contains(&part.place.1);
        match &message {
            Message::Read { number, parts, .. } if parts.iter().any(is_hole) => {
                let found = parts
                    .iter()
                    .map(|part| (!is_hole(part)).then_some(UNIT as u32));
                let found: Vec<_> = found.collect();
                let there = found.iter().flatten().count() * UNIT as usize;
                let (number, bytes) = (*number, vec![1; there].into());
                let came = Message::Bytes {
                    number,
                    found,
                    bytes,
                };
                desk.tell(SERVER, came);
            }
            _ => desk.answer(&message, 1),
        }
    }
    desk.client.results().pop().expect("it ends").1
}

fn write_of(first: u64, count: u64, mode: Mode) -> Operation {
    Operation::Write {
        file: FILE,
        offset: first * UNIT,
        bytes: vec![5; (count * UNIT) as usize].into(),
        mode,
    }
}

/// A client that has been told that its server is full.
fn told() -> Desk {
    let mut desk = Desk::new();
    let size = Operation::Truncate {
        file: FILE,
        size: 3 * UNIT,
    };
    assert_eq!(result(&mut desk, size), Ok(Answer::Done));
    desk.tell(SERVER, Message::Full { is_full: true });
    desk
}

#[test]
fn a_full_pool_takes_what_makes_no_new_block() {
    for mode in [Mode::Local, Mode::Remote] {
        let (mut desk, done, no_room) = (told(), Ok(Answer::Done), Err(Failure::NoRoom));
        assert_eq!(result(&mut desk, write_of(0, 2, mode)), done, "{mode:?}");
        assert_eq!(result(&mut desk, write_of(2, 1, mode)), no_room, "{mode:?}");
        assert_eq!(result(&mut desk, write_of(1, 2, mode)), no_room, "{mode:?}");
        assert_eq!(result(&mut desk, write_of(3, 1, mode)), no_room, "{mode:?}");
        let bytes = vec![3; UNIT as usize].into();
        let append = Operation::Append { file: FILE, bytes };
        assert_eq!(result(&mut desk, append.clone()), no_room);
        let size = Operation::Attributes { file: FILE };
        let Ok(Answer::Attributes(length, _)) = result(&mut desk, size) else {
            panic!("no size");
        };
        assert_eq!(length, 3 * UNIT, "what is refused has changed something");
        assert_eq!(result(&mut desk, Operation::MakeNameless), no_room);
        assert_eq!(result(&mut desk, Operation::sync(FILE)), done);
        desk.tell(SERVER, Message::Full { is_full: false });
        assert_eq!(result(&mut desk, append), Ok(Answer::At(3 * UNIT)));
    }
}

#[test]
fn a_full_server_is_full_until_it_says_otherwise() {
    let append = || Operation::Append {
        file: FILE,
        bytes: vec![3; UNIT as usize].into(),
    };
    let no_room = Err(Failure::NoRoom);
    let mut desk = told();
    // A connection that comes and goes makes no room.
    let mut out = Outbox::new();
    desk.client.connected(SERVER, &mut out);
    desk.sent
        .extend(out.into_iter().map(|(_, message)| message));
    assert_eq!(result(&mut desk, append()), no_room);
    desk.tell(SERVER, Message::Full { is_full: false });
    assert_eq!(result(&mut desk, append()), Ok(Answer::At(3 * UNIT)));
    desk.tell(SERVER, Message::Full { is_full: true });
    // Nor does an epoch, if the server is in it still.
    let (epoch, key) = (Epoch(2), Key(2));
    desk.tell(Node::Register, next_epoch());
    desk.tell(SERVER, Message::Entered { epoch, key });
    assert_eq!(result(&mut desk, append()), no_room);
    desk.tell(SERVER, Message::Full { is_full: false });
    assert_eq!(result(&mut desk, append()), Ok(Answer::At(4 * UNIT)));
}

fn next_epoch() -> Message {
    let view = View {
        epoch: Epoch(2),
        servers: vec![Server(1)],
        clients: vec![Id(9)],
        active: true,
        ..View::default()
    };
    Message::Member {
        sent: 0,
        view: Some(view),
    }
}
