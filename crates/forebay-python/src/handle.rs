//! What may be closed while calls are under way: each call holds it for reading, without the GIL, and closing waits for them.

use std::io;
use std::sync::{PoisonError, RwLock};

use forebay::sys::forks::Owned;
use pyo3::prelude::*;

use crate::errors::{closed, inherited};

/// Something that is open until it is closed, and in a child of this process never.
pub struct Handle<T> {
    owned: Owned<RwLock<Option<T>>>,
    what: &'static str,
}

impl<T: Send + Sync> Handle<T> {
    /// Open; `what` is how errors name it.
    ///
    /// # Errors
    /// `ENOMEM` when forks cannot be watched.
    pub fn new(value: T, what: &'static str) -> io::Result<Self> {
        let owned = Owned::new(RwLock::new(Some(value)))?;
        Ok(Handle { owned, what })
    }

    /// Whether this process has made it, and not a parent.
    pub fn is_ours(&self) -> bool {
        self.owned.is_ours()
    }

    /// Does something with it while others have the GIL.
    ///
    /// # Errors
    /// It is closed, or a parent's.
    pub fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&T) -> R + Send) -> PyResult<R> {
        let owned = self.owned.get().ok_or_else(|| inherited(self.what))?;
        let done = py.detach(|| {
            let held = owned.read().unwrap_or_else(PoisonError::into_inner);
            held.as_ref().map(work)
        });
        done.ok_or_else(|| closed(self.what))
    }

    /// Closes it by `last`, after the calls that are under way. `None`: it was closed, or is a parent's.
    pub fn close<R: Send>(&self, py: Python<'_>, last: impl FnOnce(T) -> R + Send) -> Option<R> {
        let owned = self.owned.get()?;
        py.detach(|| {
            let mut held = owned.write().unwrap_or_else(PoisonError::into_inner);
            held.take().map(last)
        })
    }
}
