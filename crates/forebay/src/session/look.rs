//! Sessions as a command finds them: looking at one without taking part, joining only where somebody lives, and the
//! work that commands do in a session that others have started.
//!
//! Whether a session lives is told by the lock on its arena's file: every process that maps it holds the lock shared, its
//! maker and a recovery hold it alone for a moment. Looking takes the lock for as long as it takes to see that, and lets go
//! before anything is read: it takes no thread slot, changes no word of the arena, and keeps no recovery waiting.

use std::fs::{self, TryLockError};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::config::Config;
use crate::device::queue::NAMES;
use crate::error::{Error, Result, SessionFault};
use crate::evict;
use crate::file::beside;
use crate::file::closing;
use crate::file::settle::Durability;
use crate::file::vanished;
use crate::frame::slots;
use crate::ids::FileId;
use crate::keeper::engine::flusher;
use crate::keeper::repair;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::member::again;
use crate::member::census::Members;
use crate::member::census::members_of;
use crate::member::lacks;
use crate::member::left::{self, LeftFile};
use crate::member::shared::Shared;
use crate::member::table;
use crate::member::{handoff, members, opens};
use crate::memory::arena::Arena;
use crate::memory::files::{FileEntry, LIVE};
use crate::memory::mapping::Mapping;
use crate::memory::place::{PlaceKind, dir};
use crate::memory::threads::{self, Me};
use crate::session::streams::{SeenStream, SeenTracking, streams_of, tracking_of};
pub use crate::session::told::Unsettled;
use crate::session::{Session, adopt::ForGood};
use crate::stats::Stats;
use crate::sync::Ordering;
use crate::sys::{membarrier, stat};
use crate::text::as_text;

/// How often a file whose gate is closed is tried again before it counts as in use.
const ENTER_TRIES: u32 = 1000;

/// Whether anybody is in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// Some process has its arena open.
    Alive,
    /// Nobody has: what it owes waits for a recovery.
    Dead,
    /// It is being made or recovered at this moment.
    Busy,
    /// Its maker died before it could hold anything.
    Unfinished,
}

/// A session as it was found.
pub struct Seen {
    /// Whether anybody is in it.
    pub life: Life,
    arena: Option<Arena>,
}

/// A file that a session knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SeenFile {
    /// Last known path.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// Size that the session's programs see, bytes.
    pub size_bytes: u64,
    /// Whether any process has it open.
    pub is_open: bool,
    /// Bytes that its device is owed; a block of which anything is owed may count whole.
    pub owed_bytes: u64,
    /// Error number of the last flush, 0 after a success.
    pub flush_errno: i32,
    /// Why the kernel answers for it, a code of the front end's; 0 while the engine does.
    pub kernel_reason: u32,
    /// Where it is in its life: its state and its flags, for people (`docs/states.md`).
    pub state: String,
}

/// A session that cannot be looked at.
#[derive(Debug)]
pub struct Unseen {
    /// Whether anybody is in it, if that can be told.
    pub life: Option<Life>,
    /// Why it cannot.
    pub why: Error,
}

impl From<Unseen> for Error {
    fn from(unseen: Unseen) -> Self {
        unseen.why
    }
}

/// Looks at the session whose arena is at `path`. `None`: there is none (any more).
///
/// # Errors
/// [`Error::Arena`] when the file cannot be opened, or is not an arena of this version.
pub fn look(path: &Path) -> std::result::Result<Option<Seen>, Unseen> {
    let unseen = |life, what: &dyn std::fmt::Display| Unseen {
        life,
        why: Error::Arena(format!("{}: {what}", path.display())),
    };
    let file = match fs::OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unseen(None, &error)),
    };
    let life = life_of(&file).map_err(|e| unseen(None, &e))?;
    let mut magic = [0; 8];
    if file.read_exact_at(&mut magic, 0).is_err() || magic == [0; 8] {
        let life = match life {
            Life::Dead => Life::Unfinished,
            _ => Life::Busy,
        };
        return Ok(Some(Seen { life, arena: None }));
    }
    let known = Some(life);
    let lock = file.try_clone().map_err(|e| unseen(known, &e))?;
    let mapping = Mapping::attach(file).map_err(|e| unseen(known, &e))?;
    let opened = Arena::open(mapping).map_err(|e| unseen(known, &e))?;
    if life == Life::Alive && left_meanwhile(&lock, &opened, path) {
        return Ok(None);
    }
    let arena = Some(opened);
    Ok(Some(Seen { life, arena }))
}

/// Leaves the file unlocked.
fn life_of(file: &fs::File) -> std::io::Result<Life> {
    let attempt = match file.try_lock() {
        Ok(()) => Ok(Life::Dead),
        Err(TryLockError::WouldBlock) => match file.try_lock_shared() {
            Ok(()) => Ok(Life::Alive),
            Err(TryLockError::WouldBlock) => return Ok(Life::Busy),
            Err(TryLockError::Error(error)) => Err(error),
        },
        Err(TryLockError::Error(error)) => Err(error),
    };
    file.unlock()?;
    attempt
}

/// The last process to leave removes the arena if it can lock it alone, and our look may have been in its way for a
/// moment: then we do it in its place.
fn left_meanwhile(lock: &fs::File, arena: &Arena, path: &Path) -> bool {
    if lock.try_lock().is_err() {
        return false;
    }
    let nobody_died = threads::dead(arena).is_empty();
    let lacks = live_files(arena).any(|(_, entry)| lacks::lacks_anything(entry));
    let removed = !matches!(lock.metadata(), Ok(meta) if meta.nlink() > 0);
    let done = removed || (nobody_died && !lacks);
    if done && !removed {
        let _ = fs::remove_file(path);
        let _ = fs::remove_file(handoff::socket_path(path));
        table::end(arena);
    }
    let _ = lock.unlock();
    done
}

impl Seen {
    /// Its counters; those of a dead session are as its last thread left them.
    pub fn stats(&self) -> Option<Stats> {
        self.arena.as_ref().map(Stats::collect)
    }

    /// The processes in it.
    pub fn members(&self) -> Members {
        self.arena.as_ref().map(members_of).unwrap_or_default()
    }

    /// Memory that it may hold now, tables included, bytes; it shrinks while memory is short.
    pub fn budget_bytes(&self) -> Option<u64> {
        let superblock = self.arena.as_ref()?.superblock();
        let frames = superblock.frames_max.load(Ordering::Relaxed);
        let tables = superblock.tables_bytes_max.load(Ordering::Relaxed);
        Some((u64::from(frames) * BLOCK_BYTES as u64).saturating_add(tables))
    }

    /// How its keeper speaks to devices: "io_uring", "threads" or "inline"; `None` before there has been one.
    pub fn io_engine(&self) -> Option<&'static str> {
        let word = &self.arena.as_ref()?.superblock().io_engine;
        let number = word.load(Ordering::Relaxed) as usize;
        NAMES.get(number.checked_sub(1)?).copied()
    }

    /// The rung of the huge-page ladder that its arena is on.
    pub fn place(&self) -> Option<PlaceKind> {
        self.arena.as_ref()?.superblock().place()
    }

    /// How long ago a keeper last gave a sign of life; `None` if none ever did.
    pub fn silent_for(&self) -> Option<Duration> {
        let beat = self
            .arena
            .as_ref()?
            .superblock()
            .heartbeat_ns
            .load(Ordering::Relaxed);
        let beat = Duration::from_nanos(Some(beat).filter(|&ns| ns != 0)?);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Some(now.saturating_sub(beat))
    }

    /// The files that were left to the kernel last.
    pub fn left(&self) -> Vec<LeftFile> {
        let arena = self.arena.as_ref();
        arena.map(|arena| left::since(arena, 0)).unwrap_or_default()
    }

    /// Its streams.
    pub fn streams(&self) -> Vec<SeenStream> {
        self.arena.as_ref().map(streams_of).unwrap_or_default()
    }

    /// How it tracks what is owed.
    pub fn tracking(&self) -> Option<SeenTracking> {
        self.arena.as_ref().map(tracking_of)
    }

    /// The files that it knows.
    pub fn files(&self) -> Vec<SeenFile> {
        let Some(arena) = &self.arena else {
            return Vec::new();
        };
        files_of(arena, |id| opens::is_anywhere_open(arena, id))
    }
}

fn files_of(arena: &Arena, is_open: impl Fn(FileId) -> bool) -> Vec<SeenFile> {
    live_files(arena)
        .map(|(id, entry)| SeenFile {
            path: path_of(entry),
            size_bytes: entry.size.load(Ordering::Acquire),
            is_open: entry.opens() != 0 && is_open(id),
            owed_bytes: owed_bytes(entry),
            flush_errno: entry.error.load(Ordering::Acquire) as u32 as i32,
            kernel_reason: entry.kernel_reason.load(Ordering::Acquire),
            state: entry.describe(),
        })
        .collect()
}

fn live_files(arena: &Arena) -> impl Iterator<Item = (FileId, &FileEntry)> {
    (0..arena.counts().files)
        .filter_map(|id| Some((FileId(id), arena.file(FileId(id))?)))
        .filter(|(_, entry)| entry.state.load(Ordering::Acquire) == LIVE)
}

pub(super) fn path_of(entry: &FileEntry) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    PathBuf::from(std::ffi::OsString::from_vec(entry.path()))
}

/// What tells a file from another one that gets its entry later. Not its path, nor its device's number: both change
/// ([`FileEntry::set_aside`]).
fn identity_of(entry: &FileEntry) -> Option<[u64; 3]> {
    let words = [&entry.inode, &entry.birth, &entry.store];
    let words = words.map(|word| word.load(Ordering::Acquire));
    (entry.state.load(Ordering::Acquire) == LIVE).then_some(words)
}

fn owed_bytes(entry: &FileEntry) -> u64 {
    let pages = entry.owed_pages.load(Ordering::Acquire);
    pages.saturating_mul(PAGE_BYTES as u64)
}

/// What an eviction of one file came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Evicted {
    /// Memory given back, bytes: frames, small frames and headers.
    pub freed_bytes: u64,
    /// Memory that stayed because it holds something dirty, or is in use, bytes.
    pub held_bytes: u64,
    /// Bytes that its device is still owed, whole pages counted.
    pub dirty_bytes: u64,
}

impl Session {
    /// Joins the session whose arena is at `path`, if some process is in it, without hosting a keeper. Unlike
    /// [`Session::join`] it makes and recovers nothing: `None` when nobody is in the session, or it is being made or
    /// recovered, or its arena is another user's.
    ///
    /// # Errors
    /// [`Error::Arena`] and [`Error::Session`] as for [`Session::join`].
    pub fn join_living(path: &Path, config: Config) -> Result<Option<Self>> {
        Self::join_living_as(path, config, None)
    }

    /// `for_good`: for a process that never leaves; see [`Session::join_for_good`].
    pub(super) fn join_living_as(
        path: &Path,
        config: Config,
        for_good: Option<ForGood>,
    ) -> Result<Option<Self>> {
        let failed = |e: &dyn std::fmt::Display| Error::Arena(format!("{}: {e}", path.display()));
        let Ok(file) = dir::open_own(path) else {
            return Ok(None);
        };
        if life_of(&file).map_err(|e| failed(&e))? != Life::Alive
            || file.try_lock_shared().is_err()
            || !matches!(file.metadata(), Ok(meta) if meta.nlink() > 0)
        {
            return Ok(None);
        }
        let file = match for_good {
            Some(ForGood { relocate, .. }) => relocate(file.into()).into(),
            None => file,
        };
        let mapping = Mapping::attach(file).map_err(|e| failed(&e))?;
        let arena = Arena::open(mapping).map_err(|e| failed(&e))?;
        if !membarrier::register() && !arena.fences() {
            return Err(SessionFault::Unavailable.error(
                "this process may not use membarrier and the session relies on it; allow the call",
            ));
        }
        let mut shared = Shared::new(arena, Some(path.to_owned()), config)?;
        if let Some(ways) = for_good {
            shared.for_good = Some(members::ForGood::boxed(ways.turns));
            shared.place_descriptors(ways);
        }
        Self::over(shared).map(Some)
    }

    /// Brings everything that the session owes to the devices, durably. What could not be brought there is returned.
    /// Writers that go on meanwhile may owe more by the time this returns.
    ///
    /// # Errors
    /// [`Error::Session`] when the calling thread finds no slot.
    pub fn settle_all(&self) -> Result<Vec<Unsettled>> {
        self.settle_where(Durability::All, |_| true)
    }

    /// As [`Session::settle_all`], as durably as asked, and only files whose last known path `is_wanted`.
    ///
    /// # Errors
    /// As for [`Session::settle_all`].
    pub fn settle_where(
        &self,
        durability: Durability,
        is_wanted: impl Fn(&Path) -> bool,
    ) -> Result<Vec<Unsettled>> {
        let me = self.shared.me()?;
        // What the dead hold would be in the way.
        repair::await_done(&self.shared, me);
        for (id, entry) in live_files(&self.shared.arena) {
            if is_wanted(&path_of(entry)) {
                closing::await_end(&self.shared.arena, id);
            }
        }
        vanished::tend_for_nobody(&self.shared, me);
        again::adopt_owed_files(&self.shared, None);
        let is_lacking = |entry: &FileEntry| {
            let lacks =
                lacks::owes_or_is_closing(entry) || durability.syncs() && lacks::lacks_sync(entry);
            lacks && is_wanted(&path_of(entry))
        };
        let lacking = live_files(&self.shared.arena).filter(|(_, entry)| is_lacking(entry));
        let lacking: Vec<_> = lacking
            .map(|(id, entry)| (id, (entry, identity_of(entry))))
            .collect();
        if lacking.is_empty() {
            return Ok(Vec::new());
        }
        // Many requests at once: this may be gigabytes.
        let mut flusher = flusher(&self.shared)?;
        let settled = beside::for_each(&self.shared, me, &mut flusher, &lacking, |me, by, file| {
            let (id, (entry, listed)) = *file;
            // That file owes nothing any more, or is gone. Another one that has the entry now may be none that is wanted.
            if identity_of(entry) != listed {
                return Ok(());
            }
            let settled = self.settle_file(me, id, by, durability);
            settled.map_err(|reason| Unsettled::new(id, entry, reason))
        });
        Ok(settled
            .into_iter()
            .filter_map(std::result::Result::err)
            .collect())
    }

    /// Whether [`Session::settle_where`] may have anything to wait for. Each page of the table would cost a fault, were it empty, too.
    pub fn may_owe(&self) -> bool {
        let arena = &self.shared.arena;
        let owes = |(_, entry)| lacks::owes_or_is_closing(entry);
        table::is_any(arena) && live_files(arena).any(owes) || !threads::dead(arena).is_empty()
    }

    /// The processes in the session, this one included.
    pub fn members(&self) -> Members {
        members_of(&self.shared.arena)
    }

    /// How often files have been left to the kernel so far.
    pub fn left_count(&self) -> u64 {
        left::count(&self.shared.arena)
    }

    /// The files that were left to the kernel after so many.
    pub fn left_since(&self, count: u64) -> Vec<LeftFile> {
        left::since(&self.shared.arena, count)
    }

    /// The streams that the session tracks.
    pub fn streams(&self) -> Vec<SeenStream> {
        streams_of(&self.shared.arena)
    }

    /// The files that the session knows.
    pub fn files(&self) -> Vec<SeenFile> {
        files_of(&self.shared.arena, |id| self.shared.is_open(id))
    }

    /// Gives back the clean memory of one file, named by any descriptor of it. Nothing is flushed. `None`: the session
    /// does not know the file.
    ///
    /// # Errors
    /// The system's, when the file cannot be asked which one it is.
    pub fn evict_file(&self, file: BorrowedFd<'_>) -> Result<Option<Evicted>> {
        let asked = stat::stat(file).map_err(|e| Error::device("stat", &e))?;
        let me = self.shared.me()?;
        let is_it = |entry: &FileEntry| {
            entry.device.load(Ordering::Relaxed) == asked.device
                && entry.inode.load(Ordering::Relaxed) == asked.inode
        };
        let found = live_files(&self.shared.arena).find(|(_, entry)| is_it(entry));
        Ok(found.map(|(id, _)| {
            let before = memory_of(me, id);
            evict::evict_file(me, id);
            let after = memory_of(me, id);
            Evicted {
                freed_bytes: before.held_bytes.saturating_sub(after.held_bytes),
                ..after
            }
        }))
    }
}

/// Memory that one file's headers hold, and what of it is owed.
fn memory_of(me: Me<'_>, file: FileId) -> Evicted {
    for round in 0..ENTER_TRIES {
        let Ok(_operation) = me.enter(file) else {
            me.wait(round);
            continue;
        };
        let entry = me.arena.file_unchecked(file);
        let mut memory = Evicted::default();
        let mut at = 0;
        while let Some((block, id)) = slots::next_linked(me.arena, entry, at) {
            at = u64::from(block.0) + 1;
            if let Some(header) = me.arena.header(id) {
                memory.held_bytes += header.memory_bytes();
                memory.dirty_bytes += u64::from(header.owed().count_ones()) * PAGE_BYTES as u64;
            }
        }
        return memory;
    }
    Evicted::default()
}
