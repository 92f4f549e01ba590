//! What clients of a simulated session say to its keeper: the messages of `member::handoff`, without a socket.
//!
//! The keeper's thread for the house heeds them between two rounds, as it serves its socket. What is said to a keeper that dies is lost
//! with it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::tasks;

/// How long an answer is waited for, and how often it is looked for.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(1);

const NO_ANSWER: u8 = 0;
const DONE: u8 = 1;
const REFUSED: u8 = 2;

/// A message to a keeper.
pub struct Letter {
    epoch: u32,
    /// What `member::handoff` makes and reads.
    pub message: [u8; 16],
    answer: Arc<AtomicU8>,
}

impl Letter {
    /// Answers it.
    pub fn answer(&self, done: bool) {
        let answer = if done { DONE } else { REFUSED };
        self.answer.store(answer, Relaxed);
        tasks::wake_futexes();
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct Letters(Mutex<VecDeque<Letter>>);

impl Letters {
    fn all(&self) -> MutexGuard<'_, VecDeque<Letter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says something to the keeper of an epoch, and waits for nothing.
    pub fn tell(&self, epoch: u32, message: [u8; 16]) {
        self.put(epoch, message);
    }

    fn put(&self, epoch: u32, message: [u8; 16]) -> Arc<AtomicU8> {
        let answer = Arc::new(AtomicU8::new(NO_ANSWER));
        self.all().push_back(Letter {
            epoch,
            message,
            answer: Arc::clone(&answer),
        });
        tasks::wake_futexes();
        answer
    }

    /// Says something to the keeper of an epoch. `None`: it has not answered, though that was waited for while it `lives`.
    pub fn ask(&self, epoch: u32, message: [u8; 16], lives: impl Fn() -> bool) -> Option<bool> {
        let answer = self.put(epoch, message);
        let begun = tasks::now();
        while lives() && tasks::now() < begun + PATIENCE {
            match answer.load(Relaxed) {
                NO_ANSWER => tasks::wait_on_futex(LOOK_EVERY),
                answer => return Some(answer == DONE),
            }
        }
        None
    }

    /// The next letter to the keeper of an epoch; those to others are nobody's any more.
    pub fn next(&self, epoch: u32) -> Option<Letter> {
        let mut all = self.all();
        while let Some(letter) = all.pop_front() {
            if letter.epoch == epoch {
                return Some(letter);
            }
        }
        None
    }

    /// Waits for the next one, for so long at most.
    pub fn listen(&self, timeout: Duration) {
        if self.all().is_empty() {
            tasks::wait_on_futex(timeout);
        }
    }
}
