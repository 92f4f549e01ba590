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

use aside::keep_aside;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::config::Config;
use crate::device::{DeviceFile, RealFile};
use crate::error::{Error, Result};
use crate::file::core::Core;
use crate::file::{closing, resize, settle};
use crate::flush::{Scope, errors};
use crate::ids::{FileId, ThreadId};
use crate::keeper::check::doubt::doubt;
use crate::keeper::rebuild::Findings;
use crate::keeper::repair;
use crate::limits::PAGE_BYTES;
use crate::member::lacks;
use crate::member::reopen::{Absent, path_of, reopen};
use crate::member::shared::Shared;
use crate::member::table;
use crate::memory::arena::Arena;
use crate::memory::files::{ASKED, FOREIGN, FileEntry, LIVE, TRUNCATING, UNSYNCED};
use crate::memory::mapping::Mapping;
use crate::memory::place::dir;
use crate::memory::threads::{self, Me};
use crate::sync::{Ordering, planted};

/// How long a request that has been given to the kernel may take to reach the file, for its time alone to be enough. What takes
/// longer, because the file was locked, is decided by what the file holds.
const LATE_NS: u64 = 10_000_000;

/// Why a file is not written that the session may have changed last, or somebody else.
const IN_DOUBT: &str = "the file was changed after the session had ended in the middle of a change of its own, so that nobody can tell \
                        what is newer";

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

/// Paths are bytes and JSON is text: what is no text is shown as well as can be.
fn as_text<S: serde::Serializer>(
    path: impl AsRef<Path>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_str(&path.as_ref().to_string_lossy())
}

/// What a recovery found and did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The arena.
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
    let file = fs::OpenOptions::new().read(true).write(true).open(path);
    let file = file.map_err(|e| Error::Arena(format!("{}: {e}", path.display())))?;
    let _only_one = lock_file(&file, path)?;
    let meta = file.metadata().map_err(|e| Error::Arena(e.to_string()))?;
    if meta.len() == 0 {
        return discard_unfinished(path, &meta);
    }
    let named = |e: &dyn std::fmt::Display| Error::Arena(format!("{}: {e}", path.display()));
    let mapping = Mapping::attach(file).map_err(|e| named(&e))?;
    let arena = match Arena::open(mapping) {
        Ok(arena) => arena,
        Err(_) if !has_magic(path) => return discard_unfinished(path, &meta),
        Err(Error::Arena(why)) => return Err(named(&why)),
        Err(error) => return Err(error),
    };
    refuse_if_alive(&arena)?;
    slay_all(&arena);
    // Without its path: this is no member of the session that might be the last to leave.
    let shared = Arc::new(Shared::new(arena, None, config.clone())?);
    let me = shared.me()?;
    // Before anything is changed: waiting for what the dead had under way changes the files' times.
    let mut found = judge_all(&shared);
    let doubt = doubt(&shared.arena);
    let findings = repair::after_death(&shared, me)
        .ok_or_else(|| Error::Session("another process is recovering this arena".into()))?;
    if let Some(why) = doubt.or_else(|| corruption(&shared.arena)) {
        distrust(&mut found, &why);
    }
    decide_doubtful(&shared, me, &mut found);
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

/// What may be done with a file.
enum Standing {
    /// It is as the session left it, and may be written.
    Ours,
    /// A change was under way when the session ended, and somebody has changed the file later than it was last seen to be.
    Doubtful(RealFile),
    /// Its bytes are for keeping aside, for this reason.
    Foreign(String),
    /// It cannot be reached now; its bytes stay in the arena.
    Unreachable(String),
}

/// Finds all files that something may have to be done for, and says what may be done.
fn judge_all(shared: &Arc<Shared>) -> HashMap<FileId, Standing> {
    // What is derived, as what a file owes, may not be right yet where somebody died at work.
    let at_work: Vec<FileId> = (1..shared.arena.counts().threads)
        .filter_map(|id| threads::works_on(&shared.arena, ThreadId(id)))
        .collect();
    let mut found = HashMap::new();
    for id in (0..shared.arena.counts().files).map(FileId) {
        let entry = shared.arena.file_unchecked(id);
        let wanted = at_work.contains(&id) || lacks::is_unfinished(shared, entry);
        if entry.state.load(Ordering::Acquire) != LIVE || !wanted {
            continue;
        }
        let standing = match reopen(entry, &|fd| fd, None) {
            Err(Absent::Gone(reason) | Absent::Replaced(reason)) => Standing::Foreign(reason),
            Err(Absent::Unreachable(reason)) => Standing::Unreachable(reason),
            Ok(device) if shared.claim(&device, &path_of(entry)).is_err() => {
                let reason = "another session manages it now; close it there and try again";
                Standing::Unreachable(reason.into())
            }
            Ok(device) => match changed_by(shared, entry, &device) {
                ChangedBy::Others(reason) => {
                    entry.flags.fetch_or(FOREIGN, Ordering::AcqRel);
                    Standing::Foreign(reason)
                }
                ChangedBy::Somebody => Standing::Doubtful(device),
                ChangedBy::NobodyElse => {
                    shared.keep_device(id, Arc::new(device));
                    Standing::Ours
                }
            },
        };
        found.insert(id, standing);
    }
    found
}

/// Once the arena is rebuilt, what files hold tells whose those are that times do not tell of.
fn decide_doubtful(shared: &Arc<Shared>, me: Me<'_>, found: &mut HashMap<FileId, Standing>) {
    let mut ours = false;
    for (&id, standing) in found.iter_mut() {
        *standing = match std::mem::replace(standing, Standing::Ours) {
            Standing::Doubtful(device) if doubtful::harms_nobody(shared, me, id, &device) => {
                shared.keep_device(id, Arc::new(device));
                ours = true;
                Standing::Ours
            }
            Standing::Doubtful(_) => {
                let flags = &shared.arena.file_unchecked(id).flags;
                flags.fetch_or(FOREIGN, Ordering::AcqRel);
                Standing::Foreign(IN_DOUBT.into())
            }
            known => known,
        };
    }
    if ours {
        // For what the dead had under way in files that were not open before.
        repair::if_needed(shared, me);
    }
}

/// Words were wrong in a way that no death explains, now or in an earlier rebuild of this arena.
fn corruption(arena: &Arena) -> Option<String> {
    let wrong = arena.superblock().corruptions.load(Ordering::Acquire);
    (wrong != 0 && !planted!(TrustWords)).then(|| format!("{wrong} words were wrong"))
}

/// Nothing of a damaged arena is written where it may not belong.
fn distrust(found: &mut HashMap<FileId, Standing>, why: &str) {
    for standing in found.values_mut() {
        if matches!(standing, Standing::Ours | Standing::Doubtful(_)) {
            *standing = Standing::Foreign(format!("the arena is damaged ({why})"));
        }
    }
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
fn has_magic(path: &Path) -> bool {
    let mut word = [0; 8];
    let read = fs::File::open(path).and_then(|file| file.read_exact_at(&mut word, 0));
    read.is_ok() && word != [0; 8]
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
        return Err(Error::Session(
            "the session is in use, or is being recovered by another process".into(),
        ));
    }
    // Whoever had the lock may have removed the file, and another session may have begun under its name.
    let same = match (lock.metadata(), fs::metadata(path)) {
        (Ok(mine), Ok(named)) => (mine.dev(), mine.ino()) == (named.dev(), named.ino()),
        _ => false,
    };
    if !same {
        return Err(Error::Session(
            "the session has just been recovered, or has ended".into(),
        ));
    }
    Ok(lock)
}

fn refuse_if_alive(arena: &Arena) -> Result<()> {
    let living = (1..arena.counts().threads)
        .map(ThreadId)
        .find(|&id| !threads::is_gone(arena, id));
    match living {
        None => Ok(()),
        Some(id) => {
            let pid = arena
                .thread(id)
                .map_or(0, |slot| slot.pid.load(Ordering::Relaxed));
            Err(Error::Session(format!(
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

fn save_all(shared: &Arc<Shared>, me: Me<'_>, found: &HashMap<FileId, Standing>) -> Vec<Saved> {
    let mut saved = Vec::new();
    for id in (0..shared.arena.counts().files).map(FileId) {
        let entry = shared.arena.file_unchecked(id);
        if entry.state.load(Ordering::Acquire) == LIVE && lacks::is_unfinished(shared, entry) {
            saved.extend(save(shared, me, id, found.get(&id)));
        }
    }
    saved
}

fn save(
    shared: &Arc<Shared>,
    me: Me<'_>,
    id: FileId,
    standing: Option<&Standing>,
) -> Option<Saved> {
    let entry = shared.arena.file_unchecked(id);
    let path = path_of(entry);
    let owed = entry.owed_pages.load(Ordering::Acquire);
    let device = match standing {
        Some(Standing::Ours) => shared.device(id),
        _ => None,
    };
    let Some(device) = device else {
        let reason = match standing {
            Some(Standing::Foreign(reason)) => reason.clone(),
            Some(Standing::Unreachable(reason)) => {
                let reason = reason.clone();
                return lacks::is_known_here_alone(entry).then_some(Saved::Failed { path, reason });
            }
            _ => "it was not known before the rebuild".into(),
        };
        return (owed != 0).then(|| keep_aside(shared, me, id, path, reason));
    };
    let core = Core {
        shared: Arc::clone(shared),
        id,
        device,
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

/// What has changed a device file since the session's last change that was seen to end.
enum ChangedBy {
    /// Nobody, or the session, which was at it when it ended.
    NobodyElse,
    /// The session, or somebody else.
    Somebody,
    /// Somebody else.
    Others(String),
}

fn changed_by(shared: &Shared, entry: &FileEntry, device: &dyn DeviceFile) -> ChangedBy {
    let stat = match device.stat() {
        Ok(stat) => stat,
        Err(error) => return ChangedBy::Others(format!("its state cannot be read: {error}")),
    };
    if planted!(BlindWitness) {
        return ChangedBy::NobodyElse;
    }
    let threads = shared.arena.counts().threads;
    let unwitnessed = entry.is_unwitnessed(threads);
    let by_others = "the file was changed by another program after the session's last write to it";
    let flags = entry.flags.load(Ordering::Acquire);
    if flags & FOREIGN != 0 {
        let why = if unwitnessed { IN_DOUBT } else { by_others };
        return ChangedBy::Others(why.into());
    }
    if table::is_as_witnessed(entry, &stat) {
        return ChangedBy::NobodyElse;
    }
    let shrunk = entry.is_changing(threads)
        && stat.len < entry.witness[0].load(Ordering::Acquire)
        && flags & TRUNCATING == 0;
    if !unwitnessed || shrunk {
        return ChangedBy::Others(by_others.into());
    }
    // A change of ours was under way at the end: what it left is dated when it was last seen to be, or moments later.
    // Nor earlier than what was seen before it, unless the clock was set back since: then no time tells. (A program sets the time of a
    // modification, and nobody that of a change.)
    let last_ns = entry.changed_ns.load(Ordering::Relaxed);
    let is_later = stat.ctime_ns >= entry.witness[2].load(Ordering::Acquire);
    if is_later && stat.mtime_ns.max(stat.ctime_ns) <= last_ns.saturating_add(LATE_NS) {
        ChangedBy::NobodyElse
    } else {
        ChangedBy::Somebody
    }
}

fn write_back(core: &Core, me: Me<'_>) -> Result<()> {
    // It is the session's own doing how the file looks, as has been found out.
    core.entry().end_intent(ThreadId::NOBODY);
    table::witness_end(&core.shared.arena, core.id, || core.device.stat().ok());
    if core.entry().flags.load(Ordering::Acquire) & TRUNCATING != 0 {
        resize::finish_truncation(core, me).map_err(Core::ended)?;
    }
    let seen = std::sync::atomic::AtomicU32::new(errors::sequence(core.entry()));
    // First: whoever comes after a recovery that was cut off finds pages written, and knows of no sync.
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
