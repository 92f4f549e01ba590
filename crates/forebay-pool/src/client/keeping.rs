//! What a client keeps of files and blocks that nobody uses here: so much, and no more. What was used longest ago goes first. And what it gives back, since
//! others want it.
//!
//! What it knows of a file, its size block with it, goes as a whole, and its grants go back: whoever wants the file again asks for them. So a client
//! that has seen many files keeps and claims no more than one that has seen few. Files with operations, with what the servers do not have, or with
//! questions under way stay.

use std::collections::{BTreeMap, BTreeSet};

use super::Client;
use super::changes::WHOLE;
use super::state::Cached;
use crate::ids::{File, Node, SIZE_BLOCK, Server};
use crate::message::{Message, Outbox, Place};
use crate::mistakes::{Mistake, is_made};
use crate::placement::keeper_of_locks;
use crate::range::Range;

/// Files that a client keeps which keeps so many blocks: what it knows of one takes less than a block. Few in tests, so that simulated pools reach it.
const fn files_max(blocks: usize) -> usize {
    if cfg!(test) {
        blocks / 2
    } else {
        blocks.saturating_mul(8)
    }
}

/// So many files are looked at in one go, those in use among them.
const LOOKS_MAX: usize = 64;

/// What goes back to each server.
type Given = BTreeMap<Server, Vec<(File, Range, bool)>>;

impl Client {
    /// From now on it notes of which files what others have been told may be true no longer.
    pub fn note_what_goes(&mut self) {
        self.going.get_or_insert_default();
    }

    /// These files, since the last call: some grant of theirs is given back, or what is here of them is doubted. Whoever has been told something of them has to hear
    /// it before the messages are sent which this client has made meanwhile.
    pub fn what_goes(&mut self) -> BTreeSet<File> {
        self.going.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn goes(&mut self, file: File) {
        if let Some(going) = &mut self.going {
            going.insert(file);
        }
    }

    /// It has nothing any more that others may not change.
    pub(super) fn all_go(&mut self) {
        if let Some(going) = &mut self.going {
            going.extend(self.files.keys());
        }
    }

    /// A file is used, and is the last one to go.
    pub(super) fn use_file(&mut self, file: File) {
        let newest = self.order.last_key_value();
        if file == File::NAMES || newest.is_some_and(|(_, newest)| *newest == file) {
            return;
        }
        let used = self.count();
        let before = std::mem::replace(&mut self.state(file).used, used);
        self.order.remove(&before);
        self.order.insert(used, file);
    }

    /// A block has been used. Size blocks go with their files.
    pub(super) fn block_used(&mut self, used: u64, place: Place) {
        if place.1 != SIZE_BLOCK {
            self.cached.insert(used, place);
        }
    }

    /// Drops blocks from memory.
    pub(super) fn drop_blocks(&mut self, file: File, range: Range) {
        for dropped in self.state(file).drop_cached(range) {
            self.cached.remove(&dropped.used);
            self.dirty.remove(&dropped.since);
        }
    }

    /// Of a file of which nothing is known nothing stays.
    pub(super) fn tidy(&mut self, file: File) {
        match self.files.get(&file) {
            Some(state) if state.is_empty() => {
                self.order.remove(&state.used);
                self.files.remove(&file);
            }
            Some(state) if state.used == 0 => self.use_file(file),
            _ => {}
        }
    }

    /// Drops what is too much, and begins to write what of it is dirty.
    pub(super) fn evict(&mut self, out: &mut Outbox) {
        let mut given = Given::new();
        self.evict_blocks(&mut given, out);
        self.evict_files(&mut given, out);
        let epoch = self.view.epoch;
        for (server, parts) in given {
            let seen = self.seen.get(&server).copied().unwrap_or(0);
            let release = Message::Release { epoch, seen, parts };
            out.push((Node::Server(server), release));
        }
    }

    /// Drops blocks that were used longest ago, and begins to write those that are dirty, in one go.
    fn evict_blocks(&mut self, given: &mut Given, out: &mut Outbox) {
        let over = self.cached.len().saturating_sub(self.config.cache_blocks);
        if over == 0 || self.is_busy() {
            return;
        }
        let oldest: Vec<(u64, Place)> = { self.cached.iter().take(over) }
            .map(|(used, place)| (*used, *place))
            .collect();
        let mut owed: BTreeMap<File, Vec<u64>> = BTreeMap::new();
        for (used, (file, block)) in oldest {
            let state = self.state(file);
            if state.cache.get(&block).is_some_and(Cached::is_owed) {
                // The operation that has changed names writes them, all in one request.
                if file != File::NAMES {
                    owed.entry(file).or_default().push(block);
                }
            } else if state.active.is_none() {
                state.cache.remove(&block);
                self.cached.remove(&used);
                // A directory's names go as a whole, as a file does.
                if let Some(server) = self.gives_to(file).filter(|_| file == File::NAMES) {
                    let range = Range::one(block);
                    self.drop_grant(file, range, false);
                    given.entry(server).or_default().push((file, range, false));
                }
            }
        }
        for (file, blocks) in owed {
            self.flush(file, &blocks, out);
        }
    }

    /// Drops files that were used longest ago, or begins to write what is dirty of them: then they go later. Those in use stay, and where there are
    /// many of them the next look goes on behind them.
    fn evict_files(&mut self, given: &mut Given, out: &mut Outbox) {
        let most = files_max(self.config.cache_blocks);
        let mut over = self.order.len().saturating_sub(most);
        if over == 0 || self.is_busy() {
            return;
        }
        let oldest = self.order.range(self.looked_at..).take(LOOKS_MAX);
        let oldest: Vec<(u64, File)> = oldest.map(|(used, file)| (*used, *file)).collect();
        let is_end = oldest.len() < LOOKS_MAX;
        for (used, file) in oldest {
            let Some(server) = self.gives_to(file).filter(|_| over > 0) else {
                break;
            };
            self.looked_at = used + 1;
            if self.state(file).is_idle() {
                if !self.state(file).locks.is_empty() {
                    given.entry(server).or_default().push((file, WHOLE, false));
                }
                self.forget_file(file);
                over -= 1;
                continue;
            }
            let owed = self.state(file).owed(WHOLE);
            if !owed.is_empty() {
                self.flush(file, &owed, out);
                over -= usize::from(!self.state(file).has_work());
            }
        }
        if is_end || over == 0 {
            self.looked_at = 0;
        }
    }

    /// The server that takes a file's grants back, if it knows them.
    fn gives_to(&self, file: File) -> Option<Server> {
        let keeper = keeper_of_locks(&self.view.servers, file);
        keeper.filter(|server| self.keys.contains_key(server))
    }

    fn forget_file(&mut self, file: File) {
        self.goes(file);
        if let Some(state) = self.files.remove(&file) {
            self.order.remove(&state.used);
            for cached in state.cache.values() {
                self.cached.remove(&cached.used);
            }
        }
    }

    /// Gives back what was recalled, what is dirty in it written first, and what an operation under way needs later.
    pub(super) fn give_back(&mut self, file: File, out: &mut Outbox) {
        let Some(server) = keeper_of_locks(&self.view.servers, file) else {
            return;
        };
        let mut parts = Vec::new();
        for (range, keep) in self.state(file).recalls.clone() {
            if self.state(file).is_pinned(range, keep) {
                continue;
            }
            let owed = self.state(file).owed(range);
            self.flush(file, &owed, out);
            if owed.is_empty() || is_made(Mistake::ReleasesBeforeWritten) {
                self.drop_grant(file, range, keep);
                parts.push((file, range, keep));
            }
        }
        if !parts.is_empty() {
            let seen = self.seen.get(&server).copied().unwrap_or(0);
            let epoch = self.view.epoch;
            out.push((
                Node::Server(server),
                Message::Release { epoch, seen, parts },
            ));
        }
    }

    pub(super) fn drop_grant(&mut self, file: File, range: Range, keep: bool) {
        let state = self.state(file);
        state.recalls.retain(|recall| *recall != (range, keep));
        state.locks.release((), range, u64::MAX, keep);
        if !keep {
            self.goes(file);
            self.drop_blocks(file, range);
        }
    }
}
