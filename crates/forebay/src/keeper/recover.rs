//! Saving what a wholly dead session has left in its arena.
//!
//! Everything acknowledged is in the arena's file, which outlives every process. Recovery maps it, rebuilds it, finds each
//! file that is owed something by its path, proves that it is the same inode (device, number, birth time) and that nobody
//! else has changed it since our own last change, waits for what the dead had under way, and flushes. A file that was
//! changed by someone else, or cannot be found, is never written: its bytes are kept aside, with a note of where they
//! belong, and reported. The arena is removed only when nothing in it is needed any more.

mod again;
mod aside;
mod doubtful;
mod judge;

use aside::keep_aside;
use judge::{Found, Standing, Turn};
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::config::Config;
use crate::error::{Error, Result, SessionFault};
use crate::file::core::Core;
use crate::file::{closing, resize, settle};
use crate::flush::{Scope, errors};
use crate::ids::{FileId, ThreadId};
use crate::keeper::check::doubt::doubt;
use crate::keeper::rebuild::Findings;
use crate::keeper::repair;
use crate::limits::PAGE_BYTES;
use crate::member::lacks;
use crate::member::reopen::path_of;
use crate::member::shared::Shared;
use crate::member::table;
use crate::memory::arena::Arena;
use crate::memory::files::{ASKED, LIVE, TRUNCATING, UNSYNCED};
use crate::memory::mapping::Mapping;
use crate::memory::place::dir;
use crate::memory::threads::{self, Me};
use crate::sync::{Ordering, planted};
use crate::text::as_text;

/// What became of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Saved {
    /// Its bytes are in the file, and synced.
    Written {
        /// The file.
        #[serde(serialize_with = "as_text")]
        path: PathBuf,
        /// Bytes written.
        bytes: u64,
    },
    /// Its bytes are aside.
    Kept {
        /// The file as it was known.
        #[serde(serialize_with = "as_text")]
        path: PathBuf,
        /// Where the bytes are, at the offsets that they have in the file.
        #[serde(serialize_with = "as_text")]
        kept: PathBuf,
        /// Why they were not written.
        reason: String,
        /// Bytes kept.
        bytes: u64,
    },
    /// The device refused; the bytes are still in the arena.
    Failed {
        /// The file.
        #[serde(serialize_with = "as_text")]
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// What a recovery found and did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The arena.
    #[serde(serialize_with = "as_text")]
    pub arena: PathBuf,
    /// Files that were owed something.
    pub files: Vec<Saved>,
    /// What the rebuild found.
    pub findings: Findings,
    /// Whether the arena was removed: nothing in it is needed any more.
    pub removed: bool,
}

/// Recovers the arena at `path`. Refuses while any process of the session lives.
///
/// # Errors
/// [`Error::Session`] when the session is alive; [`Error::Arena`] when the file is not an arena. Files that cannot be
/// saved are in the report, not errors.
pub fn recover(path: &Path, config: &Config) -> Result<Report> {
    let file = dir::open_own(path).map_err(|e| Error::Arena(format!("{}: {e}", path.display())))?;
    let only_one = lock_file(&file, path)?;
    let meta = file.metadata().map_err(|e| Error::Arena(e.to_string()))?;
    if meta.len() == 0 {
        return discard_unfinished(path, &meta);
    }
    let named = |e: &dyn std::fmt::Display| Error::Arena(format!("{}: {e}", path.display()));
    let mapping = Mapping::attach(file).map_err(|e| named(&e))?;
    let arena = match Arena::open(mapping) {
        Ok(arena) => arena,
        Err(_) if !has_magic(&only_one) => return discard_unfinished(path, &meta),
        Err(Error::Arena(why)) => return Err(named(&why)),
        Err(error) => return Err(error),
    };
    refuse_if_alive(&arena)?;
    slay_all(&arena);
    // Without its path: this is no member of the session that might be the last to leave.
    let shared = Arc::new(Shared::new(arena, None, config.clone())?);
    let me = shared.me()?;
    // Before anything is changed: waiting for what the dead had under way changes the files' times.
    let found = Found::judge_all(&shared);
    let doubt = doubt(&shared.arena);
    let findings = repair::after_death_with(&shared, me, &|id, device| {
        found.land(&shared, me, id, device)
    });
    let findings = findings
        .ok_or_else(|| SessionFault::InUse.error("another process is recovering this arena"))?;
    if let Some(why) = doubt.or_else(|| corruption(&shared.arena)) {
        found.distrust(&why);
    }
    found.decide_doubtful(&shared, me);
    let files = save_all(&shared, me, &found);
    let removed = files
        .iter()
        .all(|saved| !matches!(saved, Saved::Failed { .. }));
    if removed {
        remove(path);
        table::end(&shared.arena);
    }
    Ok(Report {
        arena: path.to_owned(),
        files,
        findings,
        removed,
    })
}

/// Words were wrong in a way that no death explains, now or in an earlier rebuild of this arena.
fn corruption(arena: &Arena) -> Option<String> {
    let wrong = arena.superblock().corruptions.load(Ordering::Acquire);
    (wrong != 0 && !planted!(TrustWords)).then(|| format!("{wrong} words were wrong"))
}

fn empty_report(path: &Path) -> Report {
    let findings = Findings::default();
    Report {
        arena: path.to_owned(),
        files: Vec::new(),
        findings,
        removed: true,
    }
}

/// Removes an arena whose maker died before it could hold anything. It bears no mark yet, so its place has to speak for it: any
/// file may be empty, or begin with zeros.
fn discard_unfinished(path: &Path, meta: &fs::Metadata) -> Result<Report> {
    if !dir::is_in_place(path, meta) {
        let shown = path.display();
        let why = format!("{shown}: it is no arena, and none that was begun; it is left as it is");
        return Err(Error::Arena(why));
    }
    remove(path);
    Ok(empty_report(path))
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_file(crate::member::handoff::socket_path(path));
}

/// Whether the arena was ever finished: an arena without its magic holds nothing.
fn has_magic(file: &fs::File) -> bool {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 0).is_ok() && word != [0; 8]
}

/// How long a lock that somebody else has is tried again.
const LOCK_PATIENCE: Duration = Duration::from_millis(100);

/// Two recoveries of one arena would undo each other.
fn lock_file(file: &fs::File, path: &Path) -> Result<fs::File> {
    let lock = file.try_clone().map_err(|e| Error::Arena(e.to_string()))?;
    // A program that is just being started has the lock of the one that starts it, for as long as it takes to be executed.
    let begun = Instant::now();
    let mut locked = lock.try_lock().is_ok();
    while !locked && begun.elapsed() < LOCK_PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
        locked = lock.try_lock().is_ok();
    }
    if !locked {
        // The living process is named, if it can be told.
        let look = Mapping::attach(file.try_clone().map_err(|e| Error::Arena(e.to_string()))?);
        if let Ok(mapping) = look
            && let Ok(arena) = Arena::open(mapping)
        {
            refuse_if_alive(&arena)?;
        }
        return Err(SessionFault::InUse
            .error("the session is in use, or is being recovered by another process"));
    }
    // The process that had the lock may have removed the file, and another session may have begun under its name.
    let same = match (lock.metadata(), fs::metadata(path)) {
        (Ok(mine), Ok(named)) => (mine.dev(), mine.ino()) == (named.dev(), named.ino()),
        _ => false,
    };
    if !same {
        return Err(SessionFault::InUse.error("the session has just been recovered, or has ended"));
    }
    Ok(lock)
}

fn refuse_if_alive(arena: &Arena) -> Result<()> {
    let living = (1..arena.counts().threads)
        .map(ThreadId)
        .find(|&id| threads::is_there(arena, id));
    match living {
        None => Ok(()),
        Some(id) => {
            let pid = arena
                .thread(id)
                .map_or(0, |slot| slot.pid.load(Ordering::Relaxed));
            Err(SessionFault::InUse.error(format!(
                "the session is in use by process {pid}; end it first, or let it finish"
            )))
        }
    }
}

/// Every thread of the session is gone, so all that its slots name is dead.
fn slay_all(arena: &Arena) {
    for id in (1..arena.counts().threads).map(ThreadId) {
        threads::slay(arena, id);
    }
}

fn save_all(shared: &Arc<Shared>, me: Me<'_>, found: &Found) -> Vec<Saved> {
    let mut saved = Vec::new();
    for id in (0..shared.arena.counts().files).map(FileId) {
        let entry = shared.arena.file_unchecked(id);
        if entry.state.load(Ordering::Acquire) == LIVE && lacks::is_unfinished(shared, entry) {
            saved.extend(save(shared, me, id, found.take(id)));
        }
    }
    saved
}

fn save(shared: &Arc<Shared>, me: Me<'_>, id: FileId, standing: Standing) -> Option<Saved> {
    let entry = shared.arena.file_unchecked(id);
    let path = path_of(entry);
    let owed = entry.owed_pages.load(Ordering::Acquire);
    let alone = match standing.turn(shared, id) {
        Turn::Save(alone) => alone,
        Turn::KeepAside(reason) => {
            return (owed != 0).then(|| keep_aside(shared, me, id, path, reason));
        }
        Turn::Wait(reason) => {
            return lacks::is_known_here_alone(entry).then_some(Saved::Failed { path, reason });
        }
    };
    let core = Core {
        shared: Arc::clone(shared),
        id,
        device: Arc::clone(&alone.0),
    };
    let owing = again::owing(shared, me, id);
    let written = write_back(&core, me);
    if written.is_err() {
        // What the device was given and has not made durable is safe only here.
        again::owe(me, id, &owing);
    }
    match written {
        Ok(()) if owed == 0 => None,
        Ok(()) => Some(Saved::Written {
            path,
            bytes: owed * PAGE_BYTES as u64,
        }),
        Err(error) => Some(Saved::Failed {
            path,
            reason: error.to_string(),
        }),
    }
}

fn write_back(core: &Core, me: Me<'_>) -> Result<()> {
    // It is the session's own doing how the file looks, as has been found out.
    core.entry().end_intent(ThreadId::NOBODY);
    table::witness_end(&core.shared.arena, core.id, |_| core.device.stat().ok());
    if core.entry().flags.load(Ordering::Acquire) & TRUNCATING != 0 {
        resize::finish_truncation(core, me).map_err(Core::ended)?;
    }
    let seen = std::sync::atomic::AtomicU32::new(errors::sequence(core.entry()));
    // First: a process that comes after a recovery that was cut off finds pages written, and knows of no sync.
    core.entry().flags.fetch_or(UNSYNCED, Ordering::AcqRel);
    let outcome = settle::flush(core, me, Scope::SYNC);
    if let Some(errno) = outcome.errno {
        return Err(Error::device(
            "flush",
            &std::io::Error::from_raw_os_error(errno),
        ));
    }
    settle::settle(core, me, settle::Durability::All, &seen)?;
    // A file that is the kernel's others may be appending to: they would lose what they write while it is cut where it ends.
    let is_kernels = core.entry().kernel_reason.load(Ordering::Acquire) != 0;
    if !is_kernels && core.entry().flags.load(Ordering::Acquire) & ASKED == 0 {
        core.device
            .trim()
            .map_err(|e| Error::device("give reserved space back", &e))?;
    }
    closing::restore_time(core, me);
    Ok(())
}
