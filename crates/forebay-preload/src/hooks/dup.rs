//! More descriptors of a description, and its flags.

use libc::{c_int, c_long};

use crate::files::{self, Why};
use crate::inside::Inside;
use crate::real;
use crate::serve;
use crate::table::{self, Kind, Word};

export! {
    /// `dup`.
    fn dup(fd: c_int) -> c_int {
        // SAFETY: takes no memory.
        another(fd, || unsafe { real::dup(fd) })
    }

    /// `dup2`.
    fn dup2 | __dup2(from: c_int, to: c_int) -> c_int {
        // SAFETY: takes no memory.
        onto(from, to, || unsafe { real::dup2(from, to) })
    }

    /// `dup3`.
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        // SAFETY: takes no memory.
        onto(from, to, || unsafe { real::dup3(from, to, flags) })
    }

    /// `fcntl`: duplicates and flags are ours; a lock on a managed file makes it the kernel's.
    fn fcntl64 | fcntl | __fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            let duplicates = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
            if duplicates {
                return another(fd, || real::fcntl64(fd, command, argument));
            }
            if table::word(fd) == Word::NONE || Inside::is() {
                return real::fcntl64(fd, command, argument);
            }
            control(fd, command, argument)
        }
    }
}

fn is_ours(fd: c_int) -> bool {
    table::word(fd).kind() == Kind::Ours && !Inside::is()
}

/// One more descriptor, made by `real`.
fn another(from: c_int, real: impl Fn() -> c_int) -> c_int {
    if Inside::is() {
        return real();
    }
    if is_ours(from) {
        return serve::refused() as c_int;
    }
    files::duplicated(from, real)
}

fn onto(from: c_int, to: c_int, real: impl Fn() -> c_int) -> c_int {
    if Inside::is() || from == to {
        return real();
    }
    if is_ours(from) {
        return serve::refused() as c_int;
    }
    if is_ours(to) && !make_way(to) {
        return serve::refused() as c_int;
    }
    files::replaced(from, to, real)
}

/// The program wants a number that the engine has: nothing in its way says that it may not.
fn make_way(_to: c_int) -> bool {
    false
}

/// # Safety
/// As for `fcntl`.
#[inline(never)]
unsafe fn control(fd: c_int, command: c_int, argument: c_long) -> c_int {
    if table::word(fd).kind() == Kind::Ours {
        return serve::refused() as c_int;
    }
    if is_lock(command)
        && let Err(errno) = files::give_to_kernel(fd, Why::Locked)
    {
        return serve::fail(errno) as c_int;
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { real::fcntl64(fd, command, argument) };
    if command == libc::F_SETFL && result == 0 {
        files::set_status_flags(fd, argument as c_int);
    }
    result
}

/// Commands about locks and leases, which the kernel keeps by inode, and about seals and hints that it answers for.
fn is_lock(command: c_int) -> bool {
    const LOCKS: [c_int; 8] = [
        libc::F_GETLK,
        libc::F_SETLK,
        libc::F_SETLKW,
        libc::F_OFD_GETLK,
        libc::F_OFD_SETLK,
        libc::F_OFD_SETLKW,
        libc::F_SETLEASE,
        libc::F_NOTIFY,
    ];
    LOCKS.contains(&command)
}
