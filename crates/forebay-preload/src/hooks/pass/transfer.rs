//! Calls in which the kernel moves a file's bytes by itself, lets others at them, or locks them.

use super::{Args, fd, give, joined};
use crate::files::Why;
use crate::foreign;
use crate::raw::KeepErrno;

/// `mmap(address, len, access, flags, fd, offset)`.
pub fn map(args: &Args) {
    let (flags, fd) = (args[3] as libc::c_int, fd(args[4]));
    if flags & libc::MAP_ANONYMOUS == 0 && fd >= 0 {
        give(fd, Why::Mapped);
        // A shared one goes on to show what the kernel has; it is not known when it ends. Validated ones have this bit, too.
        if flags & libc::MAP_SHARED != 0 && joined() {
            let _errno = KeepErrno::new();
            foreign::begin(fd, Why::Mapped);
        }
    }
}

/// `splice(from, offset, to, offset, len, flags)`.
pub fn splice(args: &Args) {
    give(fd(args[0]), Why::Transfer);
    give(fd(args[2]), Why::Transfer);
}

/// `flock(fd, operation)`, `lockf(fd, operation, len)`: who locks shares the file with somebody.
pub fn lock(args: &Args) {
    give(fd(args[0]), Why::Locked);
}

/// `fchmod(fd, mode)`: what becomes executable may be executed, with no writable descriptor open anywhere.
pub fn change_mode(args: &Args) {
    if args[1] & 0o111 != 0 {
        give(fd(args[0]), Why::Unserved);
    }
}
