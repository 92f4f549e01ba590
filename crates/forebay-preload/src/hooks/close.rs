//! Closing.

use libc::{c_int, c_uint};

use crate::files::{self, Why};
use crate::inside::Inside;
use crate::parting;
use crate::rare::Rare;
use crate::real;
use crate::serve;
use crate::table::{self, Kind, Word};

export! {
    /// `close`: with the last descriptor of a description, what the file owes is left to the keeper, or written, and errors
    /// are told.
    fn close | __close(fd: c_int) -> c_int {
        // SAFETY: takes no memory.
        unsafe {
            if table::word(fd) == Word::NONE {
                return real::close(fd);
            }
        }
        close_ours(fd)
    }

    /// `close_range`: all but the engine's own.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        const CLOSE_ON_EXEC: c_int = 4;
        /// The thread gets a descriptor table of its own: where there are others, a number is one file here and another there, so that the
        /// process leaves the session.
        const UNSHARE: c_int = 2;
        // SAFETY: takes no memory.
        let really = || unsafe { real::close_range(first, last, flags) };
        if Inside::is() || flags & !(UNSHARE | CLOSE_ON_EXEC) != 0 || first > last {
            return really();
        }
        if flags & UNSHARE != 0
            && !table::is_alone()
            && let Err(errno) = parting::leave(Why::Unshared)
        {
            return serve::fail(errno) as c_int;
        }
        if flags & CLOSE_ON_EXEC != 0 {
            return really();
        }
        close_files(first, last);
        close_all(first, last, flags)
    }

    /// `closefrom`.
    fn closefrom(first: c_int) -> () {
        let first = first.max(0) as c_uint;
        close_files(first, c_uint::MAX);
        close_all(first, c_uint::MAX, 0);
    }
}

#[inline(never)]
fn close_ours(fd: c_int) -> c_int {
    if table::word(fd).kind() == Kind::Ours {
        if !Inside::is() {
            return serve::refused() as c_int;
        }
        table::set(fd, Word::NONE);
        // SAFETY: takes no memory.
        return unsafe { real::close(fd) };
    }
    if Inside::is() {
        files::stale(fd);
        // SAFETY: takes no memory.
        return unsafe { real::close(fd) };
    }
    files::close(fd)
}

/// Closes the files of a range that are the session's. Like the kernel's, this tells no error.
fn close_files(first: c_uint, last: c_uint) {
    for (fd, word) in table::each() {
        if (first..=last).contains(&(fd as c_uint)) && word.is_file() {
            files::close(fd);
        }
    }
}

/// Closes a range but for the engine's own descriptors.
fn close_all(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let within = |fd: c_int| (first..=last).contains(&(fd as c_uint));
    // Nothing becomes the engine's meanwhile.
    let _rare = Rare::lock_alone();
    let mut from = first;
    for (fd, word) in table::each() {
        let number = fd as c_uint;
        if word.kind() != Kind::Ours || !within(fd) {
            continue;
        }
        if number > from {
            // SAFETY: takes no memory.
            unsafe { real::close_range(from, number - 1, flags) };
        }
        from = number + 1;
    }
    if from > last {
        return 0;
    }
    // SAFETY: takes no memory.
    unsafe { real::close_range(from, last, flags) }
}
