//! Programs that have just been written, and are executed: the kernel refuses that (`ETXTBSY`) while anybody has the file open for writing, and a
//! keeper that is stopped, or new, may have it open though everybody else has closed it. That is waited for.

use std::ffi::{CStr, c_char};
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};

use super::environment::{Actions, Attributes, List, environ};
use crate::attach;
use crate::files;
use crate::inside::Inside;
use crate::raw::{self, KeepErrno};
use crate::real;

/// How long is waited for a keeper.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// Whether there may be anything to wait for: else libc's function is called at once.
pub fn may_be_needed() -> bool {
    attach::is_asked() && attach::known_glance().is_some()
}

/// Calls until the program is executed, or the keeper is not what is in the way.
///
/// # Safety
/// The path is the caller's string.
unsafe fn patiently(path: *const c_char, call: impl Fn() -> c_int) -> c_int {
    let begun = Instant::now();
    loop {
        let error = call();
        // SAFETY: the caller's promise.
        let again =
            error == libc::ETXTBSY && begun.elapsed() < PATIENCE && unsafe { is_the_keepers(path) };
        if !again {
            return error;
        }
        std::thread::sleep(PAUSE);
    }
}

/// # Safety
/// As for [`patiently`].
unsafe fn is_the_keepers(path: *const c_char) -> bool {
    let _errno = KeepErrno::new();
    // SAFETY: the caller's promise; the kernel has taken it.
    let has_slash = unsafe { CStr::from_ptr(path) }.to_bytes().contains(&b'/');
    // SAFETY: as above.
    let Some(inode) = has_slash
        .then(|| unsafe { files::regular_at(libc::AT_FDCWD, path) })
        .flatten()
    else {
        return false;
    };
    let _inside = Inside::enter();
    attach::known_glance().is_some_and(|glance| glance.may_be_with_keeper(inode))
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
    unsafe {
        ended(patiently(path, || {
            -(raw::call(libc::SYS_execve, args) as c_int)
        }))
    }
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
            failed(real::execvpe(name, arguments, list))
        }))
    }
}

/// # Safety
/// As for libc's function.
pub unsafe extern "C" fn execvp(name: *const c_char, arguments: List) -> c_int {
    // SAFETY: as above.
    unsafe { execvpe(name, arguments, environ) }
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
