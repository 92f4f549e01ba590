//! What is open: files and directories, by the numbers that the kernel has for them.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::failed::{Answer, Failed};

/// An open file.
pub(crate) struct Opened {
    pub(crate) file: forebay::File,
    /// The same description, for what only the kernel does.
    pub(crate) plain: fs::File,
    /// Its number as the kernel has it.
    pub(crate) node: u64,
    pub(crate) writes: bool,
    /// The flags that it was opened with.
    pub(crate) flags: i32,
}

/// An open directory. Its position is the last request's.
pub(crate) struct Listing {
    pub(crate) fd: Mutex<OwnedFd>,
}

/// Things that are open, by number.
pub(crate) struct Handles<T> {
    all: Mutex<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Handles<T> {
    pub(crate) fn new() -> Self {
        Handles {
            all: Mutex::new(HashMap::new()),
            next: AtomicU64::new(1),
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<u64, Arc<T>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, opened: T) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.all().insert(number, Arc::new(opened));
        number
    }

    pub(crate) fn get(&self, number: u64) -> Answer<Arc<T>> {
        let found = self.all().get(&number).map(Arc::clone);
        found.ok_or(Failed(libc::EBADF))
    }

    pub(crate) fn take(&self, number: u64) -> Option<Arc<T>> {
        self.all().remove(&number)
    }

    /// How many are open now.
    pub(crate) fn count(&self) -> usize {
        self.all().len()
    }

    /// All that are open now.
    pub(crate) fn every(&self) -> Vec<Arc<T>> {
        self.all().values().map(Arc::clone).collect()
    }
}
