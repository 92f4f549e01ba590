//! The ends of descriptors: closed, forgotten, or left open by a program that ends; and waiting for what closes have left to the
//! keeper.

use std::sync::atomic::{Ordering, Ordering::Relaxed};

use forebay::file::settle::Durability;
use libc::c_int;

use super::{Look, flush_inode};
use crate::attach;
use crate::habit;
use crate::inodes::{self, Rare};
use crate::inside::{Inside, NotCancelled};
use crate::raw::KeepErrno;
use crate::real;
use crate::streams;
use crate::table::{self, Kind, State, Word};

/// The descriptor has been closed without `close`: what is known of it is forgotten.
pub fn forget(fd: c_int) {
    let word = table::word(fd);
    if word.is_file() {
        let _errno = KeepErrno::new();
        closing(fd);
    }
}

/// Closes a descriptor, its file's last one if it may be without waiting for what that owes: the kernel's close does not wait
/// either. `None`: it has not been closed.
pub fn close_behind(fd: c_int) -> Option<c_int> {
    let word = table::word(fd);
    if word.kind() != Kind::Managed || !word.writes() {
        return None;
    }
    let _inside = Inside::enter();
    let _cancel = NotCancelled::new();
    attach::notice_fork();
    let rare = Rare::lock();
    let description = word.description();
    // A fork that was noticed just now has made another word of it.
    if table::word(fd) != word {
        return None;
    }
    let prepared = inodes::prepare_to_leave(&rare, word.slot(), &description.seen)?;
    if !table::replace(fd, word, Word::NONE) {
        return None;
    }
    habit::ended(word);
    // SAFETY: takes no memory.
    let closed = unsafe { real::close(fd) };
    let failed = {
        let _errno = KeepErrno::new();
        inodes::leave(rare, word.slot(), &description.seen, &prepared)
    };
    table::let_go(word.description_index());
    Some(match (closed, failed) {
        (0, 1..) => crate::serve::fail(failed) as c_int,
        _ => closed,
    })
}

/// A descriptor is about to be closed: what is known of it is forgotten, and what its file owes is written if no other
/// descriptor of the process is of the same description. Returns the error number to be reported, or 0.
pub fn closing(fd: c_int) -> c_int {
    if !table::word(fd).is_file() {
        return 0;
    }
    attach::notice_fork();
    let word = table::word(fd);
    if !word.is_file() || !table::replace(fd, word, Word::NONE) {
        return 0;
    }
    ended(word)
}

/// A descriptor of this word is no more: what its file owes is written if no other of the process is of the same description. Returns the
/// error number to be reported, or 0.
pub(super) fn ended(word: Word) -> c_int {
    habit::ended(word);
    let description = word.description();
    let mut failed = 0;
    if word.kind() == Kind::Managed {
        let _inside = Inside::enter();
        let _cancel = NotCancelled::new();
        let last = table::each().all(|(_, other)| {
            !other.is_file() || other.description_index() != word.description_index()
        });
        if last && word.writes() {
            failed = inodes::settle(word, Durability::Kernel, &description.seen);
        }
        let rare = Rare::lock();
        let closed = inodes::give_back(rare, word.slot(), &description.seen);
        failed = if failed == 0 { closed } else { failed };
    } else if word.writes()
        && description.state() == State::Ours
        && table::holders::is_only(word.description_index())
    {
        // Managed by a relative of this process, which has ended.
        flush_inode(
            description.device.load(Relaxed),
            description.inode.load(Relaxed),
        );
    }
    table::let_go(word.description_index());
    failed
}

/// The engine closes a descriptor: what is known of the number is none of it.
pub fn stale(fd: c_int) {
    let word = table::word(fd);
    if word.is_file() && table::replace(fd, word, Word::NONE) {
        table::let_go(word.description_index());
    }
}

/// Waits until the keeper has finished with a file, by name, whose close did not wait for it. Whether there was anything to wait
/// for.
///
/// # Safety
/// As for [`super::give_path_to_kernel`].
pub unsafe fn await_closed(dir: c_int, path: *const libc::c_char) -> bool {
    let _errno = KeepErrno::new();
    // SAFETY: the caller's path.
    let Some(look) = (unsafe { Look::at_path(dir, path) }) else {
        return false;
    };
    attach::glance().is_some_and(|glance| glance.await_closed(look.device, look.inode))
}

/// Waits until the keeper has finished with all files whose closes did not wait.
pub fn await_all_closed() {
    if Inside::is() {
        return;
    }
    let _errno = KeepErrno::new();
    if let Some(glance) = attach::glance() {
        glance.await_all_closed();
    }
}

/// What happens at the end of a program that ends in good order: libc writes what streams have only after this.
extern "C" fn at_exit() {
    streams::flush_all();
    at_end();
}

/// What happens at the end of the program: what it has not closed is written or left to the keeper, as a close would have done.
pub extern "C" fn at_end() {
    if attach::joined().is_none() || attach::is_confined() || !table::is_alive() || Inside::is() {
        return;
    }
    let _inside = Inside::enter();
    let _errno = KeepErrno::new();
    // Nobody misses a descriptor that is closed now, unless it is one that every library writes to, or a stream's: libc writes
    // what libraries that end later print.
    let alone = !attach::rests() && table::is_alone();
    for (fd, word) in table::each() {
        if word.kind() != Kind::Managed || !word.writes() {
            continue;
        }
        let missed = fd <= libc::STDERR_FILENO || streams::has(fd);
        let closed = alone && !missed && close_behind(fd).is_some();
        if !closed {
            inodes::settle(word, Durability::Kernel, &word.description().seen);
        }
    }
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// The process is about to execute another program: its descriptors that are closed by that are written, as a close would have done. Should
/// the call fail they are there still.
pub fn at_replacement() {
    if attach::rests() || attach::joined().is_none() || !table::is_alive() || Inside::is() {
        return;
    }
    let _inside = Inside::enter();
    let _errno = KeepErrno::new();
    for (_, word) in table::each() {
        if word.kind() == Kind::Managed && word.writes() {
            inodes::settle(word, Durability::Kernel, &word.description().seen);
        }
    }
    if let Some(session) = attach::joined() {
        session.give_slot_back();
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = at_exit;
