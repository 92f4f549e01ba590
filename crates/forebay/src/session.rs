//! A session: an arena, its keeper, and the processes that use it.
//!
//! [`Session`] is the way in, `opening` how files are opened, [`adopt`] files that a program has opened by itself, [`glance`] what is known
//! of them, `company` who else is in the session, [`standing`] calls of the kernel's on them, `windows` where windows come from, [`relief`] a process that stands guard,
//! [`look`] what commands see of sessions and do in those that others have started. What a process has of its session lies below, in
//! [`member`](crate::member).

pub mod adopt;
mod company;
pub mod glance;
pub mod look;
pub mod marks;
mod opening;
pub mod relief;
#[cfg(feature = "sim")]
mod simulated;
pub mod standing;
pub mod streams;
pub mod told;
pub mod whole;
mod windows;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, atomic};
use std::time::Duration;

use crate::config::{Allocator, Config};
use crate::device::file_system;
use crate::error::{Error, Result, SessionFault};
use crate::ids::ThreadId;
use crate::keeper::hosting::Hosting;
use crate::keeper::recover::{Report, Saved, recover};
use crate::keeper::repair;
use crate::member::shared::Shared;
use crate::member::{presence, provision};
use crate::memory::arena::{Arena, OTHER_BUILD};
use crate::memory::layout::{Counts, Layout};
use crate::memory::mapping::Mapping;
use crate::memory::place::dir::UserDir;
use crate::memory::place::{self, PlaceKind};
use crate::memory::threads;
use crate::stats::Stats;
use crate::sync::Ordering;
use crate::sys::membarrier;

/// Milliseconds that are waited for a keeper at most, and for one of this process's that begins: longer than it waits for leases that others have left.
const KEEPER_ROUNDS_MAX: u32 = 200;
const BEGIN_ROUNDS_MAX: u32 = 2000;
/// How often, and how long apart, a session that is being made or recovered by somebody else is tried again.
const JOIN_TRIES: u32 = 500;
const JOIN_PAUSE: Duration = Duration::from_millis(10);

/// How an arena lies in memory.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ArenaPlace {
    /// The rung of the huge-page ladder; `None` on the heap.
    pub kind: Option<PlaceKind>,
    /// The arena's file.
    pub path: Option<PathBuf>,
    /// Bytes of it that this process has mapped by huge pages.
    pub huge_bytes: u64,
}

/// How frames are allotted, and for how many cores. On the heap for a fixed number: tests shall do the same everywhere.
fn allotment(config: &Config) -> (Allocator, usize) {
    let cores = if config.heap_backed {
        2
    } else {
        crate::sys::cpu::count()
    };
    (config.allocator, cores)
}

/// Limits as the configuration of the arena's maker says.
fn set_budgets(arena: &Arena, config: &Config) {
    let superblock = arena.superblock();
    let frames = provision::frames_within(arena, config, 1.0);
    superblock.frames_max.store(frames, Ordering::Relaxed);
    let pages = (config.dirty_bytes_max / crate::limits::PAGE_BYTES as u64).max(1);
    superblock.owed_pages_max.store(pages, Ordering::Relaxed);
    let lists = arena.stream_lists();
    let (tracking, ordering) = (config.dirty_tracking as u32, config.flush_order as u32);
    lists.tracking.store(tracking, Ordering::Relaxed);
    lists.ordering.store(ordering, Ordering::Relaxed);
    let clean = config.clean_bytes_max.map_or(u32::MAX, |bytes| {
        u32::try_from(bytes / crate::limits::BLOCK_BYTES as u64).unwrap_or(u32::MAX)
    });
    superblock.clean_frames_max.store(clean, Ordering::Relaxed);
}

/// A session cannot begin while bytes of its predecessor are in the arena and nowhere else.
fn all_saved(report: &Report) -> Result<()> {
    if report.removed {
        return Ok(());
    }
    let failed = report.files.iter().filter_map(|saved| match saved {
        Saved::Failed { path, reason } => Some(format!("{}: {reason}", path.display())),
        _ => None,
    });
    Err(SessionFault::Unavailable.error(format!(
        "an earlier session of this name has left bytes that cannot be saved now, in {}: {}",
        report.arena.display(),
        failed.collect::<Vec<_>>().join("; ")
    )))
}

/// A word that no other session has.
fn random_word() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
        | 1
}

/// Whether the file still has a name.
fn is_linked(file: &std::fs::File) -> bool {
    matches!(file.metadata(), Ok(seen) if seen.nlink() > 0)
}

/// Thread slots and file-table entries of an arena.
const THREADS: u32 = crate::limits::THREADS_MAX;
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
    /// Threads that keep, or stand by; stopped with the last clone of this session.
    hosting: Option<Arc<Hosting>>,
}

impl Session {
    /// Joins the session that the configuration names, or starts it, and hosts a keeper in this process: its threads
    /// keep the session, or stand by while another process does. What a dead session of that name has left is recovered
    /// first.
    ///
    /// With `heap_backed`, the session is this process's own, without a keeper: for tests.
    ///
    /// # Errors
    /// [`Error::Arena`] when no memory file system will do, or the arena of that name is of another version;
    /// [`Error::Session`] when it cannot be joined.
    pub fn open(config: Config) -> Result<Self> {
        let mut session = Self::join(config)?;
        if !session.shared.config.heap_backed {
            session.keep()?;
        }
        Ok(session)
    }

    /// Hosts a keeper in this process from now on, if it does not yet: its threads keep the session, or stand by while
    /// another process does.
    ///
    /// # Errors
    /// [`Error::Session`] when the threads cannot be started.
    pub fn keep(&mut self) -> Result<()> {
        if self.hosting.is_none() {
            self.hosting = Some(Arc::new(Hosting::start(&self.shared)?));
            self.await_keeper();
        }
        Ok(())
    }

    /// Stops hosting a keeper, unless a clone of this session does as well: another process takes over, if one stands by.
    pub fn stop_keeping(&mut self) {
        self.hosting = None;
    }

    /// Whether some process keeps the session.
    pub fn has_keeper(&self) -> bool {
        presence::has_keeper(&self.shared.arena)
    }

    /// As [`Session::open`], without hosting a keeper: this process starts no threads.
    ///
    /// # Errors
    /// As for [`Session::open`].
    pub fn join(config: Config) -> Result<Self> {
        file_system::manage_stores(config.manage_stores);
        if config.heap_backed {
            let counts = Counts::for_memory(config.memory, TINY_THREADS, TINY_FILES);
            let mapping = Mapping::heap(Layout::new(counts).len);
            // Simulated threads are not stopped by barriers of the kernel's.
            let fences = cfg!(feature = "sim") || !membarrier::register();
            let arena = Arena::create(mapping, counts, 0, fences, allotment(&config))?;
            set_budgets(&arena, &config);
            return Self::with_arena(arena, None, config);
        }
        for _ in 0..JOIN_TRIES {
            let found = place::dirs_of(config.arena_dir.as_deref(), &config.session);
            let joined = match found.first() {
                Some(dir) => Self::try_join(dir, &config)?,
                None => Self::try_make(&config)?,
            };
            if let Some(session) = joined {
                return Ok(session);
            }
            // Not all at once: of several that make one arena in several places, all have to begin again.
            std::thread::sleep(JOIN_PAUSE + JOIN_PAUSE * (random_word() % 8) as u32 / 8);
        }
        let session = &config.session;
        Err(SessionFault::InUse.error(format!(
            "the arena of the session {session} is being made or recovered by another process that does not finish; if \
             there is no such process, `forebay recover --session {session}` says what stands in the way"
        )))
    }

    /// One try to make the arena, where there is none. `None`: somebody else has begun.
    fn try_make(config: &Config) -> Result<Option<Self>> {
        let placement = place::place(config.arena_dir.as_deref(), config.memory)?;
        let path = placement.arena_path(&config.session);
        let fences = !membarrier::register();
        let Ok(file) = placement.create(&config.session) else {
            return Ok(None);
        };
        // Held until the arena is complete: nobody recovers it meanwhile.
        let Ok(lock) = file.try_clone() else {
            return Ok(None);
        };
        if lock.try_lock_shared().is_err() || !is_linked(&lock) {
            // Somebody took the empty file for one whose maker has died.
            return Ok(None);
        }
        // What is free may have changed, and another process have chosen another place at the same moment.
        let made = place::dirs_of(config.arena_dir.as_deref(), &config.session);
        if made.iter().any(|dir| dir.path != placement.path) {
            placement.remove(&config.session)?;
            return Ok(None);
        }
        let memory = config.memory.min(placement.bytes);
        let counts = Counts::for_memory(memory, THREADS, FILES);
        let layout = Layout::new(counts);
        let arena = Mapping::create(file, layout.len)
            .map_err(|e| Error::device("make the arena", &e))
            .and_then(|mapping| {
                Arena::create(mapping, counts, random_word(), fences, allotment(config))
            });
        let arena = match arena {
            Ok(arena) => arena,
            Err(error) => {
                placement.remove(&config.session)?;
                return Err(placement.explain(error, layout.nodes as u64));
            }
        };
        arena.superblock().set_place(placement.kind as u64);
        set_budgets(&arena, config);
        Self::with_arena(arena, Some(path), config.clone()).map(Some)
    }

    /// One try to join the session whose arena is in a directory: `None` when somebody else is making or recovering it at
    /// this moment, or has removed it.
    fn try_join(dir: &UserDir, config: &Config) -> Result<Option<Self>> {
        let path = dir.arena_path(&config.session);
        let fences = !membarrier::register();
        let Some(arena) = Self::attach(dir, config)? else {
            return Self::unfinished(&path, config);
        };
        let dead = !(1..arena.counts().threads).any(|id| threads::is_there(&arena, ThreadId(id)));
        let arena = if dead {
            drop(arena);
            match recover(&path, config) {
                Ok(report) => return all_saved(&report).map(|()| None),
                // Some process has it mapped, with no thread at work in it just now: the session lives.
                Err(error) if error.is_session(SessionFault::InUse) => {
                    match Self::attach(dir, config)? {
                        Some(arena) => arena,
                        None => return Ok(None),
                    }
                }
                Err(_) if !path.exists() => return Ok(None),
                Err(error) => return Err(error),
            }
        } else {
            arena
        };
        if fences && !arena.fences() {
            return Err(SessionFault::Unavailable.error(
                "this process may not use membarrier and the session relies on it; allow the call, or \
                 give this process a session of its own",
            ));
        }
        Self::with_arena(arena, Some(path), config.clone()).map(Some)
    }

    /// Maps the arena that is there. `None`: it is not finished, or its maker or a recovery has it to itself.
    fn attach(dir: &UserDir, config: &Config) -> Result<Option<Arena>> {
        let Ok(file) = dir.open_session(&config.session) else {
            return Ok(None);
        };
        if file.try_lock_shared().is_err() {
            return Ok(None);
        }
        if !is_linked(&file) {
            // The last process has just left and removed it.
            return Ok(None);
        }
        let Ok(mapping) = Mapping::attach(file) else {
            return Ok(None);
        };
        if Arena::is_of_another_build(&mapping) {
            // It is never going to be ours, so nobody waits for it.
            let path = dir.arena_path(&config.session);
            return Err(Error::Arena(format!("{}: {OTHER_BUILD}", path.display())));
        }
        Ok(Arena::open(mapping).ok())
    }

    /// An arena without its magic: its maker is at work, or has died at it.
    fn unfinished(path: &Path, config: &Config) -> Result<Option<Self>> {
        match recover(path, config) {
            Ok(report) => all_saved(&report).map(|()| None),
            Err(error) if error.is_session(SessionFault::InUse) => Ok(None),
            // Somebody has removed it.
            Err(_) if !path.exists() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn with_arena(arena: Arena, path: Option<PathBuf>, config: Config) -> Result<Self> {
        Self::over(Shared::new(arena, path, config)?)
    }

    fn over(shared: Shared) -> Result<Self> {
        let shared = Arc::new(shared);
        repair::install(&shared);
        // A slot for this thread, so that the session counts as alive from here on.
        shared.me()?;
        Ok(Session {
            shared,
            hosting: None,
        })
    }

    /// Makes a session over an arena on the heap with tables of just these sizes: so small that threads meet.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn simulated(config: Config, counts: Counts) -> Result<Self> {
        let mapping = Mapping::heap(Layout::new(counts).len);
        let arena = Arena::create(mapping, counts, 0, true, (config.allocator, 2))?;
        set_budgets(&arena, &config);
        Self::with_arena(arena, None, config)
    }

    /// Waits for a moment until somebody keeps the session; where that is this process, until it is at work: a file that is opened before has no
    /// guard.
    fn await_keeper(&self) {
        let (arena, keeps) = (&self.shared.arena, &self.shared.keeps);
        let rounds = || arena.superblock().kept.load(Ordering::Acquire);
        let before = rounds();
        // A keeper of another number space may have this process's number: it goes round.
        let begins = || {
            presence::keeper_process(arena) == std::process::id()
                && !keeps.load(atomic::Ordering::Acquire)
                && rounds() == before
        };
        for round in 0..BEGIN_ROUNDS_MAX {
            match presence::has_keeper(arena) {
                true if !begins() => return,
                false if round == KEEPER_ROUNDS_MAX => return,
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Gives the session this much memory ahead of need, bytes, so that the first writes do not pay for first touches.
    ///
    /// # Errors
    /// [`Error::Session`] when the calling thread finds no slot.
    pub fn warm(&self, bytes: u64) -> Result<()> {
        provision::ahead(&self.shared, self.shared.me()?, bytes);
        Ok(())
    }

    /// How the arena lies in memory, and how much of it is on huge pages.
    ///
    /// # Errors
    /// The system's, when its accounts cannot be read.
    pub fn place(&self) -> Result<ArenaPlace> {
        let huge = place::huge_bytes(self.shared.arena.mapping());
        Ok(ArenaPlace {
            kind: self.shared.arena.superblock().place(),
            path: self.shared.arena_path.clone(),
            huge_bytes: huge.map_err(|e| Error::device("read the memory account", &e))?,
        })
    }

    /// The arena's file, unless it lies on the heap.
    pub fn arena_path(&self) -> Option<&Path> {
        self.shared.arena_path.as_deref()
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
