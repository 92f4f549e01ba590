//! What is owed to devices that have refused it: it counts in no limit that makes others wait.
//!
//! A file whose flush has failed is tried again by the keeper in its own time ([`errors::may_retry`]). Until then nobody can make room by
//! writing what it owes, so a writer of other files neither waits for that nor tries it. Memory's own limit still holds. Without a keeper no
//! time is known, and a thread that needs room tries everything.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::flush::errors;
use crate::ids::FileId;
use crate::member::presence::has_keeper;
use crate::member::shared::Shared;
use crate::memory::files::{FileEntry, LIVE};
use crate::sync::Ordering;
use crate::sync::time::Instant;

/// How long a sum is good: all files are looked at for it.
const GOOD: Duration = Duration::from_millis(100);

/// The last sum: when it was made, and its pages.
pub type Refused = Mutex<Option<(Instant, u64)>>;

impl Shared {
    /// Whether the file's device has refused what it owes, and it is not time to try again.
    pub fn is_refused(&self, entry: &FileEntry) -> bool {
        let tick = self.arena.superblock().tick.load(Ordering::Relaxed);
        !errors::may_retry(entry, tick) && has_keeper(&self.arena)
    }

    /// Pages owed that can be written, about.
    pub fn owed_in_reach(&self) -> u64 {
        let owed = self.arena.superblock().owed_about();
        owed.saturating_sub(self.refused_pages())
    }

    /// Pages owed that cannot be written for now, about, as they were a moment ago.
    pub fn refused_pages(&self) -> u64 {
        // A thread that needs room tries everything then.
        if !has_keeper(&self.arena) {
            return 0;
        }
        // For no longer than a copy takes.
        let last = || self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let known = *last();
        if let Some((_, pages)) = known.filter(|(at, _)| at.elapsed() < GOOD) {
            return pages;
        }
        let files = (0..self.arena.counts().files).map(|id| self.arena.file_unchecked(FileId(id)));
        let refused = files.filter(|entry| {
            entry.failures.load(Ordering::Relaxed) != 0
                && entry.state.load(Ordering::Acquire) == LIVE
                && self.is_refused(entry)
        });
        let pages = refused
            .map(|entry| entry.owed_pages.load(Ordering::Relaxed))
            .fold(0, u64::saturating_add);
        let now = Instant::now();
        *last() = Some((now, pages));
        pages
    }
}
