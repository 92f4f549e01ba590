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

use super::{Inner, LogState, Refusal};
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
    pub(super) fn commit_then(&self, truncate: bool, first: impl FnOnce(&mut State)) -> Result<()> {
        let mut first = Some(first);
        self.commit_with(truncate, &mut |state| {
            if let Some(first) = first.take() {
                first(state);
            }
        })
    }

    /// Commits, and gives an operation that was refused what comes of it: the batch before anybody else, and each block that becomes free.
    /// Whoever waited for the end of the commit would find that others have taken them.
    pub(super) fn commit_trying<R>(
        &self,
        mut attempt: impl FnMut(&mut State) -> std::result::Result<R, Refusal>,
    ) -> Result<std::result::Result<R, Refusal>> {
        let mut answer = None;
        self.commit_with(true, &mut |state| match &answer {
            None => {
                answer = Some(match attempt(state) {
                    Err(Refusal::FullBatch) => Err(Refusal::TooLarge),
                    other => other,
                });
            }
            Some(Err(Refusal::FullBatch | Refusal::Error(Errno::ENOSPC))) => {
                answer = Some(attempt(state));
            }
            Some(_) => {}
        })?;
        Ok(answer.unwrap_or(Err(Refusal::FullBatch)))
    }

    /// Commits. `work` is done under the state's lock when the batch that comes then has begun, and whenever blocks have become free.
    fn commit_with(&self, truncate: bool, work: &mut dyn FnMut(&mut State)) -> Result<()> {
        let mut log = self.log();
        let (batch, medium) = {
            let mut state = self.write();
            if let Some(why) = state.read_only {
                return Err(why);
            }
            let batch = state.collect();
            work(&mut state);
            (batch, Arc::clone(&state.medium))
        };
        let end = Unfinished(self);
        self.persist(&mut log, batch, &*medium, truncate, work)?;
        // All went well.
        std::mem::forget(end);
        Ok(())
    }

    fn persist(
        &self,
        log: &mut LogState,
        batch: Option<Batch>,
        medium: &dyn Medium,
        truncate: bool,
        work: &mut dyn FnMut(&mut State),
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
            let mut state = self.write();
            state.committed(&mut batch);
            work(&mut state);
            drop(state);
            log.waiting.extend(batch.freed.metadata);
        }
        if log.log.is_half_full() || truncate && !log.log.is_empty() {
            medium.sync(For::Home)?;
            log.log.truncate()?;
            let waiting = std::mem::take(&mut log.waiting);
            let mut state = self.write();
            state.release(&waiting);
            work(&mut state);
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

    /// A commit, by somebody who has the store no longer than that.
    pub(crate) fn committer(&self, truncate: bool) -> impl FnOnce() -> Result<()> + use<> {
        let inner = Arc::clone(&self.inner);
        move || inner.commit(truncate)
    }

    /// What lies behind the lock, for a mistake to be planted.
    pub(crate) fn with_state<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        work(&mut self.inner.write())
    }

    /// Whether a crash now would leave no record to recover from.
    pub(crate) fn is_log_empty(&self) -> bool {
        self.inner.log().log.is_empty()
    }
}
