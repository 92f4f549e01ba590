//! An open store: its lock, the commit, the flusher, and the calls.
//!
//! Calls that change something hold the state's lock alone, those that read hold it together. Calls that change a
//! file's bytes or size have its *turn* first, and keep it from their first operation to their last: the pieces of
//! two writes do not mix. A *commit* has two phases: it collects the running batch under the lock, and makes it durable without it; meanwhile calls
//! go on with the next batch. One commit runs at a time (the log's lock, taken before the state's and after a turn).
//! See [`commit`].

mod calls;
mod commit;
mod create;
mod flusher;
mod open;
mod view;
mod window;

use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

pub use create::{create, create_with};
pub use open::{Information, information, is_store};
pub use view::{View, Whole};
pub use window::Window;

use crate::errno::{Errno, Result};
use crate::log::Log;
use crate::state::State;
use flusher::Flusher;

#[cfg(test)]
pub(crate) use create::make;
pub(crate) use open::{load_state, read_superblock};

/// Turns that there are: files whose numbers differ by a multiple of it share one.
const TURNS: usize = 64;

/// How often a writer looks whether the state is free before it sleeps: some microseconds, as long as small operations take. To sleep and to be woken takes longer.
const LOOKS: usize = 200;

/// Most commits that an operation waits for.
const COMMITS_MAX: usize = 16;

/// What the calls and the flusher share.
pub(crate) struct Inner {
    state: RwLock<State>,
    log: Mutex<LogState>,
    turns: [Mutex<()>; TURNS],
}

/// The log, and what waits for it.
struct LogState {
    log: Log,
    /// Freed metadata blocks of batches that the log still has.
    waiting: Vec<u64>,
}

/// An open store. Its methods may be called from any thread.
pub struct Store {
    inner: Arc<Inner>,
    flusher: Option<Flusher>,
}

impl Inner {
    fn new(state: State, log: Log) -> Self {
        Self {
            state: RwLock::new(state),
            log: Mutex::new(LogState {
                log,
                waiting: Vec::new(),
            }),
            turns: [const { Mutex::new(()) }; TURNS],
        }
    }

    /// The turn to change a file's bytes and size.
    fn turn(&self, inode: u64) -> MutexGuard<'_, ()> {
        self.turns[inode as usize % TURNS]
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        // A call that panicked has a bug; what it left running is not committed (see `fail`).
        self.state
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        for _ in 0..LOOKS {
            match self.state.try_write() {
                Ok(state) => return state,
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
                Err(TryLockError::Poisoned(_)) => break,
            }
        }
        self.state.write().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            // Half an operation may be in it: nothing more becomes durable.
            state.read_only.get_or_insert(Errno::EIO);
            state
        })
    }

    fn log(&self) -> MutexGuard<'_, LogState> {
        self.log
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs an operation: it stays as a whole, or has not been. Where the batch has no room for it, or the
    /// store has none that a commit would not give back, a commit comes first.
    fn change<R>(&self, operation: impl FnMut(&mut State) -> Result<R>) -> Result<R> {
        self.change_giving(&[], operation)
    }

    /// The same with bytes, which are stored if the operation stays.
    fn change_giving<R>(
        &self,
        given: &[u8],
        mut operation: impl FnMut(&mut State) -> Result<R>,
    ) -> Result<R> {
        let mut attempt = |state: &mut State| match operation(state) {
            Ok(result) if state.keep(given) => Ok(result),
            Ok(_) => Err(Refusal::FullBatch),
            Err(error) => {
                state.undo();
                Err(Refusal::Error(error))
            }
        };
        for _ in 0..COMMITS_MAX {
            let mut state = self.write();
            if let Some(why) = state.read_only {
                return Err(why);
            }
            let refusal = match attempt(&mut state) {
                Ok(result) => return Ok(result),
                Err(refusal) => refusal,
            };
            let helps = state.has_waiting() || !state.pages.is_clean();
            drop(state);
            match refusal {
                Refusal::Error(error) if error != Errno::ENOSPC || !helps => return Err(error),
                _ => {}
            }
            match self.commit_trying(&mut attempt)? {
                Ok(result) => return Ok(result),
                Err(Refusal::Error(error)) => return Err(error),
                Err(Refusal::TooLarge) => return Err(Errno::ENOSPC),
                // There was room at last, and others had filled the batch.
                Err(Refusal::FullBatch) => {}
            }
        }
        Err(Errno::ENOSPC)
    }
}

/// Why an operation has not been.
enum Refusal {
    /// The running batch has no room for it.
    FullBatch,
    /// It is more than the log takes at once: alone in its batch, it has no room.
    TooLarge,
    /// It has failed.
    Error(Errno),
}

impl Store {
    /// The store's own number, which no other store has.
    pub fn id(&self) -> u64 {
        self.inner.read().superblock.id
    }

    /// Syncs and closes. A drop does the same, and cannot tell of errors.
    pub fn close(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        // The flusher is gone after the first time.
        let Some(flusher) = self.flusher.take() else {
            return Ok(());
        };
        flusher.stop();
        match self.inner.read().read_only {
            None => {}
            Some(Errno::EROFS) => return Ok(()),
            // A commit that nobody has waited for may have failed: whoever closes is the last to hear of it.
            Some(why) => return Err(why),
        }
        // One that is damaged stays, as it does when the store is opened; what was done is committed all the same.
        let _ = self.inner.free_orphans();
        // A window may outlive the store: nobody would make durable what it commits after this batch.
        self.inner.commit_then(true, |state| {
            state.read_only.get_or_insert(Errno::EROFS);
        })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Whoever wants to know calls `close`.
        let _ = self.finish();
    }
}
