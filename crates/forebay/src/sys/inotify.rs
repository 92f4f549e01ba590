//! inotify: hearing of openings and changes after they have happened, by whomever, without any privilege.

use super::{check, check_bytes, retry};
use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Somebody has opened the file.
pub const OPENED: u32 = libc::IN_OPEN;
/// Its bytes or its length have changed.
pub const CHANGED: u32 = libc::IN_MODIFY;
/// The watch has ended: its file is gone, or it was taken away.
pub const ENDED: u32 = libc::IN_IGNORED;
/// More has happened than was kept.
pub const LOST: u32 = libc::IN_Q_OVERFLOW;

const EVENT_BYTES: usize = size_of::<libc::inotify_event>();

/// A listener.
pub struct Watcher(OwnedFd);

/// What has happened to a watch's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The watch, as [`Watcher::watch`] has named it.
    pub watch: i32,
    /// Bits above.
    pub what: u32,
}

impl Watcher {
    /// A new one.
    ///
    /// # Errors
    /// `EMFILE` above `/proc/sys/fs/inotify/max_user_instances`.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no memory.
        let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
        check(fd)?;
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Watcher(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches a file for these bits; one file has one watch, with the bits of the last call.
    ///
    /// # Errors
    /// `ENOSPC` above `/proc/sys/fs/inotify/max_user_watches`; `EACCES` for a file that may not be read.
    pub fn watch(&self, file: BorrowedFd<'_>, what: u32) -> io::Result<i32> {
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        // SAFETY: the path is ours, ends in a null byte, and is only read.
        let watch = unsafe { libc::inotify_add_watch(self.0.as_raw_fd(), path.as_ptr(), what) };
        check(watch)?;
        Ok(watch)
    }

    /// Ends a watch.
    pub fn forget(&self, watch: i32) {
        // One that has ended by itself is no more to be ended.
        // SAFETY: takes no memory.
        unsafe { libc::inotify_rm_watch(self.0.as_raw_fd(), watch) };
    }

    /// What has happened since the last call. Does not wait.
    pub fn happened(&self) -> io::Result<Vec<Event>> {
        let mut words = [0u64; 512];
        let got = retry(|| {
            // SAFETY: the target is ours, and as long as said.
            check_bytes(unsafe {
                libc::read(
                    self.0.as_raw_fd(),
                    words.as_mut_ptr().cast(),
                    size_of_val(&words),
                )
            })
        })?;
        let mut events = Vec::new();
        let mut at = 0;
        while at + EVENT_BYTES <= got {
            // SAFETY: so many bytes of it the kernel has filled in; it is read as if unaligned.
            let event = unsafe {
                words
                    .as_ptr()
                    .byte_add(at)
                    .cast::<libc::inotify_event>()
                    .read_unaligned()
            };
            at += EVENT_BYTES + event.len as usize;
            events.push(Event {
                watch: event.wd,
                what: event.mask,
            });
        }
        Ok(events)
    }
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
