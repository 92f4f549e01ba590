//! Asking about files: sizes are the engine's where it has bytes that the kernel does not have yet.

use libc::{c_char, c_int, c_uint, stat as Stat, statx as StatX};

use crate::attach;
use crate::inside::Inside;
use crate::real;
use crate::table::{self, Kind};

/// Blocks of `st_blocks`.
const SECTOR: u64 = 512;

/// The size that the session knows of a file, if it has any bytes of it.
fn known_size(device: u64, inode: u64) -> Option<u64> {
    if Inside::is() {
        return None;
    }
    let known = attach::glance()?.known(device, inode)?;
    known.in_use.then_some(known.size)
}

/// # Safety
/// `to` is what a call that has succeeded has filled in.
#[inline]
unsafe fn patch(result: c_int, to: *mut Stat) -> c_int {
    if result == 0 && attach::is_on() {
        // SAFETY: the caller's promise.
        let to = unsafe { &mut *to };
        if to.st_mode & libc::S_IFMT == libc::S_IFREG
            && let Some(size) = known_size(to.st_dev, to.st_ino)
        {
            to.st_size = size as libc::off_t;
            // Programs take a file with fewer blocks than bytes for one with holes.
            to.st_blocks = to.st_blocks.max(size.div_ceil(SECTOR) as libc::blkcnt_t);
        }
    }
    result
}

/// # Safety
/// As for [`patch`].
unsafe fn patch_extended(result: c_int, to: *mut StatX) -> c_int {
    if result == 0 && attach::is_on() {
        // SAFETY: the caller's promise.
        let to = unsafe { &mut *to };
        let device = libc::makedev(to.stx_dev_major, to.stx_dev_minor);
        if c_uint::from(to.stx_mode) & libc::S_IFMT == libc::S_IFREG
            && let Some(size) = known_size(device, to.stx_ino)
        {
            to.stx_size = size;
            to.stx_blocks = to.stx_blocks.max(size.div_ceil(SECTOR));
        }
    }
    result
}

export! {
    /// `fstat`.
    fn fstat64 | fstat(fd: c_int, to: *mut Stat) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            let result = real::fstat64(fd, to);
            if matches!(table::word(fd).kind(), Kind::None | Kind::Ours) {
                return result;
            }
            patch(result, to)
        }
    }

    /// `stat`.
    fn stat64 | stat(path: *const c_char, to: *mut Stat) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { patch(real::stat64(path, to), to) }
    }

    /// `lstat`.
    fn lstat64 | lstat(path: *const c_char, to: *mut Stat) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { patch(real::lstat64(path, to), to) }
    }

    /// `fstatat`.
    fn fstatat64 | fstatat(dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { patch(real::fstatat64(dir, path, to, flags), to) }
    }

    /// `statx`.
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut StatX) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { patch_extended(real::statx(dir, path, flags, mask, to), to) }
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
