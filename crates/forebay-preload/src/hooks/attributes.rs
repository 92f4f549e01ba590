//! Changing an inode past its bytes: its mode, its owner, its names, its attributes. The kernel does it; a recovery shall not take it for
//! a change that somebody outside the session has made.

mod held;
mod renames;

use std::os::fd::{AsRawFd, BorrowedFd};

use forebay::member::given;
use forebay::session::glance::Glance;
use libc::{c_char, c_int, c_uint, c_void, gid_t, mode_t, size_t, uid_t};

use self::held::Held;
use self::renames::renamed;
use crate::attach;
use crate::files::{self, Given, Why};
use crate::inside::Inside;
use crate::program;
use crate::raw::{self, KeepErrno};
use crate::real;
use crate::serve;

/// An attribute that the kernel takes from whatever is written.
const CAPABILITY: &[u8; 20] = b"security.capability\0";

/// A call that changes the inode behind a descriptor.
#[inline]
fn noted(fd: Option<BorrowedFd<'_>>, call: impl FnOnce() -> c_int) -> c_int {
    match fd {
        Some(fd) if attach::is_on() && !Inside::is() => noted_there(fd, call),
        _ => call(),
    }
}

/// Whether somebody of the session may use the file behind a descriptor. Where it was looked at when it was opened, the kernel is not asked.
fn is_perhaps_used(glance: &Glance, fd: BorrowedFd<'_>) -> bool {
    let in_use = |(device, inode)| glance.known(device, inode).is_some_and(|file| file.in_use);
    glance.knows_any() && files::numbers(fd.as_raw_fd()).is_none_or(in_use)
}

#[cold]
fn noted_there(fd: BorrowedFd<'_>, call: impl FnOnce() -> c_int) -> c_int {
    let mark = {
        let _errno = KeepErrno::new();
        let _inside = Inside::enter();
        let glance = attach::glance().filter(|glance| is_perhaps_used(glance, fd));
        glance.and_then(|glance| glance.mark(fd))
    };
    let result = call();
    if mark.is_some() {
        let _errno = KeepErrno::new();
        let _inside = Inside::enter();
        drop(mark);
    }
    result
}

/// As [`noted`], of a descriptor of the program's.
pub fn of_descriptor(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: only the kernel is asked about it; where it is none it says so.
    let at = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) });
    noted(at, call)
}

/// As [`noted`], of what a path leads to.
///
/// # Safety
/// As for [`Held::at`].
pub unsafe fn of_path(
    dir: c_int,
    path: *const c_char,
    follow: bool,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let held = unsafe { Held::at(dir, path, follow, 1) };
    noted(held.fd(), call)
}

/// As [`of_path`], for calls that say by flags whether symbolic links are followed, and whether the path may be empty.
///
/// # Safety
/// As for [`Held::at`].
pub unsafe fn of_either(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise; the path is looked at where the kernel would do so.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && program::peek::<u8>(path.addr()) == Some(0) {
            return of_descriptor(dir, call);
        }
        of_path(dir, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0, call)
    }
}

/// A call that has `done` what it should, if that is 0, and has given an inode this name.
///
/// # Safety
/// As for [`Held::at`].
unsafe fn linked((dir, path): (c_int, *const c_char), done: c_int) -> c_int {
    if done == 0 {
        // SAFETY: the caller's promise.
        unsafe { Held::at(dir, path, false, 2) }.linked();
    }
    done
}

/// A call that takes a name away; the inode may have others.
///
/// # Safety
/// As for [`Held::at`].
unsafe fn unnamed(dir: c_int, path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let held = unsafe { Held::at(dir, path, false, 2) };
    let done = noted(held.fd(), call);
    held.removed(done);
    done
}

/// A file goes to the kernel before it gets some modes.
fn if_settled(mode: mode_t, give: impl FnOnce() -> Given) -> Given {
    match given::is_due_before_mode(mode) {
        true => give(),
        false => Ok(()),
    }
}

/// So does what gets capabilities.
fn if_capable(name: *const c_char, give: impl FnOnce() -> Given) -> Given {
    match program::peek::<[u8; CAPABILITY.len()]>(name.addr()) {
        Some(name) if name == *CAPABILITY => give(),
        _ => Ok(()),
    }
}

fn give_descriptor(fd: c_int) -> Given {
    if files::is_known(fd) {
        files::give_to_kernel(fd, Why::Unserved)
    } else {
        Ok(())
    }
}

/// # Safety
/// As for [`Held::at`].
unsafe fn give_path(dir: c_int, path: *const c_char, flags: c_int) -> Given {
    if Inside::is() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { files::give_path_to_kernel(dir, path, flags, Why::Unserved) }
}

fn failed(errno: c_int) -> c_int {
    serve::fail(errno) as c_int
}

const HERE: c_int = libc::AT_FDCWD;

/// `fchmodat2`, by number: the function of libc's that makes this call is `fchmodat`, in some of its versions.
///
/// # Safety
/// As for `fchmodat`.
pub unsafe fn fchmodat2(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
    let address = path.expose_provenance();
    let args = [dir as usize, address, mode as usize, flags as usize, 0, 0];
    // SAFETY: the caller's arguments.
    unsafe {
        match if_settled(mode, || give_path(dir, path, flags)) {
            Ok(()) => of_either(dir, path, flags, || {
                raw::call_errno(libc::SYS_fchmodat2, args) as c_int
            }),
            Err(errno) => failed(errno),
        }
    }
}

export! {
    /// `chmod`.
    fn chmod(path: *const c_char, mode: mode_t) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            match if_settled(mode, || give_path(HERE, path, 0)) {
                Ok(()) => of_path(HERE, path, true, || real::chmod(path, mode)),
                Err(errno) => failed(errno),
            }
        }
    }

    /// `fchmod`.
    fn fchmod(fd: c_int, mode: mode_t) -> c_int {
        match if_settled(mode, || give_descriptor(fd)) {
            // SAFETY: takes no memory.
            Ok(()) => of_descriptor(fd, || unsafe { real::fchmod(fd, mode) }),
            Err(errno) => failed(errno),
        }
    }

    /// `fchmodat`.
    fn fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            match if_settled(mode, || give_path(dir, path, flags)) {
                Ok(()) => of_either(dir, path, flags, || real::fchmodat(dir, path, mode, flags)),
                Err(errno) => failed(errno),
            }
        }
    }

    /// `lchmod`.
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            match if_settled(mode, || give_path(HERE, path, 0)) {
                Ok(()) => of_path(HERE, path, false, || real::lchmod(path, mode)),
                Err(errno) => failed(errno),
            }
        }
    }

    /// `chown`.
    fn chown(path: *const c_char, user: uid_t, group: gid_t) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { of_path(HERE, path, true, || real::chown(path, user, group)) }
    }

    /// `lchown`.
    fn lchown(path: *const c_char, user: uid_t, group: gid_t) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { of_path(HERE, path, false, || real::lchown(path, user, group)) }
    }

    /// `fchown`.
    fn fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int {
        // SAFETY: takes no memory.
        of_descriptor(fd, || unsafe { real::fchown(fd, user, group) })
    }

    /// `fchownat`.
    fn fchownat(dir: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { of_either(dir, path, flags, || real::fchownat(dir, path, user, group, flags)) }
    }

    /// `setxattr`.
    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            match if_capable(name, || give_path(HERE, path, 0)) {
                Ok(()) => of_path(HERE, path, true, || real::setxattr(path, name, value, len, flags)),
                Err(errno) => failed(errno),
            }
        }
    }

    /// `lsetxattr`.
    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe {
            match if_capable(name, || give_path(HERE, path, 0)) {
                Ok(()) => of_path(HERE, path, false, || real::lsetxattr(path, name, value, len, flags)),
                Err(errno) => failed(errno),
            }
        }
    }

    /// `fsetxattr`.
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        match if_capable(name, || give_descriptor(fd)) {
            // SAFETY: the caller's arguments.
            Ok(()) => of_descriptor(fd, || unsafe { real::fsetxattr(fd, name, value, len, flags) }),
            Err(errno) => failed(errno),
        }
    }

    /// `removexattr`.
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { of_path(HERE, path, true, || real::removexattr(path, name)) }
    }

    /// `lremovexattr`.
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { of_path(HERE, path, false, || real::lremovexattr(path, name)) }
    }

    /// `fremovexattr`.
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int {
        // SAFETY: the caller's arguments.
        of_descriptor(fd, || unsafe { real::fremovexattr(fd, name) })
    }

    /// `link`.
    fn link(from: *const c_char, to: *const c_char) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { linked((HERE, to), of_path(HERE, from, false, || real::link(from, to))) }
    }

    /// `linkat`.
    fn linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int {
        let follows = if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        let like = flags & libc::AT_EMPTY_PATH | follows;
        // SAFETY: the caller's arguments.
        unsafe { linked((to_dir, to), of_either(from_dir, from, like, || real::linkat(from_dir, from, to_dir, to, flags))) }
    }

    /// `unlink`.
    fn unlink(path: *const c_char) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { unnamed(HERE, path, || real::unlink(path)) }
    }

    /// `unlinkat`.
    fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { unnamed(dir, path, || real::unlinkat(dir, path, flags)) }
    }

    /// `remove`.
    fn remove(path: *const c_char) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { unnamed(HERE, path, || real::remove(path)) }
    }

    /// `rename`.
    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { renamed((HERE, from), (HERE, to), 0, || real::rename(from, to)) }
    }

    /// `renameat`.
    fn renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { renamed((from_dir, from), (to_dir, to), 0, || real::renameat(from_dir, from, to_dir, to)) }
    }

    /// `renameat2`.
    fn renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int {
        // SAFETY: the caller's arguments.
        unsafe { renamed((from_dir, from), (to_dir, to), flags, || real::renameat2(from_dir, from, to_dir, to, flags)) }
    }
}
