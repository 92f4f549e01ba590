//! Programs that are executed: they get the descriptors that stay open, and whether the library is in them is not known.

use libc::{c_char, c_int, c_long, pid_t};

use super::calls::clone;
use super::{Args, close, joined, minus_one, or};
use crate::attach;
use crate::files::{self, Given, Why};
use crate::hooks::fork;
use crate::inside::Inside;
use crate::mapped;
use crate::parting;
use crate::program::peek;
use crate::raw::{self, KeepErrno};
use crate::signals;
use crate::symbols::{self, Name};

/// `posix_spawn`, `system`, `popen`: what the new program inherits is the kernel's.
pub fn run(_args: &Args) -> Given {
    if attach::rests() {
        files::announce_inherited();
    } else if !Inside::is() {
        files::give_inheritable_to_kernel(Why::Inherited)?;
    }
    Ok(())
}

/// `exec...`: besides, what it does not inherit is closed.
pub fn replace(args: &Args) -> Given {
    run(args)?;
    files::at_replacement();
    if attach::rests() {
        // A child of `vfork` has actions of its own, and copies nothing if it goes on.
        let _errno = KeepErrno::new();
        signals::tell_ignored();
    }
    Ok(())
}

/// `clone(function, stack, flags, argument, ...)`
pub fn cloned(args: &Args) -> usize {
    shared(args[2], cloned_as_fork as *const () as usize)
}

/// `syscall(SYS_clone, flags, stack, ...)`
pub fn cloned_raw(args: &Args) -> usize {
    cloned_by_number(args[0], args[1])
}

/// `syscall(SYS_clone3, arguments, size)`
pub fn cloned_by_structure(args: &Args) -> usize {
    const STACK: usize = 40;
    let at = args[0] as usize;
    let both = peek::<u64>(at).zip(peek::<u64>(at.wrapping_add(STACK)));
    both.map_or(0, |(flags, stack)| cloned_by_number(flags, stack))
}

/// `syscall(SYS_fork)` and `syscall(SYS_vfork)`.
pub fn forked(_args: &Args) -> usize {
    cloned_by_number(0, 0)
}

fn cloned_by_number(flags: u64, stack: u64) -> usize {
    match stack {
        0 => shared(flags, forked_by_number as *const () as usize),
        // The child comes back with a stack on which nothing of ours is.
        _ => shared(flags, 0),
    }
}

/// Where a call goes on that makes a child by these flags; `as_fork`: if that is one with memory of its own.
fn shared(flags: u64, as_fork: usize) -> usize {
    match share(flags) {
        Ok(()) if flags & libc::CLONE_VM as u64 == 0 && joined() => {
            mapped::before_fork();
            as_fork
        }
        given => or(given, minus_one),
    }
}

/// A child by a number of `syscall`'s, on its parent's stack.
///
/// # Safety
/// As for the call, but for `SYS_vfork`, which is a fork.
unsafe extern "C-unwind" fn forked_by_number(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
) -> c_long {
    let number = match number {
        libc::SYS_vfork => libc::SYS_fork,
        other => other,
    };
    // SAFETY: the caller's call. The child has memory of its own, this frame's included.
    let child = fork::forked(|| unsafe { raw::call_errno(number, [a, b, c, d, e, 0]) as pid_t });
    child.into()
}

/// libc's `clone`, of a child with memory of its own, which calls its function and does not come back. The last argument is whatever lies there
/// where the caller has given none.
///
/// # Safety
/// As for that function.
unsafe extern "C-unwind" fn cloned_as_fork(
    function: usize,
    stack: usize,
    flags: c_int,
    argument: usize,
    parent_number: usize,
    storage: usize,
    child_number: usize,
) -> c_int {
    type Clone = extern "C" fn(usize, usize, c_int, usize, usize, usize, usize) -> c_int;
    // SAFETY: libc's function, which takes these in so many registers and on the stack.
    let clone: Clone = unsafe { std::mem::transmute(clone::REAL.get(clone::NAME)) };
    fork::forked(|| {
        clone(
            function,
            stack,
            flags,
            argument,
            parent_number,
            storage,
            child_number,
        )
    })
}

/// A child that shares either memory or descriptors, but not both: what it closes or opens is none of the numbers that the library knows, or is
/// one that it does not hear of. One in a namespace of its own is outside of the session's rights, and its numbers are not ours.
fn share(flags: u64) -> Given {
    let shares = |flag: c_int| flags & flag as u64 != 0;
    let apart =
        libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWCGROUP;
    if shares(apart) {
        return parting::leave(Why::Identity);
    }
    if shares(libc::CLONE_VM) == shares(libc::CLONE_FILES) {
        return Ok(());
    }
    parting::leave(Why::Unshared)
}

/// `login_tty(fd)`: closes the standard descriptors, and `fd` itself.
pub fn login(args: &Args) {
    for fd in [0, 1, 2, args[0] as c_int] {
        close(fd, Why::Inherited);
    }
}

/// `daemon(keep_directory, keep_streams)`: libc's forks and duplicates by calls that pass no hook.
///
/// # Safety
/// As for libc's function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn daemon(keep_directory: c_int, keep_streams: c_int) -> c_int {
    // SAFETY: plain calls, some of them our own hooks.
    unsafe {
        match libc::fork() {
            -1 => return -1,
            0 => {}
            _ => libc::_exit(0),
        }
        if libc::setsid() == -1 {
            return -1;
        }
        if keep_directory == 0 {
            let _ = libc::chdir(c"/".as_ptr());
        }
        if keep_streams == 0 {
            let null = libc::open64(c"/dev/null".as_ptr(), libc::O_RDWR);
            if null == -1 {
                return -1;
            }
            for standard in 0..=2 {
                libc::dup2(null, standard);
            }
            if null > 2 {
                libc::close(null);
            }
        }
    }
    0
}

/// `openpty`, which some systems have in a library of its own.
type OpenTerminal = unsafe extern "C" fn(
    *mut c_int,
    *mut c_int,
    *mut c_char,
    *const libc::termios,
    *const libc::winsize,
) -> c_int;

/// `forkpty(terminal, name, settings, size)`: libc's forks and duplicates by calls that pass no hook.
///
/// # Safety
/// As for libc's function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forkpty(
    terminal: *mut c_int,
    name: *mut c_char,
    settings: *const libc::termios,
    size: *const libc::winsize,
) -> pid_t {
    let open = symbols::find_anywhere(const { Name::new("openpty\0") });
    if open.is_null() {
        raw::set_errno(libc::ENOSYS);
        return -1;
    }
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: the function of that name, with the caller's memory and two variables that nobody else knows; then plain calls, some of them our
    // own hooks, and the caller's own variable.
    unsafe {
        let open: OpenTerminal = std::mem::transmute(open);
        if open(&raw mut ours, &raw mut theirs, name, settings, size) == -1 {
            return -1;
        }
        let child = libc::fork();
        if child == 0 {
            libc::close(ours);
            if !become_terminal(theirs) {
                libc::_exit(1);
            }
            return 0;
        }
        let errno = KeepErrno::new();
        libc::close(theirs);
        if child == -1 {
            libc::close(ours);
        } else {
            *terminal = ours;
        }
        drop(errno);
        child
    }
}

/// As `login_tty`: a terminal becomes the process's own, and its standard descriptors.
fn become_terminal(terminal: c_int) -> bool {
    // SAFETY: these take no memory, and some are our own hooks.
    unsafe {
        libc::setsid();
        if libc::ioctl(terminal, libc::TIOCSCTTY, 0) == -1 {
            return false;
        }
        for standard in 0..=2 {
            libc::dup2(terminal, standard);
        }
        if terminal > 2 {
            libc::close(terminal);
        }
    }
    true
}
