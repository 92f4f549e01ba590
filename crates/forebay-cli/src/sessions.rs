//! Finding sessions: this user's arenas, and who is in them.

use std::path::{Path, PathBuf};

use forebay::Session;
use forebay::memory::place::{FoundArena, find_arenas, find_arenas_of, is_session_name};
use forebay::session::look::{Life, Seen, Unseen, look};

use crate::failure::Failure;
use crate::output;

/// A session, or a file that stands where one should.
pub struct Found {
    /// Its name.
    pub session: String,
    /// Its arena's file.
    pub arena: PathBuf,
    /// Length of that file.
    pub bytes: u64,
    /// What was seen, or why nothing could be.
    pub seen: Result<Seen, Unseen>,
}

/// The sessions of this user, or those of this name: one name may have arenas on several memory file systems.
///
/// # Errors
/// [`Failure::Usage`] for a name that is none.
pub fn find(arena_dir: Option<&Path>, session: Option<&str>) -> Result<Vec<Found>, Failure> {
    let found = match session {
        Some(name) => arenas_of(arena_dir, name)?.collect(),
        None => find_arenas(arena_dir),
    };
    let looked = found.into_iter().filter_map(|arena| {
        let seen = look(&arena.path).transpose()?;
        Some(Found {
            session: arena.session,
            arena: arena.path,
            bytes: arena.bytes,
            seen,
        })
    });
    Ok(looked.collect())
}

/// The arenas of one name, each looked for when it is asked for.
///
/// # Errors
/// As for [`find`].
pub fn arenas_of(
    arena_dir: Option<&Path>,
    name: &str,
) -> Result<impl Iterator<Item = FoundArena>, Failure> {
    if !is_session_name(name) {
        return Err(Failure::Usage(format!(
            "'{name}' is not a session's name: use 1 to 64 letters, digits, dots, underscores and hyphens"
        )));
    }
    Ok(find_arenas_of(arena_dir, name))
}

/// What to do about a keeper that is stopped, by a signal or a debugger: what it has begun to write is waited for.
pub fn remedy_for_keeper(seen: &Seen) -> Option<String> {
    let pid = seen.members().keeper?;
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // `PID (NAME) STATE ...`; the name may have parentheses of its own.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    matches!(stat.get(end + 2), Some(b'T' | b't'))
        .then(|| format!("its keeper is stopped; `kill -CONT {pid}` lets it go on"))
}

/// What to do about a session that cannot be looked at: nobody takes the memory of one that lives, nor, unwarned, what a dead one owes.
pub fn remedy_for_unseen(unseen: &Unseen) -> &'static str {
    match unseen.life {
        Some(Life::Alive | Life::Busy) => {
            "it is in use: end its programs first, or leave it to them"
        }
        _ => "recover it with the build that made it; to remove the file loses what it owes",
    }
}

/// Says once that the arena of a session that this process is in has been removed.
pub fn note_lost_name(session: &Session, is_told: &mut bool) {
    if *is_told || !session.has_lost_its_name() {
        return;
    }
    *is_told = true;
    output::note(format_args!(
        "{} has been removed while its session lives (logind does so when a user has logged out: RemoveIPC): the session writes what it owes, and its files are the kernel's from now on; end its programs, and begin another one",
        output::path(session.arena_path().unwrap_or(Path::new("the arena")))
    ));
}

/// The failure for a session that is not there.
pub fn none_such(session: &str) -> Failure {
    Failure::Failed(format!(
        "there is no session '{session}' of this user; `forebay stat` lists those that there are, `forebay daemon \
         --session {session}` starts it"
    ))
}
