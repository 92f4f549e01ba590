//! Where the arena's file lies: the ladder of places, best first.
//!
//! 1. a directory that the user configured;
//! 2. hugetlbfs with enough free pages of 2 MiB: huge pages for certain;
//! 3. tmpfs mounted with `huge=`, or any tmpfs while `shmem_enabled` is `force`;
//! 4. `/dev/shm` as it is: the keeper makes huge pages of it after touching, with
//!    [`Mapping::collapse`](super::mapping::Mapping::collapse).
//!
//! The order is measured: a second process that touches a page of memory that exists pays a hundred
//! times less per byte on huge pages (`docs/decisions/0002-arena-placement.md`). The first rung with
//! room for the whole arena is taken; where none has room, the one with the most, and the smaller
//! size is offered. [`Placement::reasons`] says why each higher rung was not taken and what would
//! change that. Nothing here is silent and nothing but memory is ever used: a directory on a disk
//! would be written back by the kernel behind the arena's back.
//!
//! Files lie in a directory per user ([`dir`]); [`find_arenas`] lists those left behind.

pub mod dir;
pub mod huge;
mod ladder;
pub mod state;

use crate::error::{Error, Result};
use crate::limits::HUGE_BYTES;
use dir::UserDir;
pub use huge::huge_bytes;
use ladder::Refusal;
pub use ladder::{Fs, Site, Survey};
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Longest name of a session, in bytes.
pub const SESSION_NAME_BYTES_MAX: usize = 64;

/// What the arena's file is made of, by how huge pages are had there.
/// In the ladder's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlaceKind {
    /// The configured directory, whatever memory file system it is on.
    Configured,
    /// hugetlbfs: always huge pages, taken from a pool that the administrator set aside.
    Hugetlb,
    /// tmpfs that makes huge pages where memory is not too fragmented.
    HugeTmpfs,
    /// tmpfs with small pages, which the keeper collapses into huge ones after touching them.
    Plain,
}

/// The place chosen for arenas, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// This user's directory there, which exists and belongs to nobody else.
    pub path: PathBuf,
    /// The rung of the ladder that was reached.
    pub kind: PlaceKind,
    /// Bytes that there is room for: what was asked for, or less where nobody has that much. A
    /// multiple of 2 MiB.
    pub bytes: u64,
    /// Why higher rungs were not taken, and why `bytes` is less than asked for; one sentence each,
    /// with its remedy.
    pub reasons: Vec<String>,
}

impl Placement {
    /// The path of a session's arena here.
    pub fn arena_path(&self, session: &str) -> PathBuf {
        self.path.join(dir::arena_name(session))
    }

    /// Makes the session's arena file, empty and open for reading and writing. Exactly one of
    /// several callers succeeds.
    ///
    /// # Errors
    /// [`Error::Session`] when the session has an arena already, [`Error::InvalidInput`] for a name
    /// that is none, [`Error::Arena`] when the directory is not this user's alone any more.
    pub fn create(&self, session: &str) -> Result<File> {
        self.user_dir()?.create(session)
    }

    /// Opens the session's arena file for reading and writing, after checking that it is this
    /// user's and nobody else's.
    ///
    /// # Errors
    /// [`Error::Session`] when there is none, otherwise as [`Placement::create`].
    pub fn open(&self, session: &str) -> Result<File> {
        self.user_dir()?.open_session(session)
    }

    /// Removes the session's arena file. Processes that map it keep its memory until they unmap it.
    ///
    /// # Errors
    /// As [`Placement::open`].
    pub fn remove(&self, session: &str) -> Result<()> {
        self.user_dir()?.remove(session)
    }

    /// What a user can do about an error of making an arena here that needs this many bytes from the start.
    pub(crate) fn explain(&self, error: Error, needed: u64) -> Error {
        let Error::NoSpace { .. } = error else {
            return error;
        };
        let dir = self.path.display();
        let mib = needed.div_ceil(1 << 20) + 2;
        Error::Arena(format!(
            "no room in {dir}: the tables alone need {mib} MiB there, and every file that is written needs more; remove something there, \
             or name a directory on a memory file system with more room (`arena_dir`, `--arena-dir`), or ask for less memory (`memory`, \
             `--memory`)"
        ))
    }

    fn user_dir(&self) -> Result<UserDir> {
        let parent = self
            .path
            .parent()
            .ok_or(Error::InvalidInput("a placement has a parent"))?;
        UserDir::open(parent, dir::user_id())?
            .ok_or_else(|| Error::Arena(format!("{} is gone", self.path.display())))
    }
}

/// An arena file found by [`find_arenas`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundArena {
    /// The file.
    pub path: PathBuf,
    /// Name of its session.
    pub session: String,
    /// Its length in bytes; 0 when its maker died before sizing it.
    pub bytes: u64,
}

/// Whether a session may have this name: 1 to 64 of letters, digits, `.`, `_` and `-`, and not `.`
/// or `..`. Such a name is a file name everywhere.
pub fn is_session_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=SESSION_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(plain)
        && name != "."
        && name != ".."
}

/// Chooses where an arena of `bytes` goes and makes this user's directory there.
///
/// # Errors
/// [`Error::Arena`] when no rung will do; the message lists every rung with its remedy.
pub fn place(config_dir: Option<&Path>, bytes: u64) -> Result<Placement> {
    let survey = Survey::of_this_system(config_dir);
    place_on(&survey, bytes)
}

/// [`place`] on a given picture of the system's mounts.
///
/// # Errors
/// As [`place`].
pub fn place_on(survey: &Survey, bytes: u64) -> Result<Placement> {
    let bytes = bytes
        .checked_next_multiple_of(HUGE_BYTES as u64)
        .filter(|&bytes| bytes > 0)
        .ok_or(Error::InvalidInput(
            "an arena's size is between 1 byte and 2^63",
        ))?;
    let (mut rungs, mut refusals) = survey.rungs(bytes);
    // Enough room first, in the ladder's order; then the most room. The sort is stable.
    rungs.sort_by_key(|rung| std::cmp::Reverse(rung.room.min(bytes)));
    for rung in &rungs {
        match UserDir::make(&rung.dir, dir::user_id()) {
            Ok(made) => {
                let short = rungs.iter().filter(|other| other.kind <= rung.kind);
                refusals.extend(short.filter_map(|other| other.too_small(bytes)));
                refusals.retain(|refusal| refusal.kind <= rung.kind);
                refusals.sort_by_key(|refusal| refusal.kind);
                let reasons = refusals.into_iter().map(|refusal| refusal.why).collect();
                let bytes = rung.room.min(bytes);
                return Ok(Placement {
                    path: made.path,
                    kind: rung.kind,
                    bytes,
                    reasons,
                });
            }
            Err(error) => refusals.push(Refusal {
                kind: rung.kind,
                why: error.to_string(),
            }),
        }
    }
    let all: Vec<_> = refusals.into_iter().map(|refusal| refusal.why).collect();
    Err(Error::Arena(format!("no place for it: {}", all.join("; "))))
}

/// This user's directories that have an arena of the session's, the configured one first, then that in `/dev/shm`. A session that exists is where it
/// is, wherever a new one would go by now.
pub fn dirs_of(config_dir: Option<&Path>, session: &str) -> Vec<UserDir> {
    user_dirs(config_dir)
        .filter(|dir| dir.arena_path(session).exists())
        .collect()
}

/// The arena files of this user on every memory file system that is mounted, and in the configured
/// directory. Directories that are not this user's alone are passed over: what lies there is not
/// to be trusted.
pub fn find_arenas(config_dir: Option<&Path>) -> Vec<FoundArena> {
    user_dirs(config_dir).flat_map(|dir| dir.arenas()).collect()
}

/// As [`find_arenas`], those of one session, in the order of [`dirs_of`], each looked for when it is asked for.
pub fn find_arenas_of(
    config_dir: Option<&Path>,
    session: &str,
) -> impl Iterator<Item = FoundArena> {
    user_dirs(config_dir).filter_map(move |dir| dir.found(session))
}

fn user_dirs(config_dir: Option<&Path>) -> impl Iterator<Item = UserDir> {
    ladder::parents(config_dir)
        .filter_map(|parent| UserDir::open(&parent, dir::user_id()).ok().flatten())
}

#[cfg(test)]
mod tests;
