//! Signals as a program needs them that stands in front of another: taken one at a time, to be passed on, and at the end
//! died of as the other did.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Signals that are a program's own misfortune, or glibc's own: they are left as they are.
const LEFT_ALONE: [i32; 12] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
    libc::SIGPIPE,
    32,
    33,
];

/// A signal that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its number.
    pub signal: i32,
    /// The kernel sent it: a terminal's keys, which the whole foreground has heard of, or the end of a child.
    pub from_kernel: bool,
}

/// Signals that are held back, and taken with [`Held::wait`].
#[derive(Clone, Copy)]
pub struct Held {
    set: libc::sigset_t,
    /// What was held back before.
    before: libc::sigset_t,
}

/// Holds back all signals that can be passed on, in the calling thread and those that it starts from now on. Children
/// inherit that: see [`Held::spare`].
///
/// # Errors
/// The system's.
pub fn hold_back() -> io::Result<Held> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is this call's own; the first call initialises it, the second completes it.
    let set = unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in LEFT_ALONE {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    };
    // A child's end must be told, even where the process that started us did not want to hear of its children.
    // SAFETY: the call takes no memory of ours, and the default action runs no code of ours.
    if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    let before = mask(libc::SIG_BLOCK, &set)?;
    Ok(Held { set, before })
}

/// Changes what the calling thread holds back. Returns what it held back before.
fn mask(how: i32, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are ours; the first is initialised, the second is written by the call alone.
    match unsafe { libc::pthread_sigmask(how, set, before.as_mut_ptr()) } {
        // SAFETY: the call has succeeded, so it has filled it.
        0 => Ok(unsafe { before.assume_init() }),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

impl Held {
    /// The program that the command starts holds back what this process did before.
    pub fn spare(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: between fork and exec it makes one system call on a copy of its own.
        unsafe { command.pre_exec(move || mask(libc::SIG_SETMASK, &before).map(drop)) };
    }

    /// What was held back before, for the program that is started.
    pub(super) fn before(&self) -> &libc::sigset_t {
        &self.before
    }

    /// As [`Held::wait`], for so long at most.
    pub fn wait_for(&self, patience: std::time::Duration) -> Option<Taken> {
        let timeout = libc::timespec {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(patience.subsec_nanos()),
        };
        let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
        // SAFETY: the set is initialised, `info` and `timeout` are this call's own.
        let signal = unsafe {
            libc::sigtimedwait(&raw const self.set, info.as_mut_ptr(), &raw const timeout)
        };
        if signal <= 0 {
            return None;
        }
        // SAFETY: the call has succeeded, so it has filled it.
        let code = unsafe { info.assume_init() }.si_code;
        Some(Taken {
            signal,
            from_kernel: code > 0,
        })
    }

    /// Waits for the next signal.
    pub fn wait(&self) -> Taken {
        loop {
            let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
            // SAFETY: the set is initialised, `info` is this call's own and written by the kernel alone.
            let signal = unsafe { libc::sigwaitinfo(&raw const self.set, info.as_mut_ptr()) };
            if signal > 0 {
                // SAFETY: the call has succeeded, so it has filled it.
                let code = unsafe { info.assume_init() }.si_code;
                return Taken {
                    signal,
                    from_kernel: code > 0,
                };
            }
        }
    }
}

/// A file that would get longer than this process may make it is an error from now on, and not this process's end.
pub fn outlive_long_files() {
    // SAFETY: the call takes no memory of ours, and ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Ends this process by a signal, as another process was ended by it. Returns only if that signal does not end processes.
pub fn die_of(signal: i32) {
    // The core, if any, is the other process's.
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain numbers of ours; the default action runs no code of ours; the set is initialised by the calls.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        let set = set.assume_init();
        libc::raise(signal);
        let _ = mask(libc::SIG_UNBLOCK, &set);
    }
}

/// Whether a thread, by the kernel's number for it, is this process's.
pub fn is_own_thread(thread: i32) -> bool {
    // SAFETY: plain numbers; no signal is sent, only asked whether one could be.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, 0) == 0 }
}
