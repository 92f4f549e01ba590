//! A program that is started in a copy's stead: it knows what those may see who wait.
//!
//! It is this process's own executable, called with arguments for that purpose. It has the listener, and a pipe as its standard input
//! that ends when it is not needed any more. While it runs it answers; the copy sees to it that it does.
//!
//! Nothing here allocates or takes a lock, but for [`Relief::of`]: the caller is a copy of one thread of a process that had several.

use std::ffi::{CString, c_char};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use super::{LOOK_EVERY_MS, Parent, Seen, admit_numbers};

/// Looks at the listener in which nobody has taken what is there, after which the program hangs.
const UNREAD_LOOKS: u32 = 20;
/// Looks that a program has for its end, once it is told of it.
const LAST_LOOKS: u32 = 30;

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
    /// It ends when this is closed.
    pipe: RawFd,
    group: RawFd,
}

impl Running {
    /// Starts it, and returns when the parent answers again, or the program has ended: by itself, or since it did not answer. Nothing that
    /// it has taken is unanswered then.
    ///
    /// # Safety
    /// Called in a process with one thread; `relief` and what it leads to are this process's own copies.
    pub unsafe fn stand_by(relief: &Relief, group: RawFd, parent: &mut Parent, seen: &Seen) {
        // SAFETY: as the caller's.
        let Some(running) = (unsafe { Self::start(relief, group) }) else {
            return;
        };
        let mut unread = 0;
        while !running.has_ended(LOOK_EVERY_MS) {
            seen.answers.fetch_add(1, Ordering::Release);
            let silent = parent.is_silent(seen);
            if !parent.has_ended() {
                parent.leases.end_wanted();
                if !silent {
                    return running.end();
                }
            }
            unread = if running.leaves_unread() {
                unread + 1
            } else {
                0
            };
            if unread >= UNREAD_LOOKS {
                running.kill();
                break;
            }
        }
        // What it had taken when it died.
        admit_numbers(group);
        // SAFETY: takes no memory; the pipe is ours.
        unsafe { libc::close(running.pipe) };
    }

    /// # Safety
    /// As for [`Running::stand_by`].
    /// `None`: there is no room for it.
    ///
    /// # Safety
    /// As for [`Running::stand_by`].
    unsafe fn start(relief: &Relief, group: RawFd) -> Option<Self> {
        let mut ends = [0; 2];
        // SAFETY: the target is ours.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return None;
        }
        let [reads, pipe] = ends;
        // SAFETY: a copy of a process with one thread, whose copy does what is said below, or nothing.
        let process = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } as libc::pid_t;
        if process == 0 {
            // SAFETY: as the caller's.
            unsafe { execute(relief, group, reads) };
        }
        // SAFETY: takes no memory; the descriptors are ours.
        unsafe {
            libc::close(reads);
            if process < 0 {
                libc::close(pipe);
                return None;
            }
        }
        Some(Running {
            process,
            pipe,
            group,
        })
    }

    /// Waits for it at most so long.
    fn has_ended(&self, ms: libc::c_int) -> bool {
        // SAFETY: takes no memory. The process is this one's child, and has not been waited for.
        unsafe {
            let life = libc::syscall(libc::SYS_pidfd_open, self.process, 0) as RawFd;
            let mut source = libc::pollfd {
                fd: life,
                events: libc::POLLIN,
                revents: 0,
            };
            libc::poll(&raw mut source, 1, ms);
            libc::close(life);
            let done = libc::waitpid(
                self.process,
                std::ptr::null_mut(),
                libc::WNOHANG | libc::__WALL,
            );
            done == self.process
        }
    }

    /// Whether somebody waits of whom nobody has taken note.
    fn leaves_unread(&self) -> bool {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the target is ours, and what this request fills in.
        unsafe { libc::ioctl(self.group, libc::FIONREAD, &raw mut bytes) == 0 && bytes > 0 }
    }

    fn end(self) {
        // SAFETY: takes no memory; the pipe is ours.
        unsafe { libc::close(self.pipe) };
        if !(0..LAST_LOOKS).any(|_| self.has_ended(LOOK_EVERY_MS)) {
            self.kill();
        }
    }

    fn kill(&self) {
        // SAFETY: a child of ours that has not been waited for; no memory is passed.
        unsafe {
            libc::kill(self.process, libc::SIGKILL);
            libc::waitpid(self.process, std::ptr::null_mut(), libc::__WALL);
        }
        admit_numbers(self.group);
    }
}

/// # Safety
/// Called in a new process with one thread; `relief` and what it leads to are copies of its own.
unsafe fn execute(relief: &Relief, group: RawFd, reads: RawFd) -> ! {
    // SAFETY: all memory that is passed is this process's own, and ends as these calls want it.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        match reads {
            0 => libc::fcntl(0, libc::F_SETFD, 0),
            _ => libc::dup2(reads, 0),
        };
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
