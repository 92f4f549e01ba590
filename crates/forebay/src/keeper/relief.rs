//! A guard while no keeper answers, in a process of its own: the keeper is stopped, or it has died and the next one has not come yet.
//!
//! Outsiders that open a managed file then would be let in to what the device has. What they append goes where the bytes go that
//! the session owes, and is written over. So a copy of the keeper ([`crate::sys::stand_in`]) starts this: it joins the
//! session, takes the listener over, and does what the keeper's guard does ([`super::outsiders`]): it writes the file, gives it to the kernel, and
//! lets the outsider in.
//!
//! It keeps nothing else of the session. It ends when the keeper goes on, or another one is there; and once the keeper is dead, when no program of the
//! session has a file open, since a recovery needs the session for itself. A keeper that is stopped may have any lock and any page in hand: while it
//! is, outsiders are let in within moments where it has (`super::outsiders::haste`).

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::ids::FileId;
use crate::keeper::outsiders::{self, EACH_MAX, Guard, STILL_MAX, guard_of};
use crate::member::presence::{has_keeper, keeper_process};
use crate::member::shared::Shared;
use crate::memory::files::LIVE;
use crate::sync::Ordering;
use crate::sys::fanotify::Group;
use crate::sys::liveness;
use crate::sys::stand_in::{NUMBERS_MIN, Relief};

/// How often it is looked whether anybody needs it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a new keeper has for marks of its own.
const OVERLAP: Duration = Duration::from_secs(3);
/// How long the relief stays for those that still wait.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// How this process's executable is called.
static ARGUMENTS: OnceLock<Vec<String>> = OnceLock::new();

/// Says that this process's executable runs `session::relief::stand` when it is called with these arguments, its name the first, and three more: the
/// listener's descriptor, the keeper's process and the arena's path. For a process whose keepers are to have a relief; the first call counts.
pub fn is_run_by(arguments: &[&str]) {
    let _ = ARGUMENTS.set(arguments.iter().map(|&word| word.to_owned()).collect());
}

/// How a keeper in this process has one started, for the session with this arena, whose guard listens there. `None`: nobody has said how.
pub(super) fn of(arena: &Path, listener: i32) -> Option<Relief> {
    use std::os::unix::ffi::OsStrExt;
    let mut words: Vec<_> = ARGUMENTS.get()?.iter().map(|w| w.clone().into()).collect();
    words.push(listener.to_string().into_bytes());
    words.push(std::process::id().to_string().into_bytes());
    words.push(arena.as_os_str().as_bytes().to_vec());
    Relief::of(words).ok()
}

/// Stands guard for a keeper's process in a session, until it is not needed any more.
///
/// # Errors
/// The system's.
pub fn stand(shared: &Arc<Shared>, listener: OwnedFd, keeper: u32) -> Result<()> {
    let failed = |e: io::Error| Error::device("stand guard", &e);
    let records = &shared.arena.superblock().arrivals;
    let numbers = records.iter().map(|a| a.number.load(Ordering::Relaxed));
    let above = numbers
        .max()
        .unwrap_or(0)
        .saturating_add(1)
        .max(NUMBERS_MIN as u64);
    let group = Group::over(listener, above).map_err(failed)?;
    let guard = Guard::for_relief(&shared.arena, group)?;
    guard.haste.set(lives(shared, keeper));
    shared.set_guard(Some(Arc::new(guard)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guards = scope.spawn(|| outsiders::run(shared, &stop));
        let works = scope.spawn(|| outsiders::work(shared, &stop));
        await_end(shared, keeper);
        let guard = guard_of(shared);
        if let Some(guard) = guard.as_ref().filter(|guard| guard.haste.is_needed()) {
            guard.haste.leave();
        }
        let begun = Instant::now();
        while begun.elapsed() < LAST_PATIENCE && guard.as_ref().is_some_and(|g| g.has_waiting()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Relaxed);
        if let Some(guard) = guard {
            guard.end();
        }
        let _ = (guards.join(), works.join());
    });
    shared.set_guard(None);
    Ok(())
}

/// Until nobody needs a relief of this keeper.
fn await_end(shared: &Shared, keeper: u32) {
    let Some(guard) = guard_of(shared) else {
        return;
    };
    let arena = &shared.arena;
    let beat = || arena.superblock().heartbeat_ns.load(Ordering::Relaxed);
    let (mut followed, mut begun, mut last) = (None, Some(Instant::now()), beat());
    loop {
        let lives = lives(shared, keeper);
        guard.haste.set(lives);
        let most = if lives { EACH_MAX } else { STILL_MAX };
        // Not beside this keeper, once it goes on: it has them.
        if begun.is_some_and(|at| at.elapsed() > most) && (!lives || beat() == last) {
            begun = None;
            guard.let_in_all_left(arena.superblock());
        }
        std::thread::sleep(LOOK_EVERY);
        if lives {
            match liveness::is_stopped(keeper) {
                true => last = beat(),
                // It goes on.
                false if beat() != last => return,
                false => {}
            }
            continue;
        }
        if !is_anything_open(shared) {
            return;
        }
        if has_keeper(arena) && keeper_process(arena) != keeper {
            let since = *followed.get_or_insert_with(Instant::now);
            if since.elapsed() > OVERLAP {
                return;
            }
        }
    }
}

/// Whether this keeper's process keeps the session still, as far as the kernel knows.
fn lives(shared: &Shared, keeper: u32) -> bool {
    has_keeper(&shared.arena) && keeper_process(&shared.arena) == keeper
}

/// Whether a program of the session has a file open that is not the kernel's.
fn is_anything_open(shared: &Shared) -> bool {
    let mut files = (0..shared.arena.counts().files).map(FileId);
    files.any(|file| {
        let entry = shared.arena.file_unchecked(file);
        entry.state.load(Ordering::Acquire) == LIVE
            && entry.kernel_reason.load(Ordering::Acquire) == 0
            && shared.is_open(file)
    })
}
