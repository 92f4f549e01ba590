//! Runs of blocks where blocks of the bitmap meet, and where the store ends.
//!
//! A block of the bitmap stands for 32,640 blocks of the store. So that small files get there, nearly all of them are a table of inodes, and memory
//! does without those that no test comes to.

use std::ops::Range;
use std::sync::Arc;

use forebay_model::fresh_seed;

use super::crash::must_hold;
use super::drive::operations;
use super::model::Op;
use super::random;
use super::sim::{Image, Simulated};
use crate::layout::{BITS, BLOCK, Geometry, INODES_PER_BLOCK, LOG_START};
use crate::log;
use crate::medium::{Durability, Medium};
use crate::space::Run;
use crate::state::{Room, State};
use crate::store::{load_state, make};
use crate::types::CreateOptions;

const LOG_BLOCKS: u64 = 24;
/// Blocks of the table that there are: more inodes than a test has.
const TABLE_BLOCKS: u64 = 8;

/// Blocks for files that the first block of the bitmap has, and the second one: its last bits stand for nothing. In the last store but one,
/// all but one do; in the last, it has no second one.
const STORES: [(u64, u64); 4] = [(10, 40), (45, 7), (49, 1), (50, 0)];

/// A new store.
fn store_across((first, second): (u64, u64)) -> Image {
    let (blocks, data) = (BITS + second, BITS - first);
    let bitmaps = LOG_START + LOG_BLOCKS + blocks.div_ceil(BITS);
    let fits = |table: &u64| bitmaps + (table * INODES_PER_BLOCK).div_ceil(BITS) + table == data;
    let table = (1..data).find(fits).expect("a table");
    let gap = (data - table + TABLE_BLOCKS) as usize * BLOCK..data as usize * BLOCK;
    let bytes = vec![0xa5; blocks as usize * BLOCK - gap.len()];
    let medium = Simulated::new(Image { bytes, gap }, Durability::Dax);
    let options = CreateOptions {
        inodes: Some(table * INODES_PER_BLOCK),
        log_blocks: Some(LOG_BLOCKS),
        ..CreateOptions::default()
    };
    let made = make(Arc::clone(&medium) as Arc<dyn Medium>, &options);
    assert!(made.is_ok(), "{made:?}");
    medium.image()
}

fn loaded(medium: &Arc<Simulated>) -> State {
    let (state, damage) = load_state(Arc::clone(medium) as Arc<dyn Medium>).expect("a store");
    assert_eq!(damage, [""; 0]);
    state
}

/// What the bitmap in the medium says of these blocks.
fn in_use(medium: &Simulated, blocks: Range<u64>) -> Vec<bool> {
    let bytes = medium.bytes();
    let bitmap = &bytes[(LOG_START + LOG_BLOCKS) as usize * BLOCK..];
    let is_set = |block: u64| {
        let (page, bit) = ((block / BITS) as usize, block % BITS);
        bitmap[page * BLOCK + (bit / 8) as usize] & (1 << (bit % 8)) != 0
    };
    blocks.map(is_set).collect()
}

/// Makes what the operation has done lie in the medium.
fn commit(state: &mut State, medium: &Simulated) {
    state.keep_large(&[]);
    let id = state.superblock.id;
    let mut batch = state.collect().expect("something has changed");
    log::apply_pages(medium, id, &batch.pages);
    state.committed(&mut batch);
}

#[test]
fn a_run_is_taken_and_freed_across_blocks_of_the_bitmap_and_up_to_the_end() {
    for sizes in STORES {
        let medium = Simulated::new(store_across(sizes), Durability::Dax);
        let mut state = loaded(&medium);
        let Geometry { data, blocks, .. } = *state.geometry();
        assert_eq!((BITS - data, blocks - BITS), sizes);
        // Another file has the first one, and there are no more behind the last.
        assert_eq!(state.take_run(None, 1, Room::New), Ok(Run::one(data)));
        let (start, length) = (data + 1, blocks - data - 1);
        let run = state.take_run(Some(start), length + 9, Room::Replacement);
        assert_eq!(run, Ok(Run { start, length }));
        commit(&mut state, &medium);
        assert_eq!(
            in_use(&medium, data - 1..blocks),
            vec![true; length as usize + 2]
        );
        assert_eq!(loaded(&medium).blocks.free(), 0);
        // All but the last one become free.
        let part = Run {
            start,
            length: length - 1,
        };
        assert_eq!(state.free_data(part), Ok(()));
        commit(&mut state, &medium);
        let mut expected = vec![false; length as usize + 2];
        for block in [0, 1, length as usize + 1] {
            expected[block] = true;
        }
        assert_eq!(in_use(&medium, data - 1..blocks), expected);
        for mut state in [state, loaded(&medium)] {
            assert_eq!(state.blocks.free(), part.length);
            assert_eq!(state.take_run(None, length, Room::Replacement), Ok(part));
        }
    }
}

#[test]
fn a_store_is_what_the_model_is_where_blocks_of_the_bitmap_meet() {
    for sizes in STORES {
        let store = store_across(sizes);
        for seed in (1..5).chain(fresh_seed()..fresh_seed() + 2) {
            random::run(seed, store.clone(), 150, 60_000);
        }
    }
}

/// The first write's run begins with the last blocks of the first block of the bitmap; the next ones go up to the store's end, and around.
fn writes_across() -> Vec<Op> {
    let write = |fill| Op::Write {
        file: 0,
        at: 0,
        length: 60_000,
        fill,
    };
    let mut ops = vec![Op::Create { dir: 0, name: 0 }];
    for fill in 1..4 {
        ops.extend([
            write(fill),
            Op::Sync,
            Op::Append {
                file: 0,
                length: 20_000,
                fill,
            },
        ]);
        ops.extend([
            Op::Sync,
            Op::Truncate {
                file: 0,
                size: 5000,
            },
        ]);
    }
    ops.push(Op::Sync);
    ops
}

#[test]
fn runs_across_blocks_of_the_bitmap_recover_from_states_by_chance() {
    for sizes in STORES {
        let store = store_across(sizes);
        for durability in [Durability::Dax, Durability::Fdatasync] {
            must_hold(store.clone(), durability, &writes_across(), 2, 1);
            let (store, seed) = (store.clone(), fresh_seed());
            must_hold(store, durability, &operations(seed, 40, 60_000), 2, seed);
        }
    }
}
