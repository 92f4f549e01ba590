//! What the servers lack for too long, and nobody has asked for.

use super::super::attributes::Inode;
use super::super::growth::UNBORN_MAX;
use super::super::transfer::{UNANSWERED_MAX, WRITE_BATCH};
use super::*;
use crate::message::Loss;

const INTERVAL: u64 = 500;

impl Desk {
    /// One whose client writes by itself.
    fn ageing() -> Desk {
        let mut desk = Desk::new();
        desk.client.config.flush_interval = INTERVAL;
        desk
    }

    /// The clock moves on.
    fn tick(&mut self, now: u64) {
        self.now = now;
        self.member();
        let mut out = Outbox::new();
        self.client.tick(now, &mut out);
        let sent = out.into_iter().map(|(_, message)| message);
        let is_sign = |message: &Message| matches!(message, Message::Alive { .. });
        self.sent.extend(sent.filter(|message| !is_sign(message)));
    }

    /// Does an operation, which ends well.
    fn does(&mut self, operation: Operation) {
        self.begin(1, operation);
        self.settle();
        let results = self.client.results();
        assert!(matches!(results[..], [(1, Ok(_))]), "{results:?}");
    }

    /// Blocks that are on their way.
    fn on_their_way(&self) -> Vec<u64> {
        self.sent.iter().flat_map(written).collect()
    }

    /// Answers everything, and says which blocks were written, in this order.
    fn settle_and_list(&mut self) -> Vec<u64> {
        let mut all = Vec::new();
        while let Some(message) = self.sent.pop_front() {
            all.extend(written(&message));
            self.answer(&message, 1);
        }
        all
    }
}

/// Blocks that a message writes.
fn written(message: &Message) -> Vec<u64> {
    match message {
        Message::Write { blocks, .. } => blocks.iter().map(|block| block.place.1).collect(),
        _ => Vec::new(),
    }
}

fn append(length: u64) -> Operation {
    Operation::Append {
        file: FILE,
        bytes: vec![3; length as usize].into(),
    }
}

#[test]
fn what_is_dirty_is_written_after_the_interval_and_not_before() {
    let mut desk = Desk::ageing();
    desk.does(write(0));
    desk.tick(INTERVAL / 2);
    desk.does(write(1));
    // This one stays as old as it is.
    desk.does(write(0));
    desk.tick(INTERVAL - 1);
    assert!(desk.sent.is_empty(), "{:?}", desk.sent);
    desk.tick(INTERVAL);
    assert_eq!(desk.settle_and_list(), [0]);
    desk.tick(INTERVAL + INTERVAL / 2);
    assert_eq!(desk.settle_and_list(), [1]);
    desk.tick(INTERVAL * 4);
    assert!(desk.sent.is_empty(), "{:?}", desk.sent);
    // It begins anew.
    desk.does(write(0));
    desk.tick(INTERVAL * 5 - 1);
    assert!(desk.sent.is_empty(), "{:?}", desk.sent);
    desk.tick(INTERVAL * 5);
    assert_eq!(desk.settle_and_list(), [0]);
}

#[test]
fn nothing_is_written_where_that_is_said() {
    let mut desk = Desk::new();
    desk.does(write(0));
    desk.tick(1 << 40);
    assert!(desk.sent.is_empty(), "{:?}", desk.sent);
}

#[test]
fn what_is_changed_all_the_time_is_written_once_in_each_interval() {
    let mut desk = Desk::ageing();
    let (mut times, end) = (0, INTERVAL * 10);
    for now in (0..end).step_by(10) {
        desk.tick(now);
        // Changed while it is under way, too.
        let message = desk.sent.pop_front();
        desk.does(write(0));
        if let Some(message) = message {
            assert_eq!(written(&message), [0]);
            times += 1;
            desk.answer(&message, 1);
        }
    }
    assert!((8..=9).contains(&times), "{times}");
}

#[test]
fn the_length_of_a_file_that_grows_all_the_time_is_written() {
    grows_all_the_time(Desk::ageing(), 3, 10);
}

/// What has been written of it goes from memory before the rest has been written.
#[test]
fn so_it_is_where_memory_is_small() {
    for cache_blocks in [2, 8] {
        let mut desk = Desk::ageing();
        desk.client.config.cache_blocks = cache_blocks;
        grows_all_the_time(desk, UNIT, 50);
    }
}

/// Somebody appends whenever a server answers, and after each step of time: there is always something that makes the file longer, and that the servers lack.
fn grows_all_the_time(mut desk: Desk, length: u64, step: u64) {
    desk.does(append(length));
    let mut size = 2 * UNIT + length;
    let mut waits = false;
    let mut grow = |desk: &mut Desk| {
        if !waits {
            desk.begin(2, append(length));
        }
        // What it asks for is answered, and what is written is not.
        let all = std::mem::take(&mut desk.sent);
        let (writes, asks): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|message| !written(message).is_empty());
        asks.iter().for_each(|message| desk.answer(message, 0));
        writes
            .into_iter()
            .rev()
            .for_each(|message| desk.sent.push_front(message));
        let results = desk.client.results();
        waits = results.is_empty();
        if !waits {
            assert_eq!(results, [(2, Ok(Answer::At(size)))]);
            size += length;
        }
        size
    };
    // What the servers have: the length, and blocks.
    let (mut told, mut blocks) = (2 * UNIT, vec![0, 1]);
    let mut lengths = vec![(0, told)];
    for now in (step..INTERVAL * 8).step_by(step as usize) {
        desk.tick(now);
        let mut answers = 0;
        while let Some(message) = desk.sent.pop_front() {
            // Not for ever: where memory is small each append is written at once.
            answers += 1;
            if answers <= 16 {
                grow(&mut desk);
            }
            if let Message::Write { blocks: sent, .. } = &message {
                for block in sent.iter().filter(|block| block.place.1 == SIZE_BLOCK) {
                    let inode = Inode::of(&block.bytes).expect("a size");
                    assert!(told <= inode.size && inode.size <= inode.high, "{inode:?}");
                    told = inode.size;
                    let mut below = 0..told.div_ceil(UNIT);
                    assert!(
                        below.all(|block| blocks.contains(&block)),
                        "{told} {blocks:?}"
                    );
                }
            }
            blocks.extend(written(&message));
            desk.answer(&message, 1);
        }
        lengths.push((now, grow(&mut desk)));
        let then = now.saturating_sub(2 * INTERVAL);
        let least = lengths.iter().rev().find(|(at, _)| *at <= then);
        let least = least.expect("a length").1;
        assert!(
            told >= least,
            "at {now} {told}, and at {then} it was {least}"
        );
    }
}

#[test]
fn what_is_removed_before_it_is_old_is_not_written() {
    let mut desk = Desk::ageing();
    desk.does(append(3 * UNIT));
    desk.tick(INTERVAL - 1);
    desk.begin(2, Operation::Remove { file: FILE });
    let mut all = desk.settle_and_list();
    desk.tick(INTERVAL * 2);
    all.extend(desk.settle_and_list());
    assert!(all.is_empty(), "{all:?}");
    assert_eq!(desk.client.dirty.len(), 0, "nothing of it is remembered");
}

#[test]
fn the_oldest_are_written_first_and_a_few_at_a_time() {
    let mut desk = Desk::ageing();
    let all: Vec<u64> = (0..2 * UNANSWERED_MAX / UNIT).collect();
    let bytes = vec![1; (2 * UNANSWERED_MAX) as usize].into();
    desk.does(Operation::Write {
        file: FILE,
        offset: 0,
        bytes,
        mode: Mode::Local,
    });
    desk.does(Operation::sync(FILE));
    for block in all.iter().rev() {
        desk.does(write(*block));
    }
    desk.tick(INTERVAL * 2);
    let most = UNANSWERED_MAX / 2 / UNIT;
    let (mut first, mut list) = (all.len() as u64, Vec::new());
    while !desk.sent.is_empty() {
        let under_way = desk.on_their_way().len() as u64;
        assert!(under_way < most, "{under_way} blocks are under way");
        let message = desk.sent.pop_front().expect("a message");
        let blocks = written(&message);
        // Within one go neighbours go together.
        assert!(
            blocks.iter().all(|block| block + most / 2 >= first),
            "{blocks:?}"
        );
        first = first.min(blocks.iter().copied().min().unwrap_or(first));
        list.extend(blocks);
        desk.answer(&message, 1);
    }
    list.sort_unstable();
    assert_eq!(list, all, "one tick is enough");
}

/// Dirty blocks of one file, of several ones, and of one that has grown, whose length is dirty for as long.
#[test]
fn what_is_begun_at_once_is_a_batch_and_no_more() {
    const BATCH: usize = (WRITE_BATCH / UNIT) as usize;
    let blocks = 5 * BATCH as u64;
    let of_one = |desk: &mut Desk| {
        let (file, offset, mode) = (FILE, 0, Mode::Local);
        let bytes = vec![1; (blocks * UNIT) as usize].into();
        desk.does(Operation::Write {
            file,
            offset,
            bytes,
            mode,
        });
        desk.does(Operation::sync(FILE));
        (0..blocks).for_each(|block| desk.does(write(block)));
    };
    let of_several = |desk: &mut Desk| {
        for block in 0..blocks {
            let (file, offset, mode) = (File(FILE.0 + block % 3), block % 2 * UNIT, Mode::Local);
            let bytes = vec![1; UNIT as usize].into();
            desk.does(Operation::Write {
                file,
                offset,
                bytes,
                mode,
            });
        }
    };
    let of_a_growing_one = |desk: &mut Desk| (0..blocks).for_each(|_| desk.does(append(UNIT)));
    let kinds: [&dyn Fn(&mut Desk); 3] = [&of_one, &of_several, &of_a_growing_one];
    for (kind, makes_dirty) in kinds.into_iter().enumerate() {
        let mut desk = Desk::ageing();
        makes_dirty(&mut desk);
        assert!(desk.sent.is_empty(), "{kind}: {:?}", desk.sent);
        let mut written_at_all = 0;
        for now in [INTERVAL, INTERVAL + 1] {
            desk.tick(now);
            let under_way = desk.on_their_way().len();
            assert!((1..=BATCH).contains(&under_way), "{kind}: {under_way}");
        }
        while let Some(message) = desk.sent.pop_front() {
            written_at_all += written(&message).len();
            desk.answer(&message, 1);
            let under_way = desk.on_their_way().len();
            assert!(under_way <= BATCH, "{kind}: {under_way}");
        }
        assert!(written_at_all > 0 && desk.client.dirty.is_empty(), "{kind}");
    }
}

/// Whoever waits for room takes all that there is when a server answers.
#[test]
fn an_old_block_is_written_while_another_file_grows_as_fast_as_it_may() {
    let mut desk = Desk::ageing();
    let other = File(FILE.0 + 1);
    desk.does(Operation::Write {
        file: other,
        offset: 0,
        bytes: vec![3; UNIT as usize].into(),
        mode: Mode::Local,
    });
    desk.client.config.cache_blocks = 1 << 10;
    let mut begun = 0;
    let mut grow = |desk: &mut Desk| {
        while begun < UNBORN_MAX / UNIT * 2 {
            desk.begin(2, append(UNIT));
            begun += 1;
        }
        begun -= desk.client.results().len() as u64;
    };
    for answers in 0..400 {
        grow(&mut desk);
        if answers == 100 {
            assert!(desk.client.unanswered > UNANSWERED_MAX / 2);
            desk.tick(INTERVAL);
        }
        let message = desk.sent.pop_front().expect("a message");
        if let Message::Write { blocks, .. } = &message
            && blocks.iter().any(|block| block.place == (other, 0))
        {
            assert!(answers > 100, "it is old");
            return;
        }
        desk.answer(&message, 1);
    }
    panic!("it is not written");
}

#[test]
fn a_length_for_which_there_is_no_room_goes_later() {
    let mut desk = Desk::ageing();
    desk.does(append(2 * UNIT));
    desk.now = 1;
    desk.does(write(0));
    desk.tick(INTERVAL);
    let draft = desk.sent.pop_front().expect("a draft");
    desk.begin(2, append(UNIT));
    assert_eq!(desk.client.results(), [(2, Ok(Answer::At(4 * UNIT)))]);
    desk.answer(&draft, 1);
    let message = desk.sent.pop_front().expect("the bytes");
    assert_eq!(written(&message), [2, 3]);
    // Others take the room, all but a little. An old block takes that.
    let others = UNANSWERED_MAX - 1;
    desk.client.unanswered += others;
    desk.now = INTERVAL + 1;
    desk.answer(&message, 1);
    assert_eq!(desk.on_their_way(), [0]);
    desk.client.unanswered -= others;
    let message = desk.sent.pop_front().expect("the old block");
    desk.answer(&message, 1);
    assert_eq!(desk.on_their_way(), [SIZE_BLOCK]);
    let Some(Message::Write { blocks, .. }) = desk.sent.pop_front() else {
        panic!("the length is not written");
    };
    let inode = Inode::of(&blocks[0].bytes).expect("a size");
    assert_eq!(inode.size, 4 * UNIT);
}

#[test]
fn nothing_is_begun_before_all_servers_have_let_it_in() {
    let mut desk = Desk::ageing();
    desk.does(write(0));
    let epoch = Epoch(EPOCH.0 + 1);
    begins(&mut desk, epoch);
    desk.sent.clear();
    let mut out = Outbox::new();
    desk.now = INTERVAL;
    desk.client.tick(desk.now, &mut out);
    assert_eq!(desk.client.transfers.len(), 0);
    desk.tell(SERVER, Message::Entered { epoch, key: Key(2) });
    desk.client.tick(desk.now, &mut out);
    assert_eq!(desk.client.transfers.len(), 1);
}

#[test]
fn what_was_written_so_and_is_lost_is_told_by_the_next_sync() {
    let mut desk = Desk::ageing();
    desk.does(write(0));
    desk.tick(INTERVAL);
    assert_eq!(desk.settle_and_list(), [0]);
    let epoch = Epoch(EPOCH.0 + 1);
    let mut view = desk.client.view.clone();
    view.epoch = epoch;
    view.losses.push(Loss {
        epoch,
        before: vec![Server(1)],
        dead: vec![Server(1)],
    });
    let sent = desk.now;
    let view = Some(view);
    desk.tell(Node::Register, Message::Member { sent, view });
    desk.tell(SERVER, Message::Entered { epoch, key: Key(2) });
    desk.settle();
    let heard = Some(u64::MAX);
    desk.begin(9, Operation::Sync { file: FILE, heard });
    desk.settle();
    assert_eq!(desk.client.results(), [(9, Err(Failure::Lost))]);
}
