//! How files go to the kernel: the whole inode, for the whole session, before the call that the engine does not serve.
//!
//! [`give_to_kernel`] and its siblings return with the call free to go on to the real function, or say why it must fail: a file that
//! cannot be flushed stays managed, and its descriptors stay in the table. A descriptor that leaves the table while
//! it is open is one that passes no hook any more: the arena is told ([`reach`]), so that nobody manages its file meanwhile.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use forebay::Error;
use forebay::file::inode::Inode;
use forebay::session::glance::Glance;
use forebay::session::standing::Call;
use libc::c_int;

use crate::attach;
use crate::files::Look;
use crate::foreign;
use crate::inodes::{self, Number};
use crate::inside::{self, Inside, NotCancelled};
use crate::rare::{Apart, Rare};
use crate::raw::KeepErrno;
use crate::real;
use crate::table::{self, Description, FOREIGN, Kind, REACHED, STICKS, State, Word};

/// Why a file goes to the kernel: the code in its entry, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Why {
    /// Inherited by a program that is executed, or moved onto a standard descriptor.
    Inherited = 64,
    /// Used through stdio.
    Stdio = 65,
    /// Mapped into memory.
    Mapped = 66,
    /// sendfile, splice, copy_file_range and their like.
    Transfer = 67,
    /// An ioctl.
    Ioctl = 68,
    /// Record or whole-file locks.
    Locked = 69,
    /// The program's own asynchronous I/O or io_uring.
    Asynchronous = 70,
    /// `syscall()`.
    RawCall = 71,
    /// Sent to another process.
    Sent = 72,
    /// The process changes its user, root or namespace.
    Identity = 73,
    /// An option of the call that the engine does not serve.
    Unserved = 74,
    /// The engine has failed in a way that it never should.
    Panicked = 75,
    /// A process of the session cannot manage it: it may not open the file again, or has no room for descriptors.
    Unable = 76,
    /// `O_DIRECT` and its like.
    Opened = 77,
    /// Somebody wants to hear of each change: inotify.
    Watched = 78,
    /// Synced again and again with little to write.
    Synced = 79,
    /// Threads, or a child in this memory, have descriptors of their own: a number is not one file.
    Unshared = 80,
}

impl Why {
    /// Whether somebody reaches the file when the call is over.
    fn lasts(self) -> bool {
        use Why::*;
        matches!(
            self,
            Inherited
                | Locked
                | Asynchronous
                | RawCall
                | Sent
                | Identity
                | Unserved
                | Watched
                | Unshared
        )
    }
}

/// Whether a call that the engine does not serve may go on to the kernel; else the error number that it fails with.
pub type Given = Result<(), c_int>;

/// What a program hears of an error of the engine's: that its session is in the way of its bytes is none that it could expect.
pub fn errno_of(error: &Error) -> c_int {
    match error {
        Error::Session { .. } => libc::EIO,
        error => error.errno(),
    }
}

/// A descriptor whose file cannot be managed here goes back to the kernel, its offset up to date. Where the file cannot be given to the
/// kernel, the descriptor stays what it is, and each call on it tries again.
pub fn withdraw(fd: c_int, word: Word) -> Given {
    let description = word.description();
    // The program may close the descriptor meanwhile, and what is opened next may get its description.
    let is_stale = |_: &Rare| table::word(fd) != word;
    let rare = Rare::lock();
    if is_stale(&rare) {
        return Ok(());
    }
    reach(description);
    drop(rare);
    // Others may manage it all the same.
    give_known_to_kernel(description, Why::Unable)?;
    let rare = Rare::lock();
    if is_stale(&rare) {
        return Ok(());
    }
    {
        let _offset = description.lock();
        if description.state() == State::Ours {
            seek_kernel(fd, description);
        }
        description.set_state(State::Left);
    }
    take_word(&rare, fd, word);
    Ok(())
}

/// As [`withdraw`], of a descriptor that is to be the kernel's here, whatever others that have its description do. The caller has seen under
/// the lock that its word is this one.
pub fn go_on_without(rare: Rare, fd: c_int, word: Word, why: Why) -> Given {
    let description = word.description();
    reach(description);
    let device = description.device.load(Relaxed);
    let inode = description.inode.load(Relaxed);
    drop(rare);
    give_inode_to_kernel(device, inode, why)?;
    let rare = Rare::lock();
    // Another file may have taken its place meanwhile (`dup2`), whose offset and word are none of this.
    if table::word(fd) == word {
        return_offset(fd, description);
        take_word(&rare, fd, word);
    }
    Ok(())
}

/// A descriptor that no slot counts loses its word, unless that is another one by now. Under the lock: `dup2` counts what it has found there.
fn take_word(_rare: &Rare, fd: c_int, word: Word) {
    if table::replace(fd, word, Word::NONE) {
        table::let_go(word.description_index());
    }
}

/// From now on somebody may reach the file behind a description, and pass no hook; nobody will hear when that ends.
pub fn reach(description: &Description) {
    description.set_flag(STICKS, true);
    reach_while_open(description);
}

/// The same, for as long as the description is open in this process and its children.
fn reach_while_open(description: &Description) {
    if !description.has(REACHED) {
        description.set_flag(REACHED, true);
        foreign::reach(
            description.device.load(Relaxed),
            description.inode.load(Relaxed),
        );
    }
}

/// Notes for reports that a file which may be written through this descriptor stays with the kernel. `file` is its device and inode.
pub fn note_left(fd: c_int, file: (u64, u64), why: Why) {
    let _errno = KeepErrno::new();
    let _inside = Inside::enter();
    // SAFETY: takes no memory.
    let flags = unsafe { real::fcntl64(fd, libc::F_GETFL, 0) };
    if flags >= 0
        && flags & libc::O_ACCMODE != libc::O_RDONLY
        && let Some(glance) = attach::glance()
    {
        // SAFETY: open during the program's call, which this is a part of.
        glance.note_left(unsafe { crate::files::borrow(fd) }, file, why as u32);
    }
}

/// stdio uses a standard descriptor, and goes on to.
pub fn stdio_uses(fd: c_int, why: Why) -> Given {
    let _errno = KeepErrno::new();
    let word = table::word(fd);
    if word.kind() != Kind::Candidate
        || Inside::is()
        || crate::files::is_managed_elsewhere(word.description())
    {
        return give_to_kernel(fd, why);
    }
    word.description().set_flag(FOREIGN, true);
    reach_while_open(word.description());
    give_known_to_kernel(word.description(), why)
}

/// There is another arena: it learns what this process has.
pub fn tell(glance: &Glance) {
    foreign::tell(glance);
    for (_, word) in table::files() {
        if word.description().has(REACHED) {
            let description = word.description();
            let (device, inode) = (
                description.device.load(Relaxed),
                description.inode.load(Relaxed),
            );
            glance.begin_reach(forebay::member::reached::hash(device, inode));
        }
    }
}

/// Where the offset of a description is ours, the kernel has it from now on.
pub fn return_offset(fd: c_int, description: &Description) {
    let _offset = description.lock();
    if description.state() == State::Ours {
        seek_kernel(fd, description);
        description.set_state(State::Left);
    }
}

fn seek_kernel(fd: c_int, description: &Description) {
    // The kernel knows the file's size: it has the file by now, or has it from here on.
    let size = || Ok::<_, Infallible>(Look::at(fd).map_or(0, |look| look.size));
    let Ok(at) = description.begin(size);
    // SAFETY: takes no memory.
    unsafe { real::lseek64(fd, at as libc::off_t, libc::SEEK_SET) };
}

/// A managed descriptor whose inode is the kernel's by now leaves the table: its offset is the kernel's from here on, for all
/// processes that share it. Nothing to do where the word is another one by now: its description may be another file's.
#[cold]
pub fn leave(fd: c_int, word: Word) {
    let _errno = KeepErrno::new();
    let _inside = Inside::enter();
    let _cancel = NotCancelled::new();
    let rare = Rare::lock();
    leave_locked(rare, fd, word);
}

fn leave_locked(rare: Rare, fd: c_int, word: Word) {
    if table::word(fd) != word {
        return;
    }
    let description = word.description();
    let is_engines = |inode: &Inode| description.state() == State::Ours && !inode.is_with_kernel();
    if word.kind() == Kind::Managed
        && inodes::get(&rare, word.slot() as u32).is_some_and(is_engines)
    {
        // The caller has seen another file's word here (`dup2`), and this one is back.
        return;
    }
    return_offset(fd, description);
    reach(description);
    if !table::replace(fd, word, Word::NONE) {
        return;
    }
    if word.kind() == Kind::Managed {
        // Its errors have been told, or will be by those that stay.
        let seen = AtomicU32::new(description.seen.load(Relaxed));
        let _ = inodes::give_back(rare, word.slot(), &seen, Number::Gone);
    }
    table::let_go(word.description_index());
}

/// Gives the file behind a descriptor to the kernel: flushed, dropped from memory, the kernel's offset up to date. Nothing to do
/// for a descriptor that is not managed. Keeps `errno`.
pub fn give_to_kernel(fd: c_int, why: Why) -> Given {
    if !table::word(fd).is_file() || Inside::is() {
        return Ok(());
    }
    attach::notice_fork();
    let word = table::word(fd);
    if !word.is_file() {
        return Ok(());
    }
    let _errno = KeepErrno::new();
    let description = word.description();
    if word.kind() == Kind::Candidate && !crate::files::is_managed_elsewhere(description) {
        // The kernel has it already, and keeps it.
        description.set_flag(FOREIGN, true);
        if why.lasts() {
            reach(description);
            // Somebody may have begun to manage it just before that.
            give_known_to_kernel(description, why)?;
        }
        return Ok(());
    }
    give_known_to_kernel(description, why)?;
    leave_all(numbers_of(description));
    Ok(())
}

/// All descriptors of a file that the kernel has by now leave the table.
pub fn leave_all(file: (u64, u64)) {
    let of_file: Vec<_> = table::files()
        .filter(|(_, word)| numbers_of(word.description()) == file)
        .collect();
    for (fd, word) in of_file {
        leave(fd, word);
    }
}

/// Device and inode.
pub fn numbers_of(description: &Description) -> (u64, u64) {
    let device = description.device.load(Relaxed);
    (device, description.inode.load(Relaxed))
}

/// Gives an inode that the session knows to the kernel.
pub fn give_known_to_kernel(description: &Description, why: Why) -> Given {
    let device = description.device.load(Relaxed);
    let inode = description.inode.load(Relaxed);
    give_inode_to_kernel(device, inode, why)
}

/// The same, by numbers.
pub fn give_inode_to_kernel(device: u64, inode: u64, why: Why) -> Given {
    if let Some(glance) = attach::glance() {
        glance.await_closed(device, inode);
    }
    let _inside = Inside::enter();
    let _cancel = NotCancelled::new();
    if attach::glance().is_none_or(|glance| glance.known(device, inode).is_none()) {
        return Ok(());
    }
    let rare = Rare::lock();
    let given = match attach::try_session() {
        // Where it cannot be flushed the bytes stay owed, and the file managed.
        Ok(Some(session)) => {
            // A thread that is stopped may be in the way.
            let _apart = Apart::begin(rare);
            session.give_to_kernel(device, inode, why as u32)
        }
        // Nobody has it.
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    given.map_err(|error| errno_of(&error))
}

/// As [`give_to_kernel`], for a file by name, should the session hold it. `flags` as for [`Look::at_path`].
///
/// # Safety
/// `path` is null or a string that ends in a null byte.
pub unsafe fn give_path_to_kernel(
    dir: c_int,
    path: *const libc::c_char,
    flags: c_int,
    why: Why,
) -> Given {
    let _errno = KeepErrno::new();
    // SAFETY: the caller's path.
    match unsafe { crate::files::known_path(dir, path, flags) } {
        Some((device, inode)) => give_inode_to_kernel(device, inode, why),
        None => Ok(()),
    }
}

/// How often a file is given to the kernel that somebody manages again and again.
const GIVES: u32 = 10;

/// What the session has of a file that the kernel is about to cut by its name.
enum Cut {
    /// It manages the file.
    Known((u64, u64)),
    /// Nothing, and nobody begins to manage it until this is dropped. `None`: nobody could.
    Unknown(Option<Standing>),
}

/// A call on a file that the session does not manage, and the thread that makes it, which goes out last.
type Standing = (Option<Call<'static>>, Inside);

/// # Safety
/// As for [`give_path_to_kernel`].
unsafe fn about_to_cut(dir: c_int, path: *const libc::c_char) -> Cut {
    let _errno = KeepErrno::new();
    // SAFETY: the caller's path.
    let Some((device, inode)) = (unsafe { crate::files::regular_at(dir, path) }) else {
        return Cut::Unknown(None);
    };
    let inside = Inside::enter();
    attach::notice_fork();
    let place = &inside::thread().place;
    let call = attach::glance().map(|glance| glance.stand_by(place, device, inode));
    // SAFETY: the same.
    if unsafe { crate::files::is_known_at(dir, path, (device, inode)) } {
        drop(call);
        return Cut::Known((device, inode));
    }
    Cut::Unknown(Some((call, inside)))
}

/// Has the kernel cut a file by its name, in a call that the engine does not serve: the session does not manage the file then, and nobody
/// begins to before the call is over: that one would have seen the old length.
///
/// # Safety
/// As for [`give_path_to_kernel`].
pub unsafe fn cut_by_kernel<T>(
    dir: c_int,
    path: *const libc::c_char,
    why: Why,
    call: impl FnOnce() -> T,
) -> Result<T, c_int> {
    for _ in 0..GIVES {
        // SAFETY: the caller's path.
        match unsafe { about_to_cut(dir, path) } {
            Cut::Known((device, inode)) => give_inode_to_kernel(device, inode, why)?,
            Cut::Unknown(standing) => {
                let result = call();
                drop(standing);
                return Ok(result);
            }
        }
    }
    // A process that manages it again and again is told afterwards.
    Ok(call())
}

/// The same, in a call that the engine serves where the session manages the file. `None`: it does, and the call has not been made. A file that
/// somebody manages and closes between this call's beginning and its end would get back the length that it had.
///
/// # Safety
/// As for [`give_path_to_kernel`].
pub unsafe fn cut_unless_known<T>(
    dir: c_int,
    path: *const libc::c_char,
    call: impl FnOnce() -> T,
) -> Option<T> {
    // SAFETY: the caller's path.
    match unsafe { about_to_cut(dir, path) } {
        Cut::Known(_) => None,
        Cut::Unknown(standing) => {
            let result = call();
            drop(standing);
            Some(result)
        }
    }
}

/// As [`give_to_kernel`], for all descriptors that stay open in a program that this process executes.
pub fn give_inheritable_to_kernel(why: Why) -> Given {
    for (fd, word) in all_files() {
        let description = word.description();
        let is_told = word.kind() == Kind::Candidate && description.has(REACHED);
        if is_told && !crate::files::is_of_engine(description) {
            continue;
        }
        // SAFETY: takes no memory.
        let flags = unsafe { real::fcntl64(fd, libc::F_GETFD, 0) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            give_to_kernel(fd, why)?;
        }
    }
    Ok(())
}

/// As [`give_to_kernel`], for all descriptors of the process; from now on nothing becomes managed in it.
pub fn give_all_to_kernel(why: Why) -> Given {
    for (fd, _) in all_files() {
        give_to_kernel(fd, why)?;
    }
    attach::turn_off();
    Ok(())
}

/// The process leaves the session, before what would make it no member, or one that cannot do what members do: all of its files are the
/// kernel's, and it will have no others. Where they cannot go to the kernel it stays, and what it wanted must fail.
pub fn leave_session(why: Why) -> Given {
    give_all_to_kernel(why)?;
    // What other threads have come to manage while they were looked for.
    let given = all_files()
        .into_iter()
        .try_for_each(|(fd, _)| give_to_kernel(fd, why));
    if given.is_err() {
        attach::turn_on();
    }
    given
}

/// As [`give_all_to_kernel`], for a process that goes on as a member of the session: what it opens from now on is the kernel's, and
/// the others know.
pub fn give_all_and_watch(why: Why) -> Given {
    attach::watch_only();
    for (fd, _) in all_files() {
        give_to_kernel(fd, why)?;
    }
    Ok(())
}

/// What the table has now: giving changes it.
fn all_files() -> Vec<(c_int, Word)> {
    table::files().collect()
}
