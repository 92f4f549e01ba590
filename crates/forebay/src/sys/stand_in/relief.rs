//! A program that is started in a copy's stead: it knows what those may see who wait.
//!
//! It is this process's own executable, called with arguments for that purpose. It has the listener. While it runs it
//! answers; the copy sees to it that it does.
//!
//! Nothing here allocates or takes a lock, but for [`Relief::of`]: the caller is a copy of one thread of a process that had several.

use std::ffi::{CString, c_char};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use super::super::fanotify;
use super::{LOOK_EVERY_MS, Parent, Seen, admit_numbers, is_readable, is_stopped, open_in_proc};

/// Looks at the listener in which nobody has taken what is there, after which the program hangs.
const UNREAD_LOOKS: u32 = 10;
/// The same while the parent lives: then it is hardly worse that everybody is let in.
const UNREAD_LOOKS_STOPPED: u32 = 5;

/// Events of the program's have numbers from here on, and the parent's are below, which keeps its numbers for them from its beginning on.
pub const NUMBERS_MIN: RawFd = 1024;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// How the program is started.
pub struct Relief {
    /// What the pointers lead to.
    _words: Vec<CString>,
    arguments: Vec<*const c_char>,
}

impl Relief {
    /// By these arguments of this process's executable, the first of them its name.
    ///
    /// # Errors
    /// Null bytes in them.
    pub fn of(arguments: Vec<Vec<u8>>) -> io::Result<Self> {
        let words = arguments.into_iter().map(CString::new);
        let words = words.collect::<Result<Vec<_>, _>>()?;
        let ends = std::iter::once(std::ptr::null());
        let arguments = words.iter().map(|word| word.as_ptr()).chain(ends);
        Ok(Relief {
            arguments: arguments.collect(),
            _words: words,
        })
    }
}

/// One that runs.
pub(super) struct Running {
    process: libc::pid_t,
    /// Its `/proc/PID/stat`.
    stat: RawFd,
    group: RawFd,
}

impl Running {
    /// Starts it, and returns when it has ended: by itself, or since it did not answer. Nothing that it has taken is unanswered then.
    /// Whether it has failed.
    ///
    /// # Safety
    /// Called in a process with one thread; `relief` and what it leads to are this process's own copies.
    pub unsafe fn stand_by(
        relief: &Relief,
        group: RawFd,
        parent: &mut Parent,
        seen: &Seen,
    ) -> bool {
        // SAFETY: as the caller's.
        let Some(running) = (unsafe { Self::start(relief, group) }) else {
            return false;
        };
        let mut unread = 0;
        let failed = loop {
            if let Some(status) = running.ended(LOOK_EVERY_MS) {
                break status != 0;
            }
            unread = match running.leaves_unread() {
                true => unread + 1,
                false => 0,
            };
            let most = match parent.has_ended() {
                true => UNREAD_LOOKS,
                false => UNREAD_LOOKS_STOPPED,
            };
            if !parent.has_ended() && parent.is_silent(seen) {
                parent.leases.end_wanted();
                // The program lets some of them in as the copy would.
                seen.answers.fetch_add(1, Ordering::Release);
            }
            if unread >= most || is_stopped(running.stat) {
                running.kill();
                break true;
            }
        };
        // What it had taken when it died; and the parent when that did. A parent that goes on has nothing to wait for from a program that ends.
        if failed || parent.has_ended() {
            admit_numbers(group);
        }
        // SAFETY: takes no memory; this is ours.
        unsafe { libc::close(running.stat) };
        failed
    }

    /// `None`: there is no room for it.
    ///
    /// # Safety
    /// As for [`Running::stand_by`].
    unsafe fn start(relief: &Relief, group: RawFd) -> Option<Self> {
        // SAFETY: a copy of a process with one thread, whose copy does what is said below, or nothing.
        let process = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } as libc::pid_t;
        if process == 0 {
            // SAFETY: as the caller's.
            unsafe { execute(relief, group) };
        }
        if process < 0 {
            return None;
        }
        let stat = libc::O_RDONLY | libc::O_CLOEXEC;
        Some(Running {
            process,
            // SAFETY: as the caller's.
            stat: unsafe { open_in_proc(process, b"stat", stat) },
            group,
        })
    }

    /// How it has ended, as `waitpid` says. Waits for that at most so long.
    fn ended(&self, ms: libc::c_int) -> Option<libc::c_int> {
        let (mut status, options) = (0, libc::WNOHANG | libc::__WALL);
        // SAFETY: the targets are ours. The process is this one's child, and has not been waited for.
        unsafe {
            let life = libc::syscall(libc::SYS_pidfd_open, self.process, 0) as RawFd;
            is_readable(life, ms);
            libc::close(life);
            let done = libc::waitpid(self.process, &raw mut status, options);
            (done == self.process).then_some(status)
        }
    }

    /// Whether somebody waits of whom nobody has taken note.
    fn leaves_unread(&self) -> bool {
        fanotify::count_waiting(self.group).is_ok_and(|count| count > 0)
    }

    fn kill(&self) {
        // SAFETY: a child of ours that has not been waited for; no memory is passed.
        unsafe {
            libc::kill(self.process, libc::SIGKILL);
            libc::waitpid(self.process, std::ptr::null_mut(), libc::__WALL);
        }
    }
}

/// # Safety
/// Called in a new process with one thread; `relief` and what it leads to are copies of its own.
unsafe fn execute(relief: &Relief, group: RawFd) -> ! {
    // SAFETY: all memory that is passed is this process's own, and ends as these calls want it.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        libc::fcntl(group, libc::F_SETFD, 0);
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::execve(
            c"/proc/self/exe".as_ptr(),
            relief.arguments.as_ptr(),
            environ,
        );
        libc::_exit(127)
    }
}
