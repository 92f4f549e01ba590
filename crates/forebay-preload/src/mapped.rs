//! Where this process has files mapped: so that it is heard when the last of a file's mappings ends, and the file may be managed again.
//!
//! Each range counts as one use of its file (`foreign`). What is mapped when the process forks is mapped in the child as well, and ends
//! there unheard: from then on it ends for this process alone, and the arena keeps its count. So do mappings for which there is no room.
//!
//! Ranges that show the arena's frames ([`views`]) are in the same table, and are no use of their file.

pub mod views;

use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed,
};

use crate::foreign::{self, File};
use crate::inside::Inside;
use crate::raw::KeepErrno;
use crate::serve;
use crate::table;

const RANGES: usize = 4096;
/// Of the kernel's.
pub const PAGE_BYTES: usize = 4096;

/// What is mapped.
#[derive(Clone, Copy)]
pub enum What {
    /// The kernel's pages of a file.
    File(File),
    /// Frames of the arena: a view by its number.
    View(usize),
}

/// In place of a device's number: the other number is that of a view.
const VIEW: u64 = u64::MAX;

/// The holder of the lock changes it. `end` 0: free.
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

/// Views of which nothing is mapped any more.
type Gone = Vec<views::Pinned>;

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

    /// Lets it go, and then the pins of views.
    fn free(self, gone: Gone) {
        let _inside = Inside::enter();
        drop(self);
        drop(gone);
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        lock().store(0, Ordering::Release);
    }
}

impl Range {
    fn what(&self) -> What {
        let (device, inode) = (self.device.load(Relaxed), self.inode.load(Relaxed));
        match device {
            VIEW => What::View(inode as usize),
            _ => What::File(File { device, inode }),
        }
    }

    /// Where it is, if it is a part of a view.
    fn of_view(&self) -> Option<(usize, usize)> {
        let (begin, end) = (self.begin.load(Relaxed), self.end.load(Relaxed));
        (end != 0 && self.device.load(Relaxed) == VIEW).then_some((begin, end))
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

/// Whether a range, and one that it is cut into, have room.
fn has_room() -> bool {
    (USED.load(Relaxed) as usize) + 2 < RANGES
}

fn enter(begin: usize, end: usize, what: What, sticks: bool) -> bool {
    let is_free = |range: &Range| range.end.load(Relaxed) == 0;
    let Some(at) = TABLE.iter().position(is_free) else {
        return false;
    };
    let free = &TABLE[at];
    END.fetch_max(at + 1, Relaxed);
    let (device, inode) = match what {
        What::File(file) => (file.device, file.inode),
        What::View(view) => (VIEW, view as u64),
    };
    free.device.store(device, Relaxed);
    free.inode.store(inode, Relaxed);
    free.sticks.store(sticks, Relaxed);
    free.set(begin, end);
    USED.fetch_add(1, Relaxed);
    true
}

/// A file has been mapped, for which [`foreign::begin`] has been called. What was there is gone. `forks`: [`views::forks`] before. A child
/// that has been forked since has the mapping, too: the lock is not held meanwhile, since the thread that is to serve the mapping may need it.
pub fn begun(begin: usize, len: usize, file: File, forks: Option<u32>) {
    let lock = Lock::take();
    let gone = end_locked(&lock, begin, len);
    let sticks = forks.is_none() || forks != views::forks();
    enter(begin, end_of(begin, len), What::File(file), sticks);
    lock.free(gone);
}

/// Nothing that was mapped there is any more.
pub fn ended(begin: usize, len: usize) {
    if any() {
        let lock = Lock::take();
        let gone = end_locked(&lock, begin, len);
        lock.free(gone);
    }
}

/// Has `call` unmap a range, and answer 0. Nobody comes to know of another mapping there before this one is forgotten.
pub fn unmap(begin: usize, len: usize, call: impl FnOnce() -> isize) -> isize {
    let lock = Lock::take();
    let is_part = |range: &Range| range.within(begin, end_of(begin, len)).is_some();
    if !all().iter().any(is_part) {
        // Threads that give much memory back do not wait for one another.
        drop(lock);
        return call();
    }
    let done = call();
    let _errno = KeepErrno::new();
    if done == 0 {
        let gone = end_locked(&lock, begin, len);
        lock.free(gone);
    }
    done
}

/// Has `call` move a range or change its length, and answer where it is, or -1. `stays`: what was mapped there still is. The same holds as
/// for [`unmap`].
pub fn remap(
    (begin, len): (usize, usize),
    new_len: usize,
    stays: bool,
    call: impl FnOnce() -> isize,
) -> isize {
    let lock = Lock::take();
    let (end, new_end) = (end_of(begin, len.max(1)), end_of(begin, new_len));
    let parts = parts(&lock, begin, end);
    let last = parts.iter().rfind(|part| part.end == end);
    if new_end > end && matches!(last, Some(part) if matches!(part.what, What::View(_))) {
        // Behind its end there are other frames.
        return serve::fail(libc::ENOMEM);
    }
    let to = call();
    let _errno = KeepErrno::new();
    if to == -1 {
        // Of several, some may have been moved: they stay pinned.
        if parts.len() > 1 {
            parts.iter().for_each(|part| one_more(part.what, true));
        }
        return to;
    }
    let to = to as usize;
    parts.iter().for_each(|part| one_more(part.what, true));
    let mut gone = Vec::new();
    if !stays {
        gone = end_locked(&lock, begin, len);
    }
    gone.append(&mut end_locked(&lock, to, new_len));
    for part in parts {
        let part_end = if part.end == end {
            new_end
        } else {
            part.end.min(new_end)
        };
        if part.begin < part_end {
            enter(
                to + (part.begin - begin),
                to + (part_end - begin),
                part.what,
                false,
            );
        } else {
            gone.extend(one_fewer(part.what, true));
        }
    }
    lock.free(gone);
    to as isize
}

/// Nothing that was mapped there is any more. The views of which nothing is left, for [`Lock::free`].
fn end_locked(_lock: &Lock, begin: usize, len: usize) -> Gone {
    let mut gone = Vec::new();
    let end = end_of(begin, len);
    for range in all() {
        let Some((cut, rest)) = range.within(begin, end) else {
            continue;
        };
        let (first, last) = (range.begin.load(Relaxed), range.end.load(Relaxed));
        match (cut == first, rest == last) {
            (true, true) => {
                range.set(0, 0);
                USED.fetch_sub(1, Relaxed);
                gone.extend(one_fewer(range.what(), !range.sticks.load(Relaxed)));
            }
            (true, false) => range.set(rest, last),
            (false, true) => range.set(first, cut),
            (false, false) => {
                let sticks = range.sticks.load(Relaxed);
                // Without room the range stays as it is, and is forgotten when all of it is.
                if enter(rest, last, range.what(), sticks) {
                    range.set(first, cut);
                    one_more(range.what(), !sticks);
                }
            }
        }
    }
    gone
}

/// One more range of what is mapped; `told`: the arena hears of it.
fn one_more(what: What, told: bool) {
    match what {
        What::File(file) => foreign::begin_again(file, told),
        What::View(view) => views::one_more(view),
    }
}

/// One range less. What is left of a view whose last one it was is to be dropped once the lock is free.
fn one_fewer(what: What, told: bool) -> Option<views::Pinned> {
    match what {
        What::File(file) => {
            foreign::end_of(file, told);
            None
        }
        What::View(view) => views::one_fewer(view),
    }
}

/// What is mapped in a part of a range.
struct Part {
    begin: usize,
    end: usize,
    what: What,
}

/// Parts of a range that are known of.
fn parts(_lock: &Lock, begin: usize, end: usize) -> Vec<Part> {
    let part = |range: &Range| {
        let (begin, end) = range.within(begin, end)?;
        let what = range.what();
        Some(Part { begin, end, what })
    };
    all().iter().filter_map(part).collect()
}

/// Whether the arena's frames are mapped somewhere in a range.
pub fn shows_frames(begin: usize, len: usize) -> bool {
    let _lock = Lock::take();
    let end = begin.saturating_add(len);
    let is_one = |range: &Range| range.of_view().is_some() && range.within(begin, end).is_some();
    all().iter().any(is_one)
}

/// Before a fork.
pub fn before_fork() {
    forget(false);
}

/// In a child: nobody may have seen the fork come.
pub fn in_child() {
    views::in_child();
    forget(true);
}

/// What is mapped ends unheard from now on.
fn forget(is_child: bool) {
    let _lock = Lock::take();
    if any() {
        all()
            .iter()
            .for_each(|range| range.sticks.store(true, Relaxed));
    }
    views::leave_to_the_kernel(is_child);
}
