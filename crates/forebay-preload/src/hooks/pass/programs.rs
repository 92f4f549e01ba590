//! Programs that are executed: they get the descriptors that stay open, and whether the library is in them is not known.

use libc::c_int;

use super::{Args, close, give, number, or, path, zero};
use crate::attach;
use crate::files::{self, Given, Why};
use crate::inside::Inside;

/// `exec...`, `posix_spawn`, `system`, `popen`: what the new program inherits is the kernel's.
pub fn run(_args: &Args) -> Given {
    if attach::rests() {
        files::announce_inherited();
    } else if !Inside::is() {
        files::give_inheritable_to_kernel(Why::Inherited)?;
    }
    Ok(())
}

/// `popen`.
pub fn piped(args: &Args) -> usize {
    or(run(args), zero)
}

/// `posix_spawn_file_actions_adddup2(actions, from, to)`: the program that is spawned gets the descriptor, whatever its flags.
pub fn action(args: &Args) -> usize {
    or(give(args[1] as c_int, Why::Inherited), number)
}

/// `posix_spawn_file_actions_addopen(actions, to, path, flags, mode)`: the child opens the file inside of libc, and may execute a program
/// without the library.
pub fn opening(args: &Args) -> usize {
    // SAFETY: the program's string.
    let given = unsafe { files::reach_path(libc::AT_FDCWD, path(args[2]), Why::Inherited) };
    or(given, number)
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
