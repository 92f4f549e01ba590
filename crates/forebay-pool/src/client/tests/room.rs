//! How much a client has under way.

use super::super::transfer::UNANSWERED_MAX;
use super::*;

/// Bytes that a message writes.
fn written(message: &Message) -> u64 {
    match message {
        Message::Write { blocks, .. } => blocks.iter().map(|block| block.bytes.len() as u64).sum(),
        _ => 0,
    }
}

#[test]
fn what_is_dirty_is_written_as_servers_answer() {
    const DIRTY: u64 = 60;
    let mut desk = Desk::new();
    for block in 0..DIRTY {
        desk.begin(block, write(block));
        desk.settle();
    }
    desk.client.results();
    desk.begin(DIRTY, Operation::Sync { file: FILE });
    let (mut most, mut all) = (0_u64, 0_u64);
    while !desk.sent.is_empty() {
        most = most.max(desk.sent.iter().map(written).sum());
        let message = desk.sent.remove(0).expect("a message");
        all += written(&message);
        desk.answer(&message, 1);
    }
    assert_eq!(desk.client.results(), [(DIRTY, Ok(Answer::Done))]);
    assert!(all >= DIRTY * UNIT, "{all} bytes were written");
    let room = UNANSWERED_MAX / 2..UNANSWERED_MAX + 2 * UNIT;
    assert!(room.contains(&most), "{most} bytes were under way");
}
