//! Times that are final before the close: of a small file that the program asks about by the descriptor it writes it with
//! (`forebay::file::times`).

use std::sync::atomic::Ordering::Relaxed;

use forebay::session::glance::Glance;
use libc::{c_char, c_int};

use super::may_be_known;
use crate::attach;
use crate::inside::NotCancelled;
use crate::raw::KeepErrno;
use crate::serve::{self, Turn};
use crate::table::{self, Kind};

/// The program is about to ask for the times of what a descriptor leads to.
#[inline]
pub fn finish(fd: c_int) {
    if are_due(fd) {
        finish_now(fd);
    }
}

/// As [`finish`], where a call names a descriptor by an empty path, as `ask` does.
///
/// # Safety
/// The path is one that `ask` has the kernel look at.
#[inline]
pub unsafe fn finish_at(fd: c_int, path: *const c_char, flags: c_int, ask: impl Fn() -> c_int) {
    if flags & libc::AT_EMPTY_PATH == 0 || !are_due(fd) {
        return;
    }
    let _errno = KeepErrno::new();
    // SAFETY: the kernel has taken the path, so that it is a string, or none.
    if ask() == 0 && (path.is_null() || unsafe { *path } == 0) {
        finish_now(fd);
    }
}

/// Whether a managed descriptor may write, and the file would get other times by its close. A forked child has its parent's descriptors, and manages none
/// of them.
fn are_due(fd: c_int) -> bool {
    let word = table::word(fd);
    if word.kind() != Kind::Managed || !word.writes() || !may_be_known() || !table::is_alive() {
        return false;
    }
    let description = word.description();
    let due = |glance: &Glance| {
        let (device, inode) = (&description.device, &description.inode);
        glance.are_times_due(device.load(Relaxed), inode.load(Relaxed))
    };
    description.may_finish_times() && attach::glance().is_some_and(due)
}

#[cold]
fn finish_now(fd: c_int) {
    let _errno = KeepErrno::new();
    // The program's call is no cancellation point.
    let _cancel = NotCancelled::new();
    let Turn::Managed(word) = serve::turn(fd) else {
        return;
    };
    let _ = serve::with(fd, word, |using, description| {
        description.note_finished_times();
        using.inode.finish_times(using.me);
        Ok(())
    });
}
