//! Setting a file's times: what it owes is written first, so that our own writing does not move them afterwards.

use std::sync::atomic::{AtomicU32, Ordering};

use forebay::file::settle::Durability;
use libc::{c_char, c_int, timespec, timeval, utimbuf};

use crate::files;
use crate::hooks::attributes::{of_descriptor, of_either, of_path};
use crate::inside::NotCancelled;
use crate::raw::KeepErrno;
use crate::real;
use crate::serve::{self, Turn};

export! {
    /// `utimensat`; without a path, of a descriptor.
    fn utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            if path.is_null() {
                flush(dir);
                of_descriptor(dir, || real::utimensat(dir, path, times, flags))
            } else {
                files::flush_path(dir, path, flags);
                of_either(dir, path, flags, || real::utimensat(dir, path, times, flags))
            }
        }
    }

    /// `futimens`.
    fn futimens(fd: c_int, times: *const timespec) -> c_int {
        flush(fd);
        // SAFETY: the caller's arguments.
        of_descriptor(fd, || unsafe { real::futimens(fd, times) })
    }

    /// `futimes`.
    fn futimes(fd: c_int, times: *const timeval) -> c_int {
        flush(fd);
        // SAFETY: the caller's arguments.
        of_descriptor(fd, || unsafe { real::futimes(fd, times) })
    }

    /// `utimes`.
    fn utimes(path: *const c_char, times: *const timeval) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            files::flush_path(libc::AT_FDCWD, path, 0);
            of_path(libc::AT_FDCWD, path, true, || real::utimes(path, times))
        }
    }

    /// `lutimes`.
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            files::flush_path(libc::AT_FDCWD, path, 0);
            of_path(libc::AT_FDCWD, path, false, || real::lutimes(path, times))
        }
    }

    /// `futimesat`.
    fn futimesat(dir: c_int, path: *const c_char, times: *const timeval) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            files::flush_path(dir, path, 0);
            of_path(dir, path, true, || real::futimesat(dir, path, times))
        }
    }

    /// `utime`.
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            files::flush_path(libc::AT_FDCWD, path, 0);
            of_path(libc::AT_FDCWD, path, true, || real::utime(path, times))
        }
    }
}

/// Writes what a descriptor's file owes. Errors are told by who syncs or closes.
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
