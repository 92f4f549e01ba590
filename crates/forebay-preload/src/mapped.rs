//! Where this process has files mapped: so that it is heard when the last of a file's mappings ends, and the file may be managed again.
//!
//! Each range counts as one use of its file (`foreign`). What is mapped when the process forks is mapped in the child as well, and ends
//! there unheard: from then on it ends for this process alone, and the arena keeps its count. So do mappings for which there is no room.
//!
//! Ranges that show the arena's frames ([`views`]) are in the same table, and are no use of their file.

pub mod live;
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

/// Views of which nothing is mapped any more.
type Gone = Vec<views::Ended>;

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

    /// What is mapped there now is a file's.
    fn becomes(&self, file: File) {
        self.device.store(file.device, Relaxed);
        self.inode.store(file.inode, Relaxed);
        self.sticks.store(false, Relaxed);
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

/// A file has been mapped, for which [`foreign::begin`] has been called. What was there is gone.
pub fn begun(begin: usize, len: usize, file: File) {
    let lock = Lock::take();
    let gone = end_locked(&lock, begin, len);
    enter(begin, end_of(begin, len), What::File(file), false);
    lock.free(gone);
}

/// Has `call` map something over whatever is mapped there, and answer where. `file`: it is one for which [`foreign::begin`] has been called.
/// Nobody puts anything in its place before what was there is forgotten.
pub fn over(len: usize, file: Option<File>, call: impl FnOnce() -> isize) -> isize {
    let lock = Lock::take();
    let begin = call();
    let _errno = KeepErrno::new();
    if begin != -1 {
        let begin = begin as usize;
        let gone = end_locked(&lock, begin, len);
        if let Some(file) = file {
            enter(begin, end_of(begin, len), What::File(file), false);
        }
        lock.free(gone);
    }
    begin
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
    let mut lock = Lock::take();
    let mut what = at(&lock, begin);
    if let Some(What::View(view)) = what
        && let Some(lease) = views::lease_of(view)
        && !(end_of(begin, new_len) <= end_of(begin, len) && views::is_one_mapping(view))
    {
        // What lies behind its end is the file's.
        drop(lock);
        live::give_up(lease);
        lock = Lock::take();
        what = at(&lock, begin);
    }
    if matches!(what, Some(What::View(_))) && end_of(begin, new_len) > end_of(begin, len) {
        // Behind its end there are other frames.
        return serve::fail(libc::ENOMEM);
    }
    let to = call();
    let _errno = KeepErrno::new();
    if to == -1 {
        return to;
    }
    if let Some(what) = what {
        one_more(what, true);
    }
    let mut gone = Vec::new();
    if !stays {
        gone = end_locked(&lock, begin, len);
    }
    gone.append(&mut end_locked(&lock, to as usize, new_len));
    if let Some(what) = what {
        enter(to as usize, end_of(to as usize, new_len), what, false);
    }
    lock.free(gone);
    to
}

/// Nothing that was mapped there is any more. The views of which nothing is left, for [`Lock::free`].
fn end_locked(lock: &Lock, begin: usize, len: usize) -> Gone {
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
                match range.what() {
                    What::File(file) => foreign::end_of(file, !range.sticks.load(Relaxed)),
                    What::View(view) => gone.extend(views::one_fewer(lock, view)),
                }
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

/// What is mapped at an address, if a file is.
fn at(_lock: &Lock, begin: usize) -> Option<What> {
    let range = all()
        .iter()
        .find(|range| range.within(begin, begin + 1).is_some());
    range.map(Range::what)
}

/// Before a fork.
pub fn before_fork() {
    // A child would not hear who comes to write.
    let _ = live::end();
    forget(false);
}

/// In a child: nobody may have seen the fork come.
pub fn in_child() {
    views::in_child();
    live::in_child();
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
