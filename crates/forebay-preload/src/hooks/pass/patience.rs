//! Programs that have just been written, and are executed: the kernel refuses that (`ETXTBSY`) while anybody has the file open for writing, and a
//! keeper that is stopped, or late, may have it open though everybody else has closed it. That is waited for, for ten seconds at most.
//!
//! Nobody but the keeper can close what the keeper has open, and a close does not wait for a keeper that is stopped: most files are never
//! executed. So the process that executes one waits, and a program that nobody has just written costs nothing here.

use std::ffi::{CStr, c_char};
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};

use super::environment::{Actions, Attributes, List, environ};
use forebay::session::glance::WithKeeper;

use crate::attach;
use crate::files;
use crate::inside::Inside;
use crate::raw::{self, KeepErrno};
use crate::real;
use crate::signals;

/// How long is waited for a keeper.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
/// Rounds of a keeper that has the program not open, as far as is seen: in the next it has taken descriptors that were on their way to it, and in
/// the one after that it has closed them.
const ROUNDS: u32 = 3;

/// Whether there may be anything to wait for, or a signal that is ignored: else libc's function is called at once.
pub fn may_be_needed() -> bool {
    attach::is_asked()
}

/// Calls until the program is executed, or the keeper is not what is in the way.
///
/// # Safety
/// The path is the caller's string.
unsafe fn patiently(path: *const c_char, call: impl Fn() -> c_int) -> c_int {
    let begun = Instant::now();
    let (mut round, mut rounds) = (None, 0);
    loop {
        let error = call();
        if error != libc::ETXTBSY || begun.elapsed() > PATIENCE {
            return error;
        }
        // SAFETY: the caller's promise.
        let Some(seen) = (unsafe { with_keeper(path) }) else {
            return error;
        };
        if round != Some(seen.round) {
            (round, rounds) = (Some(seen.round), rounds + 1);
        }
        if !seen.may_have && rounds > ROUNDS {
            return error;
        }
        std::thread::sleep(PAUSE);
    }
}

/// What is known of the keeper and the program. `None`: the program is somebody else's.
///
/// # Safety
/// As for [`patiently`].
unsafe fn with_keeper(path: *const c_char) -> Option<WithKeeper> {
    let _errno = KeepErrno::new();
    // SAFETY: the caller's promise; the kernel has taken it.
    let has_slash = unsafe { CStr::from_ptr(path) }.to_bytes().contains(&b'/');
    if !has_slash {
        return None;
    }
    // SAFETY: as above.
    let inode = unsafe { files::regular_at(libc::AT_FDCWD, path) }?;
    let _inside = Inside::enter();
    attach::glance()?.with_keeper(inode)
}

/// What a call that returns -1 has failed with.
fn failed(result: c_int) -> c_int {
    match result {
        -1 => raw::errno(),
        _ => 0,
    }
}

fn ended(error: c_int) -> c_int {
    raw::set_errno(error);
    -1
}

// SAFETY, for all of them: the caller's arguments go on as they came.

/// # Safety
/// As for libc's function.
pub unsafe extern "C" fn execve(path: *const c_char, arguments: List, list: List) -> c_int {
    let args = [
        path.expose_provenance(),
        arguments.expose_provenance(),
        list.expose_provenance(),
    ];
    let args = [args[0], args[1], args[2], 0, 0, 0];
    // SAFETY: as above.
    let call = || unsafe { -(raw::call(libc::SYS_execve, args) as c_int) };
    // SAFETY: as above.
    unsafe { ended(patiently(path, || signals::replaced(call))) }
}

/// # Safety
/// As for libc's function.
pub unsafe extern "C" fn execv(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: as above.
    unsafe { execve(path, arguments, environ) }
}

/// # Safety
/// As for libc's function.
pub unsafe extern "C" fn execvpe(name: *const c_char, arguments: List, list: List) -> c_int {
    // SAFETY: as above.
    unsafe {
        ended(patiently(name, || {
            failed(signals::replaced(|| real::execvpe(name, arguments, list)))
        }))
    }
}

/// # Safety
/// As for libc's function.
pub unsafe extern "C" fn execvp(name: *const c_char, arguments: List) -> c_int {
    // SAFETY: as above.
    unsafe { execvpe(name, arguments, environ) }
}

/// Not patiently: what a descriptor executes is open.
///
/// # Safety
/// As for libc's function.
pub unsafe extern "C" fn fexecve(fd: c_int, arguments: List, list: List) -> c_int {
    // SAFETY: as above.
    signals::replaced(|| unsafe { real::fexecve(fd, arguments, list) })
}

/// Not patiently either.
///
/// # Safety
/// As for libc's function.
pub unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: List,
    list: List,
    flags: c_int,
) -> c_int {
    // SAFETY: as above.
    signals::replaced(|| unsafe { real::execveat(directory, path, arguments, list, flags) })
}

/// # Safety
/// As for libc's function.
pub unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: Actions,
    attributes: Attributes,
    arguments: List,
    list: List,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        patiently(path, || {
            real::posix_spawn(pid, path, actions, attributes, arguments, list)
        })
    }
}

/// # Safety
/// As for libc's function.
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    name: *const c_char,
    actions: Actions,
    attributes: Attributes,
    arguments: List,
    list: List,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        patiently(name, || {
            real::posix_spawnp(pid, name, actions, attributes, arguments, list)
        })
    }
}
