//! Setting a file's times: what it owes is written first, so that our own writing does not move them afterwards.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay::file::settle::Durability;
use libc::{c_char, c_int, timespec, timeval, utimbuf};

use crate::attach;
use crate::files;
use crate::hooks::attributes::{of_descriptor, of_either, of_path};
use crate::inside::{Inside, NotCancelled};
use crate::program;
use crate::raw::KeepErrno;
use crate::real;
use crate::serve::{self, Turn};

export! {
    /// `utimensat`; without a path, of a descriptor.
    fn utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            let real = || real::utimensat(dir, path, times, flags);
            if path.is_null() {
                flush(dir);
                of_descriptor(dir, || lasting(Of::fd(dir), times, real))
            } else {
                files::flush_path(dir, path, flags);
                let of = Of::path(dir, path, flags);
                of_either(dir, path, flags, || lasting(of, times, real))
            }
        }
    }

    /// `futimens`.
    fn futimens(fd: c_int, times: *const timespec) -> c_int {
        flush(fd);
        // SAFETY: the caller's arguments.
        of_descriptor(fd, || unsafe {
            lasting(Of::fd(fd), times, || real::futimens(fd, times))
        })
    }

    /// `futimes`.
    fn futimes(fd: c_int, times: *const timeval) -> c_int {
        flush(fd);
        // SAFETY: the caller's arguments.
        of_descriptor(fd, || unsafe {
            lasting(Of::fd(fd), std::ptr::null(), || real::futimes(fd, times))
        })
    }

    /// `utimes`.
    fn utimes(path: *const c_char, times: *const timeval) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { by_path(libc::AT_FDCWD, path, true, || real::utimes(path, times)) }
    }

    /// `lutimes`.
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { by_path(libc::AT_FDCWD, path, false, || real::lutimes(path, times)) }
    }

    /// `futimesat`.
    fn futimesat(dir: c_int, path: *const c_char, times: *const timeval) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { by_path(dir, path, true, || real::futimesat(dir, path, times)) }
    }

    /// `utime`.
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { by_path(libc::AT_FDCWD, path, true, || real::utime(path, times)) }
    }
}

/// What a call sets the times of.
#[derive(Clone, Copy)]
struct Of {
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    /// Of a descriptor, which `dir` is.
    is_descriptor: bool,
}

impl Of {
    fn fd(fd: c_int) -> Self {
        Of {
            dir: fd,
            path: c"".as_ptr(),
            flags: libc::AT_EMPTY_PATH,
            is_descriptor: true,
        }
    }

    fn path(dir: c_int, path: *const c_char, flags: c_int) -> Self {
        Of {
            dir,
            path,
            flags,
            is_descriptor: false,
        }
    }

    /// Device and inode of a descriptor's file, where nobody need be asked.
    fn known(&self) -> Option<(u64, u64)> {
        self.is_descriptor
            .then(|| files::numbers(self.dir))
            .flatten()
    }
}

/// A call that sets both times of the file of a path, a symbolic link's own unless it `follows`.
///
/// # Safety
/// As for [`lasting`].
unsafe fn by_path(
    dir: c_int,
    path: *const c_char,
    follows: bool,
    call: impl Fn() -> c_int,
) -> c_int {
    let flags = if follows {
        0
    } else {
        libc::AT_SYMLINK_NOFOLLOW
    };
    let of = Of::path(dir, path, flags);
    // SAFETY: the caller's promise.
    unsafe {
        files::flush_path(dir, path, 0);
        of_path(dir, path, follows, || lasting(of, std::ptr::null(), call))
    }
}

/// Whether a call sets the modification time. Null: to what it is now.
fn sets_modified(times: *const timespec) -> bool {
    let both = (!times.is_null()).then(|| program::peek::<[[i64; 2]; 2]>(times.addr()));
    both.flatten()
        .is_none_or(|[_, [_, ns]]| ns != libc::UTIME_OMIT)
}

/// A call that sets times, which stay. A keeper that does not get on is not waited for: if it has still to give the file the time of its close,
/// it gives it this one. `times` as for `utimensat`; null for a call that always sets the modification time.
///
/// # Safety
/// The path is null, or a string or an address that the kernel refuses.
unsafe fn lasting(of: Of, times: *const timespec, call: impl Fn() -> c_int) -> c_int {
    if of.path.is_null() || Inside::is() || !attach::is_on() || !sets_modified(times) {
        return call();
    }
    let closing = {
        let _errno = KeepErrno::new();
        let glance = attach::glance().filter(|glance| glance.knows_any());
        // SAFETY: the caller's promise.
        let look = || unsafe { files::Look::at_path(of.dir, of.path, of.flags) };
        let found = || of.known().or_else(|| Some(look()?.identity()));
        let known = glance.and_then(|glance| Some((glance, found()?)));
        known.filter(|(glance, file)| glance.is_to_get_time(*file))
    };
    let result = call();
    let Some((glance, file)) = closing.filter(|_| result == 0) else {
        return result;
    };
    let is_undone = {
        let _errno = KeepErrno::new();
        // SAFETY: the caller's promise.
        let set = unsafe { modified_ns(of, file) };
        set.is_some_and(|ns| !glance.time_is_set(file, ns))
    };
    if is_undone { call() } else { result }
}

/// The modification time of a file, if the path still leads to that one.
///
/// # Safety
/// As for [`lasting`].
unsafe fn modified_ns(of: Of, file: (u64, u64)) -> Option<i128> {
    const NS: i128 = 1_000_000_000;
    let flags = of.flags & (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW);
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the caller's promise; the target is ours, initialised where the call succeeds.
    let stat = unsafe {
        if real::fstatat64(of.dir, of.path, stat.as_mut_ptr(), flags) != 0 {
            return None;
        }
        stat.assume_init()
    };
    let ns = i128::from(stat.st_mtime) * NS + i128::from(stat.st_mtime_nsec);
    ((stat.st_dev, stat.st_ino) == file).then_some(ns)
}

/// Writes what a descriptor's file owes. The next sync or close tells of errors.
pub fn flush(fd: c_int) {
    if !files::is_known(fd) {
        return;
    }
    let _errno = KeepErrno::new();
    if let Turn::Managed(word) = serve::turn(fd) {
        serve::with(fd, word, |using, description| {
            let _cancel = NotCancelled::new();
            let seen = AtomicU32::new(description.seen.load(Ordering::Relaxed));
            Ok(using.inode.settle(using.me, Durability::Written, &seen)?)
        });
    }
}
