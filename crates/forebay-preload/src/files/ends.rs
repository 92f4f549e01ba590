//! The ends of descriptors: closed, forgotten, or left open by a program that ends; and waiting for what closes have left to the
//! keeper.

use std::sync::atomic::{Ordering, Ordering::Relaxed};

use forebay::file::settle::Durability;
use libc::{c_int, c_void};

use super::{Look, flush_inode};
use crate::attach;
use crate::habit;
use crate::inodes::{self, Number};
use crate::inside::{Inside, NotCancelled};
use crate::rare::Rare;
use crate::raw::KeepErrno;
use crate::real;
use crate::streams;
use crate::table::{self, Kind, State, Word};

/// The descriptor has been closed without `close`: what is known of it is forgotten.
pub fn forget(fd: c_int) {
    let word = table::word(fd);
    if word.is_file() {
        let _errno = KeepErrno::new();
        attach::notice_fork();
        forget_word(fd, table::word(fd));
    }
}

/// Closes a descriptor of a file of ours. With the last one of a description what the file owes is left to the keeper, or written;
/// errors are told.
///
/// Other threads may use the descriptor meanwhile. Its word stays for as long as that takes, so that the engine has what they write,
/// and goes when the kernel's descriptor is of the file no more ([`shut`]): they hear that it is closed, and no write lands where the kernel believes the
/// description to be.
pub fn close(fd: c_int) -> c_int {
    if let Some(closed) = close_behind(fd) {
        return closed;
    }
    loop {
        attach::notice_fork();
        let word = table::word(fd);
        let is_ours = match word.kind() {
            Kind::Managed | Kind::Orphan => true,
            // A relative may keep its offset.
            Kind::Candidate => word.description().state() == State::Ours,
            _ => false,
        };
        if word.kind() == Kind::Ours {
            // Another thread closes it, and holds the number.
            return crate::serve::refused() as c_int;
        }
        if !is_ours {
            if word.is_file() && !table::replace(fd, word, Word::NONE) {
                // It begins to be managed: the number must not outlive what the kernel has there.
                continue;
            }
            let failed = if word.is_file() { ended(word) } else { 0 };
            // SAFETY: takes no memory.
            return told(unsafe { real::close(fd) }, failed);
        }
        let settled = settle_in_use(fd, word);
        // A handler that jumps out, or ends the thread, would leave the number to nobody.
        let _inside = Inside::enter();
        let _cancel = NotCancelled::new();
        let rare = Rare::lock();
        if table::word(fd) != word {
            continue;
        }
        let (number, closed) = if shut(fd) {
            // What else is opened until then comes elsewhere.
            table::set(fd, Word::OURS);
            (Number::Kept, 0)
        } else {
            table::set(fd, Word::NONE);
            // SAFETY: takes no memory.
            (Number::Gone, unsafe { real::close(fd) })
        };
        drop(rare);
        let failed = {
            let _errno = KeepErrno::new();
            let later = given_back(word, number);
            // Unless the process has left its session, and closed it.
            if number == Number::Kept && table::replace(fd, Word::OURS, Word::NONE) {
                // SAFETY: takes no memory.
                unsafe { real::close(fd) };
            }
            if settled == 0 { later } else { settled }
        };
        return told(closed, failed);
    }
}

/// What `close` returns where its file could not be written.
fn told(closed: c_int, failed: c_int) -> c_int {
    match (closed, failed) {
        (0, 1..) => crate::serve::fail(failed) as c_int,
        _ => closed,
    }
}

/// Makes the kernel's descriptor one that has no bytes: a thread that looks for its word from now on, or has looked too late, hears that it is
/// closed (`EBADF`). Where no number is left for that (`EMFILE`) it stays as it is: `false`.
fn shut(fd: c_int) -> bool {
    const FLAGS: c_int = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the string ends in a null byte.
    unsafe {
        let none = real::openat64(libc::AT_FDCWD, c"/".as_ptr(), FLAGS, 0);
        if none < 0 {
            return false;
        }
        let shut = real::dup3(none, fd, libc::O_CLOEXEC) == fd;
        real::close(none);
        shut
    }
}

/// Closes a descriptor, its file's last one if it may be without waiting for what that owes: the kernel's close does not wait
/// either. `None`: it has not been closed.
fn close_behind(fd: c_int) -> Option<c_int> {
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
    shut(fd);
    table::set(fd, Word::NONE);
    habit::ended(word);
    // SAFETY: takes no memory.
    let closed = unsafe { real::close(fd) };
    let failed = {
        let _errno = KeepErrno::new();
        inodes::leave(rare, word.slot(), &description.seen, &prepared)
    };
    table::let_go(word.description_index());
    Some(told(closed, failed))
}

/// What is known of a descriptor that is about to be closed, or has been, is forgotten, and what its file owes is written if no other
/// descriptor of the process is of the same description. Returns the error number to be reported, or 0.
fn forget_word(fd: c_int, word: Word) -> c_int {
    if !word.is_file() || !table::replace(fd, word, Word::NONE) {
        return 0;
    }
    ended(word)
}

/// A descriptor of this word is no more: what its file owes is written if no other of the process is of the same description. Returns the
/// error number to be reported, or 0.
pub(super) fn ended(word: Word) -> c_int {
    let mut failed = 0;
    if word.kind() == Kind::Managed && word.writes() && is_last(word, None) {
        let _inside = Inside::enter();
        let _cancel = NotCancelled::new();
        failed = inodes::settle(word, Durability::Kernel, &word.description().seen);
    }
    let closed = given_back(word, Number::Gone);
    if failed == 0 { closed } else { failed }
}

/// Writes what the file of a descriptor that is about to be closed owes, if no other of the process is of the same description. Returns an
/// error number, or 0.
fn settle_in_use(fd: c_int, word: Word) -> c_int {
    if word.kind() != Kind::Managed || !word.writes() || !is_last(word, Some(fd)) {
        return 0;
    }
    let _inside = Inside::enter();
    let _cancel = NotCancelled::new();
    settle_open(fd, word)
}

/// Writes what the file of a descriptor owes, which another thread may close meanwhile: that close waits. Returns an error number, or 0. The
/// caller is inside.
fn settle_open(fd: c_int, word: Word) -> c_int {
    let Some(using) = inodes::begin(fd, word) else {
        return 0;
    };
    let settled = using
        .inode
        .settle(using.me, Durability::Kernel, &word.description().seen);
    settled.map_or_else(|error| error.errno(), |()| 0)
}

/// Whether no descriptor of the process but `but` is of this word's description.
fn is_last(word: Word, but: Option<c_int>) -> bool {
    table::files()
        .all(|(fd, other)| Some(fd) == but || other.description_index() != word.description_index())
}

/// A descriptor of this word is no more, and has been settled. Returns the error number to be reported, or 0.
fn given_back(word: Word, number: Number) -> c_int {
    habit::ended(word);
    let description = word.description();
    let mut failed = 0;
    if word.kind() == Kind::Managed {
        let _inside = Inside::enter();
        let _cancel = NotCancelled::new();
        failed = inodes::give_back(Rare::lock(), word.slot(), &description.seen, number);
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
pub unsafe fn await_closed(dir: c_int, path: *const libc::c_char, reads_only: bool) -> bool {
    let _errno = KeepErrno::new();
    // SAFETY: the caller's path.
    let Some(look) = (unsafe { Look::at_path(dir, path, 0) }) else {
        return false;
    };
    attach::glance().is_some_and(|glance| match reads_only && glance.is_guarded() {
        true => glance.take_back(look.device, look.inode),
        false => glance.await_closed(look.device, look.inode),
    })
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
extern "C" fn at_exit(_: *mut c_void) {
    streams::flush_all();
    at_end();
}

/// From now on the end of the program is heard of, after everybody else's: destructors of its libraries may write to what it has left open.
/// The last handlers are the first that were registered, and libc registers the one that calls all destructors only after the constructors.
pub fn hear_of_the_end() {
    // SAFETY: a function of a library that is there until the process ends, and no argument.
    unsafe { __cxa_atexit(at_exit, std::ptr::null_mut(), std::ptr::null_mut()) };
}

unsafe extern "C" {
    fn __cxa_atexit(
        act: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        library: *mut c_void,
    ) -> c_int;
}

/// What happens at the end of the program: what it has not closed is written or left to the keeper, as a close would have done.
pub fn at_end() {
    if attach::joined().is_none() || attach::is_confined() || !table::is_alive() || Inside::is() {
        return;
    }
    let _inside = Inside::enter();
    let _errno = KeepErrno::new();
    // Nobody misses a descriptor that is closed now, unless it is one that every library writes to, or a stream's: libc writes
    // these later still. Other threads may use any of them until the process has ended.
    let alone = !attach::rests() && table::is_alone();
    for (fd, word) in table::files() {
        if word.kind() != Kind::Managed || !word.writes() {
            continue;
        }
        if !alone {
            settle_open(fd, word);
        } else if fd <= libc::STDERR_FILENO || streams::has(fd) {
            settle_open(fd, word);
            put_down(fd, word);
        } else if close_behind(fd).is_none() {
            close(fd);
        }
    }
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// The engine's file of a descriptor is closed, and the descriptor stays: should anybody write to it all the same, the file is managed again. A
/// process that has ended has nothing open then that the keeper would have to notice first.
fn put_down(fd: c_int, word: Word) {
    if table::replace(fd, word, word.orphan()) {
        let seen = &word.description().seen;
        inodes::give_back(Rare::lock(), word.slot(), seen, Number::Gone);
    }
}

/// The process is about to execute another program: its descriptors that are closed by that are written, as a close would have done. Should
/// the call fail they are there still.
pub fn at_replacement() {
    if attach::rests() || attach::joined().is_none() || !table::is_alive() || Inside::is() {
        return;
    }
    let _inside = Inside::enter();
    let _errno = KeepErrno::new();
    for (fd, word) in table::files() {
        if word.kind() == Kind::Managed && word.writes() {
            settle_open(fd, word);
        }
    }
    if let Some(session) = attach::joined() {
        session.give_slot_back();
    }
}
