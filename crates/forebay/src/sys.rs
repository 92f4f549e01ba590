//! The operating system, as thin as it can be: the only calls into libc.
//!
//! Each wrapper makes one call, retries `EINTR`, turns a failure into [`std::io::Error`], and decides
//! nothing. What a call means for the engine is decided above. Every `unsafe` block answers three
//! questions: who else touches these bytes, how long does the mapping live, are they initialised.
//!
//! - [`opening`] openings that say that they are the engine's
//! - [`mod@file`] opening again, reading, writing, space, sync
//! - [`stat`] `statx`, `statfs`, inode flags
//! - [`extents`] `FIEMAP`
//! - [`fanotify`] holding up programs that open a file; [`inotify`] hearing of them; [`stand_in`] answering for a process that
//!   is stopped
//! - [`socket`] messages with descriptors
//! - [`cpu`] which core a thread runs on; [`priority`] how much of it, [`scheduling`] together with whom
//! - [`cgroups`] and [`mounts`] what `/proc` says of this process's surroundings
//! - [`block`] what `/sys` says about a block device
//! - [`memory`] aligned memory of a process's own
//! - [`forks`] what a forked child has only a copy of
//! - [`futex`] sleeping on a shared word
//! - [`kernel_cache`] what the kernel has of a file in its own cache
//! - [`lease`] keeping others from opening a file for a while
//! - [`limits`] limits of the calling process
//! - [`lock`] locks that end with their holder
//! - [`liveness`] evidence that a thread lives
//! - [`membarrier`] barriers in other threads
//! - [`signals`] passing signals on
//! - [`version`] which Linux this is

pub mod addresses;
pub mod block;
pub mod cgroups;
pub mod cpu;
pub mod extents;
pub mod fanotify;
pub mod file;
pub mod forks;
pub mod futex;
pub mod handle;
pub mod inherited;
pub mod inotify;
pub mod kernel_cache;
pub mod lease;
pub mod limits;
pub mod liveness;
pub mod lock;
pub mod membarrier;
pub mod memory;
pub mod mounts;
pub mod notes;
pub mod numbers;
pub mod opening;
pub mod priority;
pub mod raw;
pub mod scheduling;
pub mod signals;
pub mod socket;
pub mod spawn;
pub mod stand_in;
pub mod stat;
pub mod version;

use std::io;

/// Turns the result of a libc call into an `io::Result`.
fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// As [`check`], for calls that return a number of bytes.
fn check_bytes(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Repeats a call for as long as a signal interrupts it before it has done anything.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => return result,
        }
    }
}

/// An offset or length as the kernel's signed type; what does not fit is `EFBIG`.
fn offset_of(value: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}
