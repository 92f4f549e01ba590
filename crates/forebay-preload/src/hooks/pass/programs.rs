//! Programs that are executed: they get the descriptors that stay open, and whether the library is in them is not known.

use super::{Args, close};
use crate::files::{self, Why};
use crate::inside::Inside;

/// `exec...`, `posix_spawn`, `system`, `popen`: what the new program inherits is the kernel's.
pub fn run(_args: &Args) {
    if !Inside::is() {
        files::give_inheritable_to_kernel(Why::Inherited);
    }
}

/// `login_tty(fd)`: closes the standard descriptors, and `fd` itself.
pub fn login(args: &Args) {
    for fd in [0, 1, 2, args[0] as libc::c_int] {
        close(fd, Why::Inherited);
    }
}
