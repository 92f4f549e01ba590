//! Files that become longer: when others may see their length.

use super::super::attributes::Inode;
use super::super::growth::UNBORN_MAX;
use super::*;

impl Desk {
    /// Answers everything, and says what went to the servers and what was given back, in this order: blocks once the servers have them, and lengths
    /// (with `high`) when they are sent.
    fn history(&mut self) -> Vec<What> {
        let mut all = Vec::new();
        let mut newest = None;
        while let Some(message) = self.sent.pop_front() {
            let mut had = Vec::new();
            match &message {
                Message::Write { blocks, .. } => {
                    for block in blocks {
                        match Inode::of(&block.bytes).filter(|_| block.place.1 == SIZE_BLOCK) {
                            Some(inode) => {
                                assert!(newest < Some(block.version), "{newest:?} {block:?}");
                                newest = Some(block.version);
                                all.push(What::Length(inode.size, inode.high));
                            }
                            None => had.push(What::Block(block.place.1)),
                        }
                    }
                }
                Message::Release { parts, .. } => {
                    all.extend(parts.iter().map(|(_, range, _)| What::Release(range.start)));
                }
                _ => {}
            }
            self.answer(&message, 1);
            all.extend(had);
        }
        all
    }

    /// Makes the file, which has two blocks, longer by as many again.
    fn grown() -> Desk {
        let mut desk = Desk::new();
        for block in [2, 3] {
            desk.begin(block, write(block));
            desk.settle();
        }
        let ends = [(2, Ok(Answer::Done)), (3, Ok(Answer::Done))];
        assert_eq!(desk.client.results(), ends);
        desk
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Block(u64),
    Length(u64, u64),
    Release(u64),
}

const LONGER: [What; 4] = [
    What::Length(2 * UNIT, 4 * UNIT),
    What::Block(2),
    What::Block(3),
    What::Length(4 * UNIT, 4 * UNIT),
];

#[test]
fn who_sees_a_new_length_finds_its_bytes() {
    for keep in [true, false] {
        let mut desk = Desk::grown();
        desk.recall(Range::one(SIZE_BLOCK), keep);
        let all = [&LONGER[..], &[What::Release(SIZE_BLOCK)]].concat();
        assert_eq!(desk.history(), all);
    }
}

#[test]
fn a_sync_writes_the_new_length_last() {
    let mut desk = Desk::grown();
    desk.begin(5, Operation::sync(FILE));
    assert_eq!(desk.history(), LONGER);
    assert_eq!(desk.client.results(), [(5, Ok(Answer::Done))]);
}

#[test]
fn a_file_does_not_become_much_longer_than_the_servers_know() {
    let mut desk = Desk::new();
    let most = UNBORN_MAX / UNIT;
    let (mut sent, mut ended) = (VecDeque::new(), 0);
    for block in 2..4 * most {
        desk.begin(block, write(block));
        // Grants are answered, and writes are not.
        while let Some(message) = desk.sent.pop_front() {
            match message {
                Message::Write { .. } => sent.push_back(message),
                message => desk.answer(&message, 1),
            }
        }
        ended += desk.client.results().len() as u64;
    }
    assert_eq!(ended, most);
    desk.sent = sent;
    desk.settle();
    ended += desk.client.results().len() as u64;
    assert_eq!(ended, 4 * most - 2, "all go on");
    desk.recall(Range::one(SIZE_BLOCK), false);
    let history = desk.history();
    let size = 4 * most * UNIT;
    let end = [What::Length(size, size), What::Release(SIZE_BLOCK)];
    assert_eq!(history[history.len() - 2..], end);
}
