//! A session: an arena, its keeper, and the processes that use it.
//!
//! [`Session`] is the way in. [`shared`] is what a process's files have in common, [`members`] its threads'
//! slots, [`handoff`] the descriptors that clients hand to the keeper.

pub mod members;
pub mod shared;

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use crate::config::Config;
use crate::device::{DeviceFile, RealFile};
use crate::error::{Error, Result};
use crate::file::core::Core;
use crate::file::{File, OpenOptions, table};
use crate::keeper::repair;
use crate::memory::arena::Arena;
use crate::memory::layout::{Counts, Layout};
use crate::memory::mapping::Mapping;
use crate::session::shared::Shared;
use crate::stats::Stats;
use crate::sync::Ordering;

/// Thread slots and file-table entries of an arena.
const THREADS: u32 = 1024;
const FILES: u32 = 4096;
/// The same for a tiny arena, on the heap of a test.
const TINY_THREADS: u32 = 64;
const TINY_FILES: u32 = 16;

/// A process's part in a session.
///
/// ```
/// # fn main() -> forebay::error::Result<()> {
/// let session = forebay::Session::open(forebay::Config::tiny())?;
/// println!("{} bytes held", session.stats().memory_held_bytes);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

impl Session {
    /// Makes a session of this process's own.
    pub fn open(config: Config) -> Result<Self> {
        let (threads, files) =
            if config.heap_backed { (TINY_THREADS, TINY_FILES) } else { (THREADS, FILES) };
        let counts = Counts::for_memory(config.memory, threads, files);
        let mapping = Mapping::heap(Layout::new(counts).len);
        let arena = Arena::create(mapping, counts, 0, true)?;
        Self::with_arena(arena, config)
    }

    /// Makes a session over an arena on the heap with tables of just these sizes: so small that threads meet.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn simulated(config: Config, counts: Counts) -> Result<Self> {
        let mapping = Mapping::heap(Layout::new(counts).len);
        Self::with_arena(Arena::create(mapping, counts, 0, true)?, config)
    }

    /// Over an arena that is there: sets the budget, installs repairs, backs the first memory.
    pub(crate) fn with_arena(arena: Arena, config: Config) -> Result<Self> {
        let page = crate::limits::PAGE_BYTES as u64;
        let superblock = arena.superblock();
        let frames = (config.memory / crate::limits::BLOCK_BYTES as u64).max(1);
        let frames = u32::try_from(frames).unwrap_or(u32::MAX).min(arena.counts().frames);
        superblock.frames_max.store(frames, Ordering::Relaxed);
        superblock.owed_pages_max.store((config.dirty_bytes_max / page).max(1), Ordering::Relaxed);
        let shared = Arc::new(Shared::new(arena, config)?);
        repair::install(&shared);
        Ok(Session { shared })
    }

    /// Opens a file. One that the engine cannot manage is served by the kernel: [`File::kernel_reason`] says why.
    ///
    /// # Errors
    /// The system's for the path; [`Error::Session`] when the session's tables are full.
    pub fn open_file(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let path = path.as_ref();
        let file = options.open(path).map_err(|e| Error::device("open", &e))?;
        let route = self.shared.route_for(path);
        if route.name() == "kernel" {
            return self.in_kernel(file, "its route is kernel".into(), path, options);
        }
        match RealFile::reopen(file.as_fd()) {
            Ok(device) => self.manage(Arc::new(device), file, path, options),
            Err(reason) => self.in_kernel(file, reason.to_string(), path, options),
        }
    }

    fn in_kernel(
        &self,
        file: std::fs::File,
        reason: String,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<File> {
        if options.truncates() {
            file.set_len(0).map_err(|e| Error::device("truncate", &e))?;
        }
        Ok(File::kernel(file, reason, path, options))
    }

    fn manage(
        &self,
        device: Arc<dyn DeviceFile>,
        file: std::fs::File,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<File> {
        let core = self.manage_device(device, path)?;
        let file = File::managed(core, file, path, options);
        if options.truncates() {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Opens a device file that has no path in the file system: simulations.
    #[doc(hidden)]
    pub fn open_device(
        &self,
        device: Arc<dyn DeviceFile>,
        name: &str,
        options: &OpenOptions,
    ) -> Result<File> {
        let nothing = std::fs::File::open("/dev/null").map_err(|e| Error::device("open", &e))?;
        self.manage(device, nothing, Path::new(name), options)
    }

    /// Manages a device file: an entry in the table, a place in the registry.
    #[doc(hidden)]
    pub fn manage_device(&self, device: Arc<dyn DeviceFile>, path: &Path) -> Result<Core> {
        use std::os::unix::ffi::OsStrExt;
        let me = self.shared.me()?;
        let id = table::open(&self.shared, me, &device, path.as_os_str().as_bytes())?;
        let device = self.shared.keep_device(id, device);
        Ok(Core { shared: Arc::clone(&self.shared), id, device })
    }

    /// The session's counters.
    pub fn stats(&self) -> Stats {
        Stats::collect(&self.shared.arena)
    }

    /// What tests need to look behind the session.
    #[doc(hidden)]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}
