//! Asking about files: sizes are the engine's where it has bytes that the kernel does not have yet, and times where it writes them
//! later than the program did.

mod finished;

use std::ffi::CStr;

use forebay::member::gone::Place;
use forebay::session::glance::{Glance, Known};
use libc::{c_char, c_int, c_uint, stat as Stat, statx as StatX};

use crate::attach;
use crate::inside::Inside;
use crate::real;
use crate::table::{self, Kind};

const NS: u64 = 1_000_000_000;

/// Which file a call asks about, as it says so to the kernel.
#[derive(Clone, Copy)]
struct Asked {
    dir: c_int,
    path: *const c_char,
    flags: c_int,
}

impl Asked {
    fn fd(fd: c_int) -> Self {
        Asked::at(fd, c"".as_ptr(), 0)
    }

    fn path(path: *const c_char, flags: c_int) -> Self {
        Asked::at(libc::AT_FDCWD, path, flags)
    }

    fn at(dir: c_int, path: *const c_char, flags: c_int) -> Self {
        Asked { dir, path, flags }
    }

    /// # Safety
    /// The path is null or ends in a null byte.
    unsafe fn place(&self) -> Place<'_> {
        let path = match self.path.is_null() {
            true => c"",
            // SAFETY: the caller's promise; the kernel has just read it.
            false => unsafe { CStr::from_ptr(self.path) },
        };
        let follow = self.flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        Place::at(self.dir, path, follow)
    }
}

/// Whether the session may know anything of a file that the program asks about.
#[inline]
fn may_be_known() -> bool {
    attach::is_on() && !Inside::is() && attach::glance().is_some_and(Glance::knows_any)
}

/// What the session knows of a file, if it has any bytes of it.
///
/// # Safety
/// As for [`Asked::place`].
unsafe fn known(device: u64, inode: u64, asked: &Asked) -> Option<Known> {
    if Inside::is() {
        return None;
    }
    let glance = attach::glance()?;
    // It may ask the kernel about the place, by functions that are hooks.
    let _inside = Inside::enter();
    // SAFETY: the caller's promise.
    glance.known_at((device, inode), || unsafe { asked.place() })
}

/// The times may be from the middle of what the keeper does.
struct Again;

/// The time of a file's last change where it has others, modification and change, because the keeper has written it.
#[inline]
fn changed_ns(
    known: Option<Known>,
    numbers: (u64, u64),
    [mtime_ns, ctime_ns]: [u64; 2],
) -> Result<Option<u64>, Again> {
    let Some(known) = known else {
        // Perhaps it is with the kernel by now.
        let glance = (!Inside::is()).then(attach::glance).flatten();
        let with_kernel =
            |glance: &Glance| glance.changed_with_kernel(numbers, (mtime_ns, ctime_ns));
        return Ok(glance.and_then(with_kernel));
    };
    match known.changed_ns(mtime_ns, ctime_ns) {
        None if known.was_closed_behind() => Err(Again),
        changed => Ok(changed),
    }
}

fn ns_of(seconds: i64, ns: i64) -> u64 {
    (seconds.max(0) as u64)
        .saturating_mul(NS)
        .saturating_add(ns as u64)
}

/// Times that the keeper sets while they are asked for are asked for again: what is known of them is looked at afterwards.
const ASKED_AT_MOST: u32 = 3;

/// Asks the kernel, and again where `is_right`, which patches each answer, says that its times are not.
#[inline]
fn ask_until_right(ask: impl Fn() -> c_int, is_right: impl Fn(c_int) -> bool) -> c_int {
    let mut result = ask();
    for _ in 1..ASKED_AT_MOST {
        if is_right(result) {
            return result;
        }
        result = ask();
    }
    is_right(result);
    result
}

/// # Safety
/// `to` is what the call fills in where it succeeds, about what is `asked`.
#[inline]
unsafe fn patch(asked: Asked, ask: impl Fn() -> c_int, to: *mut Stat) -> c_int {
    // SAFETY: the caller's promise.
    ask_until_right(ask, |result| unsafe { patch_once(&asked, result, to) })
}

/// Whether the times are right.
///
/// # Safety
/// As for [`patch`].
#[inline]
unsafe fn patch_once(asked: &Asked, result: c_int, to: *mut Stat) -> bool {
    if result == 0 {
        // SAFETY: the caller's promise.
        let to = unsafe { &mut *to };
        if to.st_mode & libc::S_IFMT == libc::S_IFREG && may_be_known() {
            // SAFETY: the kernel has taken the path.
            let known = unsafe { known(to.st_dev, to.st_ino, asked) };
            if let Some(known) = known
                && known.in_use
            {
                to.st_size = known.size as libc::off_t;
                to.st_blocks = known.sectors(to.st_blocks as u64) as libc::blkcnt_t;
            }
            let times = [
                ns_of(to.st_mtime, to.st_mtime_nsec),
                ns_of(to.st_ctime, to.st_ctime_nsec),
            ];
            match changed_ns(known, (to.st_dev, to.st_ino), times) {
                Ok(None) => {}
                Ok(Some(ns)) => {
                    (to.st_mtime, to.st_mtime_nsec) = ((ns / NS) as i64, (ns % NS) as i64);
                    (to.st_ctime, to.st_ctime_nsec) = (to.st_mtime, to.st_mtime_nsec);
                }
                Err(Again) => return false,
            }
        }
    }
    true
}

/// # Safety
/// As for [`patch`].
unsafe fn patch_extended(asked: Asked, ask: impl Fn() -> c_int, to: *mut StatX) -> c_int {
    // SAFETY: the caller's promise.
    ask_until_right(ask, |result| unsafe {
        patch_extended_once(&asked, result, to)
    })
}

/// Whether the times are right.
///
/// # Safety
/// As for [`patch`].
unsafe fn patch_extended_once(asked: &Asked, result: c_int, to: *mut StatX) -> bool {
    if result == 0 {
        // SAFETY: the caller's promise.
        let to = unsafe { &mut *to };
        let device = libc::makedev(to.stx_dev_major, to.stx_dev_minor);
        if c_uint::from(to.stx_mode) & libc::S_IFMT == libc::S_IFREG && may_be_known() {
            // SAFETY: the kernel has taken the path.
            let known = unsafe { known(device, to.stx_ino, asked) };
            if let Some(known) = known
                && known.in_use
            {
                to.stx_size = known.size;
                to.stx_blocks = known.sectors(to.stx_blocks);
            }
            let ns = |time: &libc::statx_timestamp| ns_of(time.tv_sec, i64::from(time.tv_nsec));
            let times = [ns(&to.stx_mtime), ns(&to.stx_ctime)];
            match changed_ns(known, (device, to.stx_ino), times) {
                Ok(None) => {}
                Ok(Some(ns)) => {
                    (to.stx_mtime.tv_sec, to.stx_mtime.tv_nsec) =
                        ((ns / NS) as i64, (ns % NS) as u32);
                    to.stx_ctime = to.stx_mtime;
                }
                Err(Again) => return false,
            }
        }
    }
    true
}

export! {
    /// `fstat`.
    fn fstat64 | fstat(fd: c_int, to: *mut Stat) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            // One that is not in the table may still name a file that the session manages (`O_PATH`).
            if table::word(fd).kind() == Kind::Ours {
                return real::fstat64(fd, to);
            }
            finished::finish(fd);
            patch(Asked::fd(fd), || real::fstat64(fd, to), to)
        }
    }

    /// `stat`.
    fn stat64 | stat(path: *const c_char, to: *mut Stat) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { patch(Asked::path(path, 0), || real::stat64(path, to), to) }
    }

    /// `lstat`.
    fn lstat64 | lstat(path: *const c_char, to: *mut Stat) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { patch(Asked::path(path, libc::AT_SYMLINK_NOFOLLOW), || real::lstat64(path, to), to) }
    }

    /// `fstatat`.
    fn fstatat64 | fstatat(dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            let ask = || real::fstatat64(dir, path, to, flags);
            finished::finish_at(dir, path, flags, ask);
            patch(Asked::at(dir, path, flags), ask, to)
        }
    }

    /// `statx`.
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut StatX) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            let ask = || real::statx(dir, path, flags, mask, to);
            finished::finish_at(dir, path, flags, ask);
            patch_extended(Asked::at(dir, path, flags), ask, to)
        }
    }

    /// `fstat` as programs built against old C libraries call it.
    fn __fxstat64 | __fxstat(_version: c_int, fd: c_int, to: *mut Stat) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { fstat64(fd, to) }
    }

    /// `stat` likewise.
    fn __xstat64 | __xstat(_version: c_int, path: *const c_char, to: *mut Stat) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { stat64(path, to) }
    }

    /// `lstat` likewise.
    fn __lxstat64 | __lxstat(_version: c_int, path: *const c_char, to: *mut Stat) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { lstat64(path, to) }
    }

    /// `fstatat` likewise.
    fn __fxstatat64 | __fxstatat(_version: c_int, dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { fstatat64(dir, path, to, flags) }
    }
}
