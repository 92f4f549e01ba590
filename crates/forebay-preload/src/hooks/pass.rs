//! Calls that reach files by ways that the engine does not serve: the files go to the kernel first, then the real function is
//! jumped to.
//!
//! A stub keeps the registers that carry arguments, lets a function of ours look at them, and leaves with registers and stack
//! as they were: so none needs the callee's signature, and variadic ones are like the others. [`calls`] lists them.

mod actions;
pub mod asynchronous;
mod calls;
pub mod confined;
pub mod control;
pub mod environment;
pub mod identity;

pub mod names;
mod patience;
pub mod print;
pub mod programs;
pub mod raw_call;
pub mod sockets;
mod standard;
pub mod stdio;
pub mod threads;
pub mod transfer;

use std::arch::naked_asm;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void};

use crate::attach;
use crate::files::{self, Given, Why};
use crate::inside::{self, Inside};
use crate::symbols::{self, Name};
use crate::{program, raw, signals};

/// The first six integer arguments.
pub type Args = [u64; 6];

/// Where a step says to go on: nowhere, or at an address.
pub trait Onward {
    /// The address, or 0.
    fn address(self) -> usize;
}

impl Onward for () {
    fn address(self) -> usize {
        0
    }
}

impl Onward for usize {
    fn address(self) -> usize {
        self
    }
}

impl Onward for Given {
    fn address(self) -> usize {
        or(self, minus_one)
    }
}

/// To the real function; or to one that gives the caller an error instead, with `errno` set.
fn or(given: Given, instead: extern "C" fn() -> isize) -> usize {
    match given {
        Ok(()) => 0,
        Err(errno) => {
            raw::set_errno(errno);
            instead as *const () as usize
        }
    }
}

/// For calls that fail with -1, which is what a mapping fails with, too.
extern "C" fn minus_one() -> isize {
    -1
}

/// For calls that return a pointer, or how much they have done.
extern "C" fn zero() -> isize {
    0
}

/// For calls that return an error number.
extern "C" fn number() -> isize {
    raw::errno() as isize
}

/// For calls that return a negative one.
extern "C" fn negative() -> isize {
    -(raw::errno() as isize)
}

/// Where the function behind a call that is passed on is. Null until it is found.
pub struct Real(AtomicPtr<c_void>);

impl Real {
    const fn new() -> Self {
        Real(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The function, which has this name.
    fn get(&self, name: Name) -> usize {
        let real = self.0.load(Ordering::Relaxed);
        if real.is_null() {
            self.find(name)
        } else {
            real.addr()
        }
    }

    #[cold]
    fn find(&self, name: Name) -> usize {
        if let Some(plain) = plain(name.as_c()) {
            self.0.store(plain, Ordering::Relaxed);
            return plain.addr();
        }
        let _errno = raw::KeepErrno::new();
        let mut found = symbols::find_anywhere(name);
        if is_late(name) {
            let mut libraries = LIBRARIES.iter();
            while found.is_null()
                && let Some(library) = libraries.next()
            {
                found = find_in(library, name.as_c());
            }
        }
        if found.is_null() {
            return missing as *const () as usize;
        }
        self.0.store(found, Ordering::Relaxed);
        found.addr()
    }
}

/// Whether a function is of one of [`LIBRARIES`].
fn is_late(name: Name) -> bool {
    name.as_c().to_bytes().starts_with(b"io_")
}

/// Libraries whose calls are passed on, and which a module may have loaded for itself.
const LIBRARIES: [&CStr; 4] = [
    c"liburing.so.2",
    c"liburing.so.1",
    c"libaio.so.1",
    c"libaio.so.1t64",
];

/// A function of a library that is loaded already.
fn find_in(library: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: names that end in null bytes; nothing is loaded, and the library stays for those that have loaded it.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return handle;
        }
        libc::dlsym(handle, name.as_ptr())
    }
}

/// What nothing is looked for to call.
fn plain(name: &CStr) -> Option<*mut c_void> {
    match name.to_bytes() {
        b"mmap" | b"mmap64" => Some(transfer::plain::map as *mut c_void),
        b"munmap" => Some(transfer::plain::unmap as *mut c_void),
        b"mremap" => Some(transfer::plain::remap as *mut c_void),
        _ => None,
    }
}

/// Stands in for what the system does not have.
extern "C" fn missing() -> isize {
    raw::set_errno(libc::ENOSYS);
    -1
}

/// Finds libc's functions now, where looking for one later takes the linker's locks: a forked child or a signal handler should not have
/// to. Those of libaio and liburing are looked for when they are called: the library may be loaded later.
#[cold]
pub fn find_all() {
    let find = |name: Name, real: &Real| {
        if !is_late(name) {
            real.get(name);
        }
    };
    calls::each(find);
    stdio::each(find);
}

/// Finds what children call between a fork and the program that they execute.
pub fn before_fork() {
    use calls::{execve, execvp, pthread_sigmask, sigprocmask};
    execve::REAL.get(execve::NAME);
    execvp::REAL.get(execvp::NAME);
    sigprocmask::REAL.get(sigprocmask::NAME);
    pthread_sigmask::REAL.get(pthread_sigmask::NAME);
}

/// Where all stubs come together; r11 is a function that looks at the arguments and says where to go on, by way of [`pass`].
///
/// # Safety
/// For stubs only.
#[unsafe(naked)]
unsafe extern "C" fn common() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, 208",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "mov [rsp + 48], rax",
        // Of variadic ones al says whether vectors carry arguments; others have no use for them.
        "test al, al",
        "jz 2f",
        "movaps [rsp + 64], xmm0",
        "movaps [rsp + 80], xmm1",
        "movaps [rsp + 96], xmm2",
        "movaps [rsp + 112], xmm3",
        "movaps [rsp + 128], xmm4",
        "movaps [rsp + 144], xmm5",
        "movaps [rsp + 160], xmm6",
        "movaps [rsp + 176], xmm7",
        "2:",
        "mov rdi, rsp",
        "call r11",
        "mov r11, rax",
        "mov rax, [rsp + 48]",
        "test al, al",
        "jz 3f",
        "movaps xmm0, [rsp + 64]",
        "movaps xmm1, [rsp + 80]",
        "movaps xmm2, [rsp + 96]",
        "movaps xmm3, [rsp + 112]",
        "movaps xmm4, [rsp + 128]",
        "movaps xmm5, [rsp + 144]",
        "movaps xmm6, [rsp + 160]",
        "movaps xmm7, [rsp + 176]",
        "3:",
        "mov rdi, [rsp]",
        "mov rsi, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rcx, [rsp + 24]",
        "mov r8, [rsp + 32]",
        "mov r9, [rsp + 40]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "jmp r11",
        ".cfi_endproc",
    )
}

/// Does what must be done `before` a call; that says where else to go than to the real function, or 0. What is known of the call comes in
/// registers, out of the stub's code ([`Name`]).
#[inline(never)]
fn pass(args: &Args, before: fn(&Args) -> usize, name: Name, real: &Real) -> usize {
    if !inside::at_any_time() {
        return decide(args, before, name, real);
    }
    let was = inside::defer_cancellation();
    let onward = decide(args, before, name, real);
    inside::stop_deferring(was);
    onward
}

#[inline(never)]
fn decide(args: &Args, before: fn(&Args) -> usize, name: Name, real: &Real) -> usize {
    match before(args) {
        0 => real.get(name),
        elsewhere => elsewhere,
    }
}

/// The descriptor in an argument.
#[inline(always)]
fn fd(arg: u64) -> c_int {
    arg as c_int
}

/// A string in an argument.
#[inline(always)]
fn path(arg: u64) -> *const libc::c_char {
    std::ptr::with_exposed_provenance(arg as usize)
}

/// For a call that uses a descriptor once.
#[inline(always)]
fn give(fd: c_int, why: Why) -> Given {
    if files::is_known(fd) {
        files::give_to_kernel(fd, why)?;
    }
    Ok(())
}

/// For a call that closes a descriptor, or puts another file there.
fn close(fd: c_int, why: Why) {
    if files::is_known(fd) && !Inside::is() {
        // A descriptor that is closed reaches nothing: what is still owed the keeper writes.
        let _ = files::give_to_kernel(fd, why);
        files::forget(fd);
    }
}

/// For a call that names a file, by `flags` perhaps with an empty path.
fn give_path(dir: c_int, path: *const libc::c_char, flags: c_int, why: Why) -> Given {
    if Inside::is() {
        return Ok(());
    }
    // SAFETY: the caller's string; the function behind ours reads it, too.
    unsafe { files::give_path_to_kernel(dir, path, flags, why) }
}

/// Whether files may be managed at all, and whether it is the program that calls.
#[inline]
fn joined() -> bool {
    signals::is_attached() && !Inside::is() && !attach::is_confined()
}

/// Reads a value of the program's.
fn peek<T: Copy>(at: u64) -> Option<T> {
    program::peek(at as usize)
}
