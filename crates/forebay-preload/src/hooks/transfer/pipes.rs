//! `splice` between a pipe and a managed file, and `sendfile` to a pipe, by way of a pipe of our own.
//!
//! The kernel moves the bytes between the two pipes, so that waiting, signals and the ends of pipes are its own. The file's side is a
//! read or a write. To a pipe goes what it has room for, and nobody waits for more than the first of that: the thread that is to make
//! room may be the calling one. Bytes that have been taken from the program's pipe, and that the file then has no room for, are lost: the
//! kernel would leave them in the pipe.

use libc::{c_int, c_uint, off_t, size_t, ssize_t};

use super::{advance, position, put};
use crate::files::{self, Why};
use crate::hooks::io::{pread64, pwrite64, write};
use crate::raw;
use crate::real;
use crate::serve::{self, CALL_BYTES_MAX};
use crate::table::{self, APPENDS};

const FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
/// As much as a pipe has room for when it is new.
const PIPE_BYTES: usize = 64 * 1024;

/// A descriptor, and where the program has an offset.
type End = (c_int, *mut off_t);

/// A pipe of our own, closed whatever happens.
struct Pipe([c_int; 2]);

impl Pipe {
    /// Its ends wait: where one of two pipes does not, the kernel's `splice` between them waits for neither.
    fn new() -> Option<Self> {
        let mut ends = [-1; 2];
        // SAFETY: the target is ours.
        let made = unsafe { real::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
        (made == 0).then_some(Pipe(ends))
    }

    /// Writes into it do not wait: it is small where the user has many pipes.
    fn takes_what_fits(self) -> Option<Self> {
        let flags = libc::O_WRONLY | libc::O_NONBLOCK;
        // SAFETY: takes no memory.
        let set = unsafe { real::fcntl64(self.0[1], libc::F_SETFL, flags.into()) };
        (set == 0).then_some(self)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _errno = raw::KeepErrno::new();
        for fd in self.0 {
            // SAFETY: opened above, and nobody else's.
            unsafe { real::close(fd) };
        }
    }
}

/// Whether a descriptor is a pipe's.
pub fn is_pipe(fd: c_int) -> bool {
    files::Look::at(fd).is_some_and(|look| look.kind == libc::S_IFIFO)
}

/// `splice` where the engine has one of the two.
pub fn splice(
    from: End,
    to: End,
    count: size_t,
    flags: c_uint,
    real: &dyn Fn() -> ssize_t,
) -> ssize_t {
    if flags & !FLAGS != 0 {
        return serve::fail(libc::EINVAL);
    }
    let into_file = match (is_pipe(from.0), is_pipe(to.0)) {
        (true, false) => true,
        (false, true) => false,
        // Two files, or one that is none: nothing is moved, and the kernel says why.
        _ => return real(),
    };
    let (pipe, file) = if into_file { (from, to) } else { (to, from) };
    if !pipe.1.is_null() {
        return serve::fail(libc::ESPIPE);
    }
    let Some(start) = position(file.0, file.1) else {
        return serve::fail(libc::EFAULT);
    };
    let word = table::word(file.0);
    if !word.is_file() {
        // Its first use has shown that it is the kernel's.
        return real();
    }
    let may = if into_file {
        word.writes()
    } else {
        word.reads()
    };
    if !may {
        return serve::fail(libc::EBADF);
    }
    if start < 0 || into_file && word.is_file() && word.description().has(APPENDS) {
        return serve::fail(libc::EINVAL);
    }
    if !into_file {
        return send(file, start, pipe.0, count, flags, real);
    }
    let Some(between) = Pipe::new() else {
        return by_kernel(file.0, real);
    };
    fill(file, start, pipe.0, &between, count, flags)
}

/// From a managed file to a pipe: as much as it has room for.
pub fn send(
    file: End,
    start: off_t,
    pipe: c_int,
    count: size_t,
    flags: c_uint,
    real: &dyn Fn() -> ssize_t,
) -> ssize_t {
    let Some(between) = Pipe::new().and_then(Pipe::takes_what_fits) else {
        return by_kernel(file.0, real);
    };
    let moved = drain(file.0, start, pipe, &between, count, flags);
    advance(file.0, file.1, start, moved);
    moved
}

/// There is no room for two more descriptors: the kernel moves what the file has.
fn by_kernel(file: c_int, real: &dyn Fn() -> ssize_t) -> ssize_t {
    match files::give_to_kernel(file, Why::Transfer) {
        Ok(()) => real(),
        Err(errno) => serve::fail(errno),
    }
}

/// Only the first step waits for room.
fn drain(
    file: c_int,
    start: off_t,
    pipe: c_int,
    between: &Pipe,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    let count = count.min(CALL_BYTES_MAX);
    let mut bytes = vec![0u8; count.min(PIPE_BYTES)];
    let mut done = 0usize;
    while done < count {
        let wait = if done > 0 { libc::SPLICE_F_NONBLOCK } else { 0 };
        let _errno = (done > 0).then(raw::KeepErrno::new);
        let len = (count - done).min(bytes.len());
        // SAFETY: memory of ours, descriptors of ours and the caller's.
        let (put, moved) = unsafe {
            let got = pread64(file, bytes.as_mut_ptr().cast(), len, start + done as off_t);
            let put = match got {
                1.. => real::write(between.0[1], bytes.as_ptr().cast(), got as size_t),
                nothing => nothing,
            };
            let none = std::ptr::null_mut();
            match put {
                1.. => {
                    let len = put as size_t;
                    let moved = real::splice(between.0[0], none, pipe, none, len, flags | wait);
                    (put, moved)
                }
                nothing => (nothing, nothing),
            }
        };
        if moved <= 0 && done == 0 {
            return moved;
        }
        done += moved.max(0) as usize;
        if moved <= 0 || moved < put {
            break;
        }
    }
    done as ssize_t
}

/// From a pipe to a file: what there is.
fn fill(
    file: End,
    start: off_t,
    pipe: c_int,
    between: &Pipe,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    let mut bytes = vec![0u8; count.min(PIPE_BYTES)];
    let mut done = 0usize;
    while done < count {
        let none = std::ptr::null_mut();
        let wait = if done > 0 { libc::SPLICE_F_NONBLOCK } else { 0 };
        let _errno = (done > 0).then(raw::KeepErrno::new);
        let len = (count - done).min(bytes.len());
        // SAFETY: as above.
        let taken = unsafe { real::splice(pipe, none, between.0[1], none, len, flags | wait) };
        if taken <= 0 {
            return if done > 0 { done as ssize_t } else { taken };
        }
        // SAFETY: as above; what has just been put into the pipe.
        let got = unsafe { real::read(between.0[0], bytes.as_mut_ptr().cast(), taken as size_t) };
        let written = put(got, |at, len| {
            let from = bytes[at..].as_ptr().cast();
            // SAFETY: as above.
            unsafe {
                if file.1.is_null() {
                    write(file.0, from, len)
                } else {
                    pwrite64(file.0, from, len, start + (done + at) as off_t)
                }
            }
        });
        if written <= 0 && done == 0 {
            return written;
        }
        done += written.max(0) as usize;
        if !file.1.is_null() {
            crate::program::poke(file.1.addr(), start + done as off_t);
        }
        if written < got {
            break;
        }
    }
    done as ssize_t
}
