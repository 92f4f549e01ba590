//! What went with a server before it was synced.

use super::*;
use crate::client::Facts;
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
        self.begin_epoch(view);
        self.settle();
        self.client.results();
    }

    /// So has the host of the home, and of all servers.
    fn lose_power(&mut self) {
        let epoch = Epoch(self.client.view.epoch.0 + 1);
        let view = View {
            epoch,
            home_lost: epoch,
            ..self.client.view.clone()
        };
        self.sent.clear();
        self.begin_epoch(view);
        self.settle();
    }

    fn begin_epoch(&mut self, view: View) {
        let key = Key(view.epoch.0);
        let epoch = view.epoch;
        let sent = self.now;
        self.tell(
            Node::Register,
            Message::Member {
                sent,
                view: Some(view),
            },
        );
        self.tell(SERVER, Message::Entered { epoch, key });
    }

    /// Answers everything but this, and says the first one of that.
    fn settle_but(&mut self, is_left: impl Fn(&Message) -> bool) -> Option<Message> {
        let mut left = None;
        while let Some(message) = self.sent.pop_front() {
            if is_left(&message) {
                left.get_or_insert(message);
            } else {
                self.answer(&message, 1);
            }
        }
        left
    }

    fn sync(&mut self) -> Result<Answer, Failure> {
        self.sync_by(Some(u64::MAX))
    }

    /// By an opening that has heard of these losses, or by nobody.
    fn sync_by(&mut self, heard: Option<u64>) -> Result<Answer, Failure> {
        self.begin(99, Operation::Sync { file: FILE, heard });
        self.settle();
        let (_, result) = self.client.results().pop().expect("a result");
        result
    }
}

fn with_home() -> Desk {
    let mut desk = Desk::new();
    desk.client.config.has_home = true;
    desk
}

/// One that has written two blocks, which have left its memory since.
fn written_out(mode: Mode) -> Desk {
    let mut desk = Desk::new();
    put(&mut desk, mode);
    desk
}

/// Writes two blocks, which leave the client's memory.
fn put(desk: &mut Desk, mode: Mode) {
    let write = Operation::Write {
        file: FILE,
        offset: 0,
        bytes: vec![5; 2 * UNIT as usize].into(),
        mode,
    };
    desk.begin(1, write);
    desk.settle();
    let epoch = desk.client.view.epoch;
    desk.recall_in(epoch, WHOLE, false);
    desk.settle();
    let state = desk.client.files.get(&FILE);
    assert!(state.is_none_or(|state| state.cache.is_empty()));
    desk.client.results();
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
fn a_sync_says_what_a_home_that_has_lost_power_may_have_lost() {
    for mode in [Mode::Local, Mode::Remote] {
        let mut desk = with_home();
        put(&mut desk, mode);
        desk.lose_power();
        assert_eq!(desk.sync(), Err(Failure::Lost), "{mode:?}");
        assert_eq!(desk.sync(), Ok(Answer::Done));
        // What is written and synced after that has nothing to do with it, and what comes after a sync neither.
        put(&mut desk, mode);
        assert_eq!(desk.sync(), Ok(Answer::Done));
        desk.lose_power();
        assert_eq!(desk.sync(), Ok(Answer::Done));
    }
}

#[test]
fn a_sync_that_is_under_way_when_power_goes_says_so() {
    let mut desk = with_home();
    put(&mut desk, Mode::Local);
    desk.begin(3, Operation::sync(FILE));
    desk.settle_but(|message| matches!(message, Message::Persist { .. }));
    desk.lose_power();
    assert_eq!(desk.client.results(), [(3, Err(Failure::Lost))]);
}

#[test]
fn what_goes_while_a_sync_is_under_way_is_for_the_next_one() {
    let mut desk = with_home();
    put(&mut desk, Mode::Local);
    desk.begin(3, Operation::sync(FILE));
    let persist = desk.settle_but(|message| matches!(message, Message::Persist { .. }));
    // Somebody wants what is dirty.
    let range = Range::one(0);
    desk.client.remember(FILE, range, desk.client.view.epoch);
    let persist = persist.expect("it is asked for");
    desk.answer(&persist, 0);
    desk.settle();
    assert_eq!(desk.client.results(), [(3, Ok(Answer::Done))]);
    desk.lose_power();
    assert_eq!(desk.sync(), Err(Failure::Lost));
}

#[test]
fn names_that_a_home_may_have_lost_are_told_by_the_next_sync_of_anything() {
    let mut desk = with_home();
    let make = Operation::Make {
        parent: File::ROOT,
        name: b"name".to_vec(),
        facts: Facts::default(),
        bytes: Vec::new(),
    };
    desk.begin(1, make);
    desk.settle();
    assert!(matches!(
        desk.client.results()[..],
        [(1, Ok(Answer::Made(_, true)))]
    ));
    desk.lose_power();
    assert_eq!(desk.sync(), Err(Failure::Lost));
    assert_eq!(desk.sync(), Ok(Answer::Done));
}

/// One that has written and lost what a sync tells: blocks, blocks of a home, and names of a home.
fn with_losses() -> [Desk; 3] {
    let mut blocks = written_out(Mode::Local);
    blocks.lose();
    let mut of_home = with_home();
    put(&mut of_home, Mode::Local);
    of_home.lose_power();
    let mut names = with_home();
    let epoch = names.client.view.epoch;
    names.client.remember(File::NAMES, Range::one(0), epoch);
    names.lose_power();
    [blocks, of_home, names]
}

#[test]
fn a_sync_that_nobody_has_asked_for_leaves_a_loss_to_who_asks() {
    for (case, mut desk) in with_losses().into_iter().enumerate() {
        for _ in 0..2 {
            assert_eq!(desk.sync_by(None), Err(Failure::Lost), "{case}");
        }
        // Who has opened the file since may be the one who asks.
        let heard = Some(desk.client.losses());
        assert_eq!(desk.sync_by(heard), Err(Failure::Lost), "{case}");
        assert_eq!(desk.sync_by(None), Ok(Answer::Done), "{case}");
        assert_eq!(desk.sync_by(heard), Ok(Answer::Done), "{case}");
    }
}

#[test]
fn a_loss_is_told_once_to_each_opening() {
    for (case, mut desk) in with_losses().into_iter().enumerate() {
        for opening in 0..2 {
            assert_eq!(
                desk.sync_by(Some(0)),
                Err(Failure::Lost),
                "{case} {opening}"
            );
        }
        // It has heard of that, or has come later.
        let heard = Some(desk.client.losses());
        assert_eq!(desk.sync_by(heard), Ok(Answer::Done), "{case}");
        // Of another file it has nothing to do with.
        let other = File(FILE.0 + 1);
        if case < 2 {
            desk.begin(
                98,
                Operation::Sync {
                    file: other,
                    heard: Some(0),
                },
            );
            desk.settle();
            assert_eq!(desk.client.results(), [(98, Ok(Answer::Done))], "{case}");
        }
    }
}

#[test]
fn a_sync_waits_for_servers_that_are_gone_for_its_term_and_no_longer() {
    for has_home in [false, true] {
        let mut desk = Desk::new();
        desk.client.config.has_home = has_home;
        desk.begin(1, write(0));
        desk.settle();
        desk.begin(2, Operation::sync(FILE));
        desk.begin(3, Operation::sync(FILE));
        if has_home {
            desk.settle_but(|message| matches!(message, Message::Persist { .. }));
        }
        desk.client.results();
        desk.now += TERM;
        let mut out = Outbox::new();
        desk.client.tick(desk.now, &mut out);
        let cut_off = [2, 3].map(|id| (id, Err(Failure::CutOff)));
        assert_eq!(desk.client.results(), cut_off, "{has_home}");
        assert_eq!(
            desk.client.unwritten(),
            if has_home { (0, 0) } else { (1, UNIT) }
        );
        // They are there again.
        desk.member();
        desk.settle();
        assert_eq!(desk.sync(), Ok(Answer::Done), "{has_home}");
        assert_eq!(desk.client.unwritten(), (0, 0));
    }
}

#[test]
fn what_a_home_may_not_have_any_more_is_asked_for_again() {
    let mut desk = with_home();
    for block in 0..2 {
        desk.begin(block, read(block));
    }
    desk.settle();
    desk.begin(2, write(0));
    desk.settle();
    desk.client.results();
    desk.lose_power();
    // What it has changed itself it has still, and no operation goes on by what it has not.
    for block in 0..2 {
        desk.begin(3, read(block));
        let is_asked = desk.settle_up_to_read_of(block).is_some();
        assert_eq!(is_asked, block == 1, "{block}");
        desk.client.results();
    }
}

#[test]
fn an_operation_that_has_gone_half_of_its_way_by_what_a_home_may_have_lost_is_an_error() {
    let mut desk = with_home();
    let truncate = Operation::Truncate {
        file: FILE,
        size: UNIT,
    };
    desk.begin(1, truncate);
    let is_discard = |message: &Message| matches!(message, Message::Discard { .. });
    assert!(desk.settle_but(is_discard).is_some());
    desk.lose_power();
    assert_eq!(desk.client.results(), [(1, Err(Failure::Lost))]);
    let sent = std::mem::take(&mut desk.sent);
    assert!(!sent.iter().any(is_discard), "it goes on");
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
