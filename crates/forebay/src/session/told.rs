//! Files that could not be brought to their devices, and who has heard of it: of one that is gone from its place nothing can be done by
//! the next command, nor the one after it, so it is said once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use serde::Serialize;

use crate::file::closing;
use crate::file::core::Core;
use crate::file::settle::{Durability, settle};
use crate::flush::{Flusher, Scope, errors};
use crate::ids::FileId;
use crate::limits::PAGE_BYTES;
use crate::member::lacks;
use crate::member::reopen::{self, Absent};
use crate::memory::files::{FileEntry, TOLD, UNSYNCED};
use crate::memory::threads::Me;
use crate::session::Session;
use crate::session::look::path_of;
use crate::sync::Ordering;
use crate::text::as_text;

/// A file that could not be brought to its device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unsettled {
    /// Its entry.
    #[serde(skip)]
    pub(crate) id: FileId,
    /// Last known path.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// Bytes still owed.
    pub owed_bytes: u64,
    /// Why, and what to do where that is known.
    pub reason: String,
    /// The device has been given everything, and has not made it durable.
    #[serde(skip)]
    pub is_unsynced: bool,
}

impl Unsettled {
    pub(super) fn new(id: FileId, entry: &FileEntry, reason: String) -> Self {
        let pages = entry.owed_pages.load(Ordering::Acquire);
        Unsettled {
            id,
            path: path_of(entry),
            owed_bytes: pages.saturating_mul(PAGE_BYTES as u64),
            reason,
            is_unsynced: pages == 0 && entry.flags.load(Ordering::Acquire) & UNSYNCED != 0,
        }
    }

    /// Adds those of `found` whose device has failed to make something durable: it says so once, and may have lost it whatever it says to
    /// the next sync.
    pub fn gather_unsynced(all: &mut Vec<Unsettled>, found: &[Unsettled]) {
        for file in found.iter().filter(|file| file.is_unsynced) {
            if !all.iter().any(|known| known.id == file.id) {
                all.push(file.clone());
            }
        }
    }
}

impl Session {
    /// One file of [`Session::settle_where`].
    pub(super) fn settle_file(
        &self,
        me: Me<'_>,
        id: FileId,
        flusher: &mut Flusher,
        durability: Durability,
    ) -> std::result::Result<(), String> {
        let Some(device) = self.shared.device(id) else {
            // The keeper has descriptors of files that have been renamed or removed.
            let done = match durability.syncs() {
                true => self.shared.ask_to_sync(id),
                false => self.shared.ask_to_flush(id),
            };
            // Where a sync alone is missing, of a file that nobody can open, the program that had it open has heard of that.
            if done || !lacks::owes_or_is_closing(self.shared.arena.file_unchecked(id)) {
                return Ok(());
            }
            return Err(
                "the file is not where it was, or is another file by now, or cannot be opened"
                    .into(),
            );
        };
        let core = Core {
            shared: Arc::clone(&self.shared),
            id,
            device,
        };
        let seen = AtomicU32::new(errors::sequence(core.entry()));
        self.shared
            .flush_with(flusher, me, id, &core.device, Scope::SYNC);
        settle(&core, me, durability, &seen).map_err(|error| error.to_string())?;
        closing::finish_orphan(&core, me);
        Ok(())
    }

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
