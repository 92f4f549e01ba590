//! More descriptors of a description (`dup`), and descriptors that take the place of others (`dup2`).

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use forebay::memory::standers;
use libc::c_int;

use super::{Why, by_stdio, ended, forget};
use crate::attach;
use crate::foreign;
use crate::inodes;
use crate::rare::Rare;
use crate::raw::KeepErrno;
use crate::table::{self, Description, Kind, Word};

/// Another descriptor of `from`'s description, made by `call`, the kernel's `dup`. Returns it, or -1 where its file can neither be looked after
/// nor go to the kernel.
///
/// Other threads may put another file at `from` meanwhile ([`replaced`]): the lock keeps its word and the kernel's descriptor the same file's.
pub fn duplicated(from: c_int, call: impl Fn() -> c_int) -> c_int {
    if !table::has_files() {
        return call();
    }
    attach::notice_fork();
    let was_file = table::word(from).is_file();
    let rare = Rare::lock();
    let new = another(&rare, from);
    let to = call();
    let errno = KeepErrno::new();
    let counted = new.unwrap_or(Word::NONE);
    // A candidate may have been closed without the lock.
    let is_known =
        to >= 0 && counted.is_file() && table::has_room(to) && table::word(from) == counted;
    // What was there before has been closed past the library.
    let unused = match is_known {
        true => table::set(to, counted),
        false => counted,
    };
    drop(rare);
    if unused.is_file() {
        ended(unused);
    }
    match to {
        ..0 => {}
        _ if is_known => by_stdio(to),
        _ => {
            forget(to);
            drop(errno);
            // One that has left, or is being closed: nobody knows what the new one is.
            if was_file || new != Some(Word::NONE) {
                return foreign::received(to, Why::Unable);
            }
        }
    }
    to
}

/// A descriptor's word, once it counts one descriptor more; [`Word::NONE`] where it is no file's. `None`: it cannot be counted.
fn another(rare: &Rare, from: c_int) -> Option<Word> {
    loop {
        let word = table::word(from);
        if !word.is_file() {
            return Some(Word::NONE);
        }
        if !table::hold(word.description_index()) {
            return None;
        }
        if table::word(from) == word {
            if word.kind() == Kind::Managed {
                inodes::use_again(rare, word.slot());
            }
            return Some(word);
        }
        // Closed meanwhile: the description may be another file's.
        table::let_go(word.description_index());
    }
}

/// `to` becomes a descriptor of `from`'s description: by `call`, the kernel's `dup2`. Returns what that returns, or -1 where the file can
/// neither be looked after nor go to the kernel.
///
/// Other threads may use `to` meanwhile (a log that is rotated). At each moment its word names the old file or the new one, and where one of
/// them is the engine's, no call on it reaches the kernel: the new file's word is there before the kernel's descriptor changes, unless the old
/// file is the engine's and the new one is not. No descriptor becomes a managed one meanwhile, since that takes `Rare`; a call of the kernel's on
/// the old file is over, or looks at the word again ([`crate::serve::by_kernel`]). Where the old file has no word, nobody knows who is in a call on it.
pub fn replaced(from: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if !table::word(from).is_file() && !table::word(to).is_file() {
        return call();
    }
    attach::notice_fork();
    let rare = Rare::lock_alone();
    let has_room = table::has_room(to) || !table::word(from).is_file();
    let counted = has_room.then(|| another(&rare, from)).flatten();
    let is_lost = counted.is_none();
    let (new, old) = (counted.unwrap_or(Word::NONE), table::word(to));
    let is_early = match new.kind() {
        Kind::Managed | Kind::Orphan => true,
        Kind::Candidate => !old.is_file(),
        _ => false,
    };
    // What was there is what the table gives back: a close of a candidate comes without the lock.
    let mut gone = Word::NONE;
    if is_early {
        gone = table::set(to, new);
    }
    let is_kernels = old.kind() == Kind::Candidate && old != new;
    let moving = is_kernels.then(|| old.description().lock());
    if is_kernels && is_early {
        await_calls_on(old.description());
    }
    let result = call();
    let errno = KeepErrno::new();
    let unused = match (result < 0, is_early) {
        // What was there is there still, unless the number was closed meanwhile.
        (true, true) if table::replace(to, new, gone) => new,
        (_, true) => gone,
        (true, false) => new,
        (false, false) => {
            let gone = table::set(to, new);
            if is_kernels && new.is_file() {
                // Before it begins to be managed, which takes the lock.
                await_calls_on(old.description());
            }
            gone
        }
    };
    drop(moving);
    drop(rare);
    if unused.is_file() {
        // What was there is closed without a word, as by the kernel.
        ended(unused);
    }
    drop(errno);
    match result {
        ..0 => result,
        _ if is_lost => foreign::received(to, Why::Unable),
        _ => {
            if new.is_file() {
                by_stdio(to);
            }
            result
        }
    }
}

/// How long a `dup2` waits for calls on the file that was there: one that takes longer may find the new file behind its descriptor.
const PATIENCE: Duration = Duration::from_secs(1);

/// Calls of the kernel's on a candidate whose descriptor has another word by now are over, those with offsets of their own as well.
fn await_calls_on(description: &Description) {
    let Some(Ok(me)) = attach::joined().map(|session| session.shared().me()) else {
        return;
    };
    // A thread that has seen the old word has said before that it is in a call.
    inodes::barrier();
    let inode = description.inode.load(Relaxed);
    let (begun, mut round) = (Instant::now(), 0);
    while standers::find(me.arena.superblock(), inode).is_some() && begun.elapsed() < PATIENCE {
        round += 1;
        forebay::sync::relax(round);
    }
}
