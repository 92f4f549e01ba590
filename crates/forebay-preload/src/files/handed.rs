//! What the child of a `vfork` hands to a program that it executes, and that may be one without the library.
//!
//! The child's descriptors are its own, and the table tells of the parent's: which files they have in common their inodes say. Takes no memory,
//! since the child has the parent's.

use std::ffi::CStr;

use libc::c_int;

use super::INHERITED;
use crate::foreign;
use crate::hooks::fork;
use crate::kernel;
use crate::raw::{self, KeepErrno};
use crate::real;
use crate::table::{Description, FOREIGN, REACHED};

/// Nobody shall begin to manage these files while the program has them, nor the parent for as long as it has their descriptions.
pub fn announce_inherited() {
    let _errno = KeepErrno::new();
    // Most children are of shells and compilers, which have at most got some from others.
    if fork::hidden_files()
        .all(|word| word.description().has(FOREIGN) && word.description().has(REACHED))
    {
        INHERITED.for_each(announce);
    } else if !each_open(announce) {
        fork::hidden_files().for_each(|word| leave_to_kernel(word.description()));
        INHERITED.for_each(announce);
    }
}

fn announce(fd: c_int) {
    // SAFETY: takes no memory.
    let flags = unsafe { real::fcntl64(fd, libc::F_GETFD, 0) };
    if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return;
    }
    let Some(file) = foreign::regular(fd) else {
        return;
    };
    let mut is_the_parents = false;
    for word in fork::hidden_files() {
        if kernel::numbers_of(word.description()) == file {
            is_the_parents = true;
            leave_to_kernel(word.description());
        }
    }
    if !is_the_parents {
        foreign::reach(file.0, file.1);
    }
}

/// The session would find one description of the file, and nobody else in the way.
fn leave_to_kernel(description: &Description) {
    description.set_flag(FOREIGN, true);
    kernel::reach(description);
}

/// Does something with each descriptor that is open. `false`: not all of them are known.
fn each_open(act: impl Fn(c_int)) -> bool {
    const FLAGS: c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the string ends in a null byte.
    let list = unsafe { real::open64(c"/proc/self/fd".as_ptr(), FLAGS, 0) };
    if list < 0 {
        return false;
    }
    let mut entries = [0u64; 128];
    let to = entries.as_mut_ptr().expose_provenance();
    let args = [list as usize, to, size_of_val(&entries), 0, 0, 0];
    let are_all = loop {
        // SAFETY: the target is ours, as long as said; nobody else looks at it.
        let got = unsafe { raw::call(libc::SYS_getdents64, args) };
        let Some(len) = usize::try_from(got).ok().filter(|&len| len > 0) else {
            break got == 0;
        };
        let from = std::ptr::with_exposed_provenance::<u8>(to);
        // SAFETY: so many bytes of it the kernel has just written, and nobody writes there until the slice is gone.
        numbers(unsafe { std::slice::from_raw_parts(from, len) }, &act);
    };
    // SAFETY: takes no memory; opened above.
    unsafe { real::close(list) };
    are_all
}

/// The numbers among the names of directory entries, as `getdents64` tells them.
fn numbers(mut entries: &[u8], act: impl Fn(c_int)) {
    /// Where an entry has its length, two bytes, and where its name begins.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    while entries.len() > NAME {
        let len = usize::from(u16::from_ne_bytes([entries[LENGTH], entries[LENGTH + 1]]));
        if len <= NAME || len > entries.len() {
            return;
        }
        let (entry, rest) = entries.split_at(len);
        let name = CStr::from_bytes_until_nul(&entry[NAME..]).ok();
        if let Some(number) = name.and_then(|name| name.to_str().ok()?.parse().ok()) {
            act(number);
        }
        entries = rest;
    }
}
