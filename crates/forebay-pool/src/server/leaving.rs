//! A server that is told to go, and what becomes of its blocks.

use std::collections::BTreeSet;

use super::Server;
use crate::ids::File;

impl Server {
    /// Hands on all blocks, and goes when that is done.
    pub fn leave(&mut self) {
        self.leaving = true;
        self.told = None;
    }

    /// Whether it hands on its blocks, or will as soon as the register knows.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Whether the pool goes on without it.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether it goes because it was told to, and others have what it had, or are told to go as well. Else the pool has given it up.
    pub fn is_let_go(&self) -> bool {
        let view = &self.view;
        let has_handed_on = !view.leaving.contains(&self.me) || self.ready == view.epoch;
        self.leaving && has_handed_on && !view.servers.contains(&self.me)
    }

    /// Whether the register has not answered it for a term.
    pub fn is_unheard(&self, now: u64) -> bool {
        // Its own term is shorter than the register's, by as much as clocks may differ.
        now >= self.valid_until.saturating_add(self.config.term / 9)
    }

    /// Of how many files there are blocks in its memory and in no home, and their bytes; nothing if there are none.
    pub fn dropped(&self) -> Option<(usize, u64)> {
        let (blocks, bytes) = self.blocks();
        if blocks == 0 || self.blocks.home().is_some() {
            return None;
        }
        let files = self.blocks.versions().map(|((file, _), _)| file);
        let files: BTreeSet<File> = files.filter(|file| *file != File::NAMES).collect();
        Some((files.len(), bytes))
    }
}
