//! Bytes that one call moves from file to file, or to a pipe and from one: where the engine has one of them, by reading and writing.
//!
//! The kernel is asked first, for no bytes at all: so it says what is wrong with the arguments. Where it has both files it moves
//! the bytes by itself, and what it has stays with it.

mod pipes;

use std::sync::atomic::Ordering;

use forebay::member::reached;
use forebay::session::glance::Glance;
use libc::{c_int, c_uint, off_t, size_t, ssize_t};

use crate::attach;
use crate::files::{self, Why};
use crate::hooks::io::{pread64, pwrite64, write};
use crate::hooks::limits;
use crate::hooks::seek::lseek64;
use crate::inside::Inside;
use crate::program;
use crate::real;
use crate::serve::{self, CALL_BYTES_MAX, Turn};
use crate::table;

/// Bytes that are read before they are written.
const STEP_BYTES: usize = 256 * 1024;

export! {
    /// `sendfile`.
    fn sendfile64 | sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        // SAFETY: the caller's arguments.
        let real = |count| unsafe { real::sendfile64(to, from, offset, count) };
        if let Some(moved) = by_kernel(from, to, &|| real(count)) {
            return moved;
        }
        if real(0) < 0 {
            return -1;
        }
        let Some(start) = position(from, offset) else {
            return serve::fail(libc::EFAULT);
        };
        if pipes::is_pipe(to) {
            return pipes::send((from, offset), start, to, count, 0, &|| real(count));
        }
        let is_file = files::numbers(to).is_some();
        let moved = carry(count, |bytes, len, done| {
            // SAFETY: memory of ours.
            let got = unsafe { pread64(from, bytes.cast(), len, start + done as off_t) };
            if got <= 0 {
                return (got, got);
            }
            // SAFETY: as much of it as was read, or of what is left of that.
            let write = |done, len| unsafe { write(to, bytes.add(done).cast(), len) };
            // To a socket once: a signal may have ended the wait for it, and another one would not end.
            (got, if is_file { put(got, write) } else { write(0, got as usize) })
        });
        advance(from, offset, start, moved);
        moved
    }

    /// `copy_file_range`.
    fn copy_file_range(
        from: c_int,
        from_at: *mut off_t,
        to: c_int,
        to_at: *mut off_t,
        count: size_t,
        flags: c_uint
    ) -> ssize_t {
        // SAFETY: the caller's arguments.
        let real = || unsafe { real::copy_file_range(from, from_at, to, to_at, count, flags) };
        if let Some(moved) = by_kernel(from, to, &real) {
            return moved;
        }
        let places = (position(from, from_at), position(to, to_at));
        let (Some(start @ 0..), Some(target @ 0..)) = places else {
            // It moves nothing, and says why.
            return real();
        };
        // The kernel's own offsets may be older.
        let (mut here, mut there) = (start, target);
        // SAFETY: offsets of ours.
        if unsafe { real::copy_file_range(from, &raw mut here, to, &raw mut there, 0, flags) } < 0 {
            return -1;
        }
        copy((from, from_at, start), (to, to_at, target), count)
    }

    /// `splice`.
    fn splice(
        from: c_int,
        from_at: *mut off_t,
        to: c_int,
        to_at: *mut off_t,
        count: size_t,
        flags: c_uint
    ) -> ssize_t {
        // SAFETY: the caller's arguments.
        let real = || unsafe { real::splice(from, from_at, to, to_at, count, flags) };
        match by_kernel(from, to, &real) {
            Some(moved) => moved,
            None if count > 0 => pipes::splice((from, from_at), (to, to_at), count, flags, &real),
            None => real(),
        }
    }
}

/// An offset, where it is, and whose.
type Place = (c_int, *mut off_t, off_t);

fn copy((from, from_at, start): Place, (to, to_at, target): Place, count: size_t) -> ssize_t {
    let count = match allowed((from, start), (to, target), count) {
        Ok(count) => count,
        Err(errno) => return serve::fail(errno),
    };
    let moved = carry(count, |bytes, len, done| {
        // SAFETY: memory of ours.
        let got = unsafe { pread64(from, bytes.cast(), len, start + done as off_t) };
        let at = target + done as off_t;
        let to = |done: usize, len| {
            // SAFETY: as much of it as was read.
            unsafe { pwrite64(to, bytes.add(done).cast(), len, at + done as off_t) }
        };
        (got, put(got, to))
    });
    advance(from, from_at, start, moved);
    advance(to, to_at, target, moved);
    moved
}

/// A file that the kernel is at for one of these calls, until this is dropped: nobody begins to manage it. The call may wait for ever, for a
/// pipe, and nobody for the call: a thread that would manage the file leaves it to the kernel.
struct Reaching(Option<(&'static Glance, u64)>);

impl Reaching {
    fn begin(fd: c_int) -> Self {
        let word = table::word(fd);
        if !word.is_file() {
            return Reaching(None);
        }
        let description = word.description();
        let device = description.device.load(Ordering::Relaxed);
        let hash = reached::hash(device, description.inode.load(Ordering::Relaxed));
        let glance = attach::glance();
        if let Some(glance) = glance {
            glance.begin_reach(hash);
        }
        Reaching(glance.map(|glance| (glance, hash)))
    }
}

impl Drop for Reaching {
    fn drop(&mut self) {
        if let Some((glance, hash)) = self.0 {
            glance.end_reach(hash);
        }
    }
}

/// Has the kernel move the bytes, of files that nobody manages. `None`: the engine has one of them, and the call has not been made.
fn by_kernel(from: c_int, to: c_int, real: &dyn Fn() -> ssize_t) -> Option<ssize_t> {
    if Inside::is() || !(files::is_known(from) || files::is_known(to)) {
        return Some(real());
    }
    loop {
        match is_served(from, to) {
            Ok(true) => return None,
            Ok(false) => {}
            Err(errno) => return Some(serve::fail(errno)),
        }
        let _ways = [from, to].map(Reaching::begin);
        // Looked at once more: a thread that comes from here on sees that the files are reached.
        let is_of_engine = |&fd: &c_int| {
            let word = table::word(fd);
            word.is_file() && files::is_of_engine(word.description())
        };
        if ![from, to].iter().any(is_of_engine) {
            return Some(real());
        }
    }
}

/// Whether the engine has one of two files, one of which is known. If not, the kernel keeps what it has of them.
fn is_served(from: c_int, to: c_int) -> Result<bool, c_int> {
    let is_managed = |fd| match serve::turn(fd) {
        Turn::Managed(_) => Ok(true),
        Turn::Failed(errno) if files::is_known(fd) => Err(errno),
        _ => Ok(false),
    };
    if is_managed(from)? || is_managed(to)? {
        return Ok(true);
    }
    for fd in [from, to] {
        if table::word(fd).is_file() {
            files::give_to_kernel(fd, Why::Transfer)?;
        }
    }
    Ok(false)
}

/// Where to begin: at the caller's offset, or the description's own. `None`: the caller's is not there.
fn position(fd: c_int, offset: *mut off_t) -> Option<off_t> {
    if offset.is_null() {
        // SAFETY: takes no memory.
        return Some(unsafe { lseek64(fd, 0, libc::SEEK_CUR) });
    }
    program::peek(offset.addr())
}

fn advance(fd: c_int, offset: *mut off_t, start: off_t, moved: ssize_t) {
    if moved <= 0 {
        return;
    }
    let end = start + moved as off_t;
    if offset.is_null() {
        // SAFETY: takes no memory.
        unsafe { lseek64(fd, end, libc::SEEK_SET) };
    } else {
        program::poke(offset.addr(), end);
    }
}

/// How much of a copy there is to do: up to the end of what is copied, up to the limit on file sizes, and not onto itself. Only where not a
/// byte may be written the limit is an error, with its signal.
fn allowed(
    (from, start): (c_int, off_t),
    (to, target): (c_int, off_t),
    count: size_t,
) -> Result<size_t, c_int> {
    if [start, target]
        .iter()
        .any(|at| (*at as u64).checked_add(count as u64).is_none())
    {
        return Err(libc::EOVERFLOW);
    }
    let whole = off_t::try_from(count).unwrap_or(off_t::MAX);
    let (Some(a), Some(b)) = (files::Look::at(from), files::Look::at(to)) else {
        return Err(libc::EBADF);
    };
    let rest = (super::size::size_of(from) - start).max(0).min(whole);
    let limit = limits::file_size();
    if target as u64 >= limit {
        limits::exceeded();
        return Err(libc::EFBIG);
    }
    let room = off_t::try_from(limit - target as u64).unwrap_or(off_t::MAX);
    let rest = rest.min(room);
    let same = a.identity() == b.identity();
    let within = |at: off_t, begin: off_t| begin <= at && at - begin < rest;
    if same && rest > 0 && (within(start, target) || within(target, start)) {
        return Err(libc::EINVAL);
    }
    Ok(rest as size_t)
}

/// Moves bytes step by step. `step` gets memory, how much to move, and how much has been moved; it says how much was read and
/// how much of that was written, each negative for an error.
fn carry(count: size_t, step: impl Fn(*mut u8, usize, usize) -> (ssize_t, ssize_t)) -> ssize_t {
    let count = count.min(CALL_BYTES_MAX);
    let mut bytes: Vec<u8> = Vec::with_capacity(count.min(STEP_BYTES));
    let mut done = 0;
    while done < count {
        let len = (count - done).min(STEP_BYTES);
        let (got, put) = step(bytes.as_mut_ptr(), len, done);
        if got < 0 || put < 0 {
            return if done > 0 { done as ssize_t } else { -1 };
        }
        done += put as usize;
        if got == 0 || put < got {
            break;
        }
    }
    done as ssize_t
}

/// Writes what was read, however often that takes. How much was written, negative for an error before any was.
fn put(len: ssize_t, write: impl Fn(usize, usize) -> ssize_t) -> ssize_t {
    let Ok(len) = usize::try_from(len) else {
        return 0;
    };
    let mut done = 0;
    while done < len {
        match write(done, len - done) {
            written @ 1.. => done += written as usize,
            _ if done > 0 => break,
            failed => return failed,
        }
    }
    done as ssize_t
}
