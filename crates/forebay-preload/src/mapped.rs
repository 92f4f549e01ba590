//! Where this process has files mapped: so that it is heard when the last of a file's mappings ends, and the file may be managed again.
//!
//! Each range counts as one use of its file (`foreign`). What is mapped when the process forks is mapped in the child as well, and ends
//! there unheard: from then on it ends for this process alone, and the arena keeps its count. So do mappings for which there is no room.

use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed,
};

use crate::foreign::{self, File};
use crate::inside::Inside;
use crate::table;

const RANGES: usize = 4096;
const PAGE_BYTES: usize = 4096;

/// Whoever has the lock changes it. `end` 0: free.
struct Range {
    begin: AtomicUsize,
    end: AtomicUsize,
    device: AtomicU64,
    inode: AtomicU64,
    sticks: AtomicBool,
}

static TABLE: [Range; RANGES] = [const {
    Range {
        begin: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        sticks: AtomicBool::new(false),
    }
}; RANGES];
/// Ranges in use.
static USED: AtomicU32 = AtomicU32::new(0);
/// They are all below this.
static END: AtomicUsize = AtomicUsize::new(0);

fn all() -> &'static [Range] {
    &TABLE[..END.load(Relaxed)]
}

/// A forked child finds it free.
fn lock() -> &'static AtomicU64 {
    table::wiped(table::WIPED_LOCK_MAPPED)
}

struct Lock(#[allow(dead_code)] Inside);

impl Lock {
    fn take() -> Self {
        let inside = Inside::enter();
        while lock()
            .compare_exchange(0, 1, Ordering::Acquire, Relaxed)
            .is_err()
        {
            std::thread::yield_now();
        }
        Lock(inside)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        lock().store(0, Ordering::Release);
    }
}

impl Range {
    fn file(&self) -> File {
        File {
            device: self.device.load(Relaxed),
            inode: self.inode.load(Relaxed),
        }
    }

    fn set(&self, begin: usize, end: usize) {
        self.begin.store(begin, Relaxed);
        self.end.store(end, Relaxed);
    }

    /// What of it lies within. `None`: nothing.
    fn within(&self, begin: usize, end: usize) -> Option<(usize, usize)> {
        let begin = begin.max(self.begin.load(Relaxed));
        let end = end.min(self.end.load(Relaxed));
        (begin < end).then_some((begin, end))
    }
}

/// Whether anything is mapped that is known of.
#[inline]
pub fn any() -> bool {
    USED.load(Relaxed) != 0
}

fn end_of(begin: usize, len: usize) -> usize {
    begin.saturating_add(len.next_multiple_of(PAGE_BYTES))
}

fn enter(begin: usize, end: usize, file: File, sticks: bool) -> bool {
    let is_free = |range: &Range| range.end.load(Relaxed) == 0;
    let Some(at) = TABLE.iter().position(is_free) else {
        return false;
    };
    let free = &TABLE[at];
    END.fetch_max(at + 1, Relaxed);
    free.device.store(file.device, Relaxed);
    free.inode.store(file.inode, Relaxed);
    free.sticks.store(sticks, Relaxed);
    free.set(begin, end);
    USED.fetch_add(1, Relaxed);
    true
}

/// A file has been mapped, for which [`foreign::begin`] has been called. What was there is gone.
pub fn begun(begin: usize, len: usize, file: File) {
    ended(begin, len);
    let _lock = Lock::take();
    enter(begin, end_of(begin, len), file, false);
}

/// Nothing that was mapped there is any more.
pub fn ended(begin: usize, len: usize) {
    if !any() {
        return;
    }
    let end = end_of(begin, len);
    let _lock = Lock::take();
    for range in all() {
        let Some((cut, rest)) = range.within(begin, end) else {
            continue;
        };
        let (first, last) = (range.begin.load(Relaxed), range.end.load(Relaxed));
        match (cut == first, rest == last) {
            (true, true) => {
                range.set(0, 0);
                USED.fetch_sub(1, Relaxed);
                foreign::end_of(range.file(), !range.sticks.load(Relaxed));
            }
            (true, false) => range.set(rest, last),
            (false, true) => range.set(first, cut),
            (false, false) => {
                let sticks = range.sticks.load(Relaxed);
                // Without room the range stays as it is, and is forgotten when all of it is.
                if enter(rest, last, range.file(), sticks) {
                    range.set(first, cut);
                    foreign::begin_again(range.file(), !sticks);
                }
            }
        }
    }
}

/// What is mapped at an address, if a file is.
pub fn at(begin: usize) -> Option<File> {
    if !any() {
        return None;
    }
    let _lock = Lock::take();
    let range = all()
        .iter()
        .find(|range| range.within(begin, begin + 1).is_some());
    range.map(Range::file)
}

/// Before a fork.
pub fn before_fork() {
    if any() {
        let _lock = Lock::take();
        all()
            .iter()
            .for_each(|range| range.sticks.store(true, Relaxed));
    }
}

/// In a child: nobody may have seen the fork come.
pub fn in_child() {
    before_fork();
}
