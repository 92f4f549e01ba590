//! Where the tables lie: addresses, and memory for what is touched of them.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};

use libc::c_int;

use crate::hooks::limits;
use crate::inside::Inside;

use super::holders::{self, FAMILY, Family, OWN};
use super::note::WORDS;
use super::{ALIVE, DESCRIPTIONS, DESCRIPTIONS_MAX, DESCRIPTORS_MAX, Description};

const PAGE_BYTES: usize = 4096;
/// The words of the wiped page, see [`wiped`]; the first one counts lives.
/// Threads that use the session without the lock ([`crate::rare::Apart`]).
pub const WIPED_APART: usize = 4;
/// Threads that have descriptors for a moment ([`crate::rare::Passing`]).
pub const WIPED_PASSING: usize = 6;
pub const WIPED_LOCK_RARE: usize = 8;
pub const WIPED_LOCK_MAPPED: usize = 16;
const WIPED_LOCK_TABLES: usize = 24;

/// A word that a forked child finds wiped: for locks of the process's, which nobody in the child would let go.
pub fn wiped(number: usize) -> &'static AtomicU64 {
    static NOT_WIPED: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];
    let page = ALIVE.load(Relaxed);
    if page.is_null() {
        return &NOT_WIPED[number];
    }
    // SAFETY: within a page that is mapped for good; a plain word.
    unsafe { &*page.add(number) }
}

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
    let first = alive.wrapping_byte_add(PAGE_BYTES).cast();
    WORDS.first.store(first, Relaxed);
    super::set_alive();
    WORDS.len.store(len, Ordering::Release);
}

/// Reserves the table of descriptions, for the first one: a child that was forked before that has a table of its own. `false`:
/// there is none.
#[cold]
pub fn reserve_descriptions() -> bool {
    // One thread makes them; others wait for it, and a handler of its own does not come in between.
    let _inside = Inside::enter();
    let lock = wiped(WIPED_LOCK_TABLES);
    let mut round = 0;
    while lock
        .compare_exchange(0, 1, Ordering::Acquire, Relaxed)
        .is_err()
    {
        round += 1;
        forebay::sync::relax(round);
    }
    let made = !DESCRIPTIONS.load(Ordering::Acquire).is_null() || make_descriptions();
    lock.store(0, Ordering::Release);
    made
}

fn make_descriptions() -> bool {
    let descriptions = DESCRIPTIONS_MAX * size_of::<Description>();
    let own_bytes = DESCRIPTIONS_MAX * size_of::<AtomicU32>();
    let bytes = descriptions + size_of::<Family>();
    let Some(own) = reserve(own_bytes, libc::MAP_PRIVATE) else {
        return false;
    };
    // SAFETY: the pages were mapped just now and are ours.
    let wipes = unsafe { libc::madvise(own, own_bytes, libc::MADV_WIPEONFORK) } == 0;
    let shared = wipes.then(|| reserve(bytes, libc::MAP_SHARED)).flatten();
    let Some(shared) = shared else {
        // SAFETY: as above, and known to nobody.
        unsafe { libc::munmap(own, own_bytes) };
        return false;
    };
    OWN.store(own.cast(), Relaxed);
    FAMILY.store(
        shared.wrapping_byte_add(descriptions).cast(),
        Ordering::Release,
    );
    holders::begin();
    DESCRIPTIONS.store(shared.cast(), Ordering::Release);
    true
}

/// The process shares descriptions with its relatives no more: there is memory of its own in their place. To them it has what it had, until it
/// ends. `false`: it cannot be, and is to be tried again. The caller has hidden the table of descriptors.
pub fn part() -> bool {
    let bytes = DESCRIPTIONS_MAX * size_of::<Description>() + size_of::<Family>();
    if !unmap_unwanted(bytes) {
        return false;
    }
    let family = FAMILY.swap(std::ptr::null_mut(), Ordering::SeqCst);
    if family.is_null() {
        return true;
    }
    let first = DESCRIPTIONS.load(Relaxed);
    // SAFETY: another mapping of the memory that relatives share; the first one stays.
    let again = unsafe { libc::mremap(first.cast(), 0, bytes, libc::MREMAP_MAYMOVE) };
    if again == libc::MAP_FAILED {
        FAMILY.store(family, Ordering::SeqCst);
        return false;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: zeros are good for all that is there; threads that look at it meanwhile look at atomics.
    let made = unsafe { libc::mmap(first.cast(), bytes, protection, flags, -1, 0) };
    if made == libc::MAP_FAILED {
        FAMILY.store(family, Ordering::SeqCst);
    } else {
        let relatives = again.wrapping_byte_add(DESCRIPTIONS_MAX * size_of::<Description>());
        // SAFETY: mapped above, and laid out as the first mapping; all atomics. Descriptions come first.
        let theirs = unsafe {
            let end = holders::part(&*relatives.cast::<Family>());
            std::slice::from_raw_parts(again.cast::<Description>(), end.min(DESCRIPTIONS_MAX))
        };
        // A thread that holds one lets go of it in memory of this process's own.
        theirs.iter().for_each(Description::unlock_for_this_process);
    }
    UNWANTED.store(again, Ordering::Release);
    unmap_unwanted(bytes) && made != libc::MAP_FAILED
}

/// A second mapping of what relatives share, until there is nothing of theirs any more.
static UNWANTED: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Where it cannot be unmapped, since the process has too many mappings, addresses that nobody may touch take its place. `false`: neither
/// can be.
fn unmap_unwanted(bytes: usize) -> bool {
    let at = UNWANTED.load(Ordering::Acquire);
    if at.is_null() {
        return true;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: mapped by `part`, this long, and used by nobody any more; one thread leaves at a time.
    let is_gone = unsafe {
        libc::munmap(at, bytes) == 0
            || libc::mmap(at, bytes, libc::PROT_NONE, flags, -1, 0) != libc::MAP_FAILED
    };
    if is_gone {
        UNWANTED.store(std::ptr::null_mut(), Ordering::Release);
    }
    is_gone
}

fn reserve(len: usize, sharing: c_int) -> Option<*mut libc::c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = sharing | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory at an address of the kernel's choice; never unmapped.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at)
}
