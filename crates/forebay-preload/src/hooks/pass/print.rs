//! `dprintf` and its siblings: libc would write by a call that passes no hook. What is to be written is made by `vsnprintf`, and
//! written by the hook of `write`. What libc writes of a stack it puts together by itself: that file is the kernel's.

use std::arch::naked_asm;
use std::ffi::c_void;

use libc::{c_char, c_int, size_t};

use super::{Args, fd, give};
use crate::files::{self, Given, Why};
use crate::hooks::io::write;
use crate::inside::Inside;
use crate::raw;

/// Bytes that are put together without asking for memory.
const AT_HAND: usize = 4096;

/// `va_list`, as the processor's calling convention has it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Arguments {
    words_used: u32,
    vectors_used: u32,
    more: *mut c_void,
    registers: *mut c_void,
}

unsafe extern "C" {
    fn vsnprintf(
        to: *mut c_char,
        room: size_t,
        format: *const c_char,
        arguments: *mut Arguments,
    ) -> c_int;
    fn __vsnprintf_chk(
        to: *mut c_char,
        most: size_t,
        flag: c_int,
        room: size_t,
        format: *const c_char,
        arguments: *mut Arguments,
    ) -> c_int;
}

fn known(args: &Args, here: *const ()) -> usize {
    let serves = files::is_known(fd(args[0])) && !Inside::is();
    if serves { here.addr() } else { 0 }
}

/// `dprintf(fd, format, ...)`.
pub fn variadic(args: &Args) -> usize {
    known(args, print as *const ())
}

/// `vdprintf(fd, format, arguments)`.
pub fn listed(args: &Args) -> usize {
    known(args, print_list as *const ())
}

/// `__dprintf_chk(fd, flag, format, ...)`.
pub fn variadic_checked(args: &Args) -> usize {
    known(args, print_checked as *const ())
}

/// `__vdprintf_chk(fd, flag, format, arguments)`.
pub fn listed_checked(args: &Args) -> usize {
    known(args, print_list_checked as *const ())
}

/// Puts the arguments of a variadic function into memory, so many of the registers' being named ones, and calls what takes a list.
macro_rules! variadic {
    ($(#[$doc:meta])* $name:ident, $named:literal, $list:literal, $then:path) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for libc's function.
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
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
                "test al, al",
                "jz 2f",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "2:",
                concat!("mov dword ptr [rsp + 176], ", $named),
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rbp + 16]",
                "mov [rsp + 184], rax",
                "mov [rsp + 192], rsp",
                concat!("lea ", $list, ", [rsp + 176]"),
                "call {then}",
                "leave",
                ".cfi_def_cfa rsp, 8",
                "ret",
                ".cfi_endproc",
                then = sym $then,
            )
        }
    };
}

variadic! {
    /// `dprintf`.
    print, "16", "rdx", print_list
}
variadic! {
    /// `__dprintf_chk`.
    print_checked, "24", "rcx", print_list_checked
}

/// # Safety
/// As for `vdprintf`.
unsafe extern "C-unwind" fn print_list(
    fd: c_int,
    format: *const c_char,
    arguments: *mut Arguments,
) -> c_int {
    put(fd, |to, room| {
        // SAFETY: the caller's list, of which each use gets a copy; memory of ours.
        unsafe { vsnprintf(to, room, format, &mut arguments.read()) }
    })
}

/// # Safety
/// As for `__vdprintf_chk`.
unsafe extern "C-unwind" fn print_list_checked(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut Arguments,
) -> c_int {
    put(fd, |to, room| {
        // SAFETY: as above.
        unsafe { __vsnprintf_chk(to, room, flag, room, format, &mut arguments.read()) }
    })
}

/// Writes what `make` puts into memory of ours, of which it says how much there should be.
fn put(fd: c_int, make: impl Fn(*mut c_char, usize) -> c_int) -> c_int {
    // The format may ask for it.
    let errno = raw::errno();
    let mut few = [0u8; AT_HAND];
    let made = make(few.as_mut_ptr().cast(), few.len());
    let Ok(len) = usize::try_from(made) else {
        return -1;
    };
    let mut many = Vec::new();
    if len >= few.len() {
        many = vec![0u8; len + 1];
        raw::set_errno(errno);
        if make(many.as_mut_ptr().cast(), many.len()) != made {
            return -1;
        }
    }
    let bytes = if many.is_empty() {
        &few[..len]
    } else {
        &many[..len]
    };
    raw::set_errno(errno);
    let mut done = 0;
    while done < len {
        // SAFETY: memory of ours.
        match unsafe { write(fd, bytes[done..].as_ptr().cast(), len - done) } {
            written @ 1.. => done += written as usize,
            _ => return -1,
        }
    }
    made
}

/// `backtrace_symbols_fd(frames, count, fd)`.
pub fn trace(args: &Args) -> Given {
    give(fd(args[2]), Why::Unserved)
}
