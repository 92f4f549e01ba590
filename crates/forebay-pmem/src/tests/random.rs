//! Random operations against the model, with reopening; on a small store that is often full, and on a larger one.

use forebay_model::fresh_seed;

use super::drive::{Pair, holes_are_zeros, new_store, operations, small_store};
use super::sim::{Image, Simulated};
use crate::medium::Durability;
use crate::types::CreateOptions;

pub fn run(seed: u64, store: impl Into<Image>, count: usize, bytes_max: u32) {
    let mut pair = Pair::new(Simulated::new(store, Durability::Dax));
    let at = |step: usize| format!("seed {seed}, operation {step}");
    for (step, op) in operations(seed, count, bytes_max).iter().enumerate() {
        let done = pair.step(op);
        assert!(done.is_ok(), "{}: {done:?}", at(step));
        if step % 25 == 24 {
            assert_eq!(pair.compare(), Ok(()), "{}", at(step));
            if let Some(file) = pair.file() {
                assert_eq!(holes_are_zeros(pair.store(), file), Ok(()), "{}", at(step));
            }
        }
    }
    assert_eq!(pair.compare(), Ok(()), "seed {seed}, at the end");
    let closed = pair.store.take().map(crate::store::Store::close);
    assert_eq!(closed, Some(Ok(())), "seed {seed}");
    assert_eq!(super::drive::faults(&pair.medium), [""; 0], "seed {seed}");
}

fn large() -> Vec<u8> {
    new_store(2048, &CreateOptions::default())
}

#[test]
fn a_small_store_is_what_the_model_is() {
    for seed in (1..40).chain(fresh_seed()..fresh_seed() + 10) {
        run(seed, small_store(), 200, 60_000);
    }
}

#[test]
fn a_larger_store_is_what_the_model_is() {
    for seed in (1000..1012).chain(fresh_seed()..fresh_seed() + 4) {
        run(seed, large(), 400, 700_000);
    }
}

#[test]
#[ignore = "long: many seeds"]
fn many_seeds_are_what_the_model_is() {
    for seed in fresh_seed()..fresh_seed() + 1500 {
        run(seed, small_store(), 300, 60_000);
        run(seed, large(), 300, 700_000);
    }
}
