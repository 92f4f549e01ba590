//! What a client makes of blocks that are damaged in the home.

use super::*;

/// How an operation ends where the home has a damaged block for the first one of the file.
fn of_damage(desk: &mut Desk, operation: Operation) -> Result<Answer, Failure> {
    let place = (FILE, 0);
    desk.begin(1, operation);
    // Whoever asked again for ever would be found waiting.
    for _ in 0..50 {
        let Some(message) = desk.sent.pop_front() else {
            break;
        };
        let damaged = match &message {
            Message::Read { number, parts, .. } => {
                (parts.iter().any(|part| part.place == place)).then_some(*number)
            }
            Message::Patch { number, parts, .. } => {
                (parts.iter().any(|(block, _)| block.place == place)).then_some(*number)
            }
            _ => None,
        };
        let Some(number) = damaged else {
            desk.answer(&message, 1);
            continue;
        };
        let places = vec![place];
        desk.tell(SERVER, Message::Damaged { number, places });
    }
    assert!(desk.sent.is_empty());
    let mut results = desk.client.results();
    assert_eq!(results.len(), 1, "it waits");
    results.remove(0).1
}

fn read_of(length: u64, mode: Mode) -> Operation {
    Operation::Read {
        file: FILE,
        offset: 0,
        length,
        mode,
    }
}

fn write_of(offset: u64, length: u64, mode: Mode) -> Operation {
    Operation::Write {
        file: FILE,
        offset,
        bytes: vec![5; length as usize].into(),
        mode,
    }
}

#[test]
fn whoever_needs_a_damaged_block_is_told_and_nobody_else() {
    for mode in [Mode::Local, Mode::Remote] {
        let mut desk = Desk::new();
        let lost = Err(Failure::Lost);
        assert_eq!(of_damage(&mut desk, read_of(UNIT, mode)), lost);
        assert_eq!(of_damage(&mut desk, read_of(2 * UNIT, mode)), lost);
        assert_eq!(of_damage(&mut desk, write_of(1, 3, mode)), lost);
        assert_eq!(of_damage(&mut desk, write_of(1, UNIT, mode)), lost);
        let bytes = vec![1; UNIT as usize].into();
        let other = of_damage(&mut desk, read(1));
        assert_eq!(other, Ok(Answer::Bytes(bytes)));
        // What the servers have meanwhile is found.
        desk.begin(2, read_of(UNIT, mode));
        desk.settle();
        let bytes = vec![1; UNIT as usize].into();
        assert_eq!(desk.client.results(), [(2, Ok(Answer::Bytes(bytes)))]);
    }
}

#[test]
fn a_write_of_a_whole_block_mends_it() {
    for mode in [Mode::Local, Mode::Remote] {
        let mut desk = Desk::new();
        let lost = Err(Failure::Lost);
        assert_eq!(of_damage(&mut desk, read_of(UNIT, mode)), lost);
        let done = Ok(Answer::Done);
        assert_eq!(of_damage(&mut desk, write_of(0, UNIT, mode)), done);
        let sync = Operation::sync(FILE);
        assert_eq!(of_damage(&mut desk, sync), done);
        desk.begin(2, read_of(UNIT, Mode::Local));
        desk.settle();
        let results = desk.client.results();
        assert!(matches!(results[..], [(2, Ok(Answer::Bytes(_)))]));
    }
}
