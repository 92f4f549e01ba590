//! What went with a server before it was synced.

use super::*;
use crate::message::Loss;

const WHOLE: Range = Range {
    start: 0,
    end: SIZE_BLOCK + 1,
};

impl Desk {
    /// Whoever had the blocks has died, and another one is there under its number.
    fn lose(&mut self) {
        let epoch = Epoch(self.client.view.epoch.0 + 1);
        let loss = Loss {
            epoch,
            before: vec![Server(1)],
            dead: vec![Server(1)],
        };
        let mut view = self.client.view.clone();
        view.epoch = epoch;
        view.losses.push(loss);
        let sent = self.now;
        self.tell(
            Node::Register,
            Message::Member {
                sent,
                view: Some(view),
            },
        );
        let key = Key(epoch.0);
        self.tell(SERVER, Message::Entered { epoch, key });
        self.settle();
        self.client.results();
    }

    fn sync(&mut self) -> Result<Answer, Failure> {
        self.begin(99, Operation::Sync { file: FILE });
        self.settle();
        let (_, result) = self.client.results().pop().expect("a result");
        result
    }
}

/// One that has written two blocks, which have left its memory since.
fn written_out(mode: Mode) -> Desk {
    let mut desk = Desk::new();
    let write = Operation::Write {
        file: FILE,
        offset: 0,
        bytes: vec![5; 2 * UNIT as usize].into(),
        mode,
    };
    desk.begin(1, write);
    desk.settle();
    desk.recall(WHOLE, false);
    desk.settle();
    let state = desk.client.files.get(&FILE);
    assert!(state.is_none_or(|state| state.cache.is_empty()));
    desk
}

#[test]
fn a_sync_says_that_what_was_written_before_it_is_lost() {
    for mode in [Mode::Local, Mode::Remote] {
        let mut desk = written_out(mode);
        desk.lose();
        assert_eq!(desk.sync(), Err(Failure::Lost), "{mode:?}");
        // It has been told, and what is written anew is there.
        desk.begin(2, write(0));
        desk.settle();
        desk.client.results();
        assert_eq!(desk.sync(), Ok(Answer::Done));
    }
}

#[test]
fn what_is_lost_after_a_sync_or_written_after_a_loss_is_no_error_of_a_sync() {
    let mut desk = written_out(Mode::Local);
    assert_eq!(desk.sync(), Ok(Answer::Done));
    desk.lose();
    assert_eq!(desk.sync(), Ok(Answer::Done));
    let mut desk = written_out(Mode::Local);
    desk.lose();
    for block in 0..2 {
        desk.begin(block, write(block));
        desk.settle();
    }
    desk.recall(WHOLE, false);
    desk.settle();
    desk.client.results();
    assert_eq!(desk.sync(), Ok(Answer::Done));
}

#[test]
fn runs_of_blocks_that_went_are_remembered_once() {
    let mut desk = Desk::new();
    let mut went = |range: (u64, u64), epoch: u64| {
        let (start, end) = range;
        desk.client
            .remember(FILE, Range { start, end }, Epoch(epoch));
        let all = desk.client.went.iter();
        all.map(|((_, first), (last, epoch))| (*first, *last, epoch.0))
            .collect::<Vec<_>>()
    };
    went((0, 2), 1);
    assert_eq!(went((4, 6), 1), [(0, 2, 1), (4, 6, 1)]);
    assert_eq!(went((2, 4), 1), [(0, 6, 1)]);
    assert_eq!(went((1, 3), 2), [(0, 1, 1), (1, 3, 2), (3, 6, 1)]);
    assert_eq!(went((3, 4), 2), [(0, 1, 1), (1, 4, 2), (4, 6, 1)]);
    assert_eq!(went((0, 7), 3), [(0, 7, 3)]);
}
