//! The process's way into the session: looked at from outside until the first file becomes managed, then joined for good.
//!
//! A forked child forgets the parent's session without touching its locks: what belonged to it is never freed, and its
//! descriptors are closed, since the child has copies of them.

mod begins;

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};

use forebay::config::{Builder, Options};
use forebay::memory::cgroup::Limits;
use forebay::session::adopt::{self, ForGood};
use forebay::session::glance::Glance;
use forebay::session::standing;
use forebay::{Config, Error, Session};
use libc::c_int;

use crate::files;
use crate::golang;
use crate::hooks::limits;
use crate::inside::{self, Inside};
use crate::parting::{self, Mapped};
use crate::raw::KeepErrno;
use crate::signals;
use crate::table::{self, Kind, Word};
pub use begins::{begins_by_time, is_large, is_read_by_kernel, is_synced_often};

/// How long an arena that was not there is not looked for again, and one that was there counts as there, ms.
const LOOK_AGAIN_MS: i64 = 1000;

/// Tries to look at the arena of the session that has just been joined.
const LOOKS_MAX: u32 = 1000;

struct Seen {
    glance: Glance,
    path: PathBuf,
    inode: u64,
}

static SEEN: AtomicPtr<Seen> = AtomicPtr::new(std::ptr::null_mut());
static LOOKED_MS: AtomicI64 = AtomicI64::new(i64::MIN / 2);
static SESSION: AtomicPtr<Session> = AtomicPtr::new(std::ptr::null_mut());
static CONFIG: AtomicPtr<Config> = AtomicPtr::new(std::ptr::null_mut());
/// Bytes below which a file's writes are not worth reading the configuration for.
static ASKED_FROM: AtomicU64 = AtomicU64::new(4096);
/// Set where nothing shall be managed (any more).
static OFF: AtomicU32 = AtomicU32::new(0);
/// Set where the program uses the kernel in ways that pass no hook.
static ONLY_WATCHES: AtomicU32 = AtomicU32::new(0);
/// Whether the process was asked into a session at all ([`ASKED`]), and the library does what it was asked for: while the child
/// of a `vfork` has this process's memory it rests.
static WANTED: AtomicU32 = AtomicU32::new(0);
const ASKED: u32 = 1;
const RESTING: u32 = 2;

/// Called once, when the library has been loaded.
pub fn at_start() {
    // SAFETY: a string that ends in a null byte; nobody changes the environment during start.
    let has = |name: &CStr| unsafe { !libc::getenv(name.as_ptr()).is_null() };
    if !has(c"FOREBAY_SESSION") || has(CONFINED_MARK) || golang::is_the_program() {
        return;
    }
    // SAFETY: as above.
    let small = unsafe { libc::getenv(c"FOREBAY_SMALL_FILE_BYTES".as_ptr()) };
    if !small.is_null() {
        ASKED_FROM.store(0, Relaxed);
    }
    limits::look();
    table::at_start();
    WANTED.store(ASKED, Relaxed);
    signals::attached();
    crate::hooks::pass::environment::remember();
    let _inside = Inside::enter();
    files::watch_inherited();
}

/// [`while_alone`] has been here, or the process has joined.
static PREPARED: AtomicU32 = AtomicU32::new(0);

/// A process of one thread is about to have another: does what the kernel makes every processor wait for once there are more,
/// 10 to 30 ms each, in the middle of a program's write, against 5 us together. They are barriers in every thread, and a table of
/// descriptors that has room for ours. A process that joins does all of that.
pub fn while_alone() {
    table::holders::several_threads();
    if !is_on() || PREPARED.swap(1, Relaxed) != 0 {
        return;
    }
    let _errno = KeepErrno::new();
    let _inside = Inside::enter();
    forebay::sys::membarrier::prepare();
    crate::inodes::prepare_barrier();
    // A path alone: closing it gives up no locks of the program's, as closing a copy of one of its descriptors would.
    // SAFETY: the string ends in a null byte.
    let any = unsafe { crate::real::open64(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC, 0) };
    // SAFETY: takes no memory.
    let dup = |from: c_int| unsafe { libc::fcntl(any, libc::F_DUPFD_CLOEXEC, from) };
    let top = limits::above(dup).unwrap_or_else(|| dup(descriptors() - 1));
    // SAFETY: these take no memory; the descriptors were made here, and nobody else has seen them.
    unsafe {
        for made in [top, any] {
            if made >= 0 {
                crate::real::close(made);
            }
        }
    }
}

/// From now on nothing becomes managed in this process.
pub fn turn_off() {
    OFF.store(1, Relaxed);
}

/// Undoes [`turn_off`].
pub fn turn_on() {
    OFF.store(0, Relaxed);
}

/// Set where the process may be killed for a system call that the library makes for it.
static CONFINED: AtomicU32 = AtomicU32::new(0);
/// In the environment: programs that such a process executes are no better off.
const CONFINED_MARK: &CStr = c"FOREBAY__CONFINED";

/// The library does nothing any more, in this process and those that it becomes or starts: they would not come into the session.
/// All of its files are the kernel's by now.
pub fn confine() {
    // SAFETY: strings that end in null bytes. What else a program does with its environment at this moment is its own race.
    unsafe { libc::setenv(CONFINED_MARK.as_ptr(), c"1".as_ptr(), 1) };
    crate::hooks::pass::environment::keep(c"FOREBAY__CONFINED=1");
    CONFINED.store(1, Relaxed);
    table::hide();
}

/// Whether that is so.
pub fn is_confined() -> bool {
    CONFINED.load(Relaxed) != 0
}

/// Whether the process was asked into a session at all.
pub fn is_asked() -> bool {
    WANTED.load(Relaxed) == ASKED
}

/// From now on nothing becomes managed in this process, which goes on to say what it has open.
pub fn watch_only() {
    ONLY_WATCHES.store(1, Relaxed);
}

/// Whether that is so.
pub fn only_watches() -> bool {
    ONLY_WATCHES.load(Relaxed) != 0
}

/// From now on nothing of the library's does anything, until [`go_on`]. For a process that is asked in and has not turned off.
pub fn rest() {
    WANTED.store(RESTING, Relaxed);
}

/// Whether it rests: this is the child of a `vfork`.
pub fn rests() -> bool {
    WANTED.load(Relaxed) == RESTING
}

/// What was before [`rest`], whatever a child has done meanwhile.
pub fn go_on() {
    OFF.store(0, Relaxed);
    WANTED.store(ASKED, Relaxed);
}

/// Whether files may become managed.
#[inline]
pub fn is_on() -> bool {
    WANTED.load(Relaxed) == ASKED && OFF.load(Relaxed) == 0
}

/// The configuration, read at its first use: most programs write little and need none. What the session's memory is the arena
/// says, so that nobody looks for what the machine has.
fn config() -> Option<&'static Config> {
    let known = CONFIG.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: never freed.
        return Some(unsafe { &*known });
    }
    let memory = glance()?.memory_bytes();
    let _errno = KeepErrno::new();
    let _inside = Inside::enter();
    let read = || {
        let mut options = Options::default();
        options.set("memory", &memory.to_string())?;
        Builder::of_this_process()?
            .limits(Limits::unknown())
            .options(options)
            .build()
    };
    // Limits that do not fit this session's memory, but the machine's.
    let config = read().or_else(|_| Config::load()).ok()?;
    let config = Box::into_raw(Box::new(config));
    let null = std::ptr::null_mut();
    match CONFIG.compare_exchange(null, config, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: made above, and never freed.
        Ok(_) => Some(unsafe { &*config }),
        Err(other) => {
            // SAFETY: made above, and given to nobody; the other one is never freed.
            unsafe {
                drop(Box::from_raw(config));
                Some(&*other)
            }
        }
    }
}

fn now_ms() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the target is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// Where the session's arena is: where the environment says, else where one of that name is found.
fn find_arena() -> Option<PathBuf> {
    match std::env::var_os("FOREBAY__ARENA").filter(|path| !path.is_empty()) {
        Some(path) => Some(PathBuf::from(path)),
        None => adopt::find_arena(&Config::load().ok()?),
    }
}

/// The session's arena, if this process has ever looked at it.
pub fn known_glance() -> Option<&'static Glance> {
    let seen = SEEN.load(Ordering::Acquire);
    // SAFETY: made by a box below, and never freed.
    (!seen.is_null()).then(|| unsafe { &(*seen).glance })
}

/// The session's arena, if there is one: one load and one look at the clock, mostly.
#[inline]
pub fn glance() -> Option<&'static Glance> {
    let seen = SEEN.load(Ordering::Acquire);
    if seen.is_null() {
        return glance_anew();
    }
    // SAFETY: made by a box below, and never freed.
    let glance = unsafe { &(*seen).glance };
    if glance.has_ended() {
        return glance_instead(seen);
    }
    Some(glance)
}

/// The arena that has taken the place of one that has been removed, or of one that this process is not in.
#[cold]
fn glance_instead(of: *mut Seen) -> Option<&'static Glance> {
    let null = std::ptr::null_mut();
    if SEEN
        .compare_exchange(of, null, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
    {
        LOOKED_MS.store(i64::MIN / 2, Relaxed);
    }
    glance_anew()
}

/// As [`glance`], for calls that take long anyway: notices that the arena has been replaced.
pub fn fresh_glance() -> Option<&'static Glance> {
    let seen = SEEN.load(Ordering::Acquire);
    let joined = !SESSION.load(Ordering::Acquire).is_null();
    if !seen.is_null() && !joined && now_ms() - LOOKED_MS.load(Relaxed) > LOOK_AGAIN_MS {
        let _errno = KeepErrno::new();
        let _inside = Inside::enter();
        LOOKED_MS.store(now_ms(), Relaxed);
        // SAFETY: never freed.
        let known = unsafe { &*seen };
        let same = matches!(std::fs::metadata(&known.path), Ok(meta) if meta.ino() == known.inode);
        if !same {
            return glance_instead(seen);
        }
    }
    glance()
}

#[cold]
fn glance_anew() -> Option<&'static Glance> {
    if !is_on() || now_ms() - LOOKED_MS.load(Relaxed) < LOOK_AGAIN_MS {
        return None;
    }
    let _errno = KeepErrno::new();
    let _inside = Inside::enter();
    LOOKED_MS.store(now_ms(), Relaxed);
    let path = find_arena()?;
    let (glance, inode) = Glance::at(&path)?;
    if glance.has_ended() {
        // It could not be removed.
        return None;
    }
    let seen = Box::into_raw(Box::new(Seen {
        glance,
        path,
        inode,
    }));
    let null = std::ptr::null_mut();
    match SEEN.compare_exchange(null, seen, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: never freed from here on.
            let glance = unsafe { &(*seen).glance };
            parting::note(Mapped::Glance(glance));
            if !is_on() {
                // The process may have left meanwhile, and not have seen this.
                let _ = SEEN.compare_exchange(seen, null, Ordering::AcqRel, Ordering::Relaxed);
                let _ = glance.give_up();
                return None;
            }
            crate::kernel::tell(glance);
            Some(glance)
        }
        Err(other) => {
            // SAFETY: made above, and given to nobody; the other one is never freed.
            unsafe {
                drop(Box::from_raw(seen));
                Some(&(*other).glance)
            }
        }
    }
}

/// The session, joined now if it has not been. The caller is inside, and alone in the rare paths of the process.
pub fn session() -> Option<&'static Session> {
    try_session().ok().flatten()
}

/// The same. `None`: there is none to be joined. An error: there is one, which this process cannot join.
pub fn try_session() -> Result<Option<&'static Session>, Error> {
    let session = SESSION.load(Ordering::Acquire);
    if !session.is_null() {
        // SAFETY: never freed.
        return Ok(Some(unsafe { &*session }));
    }
    if !is_on() || glance().is_none() {
        return Ok(None);
    }
    if PREPARED.swap(1, Relaxed) == 0 {
        crate::inodes::prepare_barrier();
    }
    let seen = SEEN.load(Ordering::Acquire);
    if seen.is_null() {
        // Another thread has just seen that it has ended.
        return Ok(None);
    }
    // SAFETY: never freed.
    let path = unsafe { (*seen).path.clone() };
    let Some(config) = config().cloned() else {
        return Ok(None);
    };
    let ways = ForGood {
        relocate,
        own: table::own,
        turns: inside::turns,
    };
    let Some(joined) = Session::join_for_good(&path, config, ways)? else {
        return Ok(None);
    };
    let session: &'static Session = Box::leak(Box::new(joined));
    parting::note(Mapped::Session(session));
    // The arena may have been replaced since this process looked at it, which kept nobody from that. Another thread may be looking as well.
    let mut tries = 0;
    while !known_glance().is_some_and(|glance| glance.is_of(session)) && tries < LOOKS_MAX {
        glance_instead(SEEN.load(Ordering::Acquire));
        forebay::sync::relax(tries);
        tries += 1;
    }
    put_back(session);
    Ok(Some(session))
}

/// From now on the process has joined no session. The one that it had joined, if any. The caller is alone in the rare paths.
pub fn take_session() -> Option<&'static Session> {
    let session = SESSION.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: never freed.
    (!session.is_null()).then(|| unsafe { &*session })
}

/// It is joined.
pub fn put_back(session: &'static Session) {
    SESSION.store(std::ptr::from_ref(session).cast_mut(), Ordering::Release);
}

/// From now on the process has looked at no arena.
pub fn forget_glance() {
    SEEN.store(std::ptr::null_mut(), Ordering::SeqCst);
}

/// Set once the process has left its session for good, and has nothing of it any more.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// It has.
pub fn set_left() {
    LEFT.store(1, Relaxed);
}

/// Whether it has.
pub fn has_left() -> bool {
    LEFT.load(Relaxed) != 0
}

/// The session, if the process is in one.
pub fn joined() -> Option<&'static Session> {
    let session = SESSION.load(Ordering::Acquire);
    // SAFETY: never freed.
    (!session.is_null()).then(|| unsafe { &*session })
}

/// Makes sure that the calling thread has a slot in the session before it waits for anything of the process's: a thread that waits for
/// a slot has nothing that those with one need. Whether it has one, where the process has joined.
pub fn has_slot() -> bool {
    joined().is_none_or(|session| session.shared().me().is_ok())
}

/// The calling thread leaves the engine, with a slot for a turn.
pub fn end_turn() {
    if let Some(session) = joined() {
        session.end_turn();
    }
}

/// Moves a descriptor of the engine's beyond the numbers that the program has, else to the top of these, and marks it as ours.
pub fn relocate(fd: OwnedFd) -> OwnedFd {
    // SAFETY: takes no memory. The new descriptor is ours.
    let dup = |from: c_int| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, from) };
    // SAFETY: made just now.
    let owned = |moved: c_int| (moved >= 0).then(|| unsafe { OwnedFd::from_raw_fd(moved) });
    let mark = |moved: &OwnedFd| {
        let has_room = table::has_room(moved.as_raw_fd());
        if has_room {
            table::set(moved.as_raw_fd(), Word::OURS);
        }
        has_room
    };
    let above = limits::above(dup).and_then(owned);
    if let Some(moved) = above.filter(mark) {
        return moved;
    }
    let top = descriptors();
    let mut step = 16;
    while step < top {
        if let Some(moved) = owned(dup((top - step).max(3))).filter(mark) {
            return moved;
        }
        step *= 2;
    }
    table::set(fd.as_raw_fd(), Word::OURS);
    fd
}

/// How many numbers there are for descriptors, as far as we use them.
fn descriptors() -> c_int {
    limits::descriptors().min(limits::ENOUGH) as c_int
}

/// Run by a child that has just been forked, before anything else of ours.
pub fn in_child() {
    table::forget_who();
    standing::forget(&inside::thread().place);
    limits::in_child();
    table::set_alive();
    let _errno = KeepErrno::new();
    files::in_child();
    table::in_child();
    // Each page that is written to is copied, in every child.
    if PREPARED.load(Relaxed) != 0 {
        PREPARED.store(0, Relaxed);
    }
    if joined().is_some() {
        SESSION.store(std::ptr::null_mut(), Ordering::Release);
    }
    for (fd, word) in table::each() {
        match word.kind() {
            Kind::Ours => {
                table::set(fd, Word::NONE);
                // SAFETY: a copy of the parent's descriptor, which nobody in this process uses any more.
                unsafe { crate::real::close(fd) };
            }
            Kind::Managed => {
                table::set(fd, word.orphan());
            }
            _ => {}
        }
    }
}

/// Whether the process has become another one since it last looked, by a fork that no hook saw.
#[inline(always)]
pub fn notice_fork() {
    if !table::is_alive() {
        in_child();
    }
}
