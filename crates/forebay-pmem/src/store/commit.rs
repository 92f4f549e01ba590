//! Commits: the two phases, and the way of a batch into the medium.
//!
//! 1. *Collect*, under the state's lock: the running batch is set aside, and the next one begins.
//! 2. *Persist*, without it: the files' bytes are durable first, then the record of the log, which makes the
//!    batch count. Then the lines are written to where they belong.
//! 3. When the log is more than half full, or somebody needs what it holds, what was written there is made
//!    durable too, and the log begins anew.
//!
//! An error of the medium leaves it unknown what is durable: the store is read-only from then on, and every
//! later call that would change or sync something says so. The same after a panic.

use super::{Inner, LogState};
use crate::errno::{Errno, Result};
use crate::layout::BLOCK;
use crate::log;
use crate::medium::{For, Medium};
use crate::operations::orphans;
use crate::state::{Batch, State};
use std::sync::Arc;

impl Inner {
    /// Makes durable what was done before; `truncate` empties the log as well.
    pub(super) fn commit(&self, truncate: bool) -> Result<()> {
        self.commit_then(truncate, |_| ())
    }

    /// The same; `first` is done before anything else in the batch that comes then. It is not durable yet.
    pub(super) fn commit_then<R>(
        &self,
        truncate: bool,
        first: impl FnOnce(&mut State) -> R,
    ) -> Result<R> {
        let mut log = self.log();
        let (batch, medium, answer) = {
            let mut state = self.write();
            if let Some(why) = state.read_only {
                return Err(why);
            }
            let batch = state.collect();
            let answer = first(&mut state);
            (batch, Arc::clone(&state.medium), answer)
        };
        let end = Unfinished(self);
        self.persist(&mut log, batch, &*medium, truncate)?;
        // All went well.
        std::mem::forget(end);
        Ok(answer)
    }

    fn persist(
        &self,
        log: &mut LogState,
        batch: Option<Batch>,
        medium: &dyn Medium,
        truncate: bool,
    ) -> Result<()> {
        if let Some(mut batch) = batch {
            for run in &batch.windows {
                let (at, length) = (run.start * BLOCK as u64, run.length * BLOCK as u64);
                medium.flush(at, length, For::Window);
            }
            if batch.wrote_data || !batch.windows.is_empty() {
                medium.sync(For::Data)?;
            }
            let record = log.log.append(&batch.pages)?;
            log::apply(medium, record);
            self.write().committed(&mut batch);
            log.waiting.extend(batch.freed.metadata);
        }
        if log.log.is_half_full() || truncate && !log.log.is_empty() {
            medium.sync(For::Home)?;
            log.log.truncate()?;
            let waiting = std::mem::take(&mut log.waiting);
            self.write().release(&waiting);
        }
        Ok(())
    }

    /// Whether there is anything to commit.
    pub(super) fn is_dirty(&self) -> bool {
        let state = self.read();
        state.read_only.is_none() && !state.pages.is_clean()
    }

    /// Frees files without a name that nobody holds, up to the first that is damaged.
    pub(super) fn free_orphans(&self) -> Result<()> {
        loop {
            let first = orphans::first(&self.read())?;
            if first == 0 {
                return Ok(());
            }
            self.change(|state| {
                state.held.forget(first);
                orphans::free_first(state, first)
            })?;
        }
    }
}

/// A commit on its way. If it goes by an error or a panic, the batch that it has taken is nobody's: no later call may say that it is durable.
struct Unfinished<'a>(&'a Inner);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.write().read_only = Some(Errno::EIO);
    }
}

#[cfg(test)]
impl super::Store {
    /// What `statfs` tells when nothing waits for a commit.
    pub(crate) fn statfs_when_committed(&self) -> Result<crate::types::Statistics> {
        self.inner.free_orphans()?;
        self.inner.commit(true)?;
        Ok(self.statfs())
    }
}
