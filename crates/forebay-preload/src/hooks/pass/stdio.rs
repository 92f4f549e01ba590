//! stdio: streams that write, or are of files that the session manages, are made by [`streams`]. The others are libc's own, which reads
//! and writes their descriptors by calls that pass no hook: their files are the kernel's as long as they are open.

use libc::{FILE, c_char, c_int};

use super::{Args, Real, close as closing, give, give_path, joined, programs};
use crate::files::{self, Given, Why};
use crate::foreign;
use crate::hooks::close;
use crate::hooks::open::{Refused, open64};
use crate::raw::{self, KeepErrno};
use crate::streams::{self, Mode, libcs};
use crate::symbols::Name;

type Open = unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> *mut FILE;
type Adopt = unsafe extern "C-unwind" fn(c_int, *const c_char) -> *mut FILE;
type Pipe = unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> *mut FILE;
type Reopen = unsafe extern "C-unwind" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;

static OPEN: Real = Real::new();
static ADOPT: Real = Real::new();
static PIPE: Real = Real::new();
static REOPEN: Real = Real::new();
const FOPEN: Name = Name::new("fopen64\0");
const FDOPEN: Name = Name::new("fdopen\0");
const POPEN: Name = Name::new("popen\0");
const FREOPEN: Name = Name::new("freopen64\0");

/// What is called, beside what is jumped to.
pub fn each(mut look: impl FnMut(Name, &Real)) {
    look(FOPEN, &OPEN);
    look(FDOPEN, &ADOPT);
    look(POPEN, &PIPE);
    look(FREOPEN, &REOPEN);
}

/// libc's `fopen`.
///
/// # Safety
/// As for that.
pub unsafe fn open_really(path: *const c_char, mode: *const c_char) -> *mut FILE {
    let mut refused = Refused::default();
    loop {
        // SAFETY: libc's function of this type, with the caller's arguments.
        let stream = unsafe { std::mem::transmute::<usize, Open>(OPEN.get(FOPEN))(path, mode) };
        if !stream.is_null() || !refused.is_to_be_tried_again() {
            return stream;
        }
    }
}

/// libc's `freopen`.
///
/// # Safety
/// As for that.
pub unsafe fn reopen_really(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    // SAFETY: as above.
    unsafe { std::mem::transmute::<usize, Reopen>(REOPEN.get(FREOPEN))(path, mode, file) }
}

export! {
    /// `fopen`.
    fn fopen64 | fopen | _IO_fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: the caller's arguments, in all of them.
        unsafe {
            if let Some(ways) = Mode::of(mode).filter(|_| streams::may_be()) {
                if !streams::is_worth(path, &ways) {
                    // Should that have changed meanwhile, it is found out before anything is read.
                    return begun(open_really(path, mode));
                }
                let fd = open64(path, ways.flags, 0o666);
                return if fd < 0 { std::ptr::null_mut() } else { over(fd, mode, &ways) };
            }
            match cut(path, mode, || open_really(path, mode)) {
                Ok(stream) => begun(stream),
                Err(errno) => failed(errno),
            }
        }
    }

    /// `fdopen`: from here on the stream uses the descriptor.
    fn fdopen | _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        // SAFETY: the caller's arguments.
        unsafe {
            match Mode::of(mode).map(|ways| streams::adopt(fd, &ways)) {
                Some(Ok(Some(stream))) => stream,
                Some(Err(errno)) => failed(errno),
                _ => adopt(fd, mode),
            }
        }
    }

    /// `popen`: what the program inherits goes to the kernel first.
    fn popen | _IO_popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        if let Err(errno) = programs::run(&[0; 6]) {
            return failed(errno);
        }
        // SAFETY: libc's function of this type, with the caller's arguments.
        let stream = unsafe { std::mem::transmute::<usize, Pipe>(PIPE.get(POPEN))(command, mode) };
        libcs::begins(descriptor(stream));
        stream
    }

    /// `freopen`: the stream's descriptor is closed, or gets another file.
    fn freopen64 | freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        streams::retire(stream);
        if !path.is_null() && let Err(errno) = give_path(libc::AT_FDCWD, path, 0, Why::Stdio) {
            return failed(errno);
        }
        ends(descriptor(stream));
        // SAFETY: the caller's arguments.
        unsafe {
            let reopen = || reopen_really(path, mode, stream);
            // Where it could not go to the kernel a second time it is found out after the opening.
            begun(cut(path, mode, reopen).unwrap_or_else(|_| reopen()))
        }
    }
}

/// Has libc open a stream. Should that cut the file, the engine does not have it meanwhile.
///
/// # Safety
/// As for `fopen`.
unsafe fn cut(
    path: *const c_char,
    mode: *const c_char,
    open: impl FnOnce() -> *mut FILE,
) -> Result<*mut FILE, c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        if *mode.cast::<u8>() == b'w' {
            return files::cut_by_kernel(libc::AT_FDCWD, path, Why::Stdio, open);
        }
        give_path(libc::AT_FDCWD, path, 0, Why::Stdio)?;
    }
    Ok(open())
}

/// A stream over a descriptor that was opened for it.
///
/// # Safety
/// As for `fdopen`.
unsafe fn over(fd: c_int, mode: *const c_char, ways: &Mode) -> *mut FILE {
    if let Some(stream) = streams::over(fd, ways) {
        return stream;
    }
    // SAFETY: the caller's promise; on failure the descriptor is ours alone.
    unsafe {
        let stream = adopt(fd, mode);
        if stream.is_null() {
            let _errno = KeepErrno::new();
            close::close(fd);
        }
        stream
    }
}

/// libc's `fdopen`.
///
/// # Safety
/// As for that.
unsafe fn adopt(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let Err(errno) = give(fd, Why::Stdio).and_then(|()| begin(fd)) {
        return failed(errno);
    }
    // SAFETY: libc's function of this type, with the caller's arguments.
    let stream = unsafe { std::mem::transmute::<usize, Adopt>(ADOPT.get(FDOPEN))(fd, mode) };
    libcs::begins(descriptor(stream));
    stream
}

/// `fclose(stream)`, `pclose(stream)`. One of ours closes its descriptor by the hook of `close`.
pub fn close(args: &Args) {
    let stream = std::ptr::with_exposed_provenance_mut(args[0] as usize);
    if streams::descriptor(stream).is_none() {
        ends(descriptor(stream));
    }
}

/// What `fopen` and its like return with an error.
fn failed(errno: c_int) -> *mut FILE {
    raw::set_errno(errno);
    std::ptr::null_mut()
}

/// A stream is about to use a descriptor, or has just begun to.
fn begin(fd: c_int) -> Given {
    if joined() {
        let _errno = KeepErrno::new();
        foreign::begin(fd, Why::Stdio)?;
    }
    Ok(())
}

/// A stream of libc's, which is closed again where its file cannot be the kernel's.
fn begun(stream: *mut FILE) -> *mut FILE {
    if stream.is_null() {
        return stream;
    }
    let fd = descriptor(stream);
    match begin(fd) {
        Ok(()) => {
            libcs::begins(fd);
            stream
        }
        Err(errno) => {
            // SAFETY: made just now, and nobody has seen it; it has written nothing.
            unsafe { libc::fclose(stream) };
            failed(errno)
        }
    }
}

fn ends(fd: c_int) {
    libcs::ends(fd);
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
