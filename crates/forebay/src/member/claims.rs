//! Which session manages a file: one, and who comes second leaves the file to the kernel.
//!
//! Every process that has a managed file open for the engine puts a mark where others look for it: a read lock on one byte,
//! on two lists. One is a file of the user's that all the user's sessions find, the other the directory that the file lies in,
//! which whoever sees the file by that directory finds too, other users and containers included. A list's bytes
//! are divided among files, and a file's share among sessions, so that processes of one session mark the same byte
//! and others' marks are elsewhere in the share. Whoever comes marks first and looks then: of two who come at once at least
//! one sees the other.
//!
//! The kernel takes marks back when a process ends, in whatever way. What this covers and what not is in
//! `docs/decisions/0011-claims.md`.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::device::{Caps, KernelReason};
use crate::memory::place::dir::{UserDir, user_id};
use crate::sys::lock;

/// Where the user's list is: where shared memory is by convention, whatever place an arena has.
const LIST_PARENT: &str = "/dev/shm";
/// Its name in the user's directory.
const LIST_NAME: &str = "claims";
/// Bits that tell files apart, and bits that tell sessions apart in a file's share. The last byte has an offset.
const FILE_BITS: u32 = 31;
const SESSION_BITS: u32 = 31;

/// The marks of one process in one session.
#[derive(Default)]
pub struct Claims {
    list: OnceLock<Option<OwnedFd>>,
    /// By the file's share. Never held over anything but marking.
    held: Mutex<HashMap<u64, Held>>,
    relocate: OnceLock<fn(OwnedFd) -> OwnedFd>,
}

struct Held {
    /// Claims on the same file in this process.
    count: u32,
    directory: Option<OwnedFd>,
    /// The byte that this session marks.
    byte: u64,
}

/// A mark, for as long as this lives.
pub struct Claim {
    claims: Arc<Claims>,
    share: u64,
}

/// Numbers that others have too.
fn mixed(words: [u64; 3]) -> u64 {
    // splitmix64, once for each word.
    words.iter().fold(0, |state: u64, word| {
        let mut z = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// A file's share of a list.
fn share_of(caps: &Caps) -> u64 {
    mixed([caps.device, caps.inode, caps.birth]) >> (64 - FILE_BITS)
}

impl Claims {
    /// Where descriptors are put from now on.
    pub fn relocate(&self, relocate: fn(OwnedFd) -> OwnedFd) {
        let _ = self.relocate.set(relocate);
    }

    fn placed(&self, file: File) -> OwnedFd {
        match self.relocate.get() {
            Some(relocate) => relocate(file.into()),
            None => file.into(),
        }
    }

    fn list(&self) -> Option<&OwnedFd> {
        let open = || {
            let dir = UserDir::make(Path::new(LIST_PARENT), user_id()).ok()?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).mode(0o600);
            let file = options
                .custom_flags(libc::O_NOFOLLOW)
                .open(dir.path.join(LIST_NAME));
            Some(self.placed(file.ok()?))
        };
        self.list.get_or_init(open).as_ref()
    }

    /// Claims a file for a session.
    ///
    /// # Errors
    /// [`KernelReason::Claimed`] when another session has it.
    pub fn take(
        self: &Arc<Self>,
        session: u64,
        caps: &Caps,
        path: &Path,
    ) -> Result<Claim, KernelReason> {
        let claim = self.hold(session, caps, path);
        // The own mark is there by now, so that who comes at the same time sees it.
        match self.is_others(claim.share) {
            true => Err(KernelReason::Claimed),
            false => Ok(claim),
        }
    }

    /// Marks a file that the session has claimed already.
    pub fn hold(self: &Arc<Self>, session: u64, caps: &Caps, path: &Path) -> Claim {
        let share = share_of(caps);
        let byte = (share << SESSION_BITS) | (mixed([session, 0, 0]) >> (64 - SESSION_BITS));
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.entry(share)
            .and_modify(|held| held.count += 1)
            .or_insert_with(|| {
                let directory = path.parent().and_then(|dir| File::open(dir).ok());
                let directory = directory.map(|file| self.placed(file));
                // Best effort: a list that cannot be had covers nobody.
                for list in self.list().into_iter().chain(&directory) {
                    let _ = lock::share(list.as_fd(), byte);
                }
                Held {
                    count: 1,
                    directory,
                    byte,
                }
            });
        Claim {
            claims: Arc::clone(self),
            share,
        }
    }

    /// Runs `f` with the descriptors by which this process has marked a file: the marks last for as long as anybody has these.
    pub fn with_marks<T>(&self, caps: &Caps, f: impl FnOnce(&[BorrowedFd<'_>]) -> T) -> T {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let marked = held.get(&share_of(caps));
        let directory = marked.and_then(|held| held.directory.as_ref());
        let list = marked.and_then(|_| self.list());
        let marks: Vec<_> = directory.into_iter().chain(list).map(AsFd::as_fd).collect();
        f(&marks)
    }

    fn is_others(&self, share: u64) -> bool {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(held) = held.get(&share) else {
            return false;
        };
        let (start, end) = (share << SESSION_BITS, (share + 1) << SESSION_BITS);
        let around = [
            (start, held.byte - start),
            (held.byte + 1, end - held.byte - 1),
        ];
        let mut lists = self.list().into_iter().chain(&held.directory);
        lists.any(|list| {
            let is_held =
                |start, len| lock::is_any_held_elsewhere(list.as_fd(), start, len).unwrap_or(false);
            // Mostly nobody has any of it, and one question says so.
            is_held(start, end - start) && around.iter().any(|&(start, len)| is_held(start, len))
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut held = self
            .claims
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(mine) = held.get_mut(&self.share) else {
            return;
        };
        mine.count -= 1;
        if mine.count > 0 {
            return;
        }
        // Said, not left to the closing: a child of a fork may have a copy of the descriptor.
        for list in self.claims.list().into_iter().chain(&mine.directory) {
            let _ = lock::let_go(list.as_fd(), mine.byte);
        }
        held.remove(&self.share);
    }
}
