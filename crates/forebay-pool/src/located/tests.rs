//! What a client forgets of lent blocks, and when.

use super::*;
use crate::fabric::Provider;
use crate::ids::Version;
use crate::message::Block;
use crate::range::Range;

const SERVER: Node = Node::Server(Server(1));
const KEY: Key = Key(3);
const FILE: File = File(7);
const LENT: u64 = 32;

fn lends(key: Key) -> Message {
    let endpoint = Endpoint {
        provider: Provider::Tcp,
        address: vec![1],
    };
    Message::Lends { key, endpoint }
}

fn part(block: u64) -> Part {
    Part {
        place: (FILE, block),
        from: 30,
        length: 100,
    }
}

fn read(key: Key, blocks: &[u64]) -> Message {
    Message::Read {
        key,
        number: 1,
        parts: blocks.iter().map(|block| part(*block)).collect(),
    }
}

fn answer(locate: &Message) -> Message {
    let Message::Locate { number, places, .. } = locate else {
        panic!("{locate:?}");
    };
    let lent = places
        .iter()
        .map(|place| Some(Lent::numbered(place.1, LENT)));
    Message::Located {
        number: *number,
        lent: lent.collect(),
    }
}

/// Asks where these blocks lie: the second read of them does.
fn ask(located: &mut Located, blocks: &[u64]) -> Message {
    located.goes(SERVER, &read(KEY, blocks), true);
    match located.goes(SERVER, &read(KEY, blocks), true) {
        Goes::With(locate) => locate,
        other => panic!("{other:?}"),
    }
}

/// Somebody who knows of blocks 1, 2 and 3.
fn located() -> Located {
    let mut located = Located::default();
    assert!(located.came(SERVER, &lends(KEY)));
    let locate = ask(&mut located, &[1, 2, 3]);
    assert!(located.came(SERVER, &answer(&locate)));
    located
}

fn passes(located: &mut Located, key: Key, blocks: &[u64]) -> bool {
    matches!(
        located.goes(SERVER, &read(key, blocks), true),
        Goes::Past(_)
    )
}

fn block(at: u64) -> Block {
    Block {
        place: (FILE, at),
        version: Version::default(),
        bytes: Default::default(),
    }
}

fn discard(from: u64) -> Message {
    Message::Discard {
        key: KEY,
        number: 2,
        file: FILE,
        from,
        whole: false,
    }
}

fn release(start: u64, end: u64, keep: bool) -> Message {
    Message::Release {
        epoch: crate::ids::Epoch(1),
        seen: 0,
        parts: vec![(FILE, Range { start, end }, keep)],
    }
}

/// Messages after which block 2 may be another one; block 1 is not touched by them.
fn changes() -> [Message; 4] {
    let (key, number) = (KEY, 2);
    [
        Message::Write {
            key,
            number,
            blocks: vec![block(2)],
        },
        Message::Patch {
            key,
            number,
            parts: vec![(block(2), 3)],
        },
        discard(2),
        release(2, 3, false),
    ]
}

#[test]
fn what_is_read_again_is_asked_for_and_read_past_its_server() {
    let mut located = located();
    let Goes::Past(wanted) = located.goes(SERVER, &read(KEY, &[1, 3]), true) else {
        panic!();
    };
    // As much as there is.
    let parts = [1, 3].map(|block| (Lent::numbered(block, LENT), 30, 2));
    assert_eq!(wanted.parts, parts);
    let Message::Bytes { found, number, .. } = wanted.answer(vec![0; 4]) else {
        panic!();
    };
    assert_eq!((found, number), (vec![Some(2), Some(2)], 1));
    let is_alone = |goes| matches!(goes, Goes::Itself);
    // Who must not wait sends it; and all goes one way.
    assert!(!matches!(
        located.goes(SERVER, &read(KEY, &[1]), false),
        Goes::Past(_)
    ));
    assert!(!passes(&mut located, KEY, &[1, 9]));
    // A key of another epoch.
    assert!(is_alone(located.goes(SERVER, &read(Key(4), &[1]), true)));
}

#[test]
fn what_may_be_another_one_is_forgotten_before_that_goes() {
    for change in changes() {
        let mut located = located();
        assert!(passes(&mut located, KEY, &[1, 2]));
        located.goes(SERVER, &change, true);
        assert!(!passes(&mut located, KEY, &[2]), "{change:?}");
        assert!(passes(&mut located, KEY, &[1]), "{change:?}");
    }
    // Who goes on reading knows that nobody writes.
    let mut located = located();
    located.goes(SERVER, &release(0, 9, true), true);
    assert!(passes(&mut located, KEY, &[1, 2, 3]));
}

#[test]
fn an_answer_about_what_is_another_one_by_then_does_not_count() {
    for change in changes() {
        let mut located = Located::default();
        located.came(SERVER, &lends(KEY));
        let locate = ask(&mut located, &[1, 2]);
        located.goes(SERVER, &change, true);
        assert!(located.came(SERVER, &answer(&locate)));
        assert!(!passes(&mut located, KEY, &[2]), "{change:?}");
        assert!(passes(&mut located, KEY, &[1]), "{change:?}");
    }
}

#[test]
fn an_epoch_and_a_failure_forget_all_of_a_server() {
    let mut of_epoch = located();
    of_epoch.came(SERVER, &lends(Key(4)));
    assert!(!passes(&mut of_epoch, KEY, &[1]));
    assert!(!passes(&mut of_epoch, Key(4), &[1]));
    let mut failed = located();
    let Goes::Past(wanted) = failed.goes(SERVER, &read(KEY, &[1]), true) else {
        panic!();
    };
    failed.failed(&wanted);
    assert!(!passes(&mut failed, KEY, &[3]));
    // What nobody has asked about is nonsense.
    let strange = Message::Located {
        number: 77,
        lent: vec![Some(Lent::numbered(1, LENT))],
    };
    assert!(failed.came(SERVER, &strange));
    assert!(!passes(&mut failed, KEY, &[1]));
}
