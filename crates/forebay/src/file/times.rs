//! Times that are final while the file is still open: a program that writes a small file, asks for its times and closes it finds the same ones later.
//!
//! What the close would do comes earlier then: the little that is owed goes into the kernel's cache, and what lies beyond the end is given back. It is done
//! beside others, once, and nobody is waited for who has the file in hand when it begins: such a file, one that owes more, and a larger one have other times after their close.

use std::sync::Arc;

use crate::device::{Cached, DeviceFile};
use crate::file::core::Core;
use crate::file::settle;
use crate::flush::Scope;
use crate::limits::{BLOCK_BYTES, PAGE_BYTES};
use crate::member::guard;
use crate::memory::arena::Arena;
use crate::memory::files::{CLOSING, EXCEEDING, FileEntry, LEASED, LIVE, TRUNCATING};
use crate::memory::threads::{self, Me};
use crate::sync::Ordering;

/// Pages that a small file owes at most.
const OWED_PAGES_MAX: u64 = 1024 * 1024 / PAGE_BYTES as u64;

/// Bytes that it has at most.
const SIZE_MAX: u64 = 16 * 1024 * 1024;

/// Whether a close would change the file's times, and [`finish`] may do so instead.
pub fn are_due(arena: &Arena, entry: &FileEntry) -> bool {
    let owed = entry.owed_pages.load(Ordering::Acquire);
    let is_sound = entry.state.load(Ordering::Acquire) == LIVE
        && entry.kernel_reason.load(Ordering::Acquire) == 0
        && entry.flags.load(Ordering::Acquire) & (EXCEEDING | TRUNCATING | CLOSING | LEASED) == 0
        // What the device has refused stays here until it takes it.
        && entry.failures.load(Ordering::Relaxed) == 0;
    let is_small = owed <= OWED_PAGES_MAX && entry.size.load(Ordering::Acquire) <= SIZE_MAX;
    is_sound && is_small && (owed != 0 || is_trimmed(arena, entry))
}

/// Whether space beyond the end is given back before the close. Where outsiders are not held up, one that appends just then would lose by it.
fn is_trimmed(arena: &Arena, entry: &FileEntry) -> bool {
    let guard = arena.superblock().guard.load(Ordering::Acquire);
    guard == guard::HOLDS && entry.reserve_step.load(Ordering::Relaxed) != 0
}

/// Gives the kernel what a small file owes, and what it has beyond its end back. Errors are told by the next sync or close.
pub fn finish(core: &Core, me: Me<'_>) {
    let (arena, entry) = (me.arena, core.entry());
    let may = || are_due(arena, entry) && !threads::is_in_the_way(me, core.id);
    if !core.device.is_writable() || !may() {
        return;
    }
    let owed = entry.owed_pages.load(Ordering::Acquire);
    let size = entry.size.load(Ordering::Acquire);
    // A program that writes on meanwhile is not followed.
    let scope = Scope {
        fill: false,
        until: size.div_ceil(BLOCK_BYTES as u64),
        ..Scope::some(owed)
    };
    if owed != 0 {
        let device: Arc<dyn DeviceFile> = Arc::new(Cached::new(&core.device));
        core.shared.flush(me, core.id, &device, scope);
    }
    // Who stops a file waits for those who are at the device with it.
    if is_trimmed(arena, entry) && may() && !threads::is_anybody_at_device(arena, core.id) {
        settle::trim(core, me, |entry| is_trimmed(arena, entry));
    }
}
