//! Calls that name a file.

use std::ffi::CStr;

use super::{Args, fd, give_path, path};
use crate::files::{self, Given, Why};
use crate::inside::Inside;
use crate::raw::KeepErrno;

/// `name_to_handle_at(dir, path, handle, mount, flags)`: a program that opens the handle passes no hook of ours.
pub fn handle(args: &Args) -> Given {
    let flags = args[4] as libc::c_int;
    give_path(fd(args[0]), path(args[1]), flags, Why::Unserved)
}

/// `dlopen(name, flags)`: the loader opens by code of its own, and is held up where a guard sees it. Libraries that it searches for are for that
/// alone.
pub fn load(args: &Args) {
    load_by_name(path(args[0]));
}

/// `dlmopen(namespace, name, flags)`, likewise.
pub fn load_elsewhere(args: &Args) {
    load_by_name(path(args[1]));
}

fn load_by_name(name: *const libc::c_char) {
    // SAFETY: null, or the caller's string; the function behind ours reads it, too.
    let is_path = !name.is_null() && unsafe { CStr::from_ptr(name) }.to_bytes().contains(&b'/');
    if is_path {
        // What cannot be given is loaded as the device has it: there is no error number to tell.
        let _ = give_path(libc::AT_FDCWD, name, 0, Why::Mapped);
    }
}

/// `inotify_add_watch(queue, path, events)`: a program that watches a file hears of each write, and keeps it open, as a rule. Those
/// that watch directories hear of their files' bytes when these are written to the device.
pub fn watch(args: &Args) -> Given {
    if u64::from(libc::IN_MODIFY) & args[2] == 0 || Inside::is() {
        return Ok(());
    }
    let _errno = KeepErrno::new();
    // SAFETY: the caller's string; the function behind ours reads it, too.
    unsafe { files::reach_path(libc::AT_FDCWD, path(args[1]), Why::Watched) }
}

/// `umount(target)`, `mount(...)`: a file system is not busy with files that a program has closed.
pub fn mount(_args: &Args) {
    files::await_all_closed();
}
