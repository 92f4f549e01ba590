//! What a child of `posix_spawn` is to do before it executes its program: libc opens files for it past all hooks.
//!
//! A path is kept from when the action is added until the list is destroyed, and so is the number of a descriptor that the child gets as another
//! one. Each `posix_spawn` with that list gives the files to the kernel that are there by then: a list may be older than its files. Where
//! the child changes its directory first, its paths begin there. Nodes are never freed, but used again: a child may be forked in the middle of any step here.

use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use libc::c_int;

use super::{Args, give, number, or, path};
use crate::attach;
use crate::files::{self, Given, Why};
use crate::inside::Inside;
use crate::raw::KeepErrno;

struct Node {
    /// The list that the action is in, [`TAKEN`], or 0: free.
    list: AtomicUsize,
    /// A string of ours, for an action that has one.
    path: AtomicPtr<c_char>,
    /// The descriptor that is given on; or [`OPENS`] the path, or [`ENTERS`] it.
    what: AtomicI32,
    next: *const Node,
}

/// Being changed.
const TAKEN: usize = 1;

const OPENS: c_int = -1;
const ENTERS: c_int = -2;
/// It did, and entered another one later.
const ENTERED: c_int = -3;

static NODES: AtomicPtr<Node> = AtomicPtr::new(std::ptr::null_mut());

fn nodes() -> impl Iterator<Item = &'static Node> {
    let first: *const Node = NODES.load(Ordering::Acquire);
    // SAFETY: nodes are never freed, and in the list as they were made, but for their atomic words.
    std::iter::successors(unsafe { first.as_ref() }, |node| unsafe {
        node.next.as_ref()
    })
}

fn of_list(list: usize) -> impl Iterator<Item = &'static Node> {
    nodes().filter(move |node| node.list.load(Ordering::Acquire) == list)
}

fn keep(list: usize, what: c_int, path: Option<CString>) {
    let path = path.map_or(std::ptr::null_mut(), CString::into_raw);
    let free = nodes().find(|node| {
        let taken = node
            .list
            .compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    });
    if let Some(node) = free {
        node.path.store(path, Ordering::Relaxed);
        node.what.store(what, Ordering::Relaxed);
        node.list.store(list, Ordering::Release);
        return;
    }
    let mut next = NODES.load(Ordering::Acquire);
    let node = Box::into_raw(Box::new(Node {
        list: AtomicUsize::new(list),
        path: AtomicPtr::new(path),
        what: AtomicI32::new(what),
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
    for node in of_list(list) {
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
        drop((!path.is_null()).then(|| unsafe { CString::from_raw(path) }));
    }
}

/// Whether what a list says is to be kept.
fn keeps() -> bool {
    attach::is_asked() && !Inside::is() && !attach::rests()
}

/// `posix_spawn_file_actions_adddup2(list, from, to)`: the program that is spawned gets the descriptor, whatever its flags.
pub fn duplicate(args: &Args) -> usize {
    let from = args[1] as c_int;
    if keeps() && from >= 0 {
        let _errno = KeepErrno::new();
        keep(args[0] as usize, from, None);
    }
    or(give(from, Why::Inherited), number)
}

/// `posix_spawn_file_actions_addchdir_np(list, path)`: paths that come after it begin there.
pub fn enter(args: &Args) {
    let name = path(args[1]);
    if keeps() && !name.is_null() {
        let _errno = KeepErrno::new();
        // SAFETY: the program's string, which libc copies as well.
        let path = from_where(args[0] as usize, unsafe { CStr::from_ptr(name) });
        go_on_from(args[0] as usize, path);
    }
}

/// `posix_spawn_file_actions_addfchdir_np(list, fd)`, likewise.
pub fn enter_descriptor(args: &Args) {
    if keeps() {
        let _errno = KeepErrno::new();
        let path = format!("/proc/self/fd/{}", args[1] as c_int);
        go_on_from(args[0] as usize, CString::new(path).unwrap_or_default());
    }
}

/// The directory of what is added from now on: of several the newest counts.
fn go_on_from(list: usize, path: CString) {
    for node in of_list(list) {
        let _ = node
            .what
            .compare_exchange(ENTERS, ENTERED, Ordering::Relaxed, Ordering::Relaxed);
    }
    keep(list, ENTERS, Some(path));
}

/// A path as the child has it, from where this process is.
fn from_where(list: usize, path: &CStr) -> CString {
    let is_where = |node: &&Node| node.what.load(Ordering::Relaxed) == ENTERS;
    let Some(node) = of_list(list).find(is_where) else {
        return path.to_owned();
    };
    if path.to_bytes().starts_with(b"/") {
        return path.to_owned();
    }
    // SAFETY: a string of ours that lives as long as the list.
    let directory = unsafe { CStr::from_ptr(node.path.load(Ordering::Relaxed)) };
    let whole = [directory.to_bytes(), b"/", path.to_bytes()].concat();
    CString::new(whole).unwrap_or_default()
}

/// `posix_spawn_file_actions_addopen(list, to, path, flags, mode)`: the child opens the file inside of libc, and may execute a program
/// without the library.
pub fn open(args: &Args) -> usize {
    let name = path(args[2]);
    if keeps() && !name.is_null() {
        let _errno = KeepErrno::new();
        // SAFETY: the program's string, which libc copies as well.
        let path = from_where(args[0] as usize, unsafe { CStr::from_ptr(name) });
        keep(args[0] as usize, OPENS, Some(path));
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
    for node in of_list(list as usize) {
        let path = node.path.load(Ordering::Relaxed);
        match node.what.load(Ordering::Relaxed) {
            // SAFETY: a string of ours that lives as long as the list.
            OPENS => unsafe { files::reach_path(libc::AT_FDCWD, path, Why::Inherited)? },
            ENTERS | ENTERED => {}
            fd => give(fd, Why::Inherited)?,
        }
    }
    Ok(())
}
