//! Permission events of fanotify: whoever opens a marked file waits until the listener has answered.
//!
//! The kernel answers in the listener's place, and lets everybody in, once the last descriptor of the group is closed, however
//! its process ends. Needs `CAP_SYS_ADMIN` in the first user namespace.

use super::{check, check_bytes, retry};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Events that are read at once.
const EVENTS: usize = 64;
const EVENT_BYTES: usize = size_of::<libc::fanotify_event_metadata>();

/// A listener.
pub struct Group {
    fd: OwnedFd,
    /// What marks are made by: they go with the inode's memory where the kernel can do that (Linux 5.19).
    mark: libc::c_uint,
}

/// Somebody waits to open a file. An event that is dropped unanswered is answered by the end of the group.
pub struct Event {
    /// The file, opened for this purpose. Its number is the event's name.
    pub file: OwnedFd,
    /// The process, as this one's pid namespace numbers it; 0 if it does not.
    pub pid: i32,
}

impl Group {
    /// A new one.
    ///
    /// # Errors
    /// `EPERM` without the privilege; `EINVAL` or `ENOSYS` where the kernel has no permission events; `EMFILE` above
    /// `/proc/sys/fs/fanotify/max_user_groups`.
    pub fn new() -> io::Result<Self> {
        let flags = libc::FAN_CLASS_CONTENT
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_UNLIMITED_QUEUE
            | libc::FAN_UNLIMITED_MARKS;
        let files = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC;
        // SAFETY: takes no memory.
        let fd = unsafe { libc::fanotify_init(flags, files as libc::c_uint) };
        check(fd)?;
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut group = Group {
            fd,
            mark: libc::FAN_MARK_EVICTABLE,
        };
        group.try_marks()?;
        Ok(group)
    }

    /// A kernel that is built without permission events says so at the first mark.
    fn try_marks(&mut self) -> io::Result<()> {
        // A directory's own openings raise no events.
        let file = std::fs::File::open("/")?;
        if let Err(error) = self.watch(file.as_fd()) {
            if error.raw_os_error() != Some(libc::EINVAL) {
                return Err(error);
            }
            self.mark = 0;
            self.watch(file.as_fd())?;
        }
        self.forget(file.as_fd())
    }

    fn change(&self, what: libc::c_uint, file: BorrowedFd<'_>) -> io::Result<()> {
        let group = self.fd.as_raw_fd();
        retry(|| {
            // SAFETY: without a path it is the descriptor's own file that is marked; no memory is passed.
            check(unsafe {
                libc::fanotify_mark(
                    group,
                    what,
                    libc::FAN_OPEN_PERM,
                    file.as_raw_fd(),
                    std::ptr::null(),
                )
            })
        })
    }

    /// From now on openings of this file wait for an answer.
    pub fn watch(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.change(libc::FAN_MARK_ADD | self.mark, file)
    }

    /// Not any more.
    pub fn forget(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.change(libc::FAN_MARK_REMOVE, file)
    }

    /// Those who wait and have not been told of before. Does not wait.
    pub fn waiting(&self) -> io::Result<Vec<Event>> {
        let mut words = [0u64; EVENTS * EVENT_BYTES / 8];
        let got = retry(|| {
            // SAFETY: the target is ours, and as long as said.
            check_bytes(unsafe {
                libc::read(
                    self.fd.as_raw_fd(),
                    words.as_mut_ptr().cast(),
                    size_of_val(&words),
                )
            })
        })?;
        let mut events = Vec::new();
        let mut at = 0;
        while at + EVENT_BYTES <= got {
            // SAFETY: so many bytes of it the kernel has filled in; the array is aligned for it, as lengths of events are.
            let event = unsafe {
                words
                    .as_ptr()
                    .byte_add(at)
                    .cast::<libc::fanotify_event_metadata>()
                    .read()
            };
            if (event.event_len as usize) < EVENT_BYTES {
                break;
            }
            at += event.event_len as usize;
            if event.fd >= 0 {
                events.push(Event {
                    // SAFETY: the kernel has made it for this process, and for this event alone.
                    file: unsafe { OwnedFd::from_raw_fd(event.fd) },
                    pid: event.pid,
                });
            }
        }
        Ok(events)
    }

    /// Lets somebody in. The event's own description is closed before: who is let in may ask at once whether there is another than
    /// its own.
    ///
    /// The kernel looks for the number among those whom it has told of, the oldest first. So should the number be given to another
    /// event in between, of two answers the first is this one's all the same, and each gets one.
    pub fn admit(&self, event: Event) -> io::Result<()> {
        let answer = libc::fanotify_response {
            fd: event.file.as_raw_fd(),
            response: libc::FAN_ALLOW,
        };
        drop(event);
        retry(|| {
            // SAFETY: our own variable, as long as said, which the kernel only reads.
            check_bytes(unsafe {
                libc::write(
                    self.fd.as_raw_fd(),
                    (&raw const answer).cast(),
                    size_of_val(&answer),
                )
            })
            .map(drop)
        })
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::Group;
    use crate::sys::lock;

    #[test]
    fn who_is_let_in_finds_no_description_of_the_listeners() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let group = match Group::new() {
            Ok(group) => group,
            Err(why) => return forebay_model::skipped(format!("no permission events: {why}")),
        };
        group.watch(file.as_file().as_fd()).expect("a mark");
        let path = file.into_temp_path();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    for event in group.waiting().unwrap_or_default() {
                        group.admit(event).expect("an answer");
                    }
                }
            });
            let alone = (0..2000).all(|_| {
                let file = OpenOptions::new().write(true).open(&path).expect("opened");
                lock::is_only_description(file.as_fd())
            });
            ended.store(true, Ordering::Relaxed);
            assert!(alone);
        });
    }
}
