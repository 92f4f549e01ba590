//! What all of a process's files of one session share: the arena, the configuration, the devices.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Config;
use crate::device::{DeviceFile, Inline};
use crate::error::{Error, Result};
use crate::file::table;
use crate::flush::{Flusher, Outcome, Scope};
use crate::ids::{FileId, ThreadId};
use crate::limits::PAGE_BYTES;
use crate::memory::arena::Arena;
use crate::memory::threads::Me;
use crate::route::{self, Overrides, Route, RouteOptions};
use crate::session::members;
use crate::sync::{AtomicU32, Ordering};

static INSTANCES: AtomicU64 = AtomicU64::new(1);

/// One process's side of a session.
pub struct Shared {
    /// The arena.
    pub arena: Arena,
    /// The configuration that this process was given.
    pub config: Config,
    /// Distinguishes sessions of one process from one another.
    pub instance: u64,
    devices: Mutex<HashMap<FileId, Arc<dyn DeviceFile>>>,
    route: Box<dyn Route>,
    overrides: Overrides,
    /// Pages that one file may owe.
    pub file_owed_pages_max: u64,
}

impl Shared {
    /// Over an open arena.
    pub fn new(arena: Arena, config: Config) -> Result<Self> {
        let options = RouteOptions { direct_bytes_min: config.direct_min };
        let route = route::by_name(config.route.name(), &options)
            .map_err(|e| Error::Session(e.to_string()))?;
        let rules: Vec<_> =
            config.routes.iter().map(|rule| (rule.glob.as_str(), rule.route.name())).collect();
        let overrides =
            Overrides::compile(&rules, &options).map_err(|e| Error::Session(e.to_string()))?;
        let file_owed_pages_max =
            config.file_dirty_bytes_max.map_or(u64::MAX, |bytes| bytes / PAGE_BYTES as u64);
        Ok(Shared {
            arena,
            file_owed_pages_max,
            config,
            instance: INSTANCES.fetch_add(1, Relaxed),
            devices: Mutex::new(HashMap::new()),
            route,
            overrides,
        })
    }

    /// The calling thread as a member of the session; takes a slot on first use.
    #[inline]
    pub fn me(self: &Arc<Self>) -> Result<Me<'_>> {
        let id = members::current(self)?;
        Ok(Me { arena: &self.arena, id })
    }

    /// A thread slot taken by other means, as a member.
    pub fn as_thread(&self, id: ThreadId) -> Me<'_> {
        Me { arena: &self.arena, id }
    }

    /// The route for a file.
    pub fn route_for(&self, path: &Path) -> &dyn Route {
        self.overrides.route_for(path).unwrap_or(self.route.as_ref())
    }

    /// The route for a file that is open. Overrides are looked up when there are any.
    #[inline]
    pub fn route_for_file(&self, _file: FileId, path: &Path) -> &dyn Route {
        if self.overrides.is_empty() { self.route.as_ref() } else { self.route_for(path) }
    }

    fn devices(&self) -> MutexGuard<'_, HashMap<FileId, Arc<dyn DeviceFile>>> {
        // A panic elsewhere leaves the map as it was: every change is one insert or remove.
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device file of an entry, if this process has it open.
    pub fn device(&self, file: FileId) -> Option<Arc<dyn DeviceFile>> {
        self.devices().get(&file).cloned()
    }

    /// Keeps a device file for an entry; the first one stays.
    pub fn keep_device(&self, file: FileId, device: Arc<dyn DeviceFile>) -> Arc<dyn DeviceFile> {
        Arc::clone(self.devices().entry(file).or_insert(device))
    }

    /// Forgets an entry's device file.
    pub fn drop_device(&self, file: FileId) {
        self.devices().remove(&file);
    }

    /// All entries that this process has device files for.
    pub fn open_devices(&self) -> Vec<(FileId, Arc<dyn DeviceFile>)> {
        self.devices().iter().map(|(id, device)| (*id, Arc::clone(device))).collect()
    }

    /// A flusher for a caller's own thread: one request at a time, no threads, no io_uring.
    pub fn own_flusher(&self) -> Flusher {
        Flusher::new(Box::new(Inline::new()), 1)
    }

    /// Flushes in the caller's own thread, and notes for recovery that the changes to the device file are ours.
    pub fn flush(
        &self,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        scope: Scope,
    ) -> Outcome {
        self.flush_with(&mut self.own_flusher(), me, file, device, scope)
    }

    /// As [`Shared::flush`], with a flusher of the caller's.
    pub fn flush_with(
        &self,
        flusher: &mut Flusher,
        me: Me<'_>,
        file: FileId,
        device: &Arc<dyn DeviceFile>,
        scope: Scope,
    ) -> Outcome {
        let entry = self.arena.file_unchecked(file);
        // Said first: should this thread die, a rebuild counts the intents of this file anew.
        me.slot().flushing.store(file.0 + 1, Ordering::Release);
        entry.intents.fetch_add(1, Ordering::AcqRel);
        let outcome = flusher.flush_and_write_fills(me, file, device, scope);
        if entry.intents.fetch_sub(1, Ordering::AcqRel) == 1
            && outcome.pages_written > 0
            && let Ok(stat) = device.stat()
        {
            table::witness(entry, &stat);
        }
        me.slot().flushing.store(0, Ordering::Release);
        outcome
    }

    /// Wakes the keeper if it sleeps.
    pub fn wake_keeper(&self) {
        let superblock = self.arena.superblock();
        superblock.work.fetch_add(1, Ordering::AcqRel);
        if superblock.sleeping.load(Ordering::Acquire) != 0 {
            crate::sys::futex::wake(&superblock.work);
        }
    }

    /// The word the keeper sleeps on.
    pub fn work(&self) -> &AtomicU32 {
        &self.arena.superblock().work
    }
}
