//! Mistakes that tests plant between a batch and the next one: each must be found.

use super::State;
use crate::space::Run;

impl State {
    /// What the running batch has taken, and may store into.
    pub fn fresh_runs(&self) -> Vec<Run> {
        self.fresh.runs().to_vec()
    }

    /// The next batch stores into these, though a batch has them that is on its way.
    pub fn plant_fresh(&mut self, runs: &[Run]) {
        runs.iter().for_each(|run| self.fresh.set(*run));
    }

    /// The next batch may use what the running one has freed of bytes, before that is durable.
    pub fn plant_early_bytes(&mut self) {
        for run in std::mem::take(&mut self.freed.data) {
            self.release_unseen(run);
        }
    }
}
