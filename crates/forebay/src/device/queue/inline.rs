//! A queue with nothing behind it: requests are carried out when they are submitted.
//!
//! Completions are handed back when polled: all of them in the order of submission, or, with a seed,
//! some of them in an order that the seed decides. So a simulation with the same seed takes the same
//! course, and another seed another one that a real device might take.

use super::perform_to_done;
use crate::device::{Done, Queue, Request};

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Inline {
    ready: Vec<Done>,
    /// State of the generator; `None` for the order of submission.
    random: Option<u64>,
}

impl Inline {
    /// Completes in the order of submission.
    pub fn new() -> Self {
        Self::default()
    }

    /// Completes in an order decided by `seed`, a random number of requests per poll.
    pub fn seeded(seed: u64) -> Self {
        Self {
            ready: Vec::new(),
            random: Some(seed),
        }
    }
}

/// A number below `bound` (splitmix64, Steele and others 2014).
fn next_below(state: &mut u64, bound: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) % bound as u64) as usize
}

impl Queue for Inline {
    fn submit(&mut self, request: Request) {
        self.ready.push(perform_to_done(request));
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Done>) {
        let Some(random) = &mut self.random else {
            done.append(&mut self.ready);
            return;
        };
        if self.ready.is_empty() {
            return;
        }
        let at_least = usize::from(wait);
        let count = at_least + next_below(random, self.ready.len() + 1 - at_least);
        for _ in 0..count {
            let at = next_below(random, self.ready.len());
            done.push(self.ready.swap_remove(at));
        }
    }

    fn in_flight(&self) -> usize {
        self.ready.len()
    }

    fn name(&self) -> &'static str {
        "inline"
    }
}
