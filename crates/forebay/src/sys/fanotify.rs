//! Permission events of fanotify: a program that opens a marked file waits until the listener has answered.
//!
//! The kernel answers in the listener's place, and lets everybody in, once the last descriptor of the group is closed, however
//! its process ends. Needs `CAP_SYS_ADMIN` in the first user namespace.

use super::{check, check_bytes, limits, numbers, retry};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Events that are read at once at most, each of which takes a descriptor.
pub const EVENTS: usize = 16;
/// Descriptors that are left for everything else.
const ROOM: u64 = 256;
/// Numbers that are lent at once ([`Group::lend`]).
const LENT: usize = 2;
/// Numbers that are kept for that, and one for the next that comes.
pub const KEPT: usize = LENT + 1;
/// Numbers that are kept, as far as they can be had.
const SPARE: usize = EVENTS + KEPT;
/// So close to the last number that there is they are scarce.
const NEAR: u64 = 64;
const EVENT_BYTES: usize = size_of::<libc::fanotify_event_metadata>();

/// A listener.
///
/// The kernel makes a descriptor for each event that is read, and refuses those that wait whose events it can make none for. So numbers
/// are kept for them, and an event's becomes one of those again in one step.
pub struct Group {
    fd: OwnedFd,
    nothing: OwnedFd,
    spare: Mutex<Vec<OwnedFd>>,
    /// Numbers that no event is to have.
    #[expect(dead_code, reason = "they are held")]
    below: Vec<OwnedFd>,
    /// What marks are made by: they go with the inode's memory where the kernel can do that (Linux 5.19).
    mark: libc::c_uint,
    /// The process that has made it, and takes all marks away in the end; 0: another one.
    process: u32,
}

/// Somebody waits to open a file. An event that is dropped unanswered is answered by the end of the group.
pub struct Event {
    /// The file, opened for this purpose. Its number is the event's name.
    pub file: OwnedFd,
    /// The thread, as this process's pid namespace numbers it; 0 if it does not.
    pub thread: i32,
}

impl Event {
    /// By which it is answered.
    pub fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }
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
            | libc::FAN_REPORT_TID
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
            nothing: std::fs::File::open("/dev/null")?.into(),
            spare: Mutex::default(),
            below: Vec::new(),
            mark: libc::FAN_MARK_EVICTABLE,
            process: std::process::id(),
        };
        group.try_marks()?;
        group.keep_spare(&mut group.spare());
        Ok(group)
    }

    /// Another process's listener, of which this one has a descriptor: a process that listens besides takes other events than this one. The
    /// kernel knows an event by its number alone, whichever process has taken it. So those of this process begin above numbers that the other's
    /// may have, as far as there are so many.
    ///
    /// # Errors
    /// The system's, where there is no descriptor left.
    pub fn over(fd: OwnedFd, above: u64) -> io::Result<Self> {
        let above = above.min(limits::descriptors().saturating_sub(ROOM));
        let mut nothing: OwnedFd = std::fs::File::open("/dev/null")?.into();
        let mut below = Vec::new();
        while (nothing.as_raw_fd() as u64) < above {
            let next = nothing.try_clone()?;
            below.push(std::mem::replace(&mut nothing, next));
        }
        let group = Group {
            fd,
            nothing,
            spare: Mutex::default(),
            below,
            mark: libc::FAN_MARK_EVICTABLE,
            process: 0,
        };
        group.keep_spare(&mut group.spare());
        Ok(group)
    }

    fn spare(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        // Each change of it is one push or one removal.
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets what is missing of the numbers that are kept.
    fn keep_spare(&self, spare: &mut Vec<OwnedFd>) {
        while spare.len() < SPARE
            && let Ok(fd) = self.nothing.try_clone()
        {
            spare.push(fd);
        }
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
        change(self.fd.as_fd(), what, file)
    }

    /// From now on openings of this file wait for an answer.
    pub fn watch(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.change(libc::FAN_MARK_ADD | self.mark, file)
    }

    /// Not any more.
    pub fn forget(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.change(libc::FAN_MARK_REMOVE, file)
    }

    /// Numbers for something without which nobody could be let in. `None`: there are none but one for the next that comes.
    pub fn lend(&self) -> Option<[OwnedFd; LENT]> {
        let mut spare = self.spare();
        let at = spare.len().checked_sub(LENT).filter(|&rest| rest > 0)?;
        spare.split_off(at).try_into().ok()
    }

    /// Whether those that come may take all numbers that are kept, since few are left beside them.
    pub fn is_short(&self) -> bool {
        let _turn = numbers::in_turn();
        let mut spare = self.spare();
        self.keep_spare(&mut spare);
        spare.len() < SPARE || self.are_few_left()
    }

    /// Whether few numbers are left beside those that are kept.
    fn are_few_left(&self) -> bool {
        let lowest = self.nothing.try_clone();
        lowest.map_or(true, |fd| numbers::is_of_the_last(&fd, NEAR))
    }

    /// Those that wait and have not been told of before, as many as there are descriptors for, but for so many that are left: others wait in
    /// the kernel. Does not wait.
    ///
    /// # Errors
    /// `EMFILE`: there is no descriptor left, until somebody is let in.
    pub fn waiting(&self, left: usize) -> io::Result<Vec<Event>> {
        let waiting = count_waiting(self.fd.as_raw_fd())?;
        if waiting == 0 {
            return Ok(Vec::new());
        }
        let mut words = [0u64; EVENTS * EVENT_BYTES / 8];
        let turn = numbers::in_turn();
        let mut spare = self.spare();
        self.keep_spare(&mut spare);
        // Other threads open files between the two calls: where they may take all numbers that there are, all of these are given back for one event.
        let scarce = self.are_few_left();
        let most = if scarce { 1 } else { spare.len() };
        let room = waiting
            .min(most)
            .min(spare.len().saturating_sub(left))
            .min(EVENTS);
        if room == 0 {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let stay = if scarce { 0 } else { spare.len() - room };
        spare.truncate(stay);
        let got = retry(|| {
            // SAFETY: the target is ours, and at least as long as said.
            check_bytes(unsafe {
                libc::read(
                    self.fd.as_raw_fd(),
                    words.as_mut_ptr().cast(),
                    room * EVENT_BYTES,
                )
            })
        });
        self.keep_spare(&mut spare);
        drop((spare, turn));
        let got = got?;
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
                    thread: event.pid,
                });
            }
        }
        Ok(events)
    }

    /// Lets somebody in. The event's own description is closed before: a program that is let in may ask at once whether there is
    /// another than its own.
    ///
    /// The kernel looks for the number among those whom it has told of, the oldest first. So should the number be given to another
    /// event in between, of two answers the first is this one's all the same, and each gets one.
    pub fn admit(&self, event: Event) -> io::Result<()> {
        let number = event.number();
        self.make_spare(event.file);
        self.admit_number(number)
    }

    /// Lets somebody in whom another process with this listener has been told of, by the number that the event has there.
    pub fn admit_number(&self, number: RawFd) -> io::Result<()> {
        admit(self.fd.as_raw_fd(), number)
    }
}

/// Those that wait for a listener and have not been told of.
///
/// # Errors
/// The system's.
pub fn count_waiting(listener: RawFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the target is ours, and what this request fills in.
    check(unsafe { libc::ioctl(listener, libc::FIONREAD, &raw mut bytes) })?;
    Ok(usize::try_from(bytes).unwrap_or(0) / EVENT_BYTES)
}

/// Lets somebody in, by the number of the event.
///
/// # Errors
/// `ENOENT`: no event has this number.
pub fn admit(listener: RawFd, number: RawFd) -> io::Result<()> {
    let answer = libc::fanotify_response {
        fd: number,
        response: libc::FAN_ALLOW,
    };
    let (bytes, len) = ((&raw const answer).cast(), size_of_val(&answer));
    // SAFETY: our own variable, as long as said, which the kernel only reads.
    retry(|| check_bytes(unsafe { libc::write(listener, bytes, len) }).map(drop))
}

impl Group {
    /// Closes the description that a descriptor leads to, and keeps the number where there are too few.
    fn make_spare(&self, file: OwnedFd) {
        let mut spare = self.spare();
        if spare.len() >= SPARE {
            return;
        }
        // SAFETY: takes no memory; the number is ours, and goes on to be.
        let kept =
            unsafe { libc::dup3(self.nothing.as_raw_fd(), file.as_raw_fd(), libc::O_CLOEXEC) } >= 0;
        if kept {
            spare.push(file);
        }
    }
}

fn change(listener: BorrowedFd<'_>, what: libc::c_uint, file: BorrowedFd<'_>) -> io::Result<()> {
    let (listener, file) = (listener.as_raw_fd(), file.as_raw_fd());
    let bits = libc::FAN_OPEN_PERM;
    retry(|| {
        // SAFETY: without a path it is the descriptor's own file that is marked; no memory is passed.
        check(unsafe { libc::fanotify_mark(listener, what, bits, file, std::ptr::null()) })
    })
}

/// As [`Group::watch`], by a descriptor of the listener's that is another process's. Only where marks go with the inode's memory.
///
/// # Errors
/// `EINVAL`: it is no listener's.
pub fn watch_by(listener: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    let what = libc::FAN_MARK_ADD | libc::FAN_MARK_EVICTABLE;
    change(listener, what, file)
}

/// As [`Group::forget`], in the same way.
///
/// # Errors
/// `ENOENT`: it was not watched. Others as for [`watch_by`].
pub fn forget_by(listener: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    change(listener, libc::FAN_MARK_REMOVE, file)
}

/// Takes all marks of a listener away: nobody waits for it any more, but those that do already.
pub fn forget_all(listener: RawFd) {
    // SAFETY: no memory is passed; any directory will do. A number that is no listener's is an error and no more.
    unsafe {
        let here = libc::AT_FDCWD;
        libc::fanotify_mark(listener, libc::FAN_MARK_FLUSH, 0, here, std::ptr::null());
    }
}

/// A member that is about to mark a file has the group's descriptor too, for microseconds. It may be stopped there: so the kernel's answer for a
/// group that is closed is not waited for.
impl Drop for Group {
    fn drop(&mut self) {
        // The marks of somebody else's, and a forked child's copy, are others' to take away.
        if self.process != std::process::id() {
            return;
        }
        forget_all(self.fd.as_raw_fd());
        while let Ok(events) = self.waiting(0)
            && !events.is_empty()
        {
            for event in events {
                let _ = self.admit(event);
            }
        }
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
                    for event in group.waiting(0).unwrap_or_default() {
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
