//! Managed files of this process: what descriptors stand for.
//!
//! What hooks that do not serve a call themselves use is in [`crate::kernel`], and comes from here as well. What hooks that do
//! serve use: [`opened`], [`attach`], [`leave`], [`closing`].

mod duplicates;
mod ends;
mod handed;
mod look;
mod system;

use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use forebay::member::gone::Place;
use forebay::session::glance::Glance;
use libc::c_int;

pub use self::duplicates::{duplicated, replaced};
pub use self::ends::*;
pub use self::handed::announce_inherited;
pub use self::look::Look;
use self::system::{Of, file_system_of};
use crate::attach;
use crate::foreign;
use crate::hooks::limits;
use crate::inodes::{self, Number, Taken};
use crate::inside::{self, Inside, NotCancelled};
use crate::kernel;
pub use crate::kernel::{
    Given, Why, cut_by_kernel, cut_unless_known, give_all_and_watch, give_inheritable_to_kernel,
    give_inode_to_kernel, give_path_to_kernel, give_to_kernel, leave, leave_session, stdio_uses,
};
use crate::mapped;
use crate::rare::{Apart, Rare};
use crate::raw::KeepErrno;
use crate::real;
use crate::streams::libcs;
use crate::table::{
    self, APPENDS, Description, FOREIGN, HEARD, Kind, OF_STORE, REACHED, SYNCS, State, Word,
};

/// Open for longer than the library has been there, or in a way that cannot be managed.
const NEVER: c_int = libc::O_DIRECT | libc::O_SYNC | libc::O_DSYNC;

/// Whether the engine may have bytes of the file behind this descriptor: one load. `false` for anything else.
#[inline]
pub fn is_known(fd: c_int) -> bool {
    table::word(fd).is_file()
}

/// Device and inode of the file behind a descriptor, where it is a regular file that was looked at when it was opened. Nobody is asked.
pub fn numbers(fd: c_int) -> Option<(u64, u64)> {
    let word = table::word(fd);
    word.is_file().then(|| {
        let description = word.description();
        let device = description.device.load(Relaxed);
        (device, description.inode.load(Relaxed))
    })
}

/// Whether a descriptor is the engine's, and none of the program's.
pub fn is_ours(fd: c_int) -> bool {
    table::word(fd).kind() == Kind::Ours && !Inside::is()
}

/// Descriptors that shells redirect.
pub const INHERITED: std::ops::Range<c_int> = 0..10;

/// Files that were open before the library came: the shell's redirections. Their offsets are shared with unknown processes, so
/// they are never managed; but should their file be, it goes to the kernel.
pub fn watch_inherited() {
    for fd in INHERITED {
        let Some(look) = Look::at(fd).filter(Look::is_regular) else {
            continue;
        };
        // SAFETY: takes no memory.
        let flags = unsafe { real::fcntl64(fd, libc::F_GETFL, 0) };
        // Should its file stay managed, nobody can be told.
        let _ = enter(
            fd,
            &look,
            flags,
            FOREIGN | REACHED,
            table::new_own_description,
        );
    }
}

/// A descriptor has just been opened: regular files become candidates, and those that the session has bytes of are managed at
/// once, but for idle ones of which little may be read (docs/decisions/0073). An error: it can neither be looked after nor go to the kernel, and must be closed.
pub fn opened(fd: c_int, flags: c_int) -> Given {
    // Its bits are among those that ask for a file without a name.
    let is_unnamed = flags & libc::O_TMPFILE == libc::O_TMPFILE;
    let is_directory = flags & libc::O_DIRECTORY != 0 && !is_unnamed;
    if !attach::is_on() || flags & libc::O_PATH != 0 || is_directory {
        return Ok(());
    }
    let _errno = KeepErrno::new();
    let more = if attach::only_watches() {
        FOREIGN | REACHED
    } else if flags & NEVER != 0 || is_unnamed {
        FOREIGN
    } else {
        0
    };
    let Some(look) = Look::seen(fd).filter(Look::is_regular) else {
        return Ok(());
    };
    match file_system_of(fd, &look) {
        Of::Kernel => Ok(()),
        Of::Store => enter(fd, &look, flags, more | OF_STORE, table::new_description),
        Of::Other => enter(fd, &look, flags, more, table::new_description),
    }
}

/// A descriptor gets a word, with a description from `new`.
fn enter(
    fd: c_int,
    look: &Look,
    flags: c_int,
    more: u32,
    new: fn(u32, &Look) -> Option<u32>,
) -> Given {
    attach::notice_fork();
    let access = flags & libc::O_ACCMODE;
    let reads = access != libc::O_WRONLY;
    let writes = access != libc::O_RDONLY;
    let appends = if flags & libc::O_APPEND != 0 {
        APPENDS
    } else {
        0
    };
    let has_room = table::has_room(fd);
    let new = || new(appends | more & !REACHED, look);
    let Some(index) = has_room.then(new).flatten() else {
        // What is done with it passes no hook.
        foreign::reach(look.device, look.inode);
        return give_inode_to_kernel(look.device, look.inode, Why::Unable);
    };
    let word = Word::candidate(index, reads, writes);
    table::set(fd, word);
    if more & REACHED != 0 {
        kernel::reach(word.description());
        kernel::note_left(fd, look.identity(), why_watched());
    } else if more & FOREIGN != 0 {
        kernel::note_left(fd, look.identity(), Why::Opened);
    }
    by_stdio(fd);
    // SAFETY: the program's descriptor, which it has just been given and no other thread knows of.
    let opened = unsafe { borrow(fd) };
    if let Some(glance) = attach::fresh_glance()
        && let Some(known) = glance.known_of(look.identity(), opened)
    {
        if known.is_idle() && may_stay_idle(more) {
            // Errors from now on are news to it, also if it is managed later.
            let description = word.description();
            description.seen.store(known.error_sequence, Relaxed);
            description.set_flag(HEARD, true);
        } else {
            // Should it be neither managed here nor the kernel's, its first use says so.
            let _ = attach(fd, word);
        }
    }
    Ok(())
}

/// Whether an idle file that has just been opened need not be managed at once. The process is in the session: so that cannot end and another one begin,
/// of which this process hears late.
fn may_stay_idle(more: u32) -> bool {
    more & !OF_STORE == 0
        && attach::joined().is_some()
        && attach::begins_by_time(more & OF_STORE != 0)
}

/// Why a descriptor that is only watched is no more than that.
fn why_watched() -> Why {
    if attach::only_watches() {
        Why::Asynchronous
    } else {
        Why::Inherited
    }
}

/// Whether the session manages a candidate's file by now, so that the kernel must not be asked.
#[inline]
pub fn is_managed_elsewhere(description: &Description) -> bool {
    is_not_the_kernels(description, Glance::is_known)
}

/// As [`is_managed_elsewhere`], for calls that only read: what the session has of a file that nobody uses is what the device file has.
#[inline]
pub fn is_used_elsewhere(description: &Description) -> bool {
    is_not_the_kernels(description, Glance::is_used)
}

#[inline(always)]
fn is_not_the_kernels(description: &Description, asked: fn(&Glance, u64, u64) -> bool) -> bool {
    if description.state() != State::Kernels {
        return true;
    }
    let (device, inode) = (
        description.device.load(Relaxed),
        description.inode.load(Relaxed),
    );
    attach::glance().is_some_and(|glance| asked(glance, device, inode))
}

/// Whether a candidate's bytes are the engine's, or its offset is: a call past the library finds neither with the kernel.
pub fn is_of_engine(description: &Description) -> bool {
    description.state() != State::Left && is_managed_elsewhere(description)
}

/// Manages the file behind a candidate or an orphan. Where that cannot be, the descriptor is the kernel's from now on; where the file
/// cannot go to the kernel either, the call must fail.
#[cold]
pub fn attach(fd: c_int, word: Word) -> Given {
    let _errno = KeepErrno::new();
    let _inside = Inside::enter();
    let _cancel = NotCancelled::new();
    attach::notice_fork();
    let rare = Rare::lock();
    if table::word(fd) != word || !matches!(word.kind(), Kind::Candidate | Kind::Orphan) {
        return Ok(());
    }
    let description = word.description();
    let (device, inode) = (
        description.device.load(Relaxed),
        description.inode.load(Relaxed),
    );
    if description.has(FOREIGN) && !is_managed_elsewhere(description) {
        // Another file was there for a moment (`dup2`): it is the kernel's, and needs its word so that the next one finds who is in a call on it.
        return Ok(());
    }
    if description.has(FOREIGN) || is_used_by_stdio(fd) || foreign::has(device, inode) {
        return kernel::go_on_without(rare, fd, word, Why::Inherited);
    }
    if description.state() == State::Left || limits::descriptors_are_few() {
        drop(rare);
        return kernel::withdraw(fd, word);
    }
    match inodes::take(rare, fd, word.writes(), description) {
        Taken::By(rare, slot) => become_managed(rare, fd, word, slot, (device, inode)),
        Taken::Not if table::word(fd) == word => kernel::withdraw(fd, word),
        Taken::Not | Taken::Again => Ok(()),
    }
}

/// The word of a descriptor names the slot that has been taken for its file, and the description's offset is ours, unless the descriptor is
/// another one's by now.
fn become_managed(rare: Rare, fd: c_int, word: Word, slot: u32, file: (u64, u64)) -> Given {
    let description = word.description();
    let offset = description.lock();
    let identity = (
        description.device.load(Relaxed),
        description.inode.load(Relaxed),
    );
    let is_same = table::word(fd) == word && identity == file;
    let is_left = description.state() == State::Left;
    if !is_same || is_left {
        drop(offset);
        let seen = AtomicU32::new(description.seen.load(Relaxed));
        inodes::give_back(rare, slot as usize, &seen, Number::Gone);
        return match is_same {
            // Others have given it to the kernel meanwhile.
            true => kernel::withdraw(fd, word),
            false => Ok(()),
        };
    }
    if description.state() == State::Kernels {
        // SAFETY: takes no memory.
        let at = unsafe { real::lseek64(fd, 0, libc::SEEK_CUR) };
        let now = inodes::get(&rare, slot).map_or(0, |inode| inode.error_sequence());
        // What the session knew of the file when it was opened may be gone, and errors be counted from the beginning.
        let is_ahead = |seen: u32| (now.wrapping_sub(seen) as i32) < 0;
        if !description.has(HEARD) || is_ahead(description.seen.load(Relaxed)) {
            description.seen.store(now, Relaxed);
        }
        description.become_ours(at.max(0) as u64);
    }
    // Unless the program has closed it meanwhile.
    if !table::replace(fd, word, word.managed(slot)) {
        drop(offset);
        inodes::give_back(rare, slot as usize, &description.seen, Number::Gone);
    }
    Ok(())
}

/// Whether stdio reads or writes a descriptor past us: a standard stream that has ever been used, or another one that is libc's own.
fn is_used_by_stdio(fd: c_int) -> bool {
    // SAFETY: libc's own streams, looked at without a lock: a stream gets its buffer once.
    unsafe {
        match fd {
            0 => __fbufsize(stdin) != 0,
            1 => __fbufsize(stdout) != 0,
            2 => __fbufsize(stderr) != 0,
            _ => libcs::has(fd),
        }
    }
}

unsafe extern "C" {
    static stdin: *mut libc::FILE;
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
    fn __fbufsize(stream: *mut libc::FILE) -> libc::size_t;
}

/// Writes what a file owes, by name, should the session hold it. `flags` as for [`Look::at_path`].
///
/// # Safety
/// As for [`give_path_to_kernel`].
pub unsafe fn flush_path(dir: c_int, path: *const libc::c_char, flags: c_int) {
    let _errno = KeepErrno::new();
    // SAFETY: the caller's path.
    let Some((device, inode)) = (unsafe { known_path(dir, path, flags) }) else {
        return;
    };
    flush_inode(device, inode);
}

/// From now on somebody may reach a regular file in a way that passes no hook. Should the session hold it, it goes to the kernel.
///
/// # Safety
/// As for [`give_path_to_kernel`].
pub unsafe fn reach_path(dir: c_int, path: *const libc::c_char, why: Why) -> Given {
    if !attach::is_on() {
        return Ok(());
    }
    // SAFETY: the caller's path.
    if let Some(look) = unsafe { Look::at_path(dir, path, 0) }.filter(Look::is_regular) {
        foreign::reach(look.device, look.inode);
        give_inode_to_kernel(look.device, look.inode, why)?;
    }
    Ok(())
}

fn flush_inode(device: u64, inode: u64) {
    if attach::glance().is_some_and(|glance| glance.await_closed(device, inode)) {
        return;
    }
    let _inside = Inside::enter();
    let _cancel = NotCancelled::new();
    attach::notice_fork();
    let rare = Rare::lock();
    if let Some(session) = attach::session() {
        let _apart = Apart::begin(rare);
        session.flush_known(device, inode);
    }
}

/// The inode of a path, if the session has bytes of it. `flags` as for [`Look::at_path`].
///
/// # Safety
/// As for [`give_path_to_kernel`].
pub unsafe fn known_path(
    dir: c_int,
    path: *const libc::c_char,
    flags: c_int,
) -> Option<(u64, u64)> {
    if path.is_null() || Inside::is() || !attach::is_on() {
        return None;
    }
    attach::fresh_glance().filter(|glance| glance.knows_any())?;
    // SAFETY: the caller's path.
    let look = unsafe { Look::at_path(dir, path, flags) }?;
    let inode = look.identity();
    // SAFETY: a path that the kernel has taken.
    unsafe { is_known_at(dir, path, inode) }.then_some(inode)
}

/// Whether the session has bytes of the inode that a path leads to.
///
/// # Safety
/// A path that the kernel has taken.
pub unsafe fn is_known_at(dir: c_int, path: *const libc::c_char, inode: (u64, u64)) -> bool {
    // SAFETY: the caller's promise.
    let place = || Place::at(dir, unsafe { CStr::from_ptr(path) }, true);
    attach::glance().is_some_and(|glance| glance.known_at(inode, place).is_some())
}

/// The inode of a path, if it is a regular file that the session may manage.
///
/// # Safety
/// As for [`give_path_to_kernel`].
pub unsafe fn regular_at(dir: c_int, path: *const libc::c_char) -> Option<(u64, u64)> {
    if path.is_null() || Inside::is() || !attach::is_on() {
        return None;
    }
    attach::fresh_glance()?;
    // SAFETY: the caller's path.
    let look = unsafe { Look::at_path(dir, path, 0) }.filter(Look::is_regular)?;
    Some(look.identity())
}

/// As [`known_path`], of a file that somebody may be about to manage: that is waited for.
///
/// # Safety
/// As for [`give_path_to_kernel`].
pub unsafe fn is_known_now(path: *const libc::c_char) -> bool {
    let _errno = KeepErrno::new();
    let Some(glance) = attach::glance().filter(|_| !Inside::is() && attach::is_on()) else {
        return false;
    };
    // SAFETY: the caller's path.
    let Some(look) = (unsafe { Look::at_path(libc::AT_FDCWD, path, 0) }) else {
        return false;
    };
    let _inside = Inside::enter();
    attach::notice_fork();
    let _call = glance.stand_by(&inside::thread().place, look.device, look.inode);
    glance.known(look.device, look.inode).is_some()
}

/// A descriptor has got another file. The kernel's it is where stdio may use it: a standard one that it has used before, one that a stream of
/// libc's own is over, and that of libc's messages.
fn by_stdio(fd: c_int) {
    if fd == 2 || is_used_by_stdio(fd) {
        // A file that stays managed is written to by hooks, but for what libc says by itself.
        let _ = kernel::stdio_uses(fd, Why::Stdio);
    }
}

/// Whether a descriptor is a standard one that stdio has not used.
pub fn is_unused_standard(fd: c_int) -> bool {
    (0..=1).contains(&fd) && !is_used_by_stdio(fd)
}

/// Forgets the parent's files; see [`attach::in_child`].
pub fn in_child() {
    inodes::in_child();
    mapped::in_child();
}

/// Flags of `fcntl(F_SETFL)` that are of interest.
pub fn set_status_flags(fd: c_int, flags: c_int) {
    let word = table::word(fd);
    if !word.is_file() {
        return;
    }
    let description = word.description();
    description.set_flag(APPENDS, flags & libc::O_APPEND != 0);
    if flags & libc::O_DIRECT != 0 {
        // What cannot go to the kernel is served as it was.
        let _ = give_to_kernel(fd, Why::Unserved);
    }
    description.set_flag(SYNCS, false);
}

/// Makes a descriptor of the program's one that the engine may look at.
///
/// # Safety
/// The descriptor is open for as long as the result is used.
pub unsafe fn borrow<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
