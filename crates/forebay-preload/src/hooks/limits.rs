//! The process's limits on the size of files and on descriptors, kept at hand: every write looks at the first, and whatever the engine
//! opens at the second.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};

use libc::{c_int, c_long, pid_t, rlimit};

use crate::attach;
use crate::inside::Inside;
use crate::raw;
use crate::real;

/// With so many descriptors a program misses none. Each fork copies the table up to the highest.
pub const ENOUGH: u64 = 4096;

/// With fewer, and no right to more, a program would miss those that the engine keeps: eleven for one file, three for each other.
const FEW: u64 = 64;

/// No byte may be written from here on.
static FILE_SIZE: AtomicU64 = AtomicU64::new(u64::MAX);

/// How many numbers there are for descriptors, and how many there could be.
static DESCRIPTORS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The limit on the size of files.
#[inline(always)]
pub fn file_size() -> u64 {
    FILE_SIZE.load(Relaxed)
}

/// How many numbers there are for descriptors.
pub fn descriptors() -> u64 {
    DESCRIPTORS[0].load(Relaxed)
}

/// How many there can be without more rights than the process has.
pub fn descriptors_max() -> u64 {
    DESCRIPTORS[1].load(Relaxed)
}

/// Whether the engine's descriptors would be ones that the program needs.
pub fn descriptors_are_few() -> bool {
    descriptors() < FEW && descriptors_max() <= descriptors()
}

/// Asks the kernel what they are.
pub fn look() {
    let ask = |resource, known| {
        let mut limit = rlimit {
            rlim_cur: known,
            rlim_max: known,
        };
        // SAFETY: the target is ours.
        unsafe { libc::getrlimit(resource, &raw mut limit) };
        limit
    };
    let size = ask(libc::RLIMIT_FSIZE, libc::RLIM_INFINITY);
    FILE_SIZE.store(size.rlim_cur, Relaxed);
    forebay::sys::limits::note_file_bytes(size.rlim_cur);
    let descriptors = ask(libc::RLIMIT_NOFILE, 0);
    DESCRIPTORS[0].store(descriptors.rlim_cur, Relaxed);
    DESCRIPTORS[1].store(descriptors.rlim_max, Relaxed);
}

/// The limit on descriptors is another than the program's for a moment, which is kept here meanwhile; 0: it is not. In a forked child
/// it stays so.
static RAISED_FROM: AtomicU64 = AtomicU64::new(0);
/// The process whose limit changes.
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// By how much it is raised at most.
const MORE: u64 = 1 << 14;

/// The right to change limits. The caller is inside: a handler of its thread's would wait for it.
struct Changing(#[allow(dead_code)] Inside);

impl Changing {
    fn begin() -> Self {
        if attach::is_on() {
            attach::notice_fork();
        }
        let inside = Inside::enter();
        let mut round = 0;
        while CHANGING.swap(1, Ordering::Acquire) != 0 {
            round += 1;
            forebay::sync::relax(round);
        }
        Changing(inside)
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.store(0, Ordering::Release);
    }
}

fn descriptors_limit(new: *const rlimit, before: *mut rlimit) -> bool {
    let resource = libc::RLIMIT_NOFILE as usize;
    let (new, before) = (new.expose_provenance(), before.expose_provenance());
    // SAFETY: both are null or our own variables.
    unsafe { raw::call(libc::SYS_prlimit64, [0, resource, new, before, 0, 0]) == 0 }
}

/// Does something with numbers for descriptors that the program has not: the first of them. The limit is raised meanwhile; a descriptor
/// that is there stays when it is not. `None`: there are none, or the program has so many that nobody misses any.
pub fn above<T>(act: impl FnOnce(c_int) -> T) -> Option<T> {
    let _changing = Changing::begin();
    let mut limit = rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    if !descriptors_limit(std::ptr::null(), &raw mut limit) {
        return None;
    }
    let from = limit.rlim_cur;
    let raised = rlimit {
        rlim_cur: limit.rlim_max.min(from + MORE),
        ..limit
    };
    if from == 0 || from > ENOUGH || raised.rlim_cur == from {
        return None;
    }
    RAISED_FROM.store(from, Ordering::SeqCst);
    let done = descriptors_limit(&raw const raised, std::ptr::null_mut()).then(|| {
        let done = act(from as c_int);
        descriptors_limit(&raw const limit, std::ptr::null_mut());
        done
    });
    RAISED_FROM.store(0, Ordering::SeqCst);
    done
}

/// Run by a forked child: what another thread of its parent's was at is undone.
pub fn in_child() {
    if CHANGING.load(Relaxed) == 0 {
        return;
    }
    let from = RAISED_FROM.load(Relaxed);
    let mut limit = rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    if from != 0 && descriptors_limit(std::ptr::null(), &raw mut limit) {
        limit.rlim_cur = from.min(limit.rlim_max);
        descriptors_limit(&raw const limit, std::ptr::null_mut());
    }
    RAISED_FROM.store(0, Relaxed);
    CHANGING.store(0, Relaxed);
}

/// What the kernel does to a thread that writes beyond the limit. The call fails with `EFBIG` where the program lives on.
#[cold]
pub fn exceeded() {
    let (process, thread) = (raw::process_id() as usize, raw::thread_id() as usize);
    let args = [process, thread, libc::SIGXFSZ as usize, 0, 0, 0];
    // SAFETY: takes no memory.
    unsafe { raw::call(libc::SYS_tgkill, args) };
}

export! {
    /// `setrlimit`.
    fn setrlimit64 | setrlimit(resource: c_int, limit: *const rlimit) -> c_int {
        let _changing = Changing::begin();
        // SAFETY: the caller's arguments.
        let result = unsafe { real::setrlimit64(resource, limit) };
        look();
        result
    }

    /// `prlimit`.
    fn prlimit64 | prlimit(process: pid_t, resource: c_int, limit: *const rlimit, before: *mut rlimit) -> c_int {
        let _changing = Changing::begin();
        // SAFETY: the caller's arguments.
        let result = unsafe { real::prlimit64(process, resource, limit, before) };
        look();
        result
    }

    /// `ulimit`. The limit is read where the caller has put it, should there be one.
    fn ulimit(command: c_int, limit: c_long) -> c_long {
        let _changing = Changing::begin();
        // SAFETY: takes no memory.
        let result = unsafe { real::ulimit(command, limit) };
        look();
        result
    }

    /// `vlimit`.
    fn vlimit(resource: c_int, limit: c_int) -> c_int {
        let _changing = Changing::begin();
        // SAFETY: takes no memory.
        let result = unsafe { real::vlimit(resource, limit) };
        look();
        result
    }
}
