//! Whether the program is one of Go's: its runtime makes system calls by an instruction of its own, past libc and this library, on
//! descriptors that libraries in C have opened by libc, too.
//!
//! Go's linker says so in a note of the program's file. The library leaves such a program alone, and so it is outside the session.

use std::ffi::c_void;

use libc::{c_int, dl_phdr_info, size_t};

/// Whether it is. One look at memory that the loader has looked at.
pub fn is_the_program() -> bool {
    let mut is_go = false;
    // SAFETY: the function below takes what is handed to it, for as long as the call takes.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut is_go).cast()) };
    is_go
}

/// Looks at the first of what is loaded, the program, and says that it is enough.
///
/// # Safety
/// For `dl_iterate_phdr` alone: `info` is the loader's, and `is_go` leads to a `bool` of the caller's that nobody else looks at.
unsafe extern "C" fn look(info: *mut dl_phdr_info, _: size_t, is_go: *mut c_void) -> c_int {
    // SAFETY: the loader's own, which are there during the call; so is the caller's answer. Nobody else knows of that.
    let (info, is_go) = unsafe { (&*info, &mut *is_go.cast::<bool>()) };
    // SAFETY: as above; as many as said.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers
        .iter()
        .filter(|header| header.p_type == libc::PT_NOTE)
    {
        let at = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        // SAFETY: the kernel has mapped the program's notes, which nobody changes, for as long as it runs.
        let notes = unsafe {
            std::slice::from_raw_parts(
                std::ptr::with_exposed_provenance::<u8>(at),
                header.p_memsz as usize,
            )
        };
        *is_go |= forebay::sys::notes::each(notes).any(|note| note.is_go());
    }
    1
}
