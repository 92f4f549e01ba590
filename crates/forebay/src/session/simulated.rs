//! Processes of a simulated session: each maps the arena's file for itself, as processes do.

use std::fs::File;
use std::sync::Arc;

use super::{Session, set_budgets};
use crate::config::Config;
use crate::device::DeviceFile;
use crate::error::{Error, Result};
use crate::memory::arena::Arena;
use crate::memory::layout::{Counts, Layout};
use crate::memory::mapping::Mapping;
use crate::session::shared::Shared;
#[cfg(feature = "sim")]
use crate::sim::Neighbours;

impl Session {
    /// Makes an arena with tables of just these sizes in an empty file, for processes to come. Within a task of a simulation, or
    /// its words count as accesses of nobody.
    #[doc(hidden)]
    pub fn simulated_arena(file: File, config: &Config, counts: Counts) -> Result<()> {
        let mapping = Mapping::create(file, Layout::new(counts).len)
            .map_err(|e| Error::device("make the arena", &e))?;
        let arena = Arena::create(mapping, counts, 1, true, (config.allocator, 2))?;
        set_budgets(&arena, config);
        Ok(())
    }

    /// A process's part in the session whose arena is in a file. Its description is the process's own.
    #[doc(hidden)]
    pub fn simulated_process(file: File, config: Config) -> Result<Arc<Shared>> {
        let mapping = Mapping::attach(file).map_err(|e| Error::device("map the arena", &e))?;
        let shared = Arc::new(Shared::new(Arena::open(mapping)?, None, config)?);
        crate::keeper::repair::install(&shared);
        Ok(shared)
    }

    /// The same as a session.
    #[doc(hidden)]
    pub fn of_process(shared: Arc<Shared>) -> Self {
        Session {
            shared,
            hosting: None,
        }
    }
}

impl Shared {
    /// Says who takes what this process hands over, and where it finds files.
    #[doc(hidden)]
    pub fn meet(&self, neighbours: Box<dyn Neighbours>) {
        let _ = self.neighbours.set(neighbours);
    }

    /// The simulated file with this inode number.
    pub(crate) fn simulated(&self, inode: u64) -> Option<Arc<dyn DeviceFile>> {
        self.neighbours.get()?.open(inode)
    }
}
