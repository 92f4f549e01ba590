//! What a path leads to, looked at and held before a call changes it.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use forebay::session::glance::Glance;
use libc::{c_char, c_int};

use crate::attach;
use crate::files::Look;
use crate::inside::{Inside, NotCancelled};
use crate::rare::Rare;
use crate::raw::{self, KeepErrno};
use crate::real;

/// An inode that a path leads to, if the session uses it: held, since the path may not lead there afterwards.
pub(super) struct Held {
    fd: Option<OwnedFd>,
    /// Its numbers, where it is not held, has no other name and nobody in the session uses it.
    idle: Option<(u64, u64)>,
    /// Whether it is held, a close has left it to the keeper, and it has no other name.
    is_left: bool,
    /// Whether the path has been looked at, and leads nowhere.
    pub(super) absent: bool,
}

impl Held {
    const NOTHING: Self = Held::unused(None, false);

    const fn unused(idle: Option<(u64, u64)>, absent: bool) -> Self {
        Held {
            fd: None,
            idle,
            is_left: false,
            absent,
        }
    }

    /// Whether the session may use what a path leads to.
    pub(super) fn may_be(path: *const c_char) -> bool {
        if path.is_null() || Inside::is() || !attach::is_on() {
            return false;
        }
        let _errno = KeepErrno::new();
        attach::fresh_glance().is_some_and(Glance::knows_any)
    }

    /// Of at least so many names.
    ///
    /// # Safety
    /// The path is the caller's: null, or a string.
    pub(super) unsafe fn at(dir: c_int, path: *const c_char, follow: bool, names: u32) -> Self {
        if !Held::may_be(path) {
            return Held::NOTHING;
        }
        let _errno = KeepErrno::new();
        // The kernel knows how many names a file has that may be managed.
        // SAFETY: the caller's promise.
        let look = unsafe {
            match follow {
                true => Look::at_path(dir, path, 0),
                false => Look::named(dir, path),
            }
        };
        let Some(look) = look else {
            let absent = raw::errno() == libc::ENOENT;
            return Held::unused(None, absent);
        };
        let inode = look.identity();
        let known = attach::fresh_glance().and_then(|glance| glance.known(inode.0, inode.1));
        let Some(known) = known.filter(|_| look.is_regular()) else {
            return Held::NOTHING;
        };
        // One that the keeper is at is held where this may be its last name.
        let is_left = known.is_left && look.links == 1;
        if !is_left && (look.links < names || !known.in_use) {
            let idle = (look.links == 1 && !known.in_use).then_some(inode);
            return Held::unused(idle, false);
        }
        let _inside = Inside::enter();
        let _cancel = NotCancelled::new();
        let nofollow = if follow { 0 } else { libc::O_NOFOLLOW };
        let flags = libc::O_PATH | libc::O_CLOEXEC | nofollow;
        // SAFETY: the caller's promise; what is opened is ours.
        unsafe {
            let fd = real::openat64(dir, path, flags, 0);
            Held {
                fd: (fd >= 0).then(|| attach::relocate(OwnedFd::from_raw_fd(fd))),
                idle: None,
                is_left,
                absent: false,
            }
        }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// A call has given it another name, if `done` is 0. What a program that is not in the session renames the keeper sees soon.
    pub(super) fn renamed(&self, done: c_int) {
        if let Some(fd) = self.fd()
            && done == 0
            && let Some(session) = attach::joined()
        {
            unseen(|| session.follow_renamed(fd));
        }
    }

    /// A call has given it the name by which it is held, beside others. A program that does that may have nothing else to do with the session: nobody but that
    /// caller knows the name.
    pub(super) fn linked(&self) {
        if let Some(fd) = self.fd() {
            unseen(|| {
                let rare = Rare::lock();
                let session = attach::session();
                drop(rare);
                if let Some(session) = session {
                    session.follow_linked(fd);
                }
            });
        }
    }

    /// A call has taken the name away, if `done` is 0: nobody needs what is in memory of a file that has no other.
    pub(super) fn removed(&self, done: c_int) {
        if done != 0 {
            return;
        }
        match self.fd() {
            Some(fd) if self.is_left => {
                if let Some(glance) = attach::glance() {
                    unseen(|| glance.free_removed(fd));
                }
            }
            Some(fd) => {
                if let Some(session) = attach::joined() {
                    unseen(|| session.follow_unlinked(fd));
                }
            }
            None => {}
        }
        if let Some(inode) = self.idle
            && let Some(session) = attach::joined()
        {
            unseen(|| session.forget_removed(inode));
        }
    }
}

/// Does what the program is not to see, after a call of its own.
fn unseen<T>(act: impl FnOnce() -> T) -> T {
    let _errno = KeepErrno::new();
    let _inside = Inside::enter();
    let _cancel = NotCancelled::new();
    act()
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            let _errno = KeepErrno::new();
            let _inside = Inside::enter();
            let _cancel = NotCancelled::new();
            drop(fd);
        }
    }
}
