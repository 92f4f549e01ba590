//! Servers whose memory is full: operations that would make new blocks there fail before they have changed anything.
//!
//! What is there already may be written over, cut and removed, and what is dirty goes to the servers. So a pool that is full loses nothing, and
//! whoever removes something makes room.

use super::operate::{Step, blocks};
use super::{Client, Failure};
use crate::ids::{File, Server};
use crate::message::Outbox;
use crate::mistakes::{Mistake, is_made};
use crate::placement::{key_of_block, owners};

impl Client {
    /// A server says whether it is full. That holds until it says something else, also while nothing connects them.
    pub(super) fn hear_of_room(&mut self, server: Server, is_full: bool) {
        if is_full && self.view.servers.contains(&server) {
            self.full.insert(server);
        } else {
            self.full.remove(&server);
        }
    }

    /// Whether one of those that are to have a block is full.
    pub(super) fn is_for_the_full(&self, file: File, block: u64) -> bool {
        if self.full.is_empty() || is_made(Mistake::FillsTheFull) {
            return false;
        }
        let all = &self.view.servers;
        let owners = owners(all, key_of_block(file, block), self.config.copies);
        owners.iter().any(|server| self.full.contains(server))
    }

    /// What a write to a file must do instead, if there is no room for it. Whether its blocks are there already is looked at for this: that is
    /// known of none that is written as a whole.
    pub(super) fn without_room(
        &mut self,
        file: File,
        (offset, length): (u64, u64),
        out: &mut Outbox,
    ) -> Option<Step> {
        if self.full.is_empty() {
            return None;
        }
        let range = blocks(offset, length, self.config.block_bytes)?;
        let all = range.start..range.end;
        let tight: Vec<u64> = { all.filter(|block| self.is_for_the_full(file, *block)) }.collect();
        if !self.fetch_all(file, tight.iter().copied(), out) {
            return Some(Step::Wait);
        }
        let cache = &self.state(file).cache;
        let is_there = |block: &u64| cache.get(block).is_some_and(|held| held.bytes.is_some());
        let is_refused = !tight.iter().all(is_there);
        is_refused.then_some(Step::End(Err(Failure::NoRoom)))
    }
}
