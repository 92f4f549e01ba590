//! The unwinder, found when something is unwound for the first time.
//!
//! Rust's library calls `_Unwind_...` of libgcc, which would therefore be loaded into every program that has the library, at a
//! fifth of what the library's start costs; and panics are rare. So these names are ours, hidden from everybody else, and jump on
//! to libgcc's. It is never unloaded. Each is a jump, not a call: the unwinder looks at its caller's frame.

use std::arch::global_asm;
use std::ffi::CStr;

macro_rules! unwinder {
    ($($name:literal)*) => {
        /// By the numbers that the stubs push.
        const NAMES: &[&str] = &[$(concat!($name, "\0")),*];

        global_asm!(
            ".section .text.forebay_unwind, \"ax\", @progbits",
            ".set forebay_unwind_number, 0",
            $(
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!(".type ", $name, ", @function"),
                concat!($name, ":"),
                ".cfi_startproc",
                concat!("mov r11, [rip + forebay_at", $name, "]"),
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                "2:",
                "push forebay_unwind_number",
                ".cfi_adjust_cfa_offset 8",
                "call {find}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                concat!("mov [rip + forebay_at", $name, "], r11"),
                "jmp r11",
                ".cfi_endproc",
                concat!(".size ", $name, ", . - ", $name),
                ".set forebay_unwind_number, forebay_unwind_number + 1",
            )*
            ".section .bss.forebay_unwind, \"aw\", @nobits",
            ".balign 8",
            $(
                concat!("forebay_at", $name, ": .zero 8"),
            )*
            ".text",
            find = sym find_keeping_arguments,
        );
    };
}

unwinder! {
    "_Unwind_Backtrace" "_Unwind_DeleteException" "_Unwind_FindEnclosingFunction" "_Unwind_ForcedUnwind" "_Unwind_GetCFA"
    "_Unwind_GetDataRelBase" "_Unwind_GetGR" "_Unwind_GetIP" "_Unwind_GetIPInfo" "_Unwind_GetLanguageSpecificData"
    "_Unwind_GetRegionStart" "_Unwind_GetTextRelBase" "_Unwind_RaiseException" "_Unwind_Resume" "_Unwind_Resume_or_Rethrow"
    "_Unwind_SetGR" "_Unwind_SetIP"
}

/// The address of the function whose number lies above the return address, in r11; arguments stay as they are.
///
/// # Safety
/// For the stubs only.
#[unsafe(naked)]
unsafe extern "C" fn find_keeping_arguments() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "and rsp, -16",
        "mov rdi, [rbp + 16]",
        "call {find}",
        "mov r11, rax",
        "mov rdi, [rbp - 8]",
        "mov rsi, [rbp - 16]",
        "mov rdx, [rbp - 24]",
        "mov rcx, [rbp - 32]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        find = sym find,
    )
}

/// libgcc's function. Without it nothing can be unwound, and what has failed cannot be answered.
extern "C" fn find(number: usize) -> usize {
    let name = NAMES.get(number).map(|name| name.as_bytes());
    let Some(Ok(name)) = name.map(CStr::from_bytes_with_nul) else {
        std::process::abort();
    };
    // SAFETY: names that end in null bytes; the library stays.
    let found = unsafe {
        let library = libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            libc::dlsym(libc::RTLD_NEXT, name.as_ptr())
        } else {
            libc::dlsym(library, name.as_ptr())
        }
    };
    if found.is_null() {
        std::process::abort();
    }
    found.addr()
}
