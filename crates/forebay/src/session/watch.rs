//! Before a file becomes managed: the keeper's guard sees who opens it from then on, and nobody outside the session has it open.
//!
//! In this order, and an outsider that comes in between is noted by the guard as one who reaches the file ([`reached`]). While no keeper
//! answers nobody watches: where outsiders are to wait no file becomes managed then, and elsewhere the next keeper looks who has come.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use crate::error::{Error, Result};
use crate::file::table;
use crate::keeper::outsiders::{Guard, HOLDS};
use crate::session::reached;
use crate::session::shared::Shared;
use crate::sync::Ordering;
use crate::sys::{lock, stat};

/// What was seen before a file became managed.
pub struct Seen {
    /// Whether a program outside uses it.
    pub outside: bool,
    /// Device and inode.
    pub inode: (u64, u64),
    before: reached::Before,
}

impl Shared {
    /// The guard of the keeper that this process hosts.
    pub fn guard(&self) -> Option<Arc<Guard>> {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        guard.clone()
    }

    /// See [`Shared::guard`].
    pub fn set_guard(&self, guard: Option<Arc<Guard>>) {
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = guard;
    }

    /// Looks, and has the keeper look from now on. `fd` is the caller's only description of the file.
    ///
    /// # Errors
    /// The system's, when the file cannot be asked who it is.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> Result<Seen> {
        let asked = stat::stat(fd).map_err(|e| Error::device("stat", &e))?;
        let inode = (asked.device, asked.inode);
        let before = reached::look(self.arena.superblock(), reached::hash(inode.0, inode.1));
        let outside = self.is_used_outside(fd, inode)
            // A program that is about to open it does not show among those that have it open.
            || before.is_reached()
                && !self.is_known_open(inode)
                && lock::asked_whether_only(fd) == Some(false);
        Ok(Seen {
            outside,
            inode,
            before,
        })
    }

    /// Whether somebody has come since.
    pub fn has_come(&self, seen: &Seen) -> bool {
        let hash = reached::hash(seen.inode.0, seen.inode.1);
        seen.before.has_grown(self.arena.superblock(), hash)
    }

    /// As [`Shared::watch`]: whether a program outside uses the file.
    pub fn is_used_outside(&self, fd: BorrowedFd<'_>, inode: (u64, u64)) -> bool {
        let guard = self.arena.superblock().guard.load(Ordering::Acquire);
        if guard == 0 {
            return false;
        }
        // What the session has open has been watched for as long.
        let in_use = self.is_known_open(inode);
        let here = self.guard().filter(|_| self.keeps.load(Relaxed));
        let watched = match &here {
            Some(guard) => guard.watch(fd),
            // Without an answer nobody would hold up who comes; those who come to what is in use are seen to (`keeper::relief`).
            None => self
                .line
                .ask_to_watch(self, fd)
                .unwrap_or(in_use || guard != HOLDS),
        };
        if !watched || in_use || lock::asked_whether_only(fd) == Some(true) {
            return !watched;
        }
        match &here {
            Some(guard) => guard.is_used_outside(fd),
            None => self.line.ask_who_uses(self, fd).unwrap_or(false),
        }
    }

    fn is_known_open(&self, (device, inode): (u64, u64)) -> bool {
        table::find(&self.arena, device, inode).is_some_and(|id| {
            let reason = &self.arena.file_unchecked(id).kernel_reason;
            reason.load(Ordering::Acquire) == 0 && self.is_open(id)
        })
    }
}
