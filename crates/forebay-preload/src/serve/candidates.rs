//! Calls of the kernel's on candidates, files that nobody of this process manages, and what they say of whether one should.
//!
//! A thread that begins to manage such a file knows of each call that is under way, and each looks once more whether somebody has begun. Nothing here
//! manages a file.

use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay::limits::{MANAGED_LIFE_NS, SMALL_FILE_BYTES};
use libc::c_int;

use crate::attach;
use crate::files;
use crate::inside::{self, Inside};
use crate::table::{self, Description, Word};

/// Makes a call of the kernel's on a candidate: known to a thread that begins to manage the file meanwhile. `None`: it has not been made; the
/// file has become managed, or the descriptor stands for another one. With `moves`, the call uses the description's own offset.
///
/// Inlined, and each guard a variable of its own: a structure of them would be copied, just after it was put together, more slowly than
/// everything else is done.
#[inline(always)]
pub fn by_kernel<T>(fd: c_int, word: Word, moves: bool, call: impl FnOnce() -> T) -> Option<T> {
    by_kernel_unless(files::is_managed_elsewhere, fd, word, moves, call)
}

/// As [`by_kernel`], unless the file is in such a state.
#[inline(always)]
fn by_kernel_unless<T>(
    is_so: impl Fn(&Description) -> bool,
    fd: c_int,
    word: Word,
    moves: bool,
    call: impl FnOnce() -> T,
) -> Option<T> {
    // The record is the parent's in a child.
    attach::notice_fork();
    // Left last: a handler that wrote to the same descriptor would wait for its own thread's offset.
    let _inside = Inside::enter();
    let description = word.description();
    let _offset = moves.then(|| description.lock());
    let (device, inode) = (
        description.device.load(Ordering::Relaxed),
        description.inode.load(Ordering::Relaxed),
    );
    let place = &inside::thread().place;
    let _call = attach::glance().map(|glance| glance.stand_by(place, device, inode));
    // Looked at once more: from here on a thread that begins to manage the file waits for this call, and a `dup2` for one that moves the offset.
    (table::word(fd) == word && !is_so(description)).then(call)
}

/// As [`by_kernel`], for a read of a file that the session knows: as long as nobody uses it, and managing it would take longer than the
/// kernel's reads.
#[cold]
pub fn read_idle<T>(
    fd: c_int,
    word: Word,
    moves: bool,
    len: usize,
    read: impl FnOnce() -> T,
) -> Option<T> {
    let description = word.description();
    let spent_ns = description.spent_ns();
    if description.has(table::FOREIGN)
        || !attach::is_read_by_kernel(spent_ns, len, description.has(table::OF_STORE))
    {
        return None;
    }
    by_kernel_unless(files::is_used_elsewhere, fd, word, moves, || {
        noting_time(description, read)
    })
}

/// Whether a candidate's file is to be managed before a write of `len` bytes.
pub fn has_grown(word: Word, len: usize) -> bool {
    let description = word.description();
    if description.has(table::FOREIGN) || attach::glance().is_none() {
        return false;
    }
    let written = description.note_write(len);
    let (size, synced) = (description.size_at_open(), description.is_synced_again());
    attach::is_large(written, size, synced, description.has(table::OF_STORE))
}

/// Makes a write of the kernel's. Its time counts where it decides whether the file is to be managed: files that were long when they were opened,
/// until it is as much as managing them takes.
#[inline(always)]
pub fn timed<T>(word: Word, write: impl FnOnce() -> T) -> T {
    let description = word.description();
    if description.size_at_open() < SMALL_FILE_BYTES || description.spent_ns() >= MANAGED_LIFE_NS {
        return write();
    }
    noting_time(description, write)
}

/// Makes a call of the kernel's, and notes how long it took.
#[inline(always)]
fn noting_time<T>(description: &Description, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = call();
    description.note_spent(begun.elapsed().as_nanos() as u64);
    done
}
