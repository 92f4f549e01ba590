//! stdio: libc reads and writes its descriptors by calls of its own, which pass no hook.
//!
//! The file of a stream is the kernel's as long as the stream is open.

use libc::{FILE, c_char, c_int};

use super::{Args, Passed, close as closing, fd, give, give_path, joined};
use crate::files::{self, Why};
use crate::foreign;
use crate::raw::KeepErrno;

type Open = unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> *mut FILE;
type Reopen = unsafe extern "C-unwind" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;

static OPEN: Passed = Passed::new("fopen64\0", nothing);
static REOPEN: Passed = Passed::new("freopen64\0", nothing);

/// What is looked for at start beside what is jumped to.
pub static CALLED: [&Passed; 2] = [&OPEN, &REOPEN];

fn nothing(_args: &Args) -> usize {
    0
}

export! {
    /// `fopen`.
    fn fopen64 | fopen | _IO_fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        give_path(libc::AT_FDCWD, path, Why::Stdio);
        // SAFETY: libc's function of this type, with the caller's arguments.
        unsafe { begun(std::mem::transmute::<usize, Open>(OPEN.real())(path, mode)) }
    }

    /// `freopen`: the stream's descriptor is closed, or gets another file.
    fn freopen64 | freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        if !path.is_null() {
            give_path(libc::AT_FDCWD, path, Why::Stdio);
        }
        ends(descriptor(stream));
        // SAFETY: as above.
        unsafe { begun(std::mem::transmute::<usize, Reopen>(REOPEN.real())(path, mode, stream)) }
    }
}

/// `fdopen(fd, mode)`: from here on the stream uses the descriptor.
pub fn adopt(args: &Args) {
    give(fd(args[0]), Why::Stdio);
    if joined() {
        let _errno = KeepErrno::new();
        foreign::begin(fd(args[0]), Why::Stdio);
    }
}

/// `fclose(stream)`.
pub fn close(args: &Args) {
    ends(descriptor(std::ptr::with_exposed_provenance_mut(
        args[0] as usize,
    )));
}

/// `dprintf(fd, format, ...)` and its siblings.
pub fn print(args: &Args) {
    give(fd(args[0]), Why::Stdio);
}

fn begun(stream: *mut FILE) -> *mut FILE {
    if !stream.is_null() && joined() {
        let _errno = KeepErrno::new();
        foreign::begin(descriptor(stream), Why::Stdio);
    }
    stream
}

fn ends(fd: c_int) {
    if fd >= 0 && joined() {
        let _errno = KeepErrno::new();
        foreign::end(fd);
        if files::is_unused_standard(fd) {
            files::forget(fd);
        } else {
            closing(fd, Why::Stdio);
        }
    }
}

/// The descriptor of a stream, negative if it has none.
pub fn descriptor(stream: *mut FILE) -> c_int {
    if stream.is_null() {
        return -1;
    }
    let _errno = KeepErrno::new();
    // SAFETY: the caller's stream; the function behind ours uses it, too.
    unsafe { libc::fileno(stream) }
}
