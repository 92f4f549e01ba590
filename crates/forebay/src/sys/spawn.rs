//! Starting a program by `posix_spawn`, for a caller that holds signals back ([`Held`]).
//!
//! The standard library forks where a child's mask of signals is to differ. A fork copies this process's page tables, and afterwards each
//! page that one of the two writes first: 180 us of a process with 400 KiB in use, where a program's whole life takes 630.

use std::ffi::{CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::inherited;
use super::signals::Held;

/// Starts what `command` describes, which calls itself `name`, and returns its process id. Of the command its program, which is a path,
/// its arguments and its environment count. The program holds back what this process did before [`Held`]; a broken pipe ends it, it hears of
/// its children, and its standard descriptors are open, as it was with this process when that was started ([`inherited`]).
///
/// # Errors
/// The system's; `InvalidInput` for a null byte in a string.
pub fn spawn(command: &mut Command, name: &OsStr, held: &Held) -> io::Result<i32> {
    if inherited::ignores(libc::SIGCHLD) {
        return fork(command, name, held);
    }
    let program = CString::new(command.get_program().as_bytes())?;
    let arguments = std::iter::once(name).chain(command.get_args());
    let arguments: Vec<_> = arguments
        .map(|word| CString::new(word.as_bytes()))
        .collect::<Result<_, _>>()?;
    let environment = environment_of(command)?;
    let (arguments, environment) = (list(&arguments), list(&environment));
    let mut child = 0;
    // SAFETY: attributes and actions are initialised by the first calls, read by the others, and freed by the last ones; the lists end in null
    // pointers, and their strings live until the call returns. `child` is this call's own.
    unsafe {
        let mut attributes = MaybeUninit::uninit();
        check(libc::posix_spawnattr_init(attributes.as_mut_ptr()))?;
        let attributes = attributes.as_mut_ptr();
        let mut pipe = MaybeUninit::uninit();
        libc::sigemptyset(pipe.as_mut_ptr());
        if !inherited::ignores(libc::SIGPIPE) {
            libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        }
        let mut actions = MaybeUninit::uninit();
        check(libc::posix_spawn_file_actions_init(actions.as_mut_ptr()))?;
        let actions = actions.as_mut_ptr();
        let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
        let started = check(libc::posix_spawnattr_setsigmask(attributes, held.before()))
            .and_then(|()| {
                check(libc::posix_spawnattr_setsigdefault(
                    attributes,
                    pipe.as_ptr(),
                ))
            })
            .and_then(|()| check(libc::posix_spawnattr_setflags(attributes, flags as _)))
            .and_then(|()| {
                let mut closed = inherited::closed();
                closed
                    .try_for_each(|fd| check(libc::posix_spawn_file_actions_addclose(actions, fd)))
            })
            .and_then(|()| {
                check(libc::posix_spawn(
                    &raw mut child,
                    program.as_ptr(),
                    actions,
                    attributes,
                    arguments.as_ptr(),
                    environment.as_ptr(),
                ))
            });
        libc::posix_spawn_file_actions_destroy(actions);
        libc::posix_spawnattr_destroy(attributes);
        started.map(|()| child)
    }
}

/// As [`spawn`], for a program that ignores the ends of its children, which `posix_spawn` has no way to say.
fn fork(command: &mut Command, name: &OsStr, held: &Held) -> io::Result<i32> {
    command.arg0(name);
    held.spare(command);
    let as_before = || {
        // SAFETY: these take no memory. Ignoring a signal, or its default, runs no code of ours; the descriptors are a copy's.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            if inherited::ignores(libc::SIGPIPE) {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            for fd in inherited::closed() {
                libc::close(fd);
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls alone.
    unsafe { command.pre_exec(as_before) };
    let child = command.spawn()?;
    Ok(child.id() as i32)
}

/// The program that the command starts gets none of this process's descriptors but the standard ones: it lives longer, and a lock, a pipe or a
/// file system of the process that has started this one would be in use for as long as that.
pub fn keep_standard_descriptors(command: &mut Command) {
    let close_the_rest = || {
        let (first, last, on_exec) = (3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
        // SAFETY: takes no memory. Where the kernel does not know the call (before 5.11), they stay open.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, on_exec) };
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call, on descriptors of a copy.
    unsafe { command.pre_exec(close_the_rest) };
}

/// This process's environment, with what the command changes.
fn environment_of(command: &Command) -> io::Result<Vec<CString>> {
    let changes: Vec<_> = command.get_envs().collect();
    let is_changed = |name: &OsStr| changes.iter().any(|(changed, _)| *changed == name);
    let variable = |name: &OsStr, value: &OsStr| {
        let text = [name.as_bytes(), b"=", value.as_bytes()].concat();
        CString::new(text).map_err(io::Error::from)
    };
    let kept = std::env::vars_os().filter(|(name, _)| !is_changed(name));
    let kept = kept.map(|(name, value)| variable(&name, &value));
    let set = changes
        .iter()
        .filter_map(|&(name, value)| Some((name, value?)));
    kept.chain(set.map(|(name, value)| variable(name, value)))
        .collect()
}

fn list(strings: &[CString]) -> Vec<*mut libc::c_char> {
    let pointers = strings.iter().map(|string| string.as_ptr().cast_mut());
    pointers.chain([std::ptr::null_mut()]).collect()
}

fn check(errno: i32) -> io::Result<()> {
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
