//! A queue with nothing behind it: requests are carried out when they are submitted.
//!
//! Completions are handed back when polled: all of them in the order of submission, or, with a seed,
//! some of them in an order that the seed decides. So a simulation with the same seed takes the same
//! course, and another seed another one that a real device might take.

use super::perform_to_done;
use crate::device::{Done, Queue, Request};
use crate::random::Random;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Inline {
    ready: Vec<Done>,
    /// `None` for the order of submission.
    random: Option<Random>,
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
            random: Some(Random::new(seed)),
        }
    }
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
        let count = at_least + random.below(self.ready.len() + 1 - at_least);
        for _ in 0..count {
            let at = random.below(self.ready.len());
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
