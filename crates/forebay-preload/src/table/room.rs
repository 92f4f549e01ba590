//! Where the tables lie: addresses, and memory for what is touched of them.

use std::sync::atomic::{Ordering, Ordering::Relaxed};

use libc::c_int;

use crate::hooks::limits;

use super::{ALIVE, DESCRIPTIONS, DESCRIPTIONS_MAX, DESCRIPTORS_MAX, Description, LEN, WORDS};

const PAGE_BYTES: usize = 4096;

/// Reserves the table of descriptors. Without it every descriptor is none of ours.
pub fn at_start() {
    let len = (limits::descriptors_max() as usize).clamp(1024, DESCRIPTORS_MAX);
    let bytes = PAGE_BYTES + len * size_of::<u64>();
    let Some(alive) = reserve(bytes, libc::MAP_PRIVATE) else {
        return;
    };
    // SAFETY: the pages were mapped just now and are ours.
    if unsafe { libc::madvise(alive, PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
        return;
    }
    ALIVE.store(alive.cast(), Relaxed);
    WORDS.store(alive.wrapping_byte_add(PAGE_BYTES).cast(), Relaxed);
    super::set_alive();
    LEN.store(len, Ordering::Release);
}

/// Reserves the table of descriptions, for the first one: whoever has been forked before that has a table of its own. `false`:
/// there is none.
#[cold]
pub fn reserve_descriptions() -> bool {
    let bytes = DESCRIPTIONS_MAX * size_of::<Description>();
    let Some(ours) = reserve(bytes, libc::MAP_SHARED) else {
        return false;
    };
    let none = std::ptr::null_mut();
    let first =
        DESCRIPTIONS.compare_exchange(none, ours.cast(), Ordering::AcqRel, Ordering::Acquire);
    if first.is_err() {
        // SAFETY: mapped just now, and known to nobody.
        unsafe { libc::munmap(ours, bytes) };
    }
    true
}

fn reserve(len: usize, sharing: c_int) -> Option<*mut libc::c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = sharing | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory at an address of the kernel's choice; never unmapped.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at)
}
