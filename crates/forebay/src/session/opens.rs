//! Which process has which file open.
//!
//! A process counts its own descriptions. For the others it shares the lock of one byte of the arena's file, the byte of
//! the entry's number, while it has any: the kernel takes the lock away when the process ends, however it does, so nobody who
//! is gone has anything open, and there is nothing to repair. (A child that was forked and runs on shares what its parent had.)
//! An arena on the heap is one process's.
//!
//! An entry's own count (`FileEntry::opens`) is for those who cannot afford a system call: it may count the dead until
//! [`table::recount`](crate::file::table::recount) has looked.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::ids::FileId;
use crate::memory::arena::Arena;
use crate::session::shared::Shared;
use crate::sync::Ordering;
use crate::sys::lock;

/// One process's open descriptions, by file.
#[derive(Default)]
pub struct Opens(Mutex<HashMap<FileId, u32>>);

impl Opens {
    /// Its holder waits for nobody, and looks at nothing shared.
    fn counts(&self) -> MutexGuard<'_, HashMap<FileId, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more.
    ///
    /// # Errors
    /// The system's, when it has no lock to give.
    pub fn add(&self, arena: &Arena, file: FileId) -> io::Result<()> {
        let mut counts = self.counts();
        let count = counts.entry(file).or_default();
        if let (0, Some(arena_file)) = (*count, arena.mapping().file()) {
            lock::share(arena_file.as_fd(), u64::from(file.0))?;
        }
        *count += 1;
        Ok(())
    }

    /// Counts one less.
    pub fn take(&self, arena: &Arena, file: FileId) {
        let mut counts = self.counts();
        let Some(count) = counts.get_mut(&file) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&file);
            if let Some(arena_file) = arena.mapping().file() {
                // The lock of what is open cannot fail to be given back.
                let _ = lock::let_go(arena_file.as_fd(), u64::from(file.0));
            }
        }
    }

    /// Descriptions of this process.
    pub fn here(&self, file: FileId) -> u32 {
        self.counts().get(&file).copied().unwrap_or(0)
    }
}

/// Whether a process other than the one that `arena` is mapped for has a file open. What cannot be told counts as open.
pub fn is_open_elsewhere(arena: &Arena, file: FileId) -> bool {
    let arena_file = arena.mapping().file();
    arena_file.is_some_and(|arena_file| {
        lock::is_held_elsewhere(arena_file.as_fd(), u64::from(file.0)).unwrap_or(true)
    })
}

impl Shared {
    /// Notes that this process has one more description of a file.
    pub fn add_open(&self, file: FileId) -> Result<()> {
        let added = self.opens.add(&self.arena, file);
        added.map_err(|e| Error::device("note that a file is open", &e))
    }

    /// One description of this process has been closed, and taken from the entry's count.
    pub fn take_open(&self, file: FileId) {
        self.opens.take(&self.arena, file);
    }

    /// Whether any process has the file open. Costs a system call where the entry's count says so, which may count the dead.
    pub fn is_open(&self, file: FileId) -> bool {
        self.arena
            .file_unchecked(file)
            .opens
            .load(Ordering::Acquire)
            != 0
            && (self.opens.here(file) > 0 || is_open_elsewhere(&self.arena, file))
    }

    /// Whether the file has been opened once, here, and nowhere else.
    pub fn is_open_once(&self, file: FileId) -> bool {
        self.opens.here(file) == 1
            && (self
                .arena
                .file_unchecked(file)
                .opens
                .load(Ordering::Acquire)
                == 1
                || !is_open_elsewhere(&self.arena, file))
    }
}
