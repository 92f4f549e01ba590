//! What a client has written out and nobody has synced: if it goes with a server, the next sync says so.
//!
//! Blocks leave this client's memory before a sync when others want them, or when there are too many. With one copy and no home they are then where
//! one death takes them. Whoever syncs afterwards asks for all that was written, not for what is in memory. So a client remembers which blocks went, and
//! in which epoch, until a sync has been told. Neighbours of one epoch are one entry. Files that nobody syncs stay: two entries each, if they were
//! written from one end to the other.
//!
//! With a home nothing goes with a server, but with the power of the home's host. So a client remembers of which files something went, and since which epoch. A
//! sync that ends in a later epoch than one before which the home may have lost something says so. What the client has in memory, and has not changed, it then
//! asks for again: others find what the home has. What it has changed it writes all the same.
//!
//! A loss is found by one sync and concerns all who have written. So it gets a number, and each opening of the file is told of it once, as each description is
//! by the kernel: its next sync says which losses it has heard of. The first one who asks is told whenever he has opened the file.

use std::collections::BTreeMap;

use super::changes::WHOLE;
use super::past::Aside;
use super::state::{Active, Cached, Phase};
use super::transfer::Request;
use super::{Answer, Client, Failure, Operation};
use crate::ids::{Epoch, File, SIZE_BLOCK};
use crate::mistakes::{Mistake, is_made};
use crate::range::Range;

/// Blocks that went, by their first one: where each run ends, and in which epoch it went. Runs do not overlap.
pub(super) type Went = BTreeMap<(File, u64), (u64, Epoch)>;

/// With a home, files of which something went: since which epoch nobody has been told of a sync, and as of which count something went last.
pub(super) type Unsynced = BTreeMap<File, (Epoch, u64)>;

/// The last loss of a file that a sync has found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    number: u64,
    is_told: bool,
}

impl Client {
    /// The number of the last loss that a sync has found, of any file.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Files that have bytes which the servers do not have, or which have gone to them and have not been synced since, and these bytes, in whole blocks. With
    /// a home, the former alone. Of a client that was given up, what it had then.
    pub fn unwritten(&self) -> (usize, u64) {
        if self.gone {
            return self.left;
        }
        let mut blocks = BTreeMap::<File, u64>::new();
        for (&(file, first), &(end, _)) in &self.went {
            *blocks.entry(file).or_default() += end.min(SIZE_BLOCK).saturating_sub(first);
        }
        for (file, state) in &self.files {
            let owed = state.cache.iter().filter(|(_, cached)| cached.is_owed());
            let alone = owed.filter(|(block, _)| !self.has_gone(*file, **block));
            let count = alone.filter(|(block, _)| **block != SIZE_BLOCK).count();
            *blocks.entry(*file).or_default() += count as u64;
        }
        blocks.remove(&File::NAMES);
        let files = blocks.values().filter(|count| **count > 0).count();
        (
            files,
            blocks.values().sum::<u64>() * self.config.block_bytes,
        )
    }

    fn has_gone(&self, file: File, block: u64) -> bool {
        let run = self.went.range((file, 0)..=(file, block)).next_back();
        run.is_some_and(|(_, (end, _))| block < *end)
    }

    /// A sync of a file has ended and has found a loss, or not. Says whether it is to say so.
    fn tells(&mut self, file: File, is_lost: bool, heard: Option<u64>) -> bool {
        if is_lost {
            self.losses += 1;
            let (number, is_told) = (self.losses, false);
            self.found.insert(file, Found { number, is_told });
        }
        let Some(found) = self.found.get_mut(&file) else {
            return false;
        };
        let is_new = !found.is_told;
        match heard {
            // Nobody asks.
            None => is_new,
            Some(heard) => {
                found.is_told = true;
                is_new || found.number > heard
            }
        }
    }

    /// What has been heard by who has asked for the sync that is under way.
    fn heard(&self, file: File) -> Option<u64> {
        let active = self.files.get(&file)?.active.as_ref()?;
        match *active.operation {
            Operation::Sync { heard, .. } => heard,
            _ => None,
        }
    }

    /// The servers have these blocks as of this epoch.
    pub(super) fn remember(&mut self, file: File, range: Range, epoch: Epoch) {
        if self.config.has_home {
            let last = self.count();
            let (first, before) = self.unsynced.entry(file).or_insert((epoch, last));
            *first = epoch.min(*first);
            *before = last;
            return;
        }
        // Names are at the servers when the operations that change them end.
        if file == File::NAMES {
            return;
        }
        self.forget_went(file, range);
        let Range { mut start, mut end } = range;
        if let Some((&(_, first), &(last, of))) =
            self.went.range((file, 0)..(file, start)).next_back()
            && (last, of) == (start, epoch)
        {
            self.went.remove(&(file, first));
            start = first;
        }
        if let Some(&(last, of)) = self.went.get(&(file, end))
            && of == epoch
        {
            self.went.remove(&(file, end));
            end = last;
        }
        self.went.insert((file, start), (end, epoch));
    }

    /// Nobody asks for these blocks any more as they went.
    pub(super) fn forget_went(&mut self, file: File, range: Range) {
        let Range { start, end } = range;
        let before = self.went.range((file, 0)..(file, start)).next_back();
        let first = before.map_or(start, |((_, first), (last, _))| match *last > start {
            true => *first,
            false => start,
        });
        let within = self.went.range((file, first)..(file, end));
        let within: Vec<_> = within.map(|(run, what)| (run.1, *what)).collect();
        for (first, (last, epoch)) in within {
            self.went.remove(&(file, first));
            if first < start {
                self.went.insert((file, first), (start, epoch));
            }
            if last > end {
                self.went.insert((file, end), (last, epoch));
            }
        }
    }

    /// Nobody asks for anything of this file any more.
    pub(super) fn forget_all_that_went(&mut self, file: File) {
        self.forget_went(file, WHOLE);
        self.unsynced.remove(&file);
        self.found.remove(&file);
    }

    /// What becomes of a sync of a file that all servers have, where there is no home.
    pub(super) fn synced_at_servers(&mut self, file: File) -> Result<Answer, Failure> {
        let is_lost = self.has_lost(file);
        match self.tells(file, is_lost, self.heard(file)) {
            true => Err(Failure::Lost),
            false => Ok(Answer::Done),
        }
    }

    /// Whether anything of a file that went since it was synced last is lost. The next one who asks finds nothing.
    fn has_lost(&mut self, file: File) -> bool {
        let all = self.went.range((file, 0)..=(file, SIZE_BLOCK));
        // Of many blocks some were at each server: the first that is lost comes soon.
        let is_lost = all.into_iter().any(|((_, first), (last, epoch))| {
            let is_later = self.view.losses.iter().any(|loss| loss.epoch > *epoch);
            is_later && { *first..*last }.any(|block| self.is_lost(file, block, *epoch))
        });
        self.forget_went(file, WHOLE);
        is_lost
    }

    /// What becomes of a sync of a file, whose last request all servers have answered. Names are for whoever syncs anything.
    pub(super) fn synced(&mut self, file: File, request: u64) -> Result<Answer, Failure> {
        let heard = self.heard(file);
        let lost = [file, File::NAMES].map(|file| {
            let is_lost = self.settle(file, request);
            self.tells(file, is_lost, heard)
        });
        if lost.contains(&true) {
            return Err(Failure::Lost);
        }
        Ok(Answer::Done)
    }

    /// Says whether the home may have lost anything of a file. The next one who asks finds nothing. What went since the request was made is for that one.
    fn settle(&mut self, file: File, request: u64) -> bool {
        let lost = self.view.home_lost;
        let Some((first, last)) = self.unsynced.get_mut(&file) else {
            return false;
        };
        let is_lost = lost > *first && !is_made(Mistake::BelievesTheHome);
        *first = lost.max(*first);
        if *last < request {
            self.unsynced.remove(&file);
        }
        is_lost
    }

    /// The home may have lost what was not synced. Operations that have gone a part of their way by what it had end with an error: nobody knows which part is
    /// there.
    pub(super) fn doubt_the_home(&mut self) {
        if is_made(Mistake::KeepsWhatTheHomeMayNotHave) {
            return;
        }
        for file in self.files.keys().copied().collect::<Vec<_>>() {
            self.goes(file);
            let is_names = file == File::NAMES;
            let is_in_part = |active: &mut Active| match active.phase {
                Phase::Cut { .. } | Phase::Create { .. } => true,
                Phase::Flush { .. } => is_names,
                Phase::Gather | Phase::Persist { .. } | Phase::Remove { .. } => false,
            };
            let state = self.state(file);
            // Remote reads are begun again, by the size that the file has now. Writes go on: they may have been done, and nobody else writes there before they are done again.
            let reads: Vec<Aside> =
                { state.aside.extract_if(.., |aside| aside.is_read()) }.collect();
            for aside in reads.into_iter().rev() {
                state.queue.push_front(aside.active.again());
            }
            if let Some(active) = state.active.take_if(is_in_part) {
                self.results.push((active.id, Err(Failure::Lost)));
            }
            let is_doubted = |cached: &Cached| is_names || !cached.is_owed();
            let cached = self.state(file).cache.iter();
            let doubted = cached.filter(|(_, cached)| is_doubted(cached));
            for block in doubted.map(|(block, _)| *block).collect::<Vec<_>>() {
                self.forget(file, block);
            }
        }
        // Of the others none goes on in another epoch but these, or they are begun again.
        let goes_on = |request: &Request| {
            matches!(request, Request::Discard(_, _, true) | Request::Persist(_))
        };
        self.transfers
            .retain(|_, transfer| goes_on(&transfer.request));
    }
}
