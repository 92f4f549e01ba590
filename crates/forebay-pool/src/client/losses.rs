//! What a client has written out and nobody has synced: if it goes with a server, the next sync says so.
//!
//! Blocks leave this client's memory before a sync when others want them, or when there are too many. With one copy and no home they are then where
//! one death takes them. Whoever syncs afterwards asks for all that was written, not for what is in memory. So a client remembers which blocks went, and
//! in which epoch, until a sync has been told. Neighbours of one epoch are one entry. Files that nobody syncs stay: two entries each, if they were
//! written from one end to the other.

use std::collections::BTreeMap;

use super::Client;
use crate::ids::{Epoch, File, SIZE_BLOCK};
use crate::range::Range;

/// Blocks that went, by their first one: where each run ends, and in which epoch it went. Runs do not overlap.
pub(super) type Went = BTreeMap<(File, u64), (u64, Epoch)>;

impl Client {
    /// The servers have these blocks as of this epoch.
    pub(super) fn remember(&mut self, file: File, range: Range, epoch: Epoch) {
        // With a home nothing goes with a server. Names are at the servers when the operations that change them end.
        if self.config.has_home || file == File::NAMES {
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

    /// Whether anything of a file that went since it was synced last is lost. Whoever asks is told, and the next one is not.
    pub(super) fn has_lost(&mut self, file: File) -> bool {
        let all = self.went.range((file, 0)..=(file, SIZE_BLOCK));
        // Of many blocks some were at each server: the first that is lost comes soon.
        let is_lost = all.into_iter().any(|((_, first), (last, epoch))| {
            let is_later = self.view.losses.iter().any(|loss| loss.epoch > *epoch);
            is_later && { *first..*last }.any(|block| self.is_lost(file, block, *epoch))
        });
        let all = Range {
            start: 0,
            end: SIZE_BLOCK + 1,
        };
        self.forget_went(file, all);
        is_lost
    }
}
