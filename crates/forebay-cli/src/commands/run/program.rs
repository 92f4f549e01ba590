//! Running the program as if this command were not there: signals reach it, and its end is ours.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay::sys::signals::{self, Held, Taken};
use forebay::sys::spawn::spawn;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// Numbers that the standard library has no names for.
const CHILD: i32 = Signal::CHILD.as_raw();
const STOP_OF_TERMINALS: i32 = Signal::TSTP.as_raw();

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With an exit code.
    Code(u8),
    /// By a signal.
    Signal(i32),
}

/// Why a program could not be started.
#[derive(Debug)]
pub struct NotStarted {
    /// 126 or 127, as shells have it.
    pub code: u8,
    /// In words.
    pub why: String,
}

/// The file that a name stands for, as `execvp` would find it; where it finds none, the name itself.
pub fn find(name: &OsStr) -> PathBuf {
    let plain = PathBuf::from(name);
    if name.as_bytes().contains(&b'/') {
        return plain;
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let may_run = |path: &PathBuf| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    let mut candidates = std::env::split_paths(&path).map(|dir| dir.join(name));
    candidates.find(may_run).unwrap_or(plain)
}

/// Starts the program.
///
/// # Errors
/// [`NotStarted`]
pub fn start(
    arguments: &[OsString],
    held: &Held,
    prepare: impl Fn(&mut Command),
) -> Result<Pid, NotStarted> {
    let (name, rest) = arguments.split_first().ok_or_else(|| NotStarted {
        code: 127,
        why: "no program was named".into(),
    })?;
    // Looked for once, and not by the child in one directory after the other.
    let mut command = Command::new(find(name));
    command.args(rest);
    prepare(&mut command);
    let started = match spawn(&mut command, name, held) {
        // A script that does not say whose: the shell's, as for `execvp`.
        Err(error) if error.raw_os_error() == Some(ENOEXEC) => {
            let mut shell = Command::new("/bin/sh");
            shell.arg(find(name)).args(rest);
            prepare(&mut shell);
            spawn(&mut shell, "/bin/sh".as_ref(), held)
        }
        started => started,
    };
    started.and_then(pid_of).map_err(|error| {
        let missing = error.kind() == io::ErrorKind::NotFound;
        NotStarted {
            // An interpreter that is missing is not the program's absence.
            code: if missing && !find(name).exists() {
                127
            } else {
                126
            },
            why: format!("{}: {error}", crate::output::path(Path::new(name))),
        }
    })
}

fn pid_of(number: i32) -> io::Result<Pid> {
    Pid::from_raw(number).ok_or_else(|| io::ErrorKind::Other.into())
}

/// The kernel's word for a file of no format that it knows.
const ENOEXEC: i32 = 8;

/// How often is looked around while the program runs.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Waits for the program's end. What is sent to us goes on to it; what the terminal sends has reached it already. Calls `look_around`
/// now and then.
pub fn wait(pid: Pid, held: &Held, mut look_around: impl FnMut()) -> End {
    let mut stops = Stops::default();
    let mut looked = Instant::now();
    loop {
        if let Some(end) = look(pid, &mut stops) {
            return end;
        }
        // Signals may come without a pause: where we are the first process, with each end of any.
        if looked.elapsed() >= LOOK_EVERY {
            look_around();
            looked = Instant::now();
        }
        let Some(Taken {
            signal,
            from_kernel,
        }) = held.wait_for(LOOK_EVERY)
        else {
            continue;
        };
        match signal {
            STOP_OF_TERMINALS if from_kernel => stops.are_asked_for(),
            _ if from_kernel || signal == CHILD => {}
            _ => pass_on(pid, signal),
        }
    }
}

fn pass_on(pid: Pid, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        // It may just have ended.
        let _ = kill_process(pid, signal);
    }
}

/// How long after a terminal has asked for it a program may stop by its own hand (`raise(SIGSTOP)` in a handler of `SIGTSTP`).
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// What is known of why the program stops. Where a terminal has stopped it, so do we, for the shell to see: the terminal lets all of the job go on. A
/// process that has stopped it alone (`SIGSTOP`) may let it go on alone, and we would not hear of it.
#[derive(Default)]
struct Stops {
    /// When a terminal last asked the job to stop.
    asked: Option<Instant>,
    /// When the program last stopped by `SIGSTOP`.
    stopped: Option<Instant>,
}

impl Stops {
    /// A terminal asks the job to stop.
    fn are_asked_for(&mut self) {
        self.asked = Some(Instant::now());
        self.stop_if_asked();
    }

    /// The program has stopped by a signal.
    fn have_come(&mut self, by: i32) {
        let of_terminals = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
        if of_terminals.map(Signal::as_raw).contains(&by) {
            return self.stop();
        }
        self.stopped = Some(Instant::now());
        self.stop_if_asked();
    }

    /// The two are seen in either order.
    fn stop_if_asked(&mut self) {
        let is_new = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < ANSWERS_WITHIN);
        if is_new(self.asked) && is_new(self.stopped) {
            self.stop();
        }
    }

    fn stop(&mut self) {
        *self = Stops::default();
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

/// Whether it has ended. The first process of a namespace is the parent of all whose own have ended, and takes their ends as well, as nobody
/// else does.
fn look(pid: Pid, stops: &mut Stops) -> Option<End> {
    let whose = (!getpid().is_init()).then_some(pid);
    loop {
        match waitpid(whose, WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(None) => return None,
            Ok(Some((other, _))) if other != pid => {}
            Ok(Some((_, status))) => {
                if let Some(code) = status.exit_status() {
                    return Some(End::Code(code as u8));
                }
                if let Some(signal) = status.terminating_signal() {
                    return Some(End::Signal(signal));
                }
                if let Some(by) = status.stopping_signal() {
                    stops.have_come(by);
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            // Somebody else has taken our child's end: nothing is known of it.
            Err(_) => return Some(End::Code(crate::failure::FAILED)),
        }
    }
}

impl End {
    /// The exit code of this command; does not return where the program was ended by a signal.
    pub fn take(self, clean: bool) -> u8 {
        match self {
            End::Code(0) if !clean => crate::failure::FAILED,
            End::Code(code) => code,
            End::Signal(signal) => {
                signals::die_of(signal);
                // As shells say it, should the signal have been one that ends nobody.
                128_u8.wrapping_add(signal as u8)
            }
        }
    }
}
