//! What a descriptor or a path leads to, asked without its times.
//!
//! A call that asks for a file's change time makes the kernel note the next change by a finer clock: on XFS and ext4 that change is a
//! transaction of its own then (4 of the 63 µs that a file of 100 KB takes to be made, read and removed).
//! The process that serves a file system is asked only where a size has to be right: that is a request, of some 20 µs.

use std::mem::MaybeUninit;

use libc::c_int;

use crate::real;

/// What a file is.
#[derive(Clone, Copy)]
pub struct Look {
    /// Its device's number, as `makedev` packs it.
    pub device: u64,
    /// Its inode's.
    pub inode: u64,
    /// Its kind, one of `S_IFMT`.
    pub kind: u32,
    /// Its size in bytes.
    pub size: u64,
    /// Whether it has space of its own.
    pub has_blocks: bool,
    /// Its names.
    pub links: u32,
    /// The mount that it was reached by: a number that no other mount ever has (Linux 6.8).
    pub mount: Option<u64>,
}

/// `STATX_MNT_ID_UNIQUE`.
const MOUNT_ID_UNIQUE: libc::c_uint = 0x4000;

impl Look {
    /// Of what is open, past our own hooks.
    pub fn at(fd: c_int) -> Option<Look> {
        // SAFETY: an empty string.
        unsafe { look(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) }
    }

    /// As [`Look::at`], as the kernel has it in memory: where others change the file past this kernel its size may be an earlier one.
    pub fn seen(fd: c_int) -> Option<Look> {
        // SAFETY: an empty string.
        unsafe { look(fd, c"".as_ptr(), libc::AT_EMPTY_PATH | SEEN) }
    }

    /// Of what a path leads to, past our own hooks, as [`Look::seen`]. Of a call's `flags` it heeds `AT_EMPTY_PATH`: an empty path leads to what
    /// `dir` is then, which may be open in any way.
    ///
    /// # Safety
    /// `path` is a string, or an address that the kernel refuses.
    pub unsafe fn at_path(dir: c_int, path: *const libc::c_char, flags: c_int) -> Option<Look> {
        // SAFETY: the caller's promise.
        unsafe { look(dir, path, flags & libc::AT_EMPTY_PATH | SEEN) }
    }

    /// As [`Look::at_path`], of what has the name itself, which may be a symbolic link.
    ///
    /// # Safety
    /// As for [`Look::at_path`].
    pub unsafe fn named(dir: c_int, path: *const libc::c_char) -> Option<Look> {
        // SAFETY: the caller's promise.
        unsafe { look(dir, path, libc::AT_SYMLINK_NOFOLLOW | SEEN) }
    }

    /// Its device's number and its own: which file it is.
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// A regular file.
    pub fn is_regular(&self) -> bool {
        self.kind == libc::S_IFREG
    }
}

/// The process that serves the file system is not asked.
const SEEN: c_int = libc::AT_STATX_DONT_SYNC;

/// # Safety
/// As for [`Look::at_path`].
unsafe fn look(dir: c_int, path: *const libc::c_char, flags: c_int) -> Option<Look> {
    let mask = libc::STATX_TYPE
        | libc::STATX_INO
        | libc::STATX_SIZE
        | libc::STATX_BLOCKS
        | libc::STATX_NLINK
        | MOUNT_ID_UNIQUE;
    let mut found = MaybeUninit::<libc::statx>::uninit();
    // SAFETY: the caller's path; the target is ours, initialised where the call succeeds.
    let found = unsafe {
        let failed = real::statx(dir, path, flags, mask, found.as_mut_ptr()) != 0;
        (!failed).then(|| found.assume_init())?
    };
    Some(Look {
        device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        kind: u32::from(found.stx_mode) & libc::S_IFMT,
        size: found.stx_size,
        has_blocks: found.stx_blocks != 0,
        links: found.stx_nlink,
        mount: (found.stx_mask & MOUNT_ID_UNIQUE != 0).then_some(found.stx_mnt_id),
    })
}
