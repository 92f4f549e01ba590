//! Processes of a simulated session: each maps the arena's file for itself, as processes do.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::{Session, set_budgets};
use crate::config::Config;
use crate::device::DeviceFile;
use crate::error::{Error, Result};
use crate::keeper::desk;
use crate::member::presence::has_keeper;
use crate::member::shared::Shared;
use crate::memory::arena::Arena;
use crate::memory::layout::{Counts, Layout};
use crate::memory::mapping::Mapping;
#[cfg(feature = "sim")]
use crate::sim::{Neighbours, letters::Letters, tasks};
use crate::sync::Ordering;

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
    pub(crate) fn simulated(
        &self,
        inode: u64,
        patience: Option<Duration>,
    ) -> Option<Arc<dyn DeviceFile>> {
        self.neighbours.get()?.open(inode, patience)
    }

    /// Where messages to a simulated keeper are put.
    pub(crate) fn letters(&self) -> Option<&Letters> {
        self.neighbours.get()?.letters()
    }

    /// Whether the simulated keeper of this epoch hears what is said to it.
    fn hears(&self, epoch: u32) -> bool {
        let now = &self.arena.superblock().keeper_epoch;
        now.load(Ordering::Relaxed) == epoch && has_keeper(&self.arena)
    }

    /// Asks a simulated keeper. `None`: it hears nothing, or dies before it answers.
    pub(crate) fn ask_simulated(
        &self,
        letters: &Letters,
        epoch: u32,
        message: [u8; 16],
    ) -> Option<bool> {
        if !self.hears(epoch) {
            return None;
        }
        letters.ask(epoch, message, || self.hears(epoch))
    }

    /// Tells a simulated keeper something, without an answer. Whether it may hear it.
    pub(crate) fn tell_simulated(&self, letters: &Letters, epoch: u32, message: [u8; 16]) -> bool {
        let hears = self.hears(epoch);
        if hears {
            letters.tell(epoch, message);
        }
        hears
    }

    /// Heeds what is said to this keeper, and waits for that for so long. `false`: nothing is ever said to it.
    pub(crate) fn serve_simulated(self: &Arc<Self>, pause: Duration) -> bool {
        let Some(letters) = self.letters() else {
            return false;
        };
        let epoch = self.arena.superblock().keeper_epoch.load(Ordering::Relaxed);
        let end = tasks::now() + pause;
        loop {
            let mut heeded = false;
            while let Some(letter) = letters.next(epoch) {
                heeded = true;
                letter.answer(desk::heed(self, &letter.message));
            }
            let left = end.saturating_sub(tasks::now());
            if heeded || left.is_zero() {
                return true;
            }
            letters.listen(left);
        }
    }
}
