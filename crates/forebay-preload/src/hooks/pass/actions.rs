//! What a child of `posix_spawn` is to do before it executes its program: libc opens files for it past all hooks.
//!
//! A path is kept from when the action is added until the list is destroyed. Each `posix_spawn` with that list gives the files to the
//! kernel that are there by then: a list may be older than its files. Nodes are never freed, but used again: a child may be forked in the
//! middle of any step here.

use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::{Args, give, number, or, path};
use crate::attach;
use crate::files::{self, Given, Why};
use crate::inside::Inside;
use crate::raw::KeepErrno;

struct Node {
    /// The list that the action is in, [`TAKEN`], or 0: free.
    list: AtomicUsize,
    /// A string of ours.
    path: AtomicPtr<c_char>,
    next: *const Node,
}

/// Being changed.
const TAKEN: usize = 1;

static NODES: AtomicPtr<Node> = AtomicPtr::new(std::ptr::null_mut());

fn nodes() -> impl Iterator<Item = &'static Node> {
    let first: *const Node = NODES.load(Ordering::Acquire);
    // SAFETY: nodes are never freed, and in the list as they were made, but for their atomic words.
    std::iter::successors(unsafe { first.as_ref() }, |node| unsafe {
        node.next.as_ref()
    })
}

fn keep(list: usize, path: &CStr) {
    let path = CString::into_raw(path.to_owned());
    let free = nodes().find(|node| {
        let taken = node
            .list
            .compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    });
    if let Some(node) = free {
        node.path.store(path, Ordering::Relaxed);
        node.list.store(list, Ordering::Release);
        return;
    }
    let mut next = NODES.load(Ordering::Acquire);
    let node = Box::into_raw(Box::new(Node {
        list: AtomicUsize::new(list),
        path: AtomicPtr::new(path),
        next,
    }));
    while let Err(now) = NODES.compare_exchange(next, node, Ordering::AcqRel, Ordering::Acquire) {
        next = now;
        // SAFETY: made above, and known to nobody yet.
        unsafe { (*node).next = next };
    }
}

/// `posix_spawn_file_actions_init(list)` and `posix_spawn_file_actions_destroy(list)`: nothing is in it.
pub fn forget(args: &Args) {
    if Inside::is() || attach::rests() {
        return;
    }
    let _errno = KeepErrno::new();
    let list = args[0] as usize;
    for node in nodes().filter(|node| node.list.load(Ordering::Acquire) == list) {
        let taken = node
            .list
            .compare_exchange(list, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            continue;
        }
        let path = node.path.swap(std::ptr::null_mut(), Ordering::Relaxed);
        node.list.store(0, Ordering::Release);
        // SAFETY: made by `CString::into_raw`, and taken out of the only place that had it. A program that spawns with a list while it
        // destroys it has that race without us.
        drop(unsafe { CString::from_raw(path) });
    }
}

/// `posix_spawn_file_actions_adddup2(list, from, to)`: the program that is spawned gets the descriptor, whatever its flags.
pub fn duplicate(args: &Args) -> usize {
    or(give(args[1] as libc::c_int, Why::Inherited), number)
}

/// `posix_spawn_file_actions_addopen(list, to, path, flags, mode)`: the child opens the file inside of libc, and may execute a program
/// without the library.
pub fn open(args: &Args) -> usize {
    let name = path(args[2]);
    if attach::is_asked() && !name.is_null() && !Inside::is() && !attach::rests() {
        let _errno = KeepErrno::new();
        // SAFETY: the program's string, which libc copies as well.
        keep(args[0] as usize, unsafe { CStr::from_ptr(name) });
        return 0;
    }
    // SAFETY: as above.
    let given = unsafe { files::reach_path(libc::AT_FDCWD, name, Why::Inherited) };
    or(given, number)
}

/// `posix_spawn` is about to carry the list out.
pub fn reach(list: u64) -> Given {
    if list == 0 {
        return Ok(());
    }
    for node in nodes().filter(|node| node.list.load(Ordering::Acquire) == list as usize) {
        let path = node.path.load(Ordering::Relaxed);
        // SAFETY: a string of ours that lives as long as the list.
        unsafe { files::reach_path(libc::AT_FDCWD, path, Why::Inherited)? };
    }
    Ok(())
}
