//! Reading and writing.

use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

use crate::files::{self, Why};
use crate::hooks::sync;
use crate::program::Parts;
use crate::real;
use crate::serve::{self, Anew, Answer, CALL_BYTES_MAX, How, Turn};
use crate::table::{self, Kind, Word};

/// Answers a call by what the descriptor is: `real` is the kernel's answer, `engine` the engine's.
#[inline(always)]
fn answer(
    fd: c_int,
    moves: bool,
    mut real: impl FnMut() -> ssize_t,
    mut grows: impl FnMut(Word) -> bool,
    mut engine: impl FnMut(Word) -> Answer<usize>,
) -> ssize_t {
    let mut anew = Anew::new();
    loop {
        match serve::turn_to_begin(fd) {
            Turn::Real => return real(),
            Turn::Failed(errno) => return serve::fail(errno),
            Turn::Candidate(word) => {
                if !grows(word)
                    && let Some(moved) = serve::by_kernel(fd, word, moves, &mut real)
                {
                    return moved;
                }
                if let Err(errno) = files::attach(fd, word) {
                    return serve::fail(errno);
                }
            }
            Turn::Managed(word) => match engine(word) {
                Answer::Done(moved) => return moved as ssize_t,
                Answer::Failed(errno) => return serve::fail(errno),
                Answer::Again if anew.may(word) => {}
                Answer::Again => return serve::fail(libc::EIO),
            },
        }
    }
}

/// # Safety
/// As for `pread`.
#[inline(always)]
unsafe fn read_really(fd: c_int, to: *mut c_void, len: size_t, at: Option<off_t>) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe {
        match at {
            Some(at) => real::pread64(fd, to, len, at),
            None => real::read(fd, to, len),
        }
    }
}

/// # Safety
/// As for `pwrite`.
#[inline(always)]
unsafe fn write_really(fd: c_int, from: *const c_void, len: size_t, at: Option<off_t>) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe {
        match at {
            Some(at) => real::pwrite64(fd, from, len, at),
            None => real::write(fd, from, len),
        }
    }
}

/// # Safety
/// As for `pread`.
#[inline(always)]
unsafe fn read_some(fd: c_int, to: *mut c_void, len: size_t, at: Option<off_t>) -> ssize_t {
    let word = table::word(fd);
    // SAFETY: the caller's arguments, in each of them.
    unsafe {
        match word.kind() {
            Kind::None => read_really(fd, to, len, at),
            Kind::Candidate => read_candidate(fd, word, to, len, at),
            _ => read_ours(fd, to, len, at),
        }
    }
}

/// # Safety
/// As for `pwrite`.
#[inline(always)]
unsafe fn write_some(fd: c_int, from: *const c_void, len: size_t, at: Option<off_t>) -> ssize_t {
    let word = table::word(fd);
    // SAFETY: the caller's arguments, in each of them.
    unsafe {
        match word.kind() {
            Kind::None => write_really(fd, from, len, at),
            Kind::Candidate => write_candidate(fd, word, from, len, at),
            _ => write_ours(fd, from, len, at),
        }
    }
}

/// Reads from a file that is not managed, as most are: a function of its own, which prepares nothing for the engine.
///
/// # Safety
/// As for `pread`.
#[inline(never)]
unsafe fn read_candidate(
    fd: c_int,
    word: Word,
    to: *mut c_void,
    len: size_t,
    at: Option<off_t>,
) -> ssize_t {
    // SAFETY: the caller's arguments, in both.
    unsafe {
        let read = || read_really(fd, to, len, at);
        let moves = at.is_none();
        serve::by_kernel(fd, word, moves, read)
            .or_else(|| serve::read_idle(fd, word, moves, len, read))
            .unwrap_or_else(|| read_ours(fd, to, len, at))
    }
}

/// As [`read_candidate`]. A file that has grown is no such file any more.
///
/// # Safety
/// As for `pwrite`.
#[inline(never)]
unsafe fn write_candidate(
    fd: c_int,
    word: Word,
    from: *const c_void,
    len: size_t,
    at: Option<off_t>,
) -> ssize_t {
    // SAFETY: the caller's arguments, in both.
    unsafe {
        let write = || serve::timed(word, || write_really(fd, from, len, at));
        if !serve::has_grown(word, len)
            && let Some(moved) = serve::by_kernel(fd, word, at.is_none(), write)
        {
            return moved;
        }
        match files::attach(fd, word) {
            Ok(()) => write_ours(fd, from, len, at),
            Err(errno) => serve::fail(errno),
        }
    }
}

/// # Safety
/// As for `pread`.
#[inline(never)]
unsafe fn read_ours(fd: c_int, to: *mut c_void, len: size_t, at: Option<off_t>) -> ssize_t {
    // SAFETY: the caller's arguments, in each of them.
    unsafe {
        answer(
            fd,
            at.is_none(),
            || read_really(fd, to, len, at),
            |_| false,
            |word| serve::read(fd, word, to.cast(), len, at),
        )
    }
}

/// # Safety
/// As for `pwrite`.
#[inline(never)]
unsafe fn write_ours(fd: c_int, from: *const c_void, len: size_t, at: Option<off_t>) -> ssize_t {
    // SAFETY: the caller's arguments, in each of them.
    unsafe {
        answer(
            fd,
            at.is_none(),
            || write_really(fd, from, len, at),
            |word| serve::has_grown(word, len),
            |word| serve::write(fd, word, from.cast(), len, at),
        )
    }
}

export! {
    /// `read`.
    fn read | __read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
        // SAFETY: the caller's arguments.
        unsafe { read_some(fd, to, len, None) }
    }

    /// `write`.
    fn write | __write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
        // SAFETY: the caller's arguments.
        unsafe { write_some(fd, from, len, None) }
    }

    /// `pread`.
    fn pread64 | pread | __pread64(fd: c_int, to: *mut c_void, len: size_t, at: off_t) -> ssize_t {
        // SAFETY: the caller's arguments.
        unsafe { read_some(fd, to, len, Some(at)) }
    }

    /// `pwrite`.
    fn pwrite64 | pwrite | __pwrite64(fd: c_int, from: *const c_void, len: size_t, at: off_t) -> ssize_t {
        // SAFETY: the caller's arguments.
        unsafe { write_some(fd, from, len, Some(at)) }
    }

    /// `read` as fortified programs call it.
    fn __read_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        if len > room {
            abort_overflow();
        }
        // SAFETY: the caller's arguments.
        unsafe { read(fd, to, len) }
    }

    /// `pread` as fortified programs call it.
    fn __pread64_chk | __pread_chk(fd: c_int, to: *mut c_void, len: size_t, at: off_t, room: size_t) -> ssize_t {
        if len > room {
            abort_overflow();
        }
        // SAFETY: the caller's arguments.
        unsafe { pread64(fd, to, len, at) }
    }

    /// `readv`.
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: the caller's arguments.
        unsafe {
            if table::word(fd) == Word::NONE {
                return real::readv(fd, parts, count);
            }
            vectored(fd, parts, count, None, READS, || real::readv(fd, parts, count))
        }
    }

    /// `writev`.
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: the caller's arguments.
        unsafe {
            if table::word(fd) == Word::NONE {
                return real::writev(fd, parts, count);
            }
            vectored(fd, parts, count, None, WRITES, || real::writev(fd, parts, count))
        }
    }

    /// `preadv`.
    fn preadv64 | preadv(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t {
        // SAFETY: the caller's arguments.
        unsafe {
            if table::word(fd) == Word::NONE {
                return real::preadv64(fd, parts, count, at);
            }
            vectored(fd, parts, count, Some(at), READS, || real::preadv64(fd, parts, count, at))
        }
    }

    /// `pwritev`.
    fn pwritev64 | pwritev(fd: c_int, parts: *const iovec, count: c_int, at: off_t) -> ssize_t {
        // SAFETY: the caller's arguments.
        unsafe {
            if table::word(fd) == Word::NONE {
                return real::pwritev64(fd, parts, count, at);
            }
            vectored(fd, parts, count, Some(at), WRITES, || real::pwritev64(fd, parts, count, at))
        }
    }

    /// `preadv2`.
    fn preadv64v2 | preadv2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        // SAFETY: the caller's arguments.
        unsafe {
            let real = || real::preadv64v2(fd, parts, count, at, flags);
            if table::word(fd) == Word::NONE {
                return real();
            }
            if flags & !(HARMLESS | libc::RWF_NOWAIT) != 0
                && let Err(errno) = files::give_to_kernel(fd, Why::Unserved)
            {
                return serve::fail(errno);
            }
            let at = (at != -1).then_some(at);
            let at_once = flags & libc::RWF_NOWAIT != 0;
            vectored(fd, parts, count, at, How { at_once, ..READS }, real)
        }
    }

    /// `pwritev2`.
    fn pwritev64v2 | pwritev2(fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        // SAFETY: the caller's arguments.
        unsafe {
            let real = || real::pwritev64v2(fd, parts, count, at, flags);
            if table::word(fd) == Word::NONE {
                return real();
            }
            if flags & !(HARMLESS | libc::RWF_SYNC | libc::RWF_DSYNC | libc::RWF_NOWAIT | libc::RWF_APPEND) != 0
                && let Err(errno) = files::give_to_kernel(fd, Why::Unserved)
            {
                return serve::fail(errno);
            }
            let at = (at != -1).then_some(at);
            let appends = flags & libc::RWF_APPEND != 0;
            let written = vectored(fd, parts, count, at, How { appends, ..WRITES }, real);
            if written > 0 && !sync::written_with(fd, flags) {
                return -1;
            }
            written
        }
    }
}

/// Flags that say how, and not what: high priority, and `RWF_DONTCACHE`.
const HARMLESS: c_int = libc::RWF_HIPRI | 0x80;

const READS: How = How {
    writes: false,
    appends: false,
    at_once: false,
};
const WRITES: How = How {
    writes: true,
    ..READS
};

/// A vectored call: one operation on the offset, and one on the file where the parts follow each other in memory or the
/// kernel serves them; else part by part.
///
/// # Safety
/// As for `preadv`.
#[inline(never)]
unsafe fn vectored(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    at: Option<off_t>,
    how: How,
    real: impl Fn() -> ssize_t,
) -> ssize_t {
    let known = Parts::of(parts, count).and_then(|parts| Ok((parts.total()?, parts)));
    let (total, parts) = match known {
        Ok((total, parts)) => (total.min(CALL_BYTES_MAX), parts),
        Err(errno) => return serve::fail(errno),
    };
    let real = || match table::word(fd) {
        word if how.writes && word.kind() == Kind::Candidate => serve::timed(word, &real),
        _ => real(),
    };
    answer(
        fd,
        at.is_none(),
        &real,
        |word| how.writes && serve::has_grown(word, total),
        |word| {
            // SAFETY: the caller's parts.
            unsafe { serve::vectored(fd, word, parts.as_slice(), at, how) }
        },
    )
}

/// What fortified programs do where a buffer is too small.
#[cold]
fn abort_overflow() -> ! {
    // SAFETY: libc's own way out.
    unsafe { __chk_fail() }
}

unsafe extern "C" {
    fn __chk_fail() -> !;
}
