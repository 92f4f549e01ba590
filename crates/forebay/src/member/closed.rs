//! What an entry says of a close that did not wait for what the file owes (`file::closing`): the keeper's lease, and the file's time.

use crate::ids::FileId;
use crate::memory::arena::Arena;
use crate::memory::files::{BACK, CLOSING, FileEntry, HURRY, LEASED};
use crate::memory::superblock::one_fewer;
use crate::sync::Ordering;

/// In `closed_ns`: a program has set the time after the close. Without CLOSING it says nothing: the program that has set the time has died before it took
/// it back.
pub const SET: u64 = 1 << 63;

/// Notes that the keeper's lease on a file has ended, or is none of the keeper's.
pub fn end_lease(arena: &Arena, file: FileId) {
    let entry = arena.file_unchecked(file);
    let was = entry
        .flags
        .fetch_and(!(LEASED | HURRY | BACK), Ordering::AcqRel);
    if was & LEASED != 0 {
        one_fewer(&arena.superblock().leased);
    }
    entry.assert_entry();
}

/// A program has set the time of a file that is still to get the one of its close: it gets this one. `false`: it has got the other, perhaps
/// after the program's; or the program's does not fit, from before 1970 or after 2262, and it gets none.
pub fn set_time(entry: &FileEntry, mtime_ns: i128) -> bool {
    let fitting = u64::try_from(mtime_ns).ok().filter(|ns| ns & SET == 0);
    let Some(mtime_ns) = fitting else {
        entry.closed_ns.store(0, Ordering::SeqCst);
        return false;
    };
    entry.closed_ns.store(SET | mtime_ns, Ordering::SeqCst);
    let is_to_come = entry.flags.load(Ordering::SeqCst) & CLOSING != 0;
    if !is_to_come {
        // A program that has it open by now has times of its own.
        forget_time(entry, SET | mtime_ns);
    }
    is_to_come
}

/// No time is to come, unless another one than this has been set.
pub fn forget_time(entry: &FileEntry, seen: u64) {
    let word = &entry.closed_ns;
    let _ = word.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed);
}

/// The time that a file is to get, or has got, for its close. `None`: it has the program's.
pub fn time(entry: &FileEntry) -> Option<u64> {
    let closed = entry.closed_ns.load(Ordering::Acquire);
    let is_to_come = || entry.flags.load(Ordering::Acquire) & CLOSING != 0;
    let is_told = closed != 0 && (closed & SET == 0 || is_to_come());
    is_told.then_some(closed & !SET)
}

#[cfg(test)]
mod tests {
    use super::{CLOSING, FileEntry, Ordering, SET, set_time, time};

    fn entry() -> Box<FileEntry> {
        // SAFETY: an entry is made of atomic numbers, which may be zero.
        unsafe { Box::<FileEntry>::new_zeroed().assume_init() }
    }

    #[test]
    fn a_time_that_does_not_fit_is_left_to_the_program() {
        const LAST: i128 = (1 << 63) - 1;
        for (ns, fits) in [
            (0, true),
            (1, true),
            (LAST, true),
            (LAST + 1, false),
            (1 << 64, false),
            (-1, false),
        ] {
            let entry = entry();
            entry.flags.store(CLOSING, Ordering::Relaxed);
            entry.closed_ns.store(7, Ordering::Relaxed);
            assert_eq!(set_time(&entry, ns), fits, "{ns}");
            assert_eq!(time(&entry), fits.then_some(ns as u64), "{ns}");
        }
    }

    #[test]
    fn a_time_that_was_set_too_late_says_nothing() {
        let entry = entry();
        assert!(!set_time(&entry, 5));
        assert_eq!(entry.closed_ns.load(Ordering::Relaxed), 0);
        // Its program has died before it took that back.
        entry.closed_ns.store(SET | 5, Ordering::Relaxed);
        assert_eq!(time(&entry), None);
    }
}
