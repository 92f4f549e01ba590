//! Opening.

use std::cell::Cell;
use std::time::{Duration, Instant};

use forebay::session::glance::Glance;
use libc::{c_char, c_int, mode_t};

use crate::attach;
use crate::files::{self, Why};
use crate::hooks::size;
use crate::inside::Inside;
use crate::raw::{self, KeepErrno};
use crate::real;

/// By then the kernel has taken a lease back from a holder that does not give it up.
const LEASE_ENDS: Duration = Duration::from_secs(60);

/// What the kernel refuses (`EPERM`) because the keeper's guard is killed, or stopped, just when it opens the file to look at it and waits for a
/// lease there: not the program's fault, and over at the next attempt.
#[derive(Default)]
pub struct Refused(u32);

impl Refused {
    /// How often the same may happen to one opening.
    const TRIES: u32 = 3;

    /// Whether an opening that has failed, as `errno` says, is to be tried again for that.
    pub fn is_to_be_tried_again(&mut self) -> bool {
        let may_be = crate::raw::errno() == libc::EPERM
            && self.0 < Self::TRIES
            && attach::is_on()
            && attach::known_glance().is_some_and(Glance::is_guarded);
        self.0 += u32::from(may_be);
        may_be
    }
}

/// Opens, and enters what was opened into the table. A truncation of a file that the session has bytes of goes through the
/// engine.
///
/// # Safety
/// As for `open`.
#[inline]
unsafe fn open_with(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    really: impl Fn(c_int) -> c_int,
) -> c_int {
    if !attach::is_on() || Inside::is() {
        return really(flags);
    }
    if flags & libc::O_PATH != 0 {
        // The file is only named: nothing of it is cut, and no lease or guard is in the way.
        return enter(really(flags), flags);
    }
    let reads_only = flags & (libc::O_ACCMODE | libc::O_TRUNC) == libc::O_RDONLY;
    if attach::glance().is_some_and(Glance::has_leases) {
        // The kernel would wait as well, but for a signal's sake it would stop.
        // SAFETY: the caller's path.
        unsafe { files::await_closed(dir, path, reads_only) };
    }
    let tried = |attempt: &dyn Fn() -> c_int| {
        let mut begun = None;
        let mut refused = Refused::default();
        loop {
            let fd = attempt();
            // A keeper that does not get on has its lease for longer than one look takes: no program is to hear of it.
            let mut leased = || {
                crate::raw::errno() == libc::EWOULDBLOCK
                    && begun.get_or_insert_with(Instant::now).elapsed() < LEASE_ENDS
                    // SAFETY: the caller's path.
                    && unsafe { files::await_closed(dir, path, reads_only) }
            };
            if fd >= 0 || !(refused.is_to_be_tried_again() || leased()) {
                return fd;
            }
        }
    };
    if flags & libc::O_TRUNC == 0 {
        return enter(tried(&|| really(flags)), flags);
    }
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        // Nothing could be cut by the descriptor afterwards.
        let open = || tried(&|| really(flags));
        // SAFETY: the caller's path.
        return match unsafe { files::cut_by_kernel(dir, path, Why::Unserved, open) } {
            Ok(fd) => enter(fd, flags),
            Err(errno) => crate::serve::fail(errno) as c_int,
        };
    }
    let is_known = Cell::new(false);
    let fd = tried(&|| {
        // SAFETY: the caller's path.
        let cut = unsafe { files::cut_unless_known(dir, path, || really(flags)) };
        is_known.set(cut.is_none());
        cut.unwrap_or_else(|| really(flags & !libc::O_TRUNC))
    });
    let fd = enter(fd, flags);
    if fd >= 0 && is_known.get() {
        return cut(fd);
    } else if fd >= 0 {
        size::cut_if_managed(fd, 0);
    }
    fd
}

/// A descriptor of a file that was opened to be cut. Where it cannot be, it was not opened.
fn cut(fd: c_int) -> c_int {
    let errno = KeepErrno::new();
    if size::truncate_descriptor(fd, 0) == 0 {
        return fd;
    }
    let why = raw::errno();
    files::close(fd);
    drop(errno);
    crate::serve::fail(why) as c_int
}

/// `openat2`, which libc has no function for. `how` is what the program points to: flags, mode, how to resolve.
///
/// # Safety
/// `path` is the caller's string.
pub unsafe fn openat2(dir: c_int, path: *const c_char, how: [u64; 3]) -> c_int {
    const LOW: u64 = u32::MAX as u64;
    let really = |flags: c_int| {
        let how = [how[0] & !LOW | u64::from(flags as u32), how[1], how[2]];
        let arguments = [
            dir as isize as usize,
            path.expose_provenance(),
            how.as_ptr().expose_provenance(),
            size_of_val(&how),
            0,
            0,
        ];
        // SAFETY: the caller's string, a structure of ours.
        unsafe { crate::raw::call_errno(libc::SYS_openat2, arguments) as c_int }
    };
    // SAFETY: the caller's path.
    unsafe { open_with(dir, path, how[0] as c_int, really) }
}

/// A descriptor that has just been opened is looked after. Returns it, or -1 where it cannot be.
pub fn enter(fd: c_int, flags: c_int) -> c_int {
    if fd >= 0 {
        files::forget(fd);
        if let Err(errno) = files::opened(fd, flags) {
            // SAFETY: takes no memory; nobody has seen it.
            unsafe { real::close(fd) };
            return crate::serve::fail(errno) as c_int;
        }
    }
    fd
}

export! {
    /// `open`. The mode is read where the caller has put it, should there be one.
    fn open64 | open | __open | __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { open_with(libc::AT_FDCWD, path, flags, |flags| real::open64(path, flags, mode)) }
    }

    /// `openat`.
    fn openat64 | openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { open_with(dir, path, flags, |flags| real::openat64(dir, path, flags, mode)) }
    }

    /// `open` as fortified programs call it.
    fn __open64_2 | __open_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { open64(path, flags, 0) }
    }

    /// `openat` as fortified programs call it.
    fn __openat64_2 | __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { openat64(dir, path, flags, 0) }
    }

    /// `mkostemps`, which the others of its family are like.
    fn mkostemps64 | mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        let fd = unsafe { real::mkostemps64(template, suffix, flags) };
        if Inside::is() {
            return fd;
        }
        enter(fd, flags & !libc::O_ACCMODE | libc::O_RDWR)
    }

    /// `mkostemp`.
    fn mkostemp64 | mkostemp(template: *mut c_char, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { mkostemps64(template, 0, flags) }
    }

    /// `mkstemps`.
    fn mkstemps64 | mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { mkostemps64(template, suffix, 0) }
    }

    /// `mkstemp`.
    fn mkstemp64 | mkstemp(template: *mut c_char) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { mkostemps64(template, 0, 0) }
    }

    /// `creat`.
    fn creat64 | creat(path: *const c_char, mode: mode_t) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { open64(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
    }
}
