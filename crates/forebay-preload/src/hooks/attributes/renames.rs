//! Renaming: one file has another name afterwards, and the file that had it, if there was one, has lost it.
//!
//! On a mounted store a look at a name that nobody has is a request, also where somebody has looked before. Programs that rename to such names do
//! so again and again; so, after some, the kernel is asked to rename unless somebody has the name, and the look is made where somebody has.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use libc::{c_char, c_int, c_uint};

use super::held::Held;
use super::noted;
use crate::raw;
use crate::real;

/// A call that renames one file, and takes that name away from another, or gives it the first one's.
///
/// # Safety
/// As for [`Held::at`], both.
pub(super) unsafe fn renamed(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    flags: c_uint,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let held = unsafe { Held::at(from.0, from.1, false, 1) };
    let done = noted(held.fd(), || {
        // SAFETY: the same.
        let done = (flags == 0).then(|| unsafe { to_nothing(from, to) });
        done.flatten().unwrap_or_else(|| {
            // SAFETY: the same.
            unsafe { replacing(to, flags, call) }
        })
    });
    held.renamed(done);
    done
}

/// As [`renamed`], of what is at `to` alone.
///
/// # Safety
/// As for [`Held::at`].
unsafe fn replacing(
    (dir, path): (c_int, *const c_char),
    flags: c_uint,
    call: impl FnOnce() -> c_int,
) -> c_int {
    if flags & libc::RENAME_NOREPLACE != 0 {
        return call();
    }
    let exchanges = flags & libc::RENAME_EXCHANGE != 0;
    // SAFETY: the caller's promise.
    let replaced = unsafe { Held::at(dir, path, false, if exchanges { 1 } else { 2 }) };
    let absent = match replaced.absent {
        true => ABSENT.load(Relaxed).saturating_add(1),
        false => 0,
    };
    ABSENT.store(absent, Relaxed);
    let done = noted(replaced.fd(), call);
    if !exchanges {
        replaced.removed(done);
    }
    done
}

/// New names of the program's last renames that nobody had, in a row.
static ABSENT: AtomicU32 = AtomicU32::new(0);
/// After so many the next is taken for one more.
const ABSENT_AGAIN: u32 = 2;

/// Renames to a name that nobody has, without a look at it: on a mounted store that is a request, since the kernel asks for such a name anew
/// each time. `None`: that cannot be, or somebody may have the name, and nothing has been done.
///
/// # Safety
/// As for [`Held::at`], both.
unsafe fn to_nothing(from: (c_int, *const c_char), to: (c_int, *const c_char)) -> Option<c_int> {
    let is_likely = ABSENT.load(Relaxed) >= ABSENT_AGAIN;
    if !is_likely || !Held::may_be(to.1) || !real::is_one_library_for_renames() {
        return None;
    }
    let errno = raw::errno();
    // SAFETY: the caller's promise.
    let done = unsafe { real::renameat2(from.0, from.1, to.0, to.1, libc::RENAME_NOREPLACE) };
    // Somebody has the name, or the file system, or what watches over the program's calls, does not have this one.
    const NOT_SO: [c_int; 6] = [
        libc::EEXIST,
        libc::EINVAL,
        libc::ENOSYS,
        libc::EOPNOTSUPP,
        libc::EPERM,
        libc::EACCES,
    ];
    if done == 0 || !NOT_SO.contains(&raw::errno()) {
        return Some(done);
    }
    ABSENT.store(0, Relaxed);
    raw::set_errno(errno);
    None
}
