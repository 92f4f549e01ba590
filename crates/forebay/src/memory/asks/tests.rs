//! Asks against what their states allow.

use super::*;

const KEEPER: ThreadId = ThreadId(7);

fn asks() -> Asks {
    Asks {
        words: [const { AtomicU64::new(0) }; ASKS],
        next: AtomicU32::new(0),
        refused: AtomicU32::new(0),
    }
}

fn whole(block: u32) -> Ask {
    Ask::whole(BlockIndex(block))
}

#[test]
fn every_ask_survives_packing() {
    for block in [0, 1, u32::MAX] {
        for (first, last) in [(0, 0), (0, 63), (63, 63), (5, 9)] {
            let ask = Ask {
                block: BlockIndex(block),
                first,
                last,
            };
            for stage in [
                Stage::Asked,
                Stage::Taken(ThreadId(1023)),
                Stage::GivenUp(KEEPER),
            ] {
                assert_eq!(unpack(pack(ask, stage)), Some((ask, stage)));
            }
        }
    }
}

#[test]
fn a_damaged_word_is_nothing() {
    let upside_down = Ask {
        block: BlockIndex(3),
        first: 9,
        last: 5,
    };
    assert_eq!(unpack(pack(upside_down, Stage::Asked)), None);
    assert_eq!(unpack(0), None);
}

#[test]
fn asks_are_taken_in_their_order_and_seen_until_they_end() {
    let asks = asks();
    assert!(asks.ask(whole(5)) && asks.ask(whole(6)));
    let (slot, ask) = asks.take(KEEPER).expect("an ask");
    assert_eq!(ask, whole(5));
    let found = asks.covering(BlockIndex(5), 1).expect("under way");
    assert_eq!(found.stage, Stage::Taken(KEEPER));
    let other = asks.covering(BlockIndex(6), 1 << 63).expect("asked");
    assert_eq!(other.stage, Stage::Asked);
    assert!(asks.take_back(&other), "nobody has begun");
    asks.end(slot, ask, KEEPER);
    assert!(asks.covering(BlockIndex(5), u64::MAX).is_none());
    assert!(asks.take(KEEPER).is_none(), "it was taken back");
}

#[test]
fn what_was_given_up_is_waited_for_no_more_and_ends_all_the_same() {
    let asks = asks();
    asks.ask(whole(1));
    let (slot, ask) = asks.take(KEEPER).expect("an ask");
    let found = asks.covering(BlockIndex(1), 1).expect("under way");
    assert!(
        asks.words
            .iter()
            .any(|word| word.load(Ordering::Relaxed) != 0)
    );
    asks.give_up(&found);
    assert!(asks.covering(BlockIndex(1), 1).is_none());
    asks.end(slot, ask, KEEPER);
    assert!(
        asks.words
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == 0)
    );
}

#[test]
fn old_asks_give_way_and_taken_ones_stay() {
    let asks = asks();
    (0..ASKS as u32).for_each(|block| assert!(asks.ask(whole(block))));
    let (_, first) = asks.take(KEEPER).expect("an ask");
    assert_eq!(first, whole(0));
    assert!(asks.ask(whole(1000)));
    assert!(asks.covering(BlockIndex(0), 1).is_some(), "it is under way");
    assert!(asks.covering(BlockIndex(1), 1).is_none(), "the oldest ask");
    while asks.take(KEEPER).is_some() {}
    assert!(!asks.ask(whole(2000)), "all are under way");
    asks.forget(|thread| thread == KEEPER);
    assert!(asks.ask(whole(2000)));
}

#[test]
fn asks_of_a_range_can_be_withdrawn() {
    let asks = asks();
    (0..8).for_each(|block| assert!(asks.ask(whole(block))));
    asks.take(KEEPER).expect("an ask");
    asks.withdraw(0, 4);
    let left: Vec<u32> = (0..8)
        .filter(|&block| asks.covering(BlockIndex(block), 1).is_some())
        .collect();
    assert_eq!(left, [0, 4, 5, 6, 7]);
}
