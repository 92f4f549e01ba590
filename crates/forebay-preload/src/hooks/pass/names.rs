//! Calls that name a file.

use super::{Args, fd, give_path, path};
use crate::files::{self, Why};

/// `chmod(path, mode)`. See `transfer::change_mode`.
pub fn chmod(args: &Args) {
    if args[1] & 0o111 != 0 {
        give_path(libc::AT_FDCWD, path(args[0]), Why::Unserved);
    }
}

/// `fchmodat(dir, path, mode, flags)`.
pub fn chmod_at(args: &Args) {
    if args[2] & 0o111 != 0 {
        give_path(fd(args[0]), path(args[1]), Why::Unserved);
    }
}

/// `name_to_handle_at(dir, path, handle, mount, flags)`: whoever opens the handle passes no hook of ours.
pub fn handle(args: &Args) {
    give_path(fd(args[0]), path(args[1]), Why::Unserved);
}

/// `umount(target)`, `mount(...)`: a file system is not busy with files that a program has closed.
pub fn mount(_args: &Args) {
    files::await_all_closed();
}
