//! Programs that are executed: they get the descriptors that stay open, and whether the library is in them is not known.

use libc::c_int;

use super::{Args, close, joined};
use crate::attach;
use crate::files::{self, Given, Why};
use crate::inside::Inside;
use crate::mapped;
use crate::parting;
use crate::program::peek;
use crate::raw::KeepErrno;
use crate::signals;

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
pub fn cloned(args: &Args) -> Given {
    share(args[2])
}

/// `syscall(SYS_clone, flags, ...)`
pub fn cloned_raw(args: &Args) -> Given {
    share(args[0])
}

/// `syscall(SYS_fork)`, and `forkpty`, whose fork passes no hook: the child has what is mapped here as well.
pub fn forked(_args: &Args) {
    if joined() {
        mapped::before_fork();
    }
}

/// `syscall(SYS_clone3, arguments, size)`
pub fn cloned_by_structure(args: &Args) -> Given {
    peek::<u64>(args[0] as usize).map_or(Ok(()), share)
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
    if !shares(libc::CLONE_VM) && joined() {
        mapped::before_fork();
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
