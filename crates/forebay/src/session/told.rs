//! Files that could not be brought to their devices, and who has heard of it: of one that is gone from its place nothing can be done by
//! the next command, nor the one after it, so it is said once.

use std::path::PathBuf;

use serde::Serialize;

use crate::ids::FileId;
use crate::keeper::reopen::{self, Absent};
use crate::memory::files::TOLD;
use crate::session::Session;
use crate::sync::Ordering;

/// A file that could not be brought to its device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unsettled {
    /// Its entry.
    #[serde(skip)]
    pub(crate) id: FileId,
    /// Last known path.
    pub path: PathBuf,
    /// Bytes still owed.
    pub owed_bytes: u64,
    /// Why, and what to do where that is known.
    pub reason: String,
}

impl Session {
    /// Takes out of `files` those that are gone, and that somebody has been told of ([`Session::note_told`]).
    pub fn drop_told(&self, files: &mut Vec<Unsettled>) {
        files.retain(|file| {
            let flags = &self.shared.arena.file_unchecked(file.id).flags;
            flags.load(Ordering::Acquire) & TOLD == 0 || !self.is_gone(file)
        });
    }

    /// Somebody is told of these.
    pub fn note_told(&self, files: &[Unsettled]) {
        for file in files.iter().filter(|file| self.is_gone(file)) {
            let flags = &self.shared.arena.file_unchecked(file.id).flags;
            flags.fetch_or(TOLD, Ordering::AcqRel);
        }
    }

    /// Whether nothing is gained by trying any of these again.
    pub fn are_gone(&self, files: &[Unsettled]) -> bool {
        files.iter().all(|file| self.is_gone(file))
    }

    /// Nobody has it open, and its path does not lead to it: it stays as it is until a program of the session opens it where it is
    /// now, or the session ends.
    fn is_gone(&self, file: &Unsettled) -> bool {
        let entry = self.shared.arena.file_unchecked(file.id);
        !self.shared.is_open(file.id)
            && self.shared.device(file.id).is_none()
            && matches!(
                reopen::reopen_renamed(&self.shared.arena, entry, &|fd| fd, None),
                Err(Absent::Gone(_) | Absent::Replaced(_))
            )
    }
}
