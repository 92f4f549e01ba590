//! Forking.
//!
//! A child of `vfork` uses our memory until it executes something or ends, and its descriptors are not ours. Where that could
//! do harm it is given a real fork: so that the program that it executes finds what a relative has written, and where. Else, in a process
//! of one thread that is not in its session, the library does nothing until the parent goes on: the child is left to the kernel, and the
//! parent finds everything as it was.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libc::pid_t;

use crate::attach;
use crate::files;
use crate::hooks::limits;
use crate::inside::Inside;
use crate::mapped;
use crate::raw::KeepErrno;
use crate::real;
use crate::signals;
use crate::symbols::{self, Name};
use crate::table::{self, Kind, Word, holders};

export! {
    /// `fork`.
    fn fork | __fork() -> pid_t {
        // SAFETY: the caller's call.
        forked(|| unsafe { real::fork() })
    }

    /// `_Fork`: without the handlers of `pthread_atfork`.
    fn _Fork() -> pid_t {
        // SAFETY: the caller's call.
        forked(|| unsafe { real::_Fork() })
    }
}

/// A fork by whatever call. It need not return in the child: that is noticed by what it does first.
pub fn forked(fork: impl FnOnce() -> pid_t) -> pid_t {
    if !attach::is_on() {
        return fork();
    }
    real::before_fork();
    // A handler of `pthread_atfork` may have done so in a parent that it forked from.
    attach::notice_fork();
    let told = holders::before_fork();
    let forking = mapped::views::Forking::begin();
    mapped::before_fork();
    let child = fork();
    if child == 0 {
        // The child begins with none, and may have been noticed by now.
        std::mem::forget(forking);
    } else {
        drop(forking);
    }
    match child {
        0 if !table::is_alive_in_own_page() => attach::in_child(),
        // Such a handler has used a file in the child already.
        0 => {}
        _ if told => holders::after_fork(child == -1),
        _ => {}
    }
    child
}

extern "C" fn forked_instead() -> pid_t {
    // SAFETY: the caller's call.
    forked(|| unsafe { real::fork() })
}

/// Where the caller of `vfork` goes on: the child overwrites the place on the stack. There is one at a time.
static BACK: AtomicUsize = AtomicUsize::new(0);
/// Length of the table meanwhile.
static LEN: AtomicUsize = AtomicUsize::new(0);

/// `vfork`.
///
/// # Safety
/// As for libc's function of that name.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> pid_t {
    naked_asm!("jmp {vfork}", vfork = sym vforked)
}

/// The child goes back to the caller at once, and so does the parent when it goes on, after [`after_vfork`].
///
/// # Safety
/// As for `vfork`.
#[unsafe(naked)]
unsafe extern "C" fn vforked() -> pid_t {
    naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "test rax, rax",
        "jz {fork}",
        "pop rcx",
        "mov [rip + {back}], rcx",
        "call rax",
        "test eax, eax",
        "jz 2f",
        "mov edi, eax",
        "call {after}",
        "2:",
        "jmp [rip + {back}]",
        before = sym before_vfork,
        fork = sym forked_instead,
        after = sym after_vfork,
        back = sym BACK,
    )
}

/// `vfork` by another name.
///
/// # Safety
/// The same.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __vfork() -> pid_t {
    naked_asm!("jmp {vfork}", vfork = sym vforked)
}

/// libc's `vfork`, everything being ready for it; 0 where it must be a fork.
extern "C" fn before_vfork() -> usize {
    let may_share = attach::is_on()
        && attach::joined().is_none()
        && !Inside::is()
        && table::each().all(|(_, word)| {
            word.kind() == Kind::Candidate && !files::is_of_engine(word.description())
        })
        && is_single_threaded();
    if !may_share {
        return 0;
    }
    let vfork = symbols::find_anywhere(const { Name::new("vfork\0") });
    if vfork.is_null() {
        return 0;
    }
    LEN.store(table::hide(), Relaxed);
    attach::rest();
    signals::rest();
    vfork.addr()
}

/// The parent's files, for its child.
pub fn hidden_files() -> impl Iterator<Item = Word> {
    table::hidden_files(LEN.load(Relaxed))
}

/// The parent goes on: what the child has set is undone.
extern "C" fn after_vfork(child: pid_t) -> pid_t {
    let _errno = KeepErrno::new();
    signals::go_on();
    attach::go_on();
    table::show(LEN.load(Relaxed));
    limits::look();
    child
}

/// Whether libc knows of no other thread. Old ones do not say.
pub fn is_single_threaded() -> bool {
    let word = symbols::find_anywhere(const { Name::new("__libc_single_threaded\0") }).cast::<u8>();
    // SAFETY: libc's own byte, mapped for good; it is written by the thread that makes the second one, which would be this one.
    !word.is_null() && unsafe { word.read() } != 0
}
