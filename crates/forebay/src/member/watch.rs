//! Before a file becomes managed: the keeper's guard sees who opens it from then on, and nobody outside the session has it open.
//!
//! In this order, and an outsider that comes in between is noted by the guard as one that reaches the file ([`reached`]). While no keeper
//! answers, and the program cannot mark the file by itself, nobody watches: where outsiders are to wait no file becomes managed then, and
//! elsewhere the next keeper looks for those that have come.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Arc, PoisonError};

use crate::device::DeviceFile;
use crate::error::{Error, Result};
use crate::member::guard::{Guarding, HOLDS};
use crate::member::reached;
use crate::member::shared::Shared;
use crate::member::table;
use crate::sync::Ordering;
use crate::sys::{fanotify, lock, stat};

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
    pub fn guard(&self) -> Option<Arc<dyn Guarding>> {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        guard.clone()
    }

    /// See [`Shared::guard`].
    pub fn set_guard(&self, guard: Option<Arc<dyn Guarding>>) {
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = guard;
    }

    /// Looks, and has the keeper look from now on. `fd` is the caller's only description of the file.
    ///
    /// # Errors
    /// The system's, when the file cannot be asked which one it is.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> Result<Seen> {
        let asked = stat::stat(fd).map_err(|e| Error::device("stat", &e))?;
        let inode = (asked.device, asked.inode);
        let before = reached::look(self.arena.superblock(), reached::hash(inode.0, inode.1));
        let outside = self.is_used_outside(fd, inode, false)
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

    /// As [`Shared::watch`]: whether a program outside uses the file. `taken`: the keeper gets the file's descriptors before its first byte, and
    /// hears of changes from then on, so that a mark is enough until then.
    pub fn is_used_outside(&self, fd: BorrowedFd<'_>, inode: (u64, u64), taken: bool) -> bool {
        let guard = self.arena.superblock().guard.load(Ordering::Acquire);
        if guard == 0 {
            return false;
        }
        // What the session has open has been watched for as long.
        let in_use = self.is_known_open(inode);
        let here = self.guard().filter(|_| self.keeps.load(Relaxed));
        let watched = match &here {
            Some(guard) => guard.watch(fd),
            None if taken && self.mark(fd) => true,
            // Without an answer nobody would hold up those that come; those that come to what is in use are seen to (`keeper::relief`).
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
            // There is another description, and nobody says whose.
            None => self.line.ask_who_uses(self, fd).unwrap_or(guard == HOLDS),
        }
    }

    /// Has the guard see who opens the file, without asking anybody. `false`: the keeper has to be asked.
    fn mark(&self, fd: BorrowedFd<'_>) -> bool {
        let marked = self
            .line
            .by_listener(self, |listener| fanotify::watch_by(listener, fd));
        marked.is_some()
    }

    fn is_known_open(&self, (device, inode): (u64, u64)) -> bool {
        table::find(&self.arena, device, inode).is_some_and(|id| {
            let reason = &self.arena.file_unchecked(id).kernel_reason;
            reason.load(Ordering::Acquire) == 0 && self.is_open(id)
        })
    }
}

/// A file that this process closes, and that nobody need wait for the guard to open, once the session knows nothing of it any more.
pub struct Watched {
    shared: Arc<Shared>,
    device: Arc<dyn DeviceFile>,
}

/// A file whose mark has been taken away. Whether somebody has begun to manage it meanwhile is to be looked at: [`Unmarked::look`].
#[must_use]
pub struct Unmarked {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inode: (u64, u64),
}

impl Watched {
    /// `None`: there are no marks, or this process is the one that has made them.
    pub(crate) fn of(shared: &Arc<Shared>, device: &Arc<dyn DeviceFile>) -> Option<Self> {
        let listener = &shared.arena.superblock().listener;
        if listener.load(Ordering::Relaxed) == 0 || shared.keeps.load(Relaxed) {
            return None;
        }
        Some(Watched {
            shared: Arc::clone(shared),
            device: Arc::clone(device),
        })
    }

    /// The file has been closed: takes its mark away, unless the session knows it still. As [`Line::by_listener`] it has descriptors for a
    /// moment.
    ///
    /// Another thread may begin to manage it meanwhile: it has the file marked, makes the entry, and then looks whether anybody has come. Here
    /// the mark is taken away first, then it is said that somebody may have come, and the entry is looked for last. So of the two at least one
    /// sees the other, and the file is the kernel's then.
    ///
    /// [`Line::by_listener`]: crate::member::handoff::line::Line::by_listener
    pub fn take_mark_away(self) -> Option<Unmarked> {
        let shared = self.shared;
        let (_, file) = self.device.descriptors()?;
        let caps = self.device.caps();
        let inode = (caps.device, caps.inode);
        if table::find(&shared.arena, inode.0, inode.1).is_some() {
            return None;
        }
        let taken = |listener: BorrowedFd<'_>| fanotify::forget_by(listener, file);
        shared.line.by_listener(&shared, taken)?;
        reached::begin(shared.arena.superblock(), reached::hash(inode.0, inode.1));
        fence(SeqCst);
        Some(Unmarked { shared, inode })
    }
}
