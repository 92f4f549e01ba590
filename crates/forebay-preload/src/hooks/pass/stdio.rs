//! stdio: libc reads and writes its descriptors by calls of its own, which pass no hook.

use std::ffi::c_char;

use libc::c_int;

use super::{Args, close as closing, fd, give, give_path, path};
use crate::files::Why;
use crate::raw;

/// `fopen(path, mode)`.
pub fn open(args: &Args) {
    give_path(libc::AT_FDCWD, path(args[0]), Why::Stdio);
}

/// `freopen(path, mode, stream)`: the stream's descriptor is closed, or gets another file.
pub fn reopen(args: &Args) {
    let path: *const c_char = path(args[0]);
    if !path.is_null() {
        give_path(libc::AT_FDCWD, path, Why::Stdio);
    }
    closing(descriptor(args[2]), Why::Stdio);
}

/// `fdopen(fd, mode)`: from here on the stream uses the descriptor.
pub fn adopt(args: &Args) {
    give(fd(args[0]), Why::Stdio);
}

/// `fclose(stream)`.
pub fn close(args: &Args) {
    closing(descriptor(args[0]), Why::Stdio);
}

/// `dprintf(fd, format, ...)` and its siblings.
pub fn print(args: &Args) {
    give(fd(args[0]), Why::Stdio);
}

/// The descriptor of a stream, negative if it has none.
fn descriptor(stream: u64) -> c_int {
    let stream = std::ptr::with_exposed_provenance_mut::<libc::FILE>(stream as usize);
    if stream.is_null() {
        return -1;
    }
    let _errno = raw::KeepErrno::new();
    // SAFETY: the caller's stream; the function behind ours uses it, too.
    unsafe { libc::fileno(stream) }
}
