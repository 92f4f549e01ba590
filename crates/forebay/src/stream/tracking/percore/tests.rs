//! The sets against a naive list of blocks.

use std::collections::BTreeSet;

use super::*;
use crate::memory::layout::{Counts, Layout};
use crate::memory::mapping::Mapping;
use crate::memory::regions::Allocator;
use crate::memory::threads;
use crate::random::Random;

fn arena(sets: u32) -> Arena {
    let counts = Counts {
        threads: 4,
        files: 4,
        nodes: 64,
        headers: 64,
        frames: 64,
    };
    let mapping = Mapping::heap(Layout::new(counts).len);
    let arena = Arena::create(mapping, counts, 0, true, (Allocator::default(), 2));
    let arena = arena.expect("an arena");
    arena.stream_lists().sets.store(sets, Relaxed);
    arena
}

fn me(arena: &Arena) -> Me<'_> {
    let id = threads::take(arena, false).expect("a slot");
    Me { arena, id }
}

fn all(arena: &Arena) -> BTreeSet<(u32, u32)> {
    let sets = 0..count(arena);
    let contents = sets.flat_map(|number| contents(arena, number).expect("sound links"));
    contents.map(|(_, file, block)| (file.0, block)).collect()
}

fn is_doubted(arena: &Arena, file: u32) -> bool {
    arena.stream_tree(FileId(file)).doubt.load(Relaxed) != 0
}

#[test]
fn every_block_has_one_place() {
    for sets in [1, 2, 64] {
        for block in (0..10_000).chain(u32::MAX - 10_000..=u32::MAX) {
            let place = Place::of(block, sets);
            assert!(place.set < sets && place.bit < LEAF_BLOCKS);
            assert_eq!(place.block(sets), block, "of {sets} sets");
        }
    }
}

/// Random blocks of three files come and go; whatever is asked, the sets say what the list says.
#[test]
fn the_sets_say_what_a_list_says() {
    for (seed, sets) in [(1, 1), (2, 2), (3, 4), (4, 64)] {
        let arena = arena(sets);
        let me = me(&arena);
        let mut random = Random::new(seed);
        let mut list = BTreeSet::new();
        for step in 0..4000 {
            let (file, block) = (random.below(3) as u32, random.below(700) as u32);
            if random.below(2) == 0 {
                add(me, FileId(file), block);
                list.insert((file, block));
            } else {
                remove(me, FileId(file), block);
                list.remove(&(file, block));
            }
            let from = random.below(710) as u32;
            let expected = list.range((file, from)..(file, u32::MAX)).next();
            assert_eq!(
                next(me, FileId(file), from),
                Ok(expected.map(|(_, block)| *block)),
                "after step {step} of {sets} sets"
            );
            if step % 500 == 0 {
                assert_eq!(all(&arena), list);
            }
        }
        assert!((0..3).all(|file| !is_doubted(&arena, file)), "no doubt");
        for (file, block) in list {
            remove(me, FileId(file), block);
        }
        let streams = (0..arena.counts().streams()).map(StreamId);
        let mut records = streams.filter_map(|id| arena.stream(id));
        assert!(records.all(|record| record.file.load(Relaxed) == 0));
    }
}

#[test]
fn neighbours_are_in_different_sets_and_a_set_has_its_own_lock() {
    let arena = arena(4);
    let me = me(&arena);
    arena.dirty_set(2).lock.store(3, Relaxed);
    (0..2).for_each(|block| add(me, FileId(0), block));
    assert!(!is_doubted(&arena, 0));
    add(me, FileId(0), 2);
    assert!(is_doubted(&arena, 0), "its set is in other hands");
    assert_eq!(next(me, FileId(0), 0), Err(Unknown));
    assert_eq!(all(&arena), BTreeSet::from([(0, 0), (0, 1)]));
}

#[test]
fn without_records_a_file_is_in_doubt() {
    let arena = arena(1);
    let me = me(&arena);
    let records = arena.counts().streams();
    (0..records).for_each(|index| add(me, FileId(1), index * LEAF_BLOCKS));
    assert!(!is_doubted(&arena, 1));
    add(me, FileId(2), 0);
    assert!(is_doubted(&arena, 2) && !is_doubted(&arena, 1));
    add(me, FileId(1), 1);
    assert!(!is_doubted(&arena, 1), "a bit needs no record");
}

#[test]
fn damaged_links_leave_doubts_and_free_what_they_led_to() {
    let arena = arena(2);
    let me = me(&arena);
    for index in 0..20 {
        add(me, FileId(0), index * 128);
        add(me, FileId(1), index * 128 + 1);
    }
    for id in (0..arena.counts().streams()).map(StreamId) {
        let record = arena.stream(id).expect("there are so many");
        if record.file.load(Relaxed) == 1 {
            record.left.store(id.0 + 1, Relaxed);
            record.right.store(id.0 + 1, Relaxed);
        }
    }
    add(me, FileId(0), 6);
    assert!(is_doubted(&arena, 0) && !is_doubted(&arena, 1));
    assert_eq!(all(&arena).len(), 20, "the other set is as it was");
    let file = arena.file_unchecked(FileId(0));
    mend(me, FileId(0), file);
    assert!(!is_doubted(&arena, 0), "nothing is owed");
}
