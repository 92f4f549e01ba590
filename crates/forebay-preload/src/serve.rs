//! How a call on a descriptor of ours is answered: by the engine, or by the kernel while the file is a candidate.
//!
//! Calls come here once the table has said that the descriptor is not nobody's. Each is a loop: what a descriptor is may change
//! between two looks.

mod candidates;
mod vectored;

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay::file::core::{Core, Halt};
use forebay::limits::FILE_BYTES_MAX;
use libc::{c_int, off_t};

pub use self::candidates::{by_kernel, has_grown, read_idle, timed};
pub use self::vectored::{How, vectored};
use crate::attach;
use crate::files::{self, Why};
use crate::hooks::limits;
use crate::hooks::seek::device_error;
use crate::inodes::{self, Use};
use crate::inside::{self, Inside, NotCancelled};
use crate::raw::{self, KeepErrno};
use crate::table::{self, Description, Kind, State, Word};

/// Bytes that one call moves at most (the kernel's `MAX_RW_COUNT`).
pub const CALL_BYTES_MAX: usize = 0x7fff_f000;

/// How a call goes on.
pub enum Turn {
    /// The real function answers.
    Real,
    /// It fails with this error: a descriptor of the engine's, which is not for the program, or one whose file can neither be managed
    /// here nor go to the kernel.
    Failed(c_int),
    /// The kernel answers for a candidate; the value is held meanwhile.
    Candidate(Word),
    /// The engine answers.
    Managed(Word),
}

/// As [`turn`], for calls on candidates that [`by_kernel`] looks after: it looks whether their files are managed
/// elsewhere, and once is enough.
#[inline]
pub fn turn_to_begin(fd: c_int) -> Turn {
    let word = table::word(fd);
    match word.kind() {
        Kind::Candidate => Turn::Candidate(word),
        _ => turn(fd),
    }
}

/// What a descriptor is at this moment, once what is in the way of knowing has been done.
#[inline]
pub fn turn(fd: c_int) -> Turn {
    loop {
        let word = table::word(fd);
        match word.kind() {
            Kind::None => return Turn::Real,
            Kind::Ours if Inside::is() => return Turn::Real,
            Kind::Ours => return Turn::Failed(libc::EBADF),
            Kind::Candidate if !files::is_managed_elsewhere(word.description()) => {
                return Turn::Candidate(word);
            }
            Kind::Candidate | Kind::Orphan => {
                if let Err(errno) = files::attach(fd, word) {
                    return Turn::Failed(errno);
                }
            }
            Kind::Managed => {
                if table::is_alive() {
                    inside::cancellation_point();
                    return Turn::Managed(word);
                }
                attach::notice_fork();
            }
        }
    }
}

/// `EBADF`.
#[cold]
pub fn refused() -> isize {
    fail(libc::EBADF)
}

/// An error for the program.
#[cold]
pub fn fail(errno: c_int) -> isize {
    raw::set_errno(errno);
    -1
}

/// What an engine call came to.
pub enum Answer<T> {
    /// This.
    Done(T),
    /// This error.
    Failed(c_int),
    /// The descriptor is not managed any more: look again.
    Again,
}

/// Calls that begin anew: one whose descriptor is the same each time, and cannot be served for a reason that nobody has thought of, ends.
pub struct Anew {
    word: Word,
    rounds: u32,
}

impl Anew {
    /// As often with the same word in between, a descriptor has not only changed and changed back.
    const ROUNDS: u32 = 10_000;

    /// None so far.
    #[inline(always)]
    pub const fn new() -> Self {
        Anew {
            word: Word::NONE,
            rounds: 0,
        }
    }

    /// Once more, after a look at this word. `false`: it has been often enough.
    #[cold]
    pub fn may(&mut self, word: Word) -> bool {
        self.rounds = if word == self.word {
            self.rounds + 1
        } else {
            0
        };
        self.word = word;
        forebay::sync::relax(self.rounds);
        self.rounds < Self::ROUNDS
    }
}

/// Does something with a managed descriptor's inode, inside and not to be cancelled; a panic of the engine's becomes `EIO`.
#[inline(always)]
pub fn with<T>(
    fd: c_int,
    word: Word,
    act: impl FnOnce(&Use<'_>, &'static Description) -> Result<T, Halt>,
) -> Answer<T> {
    let inside = Inside::enter();
    let Some(using) = inodes::begin(fd, word) else {
        let missed = missed(fd, word);
        drop(inside);
        return missed;
    };
    let description = word.description();
    let done = catch_unwind(AssertUnwindSafe(|| act(&using, description)));
    drop(using);
    drop(inside);
    match done {
        Ok(Ok(value)) => Answer::Done(value),
        Ok(Err(Halt::Kernel)) => {
            files::leave(fd, word);
            Answer::Again
        }
        Ok(Err(halt)) => Answer::Failed(Core::ended(halt).errno()),
        Err(_) => {
            panicked(fd);
            Answer::Failed(libc::EIO)
        }
    }
}

/// The engine has failed in a way that it never should: the program goes on with the kernel.
#[cold]
fn panicked(fd: c_int) {
    let _ = catch_unwind(|| _ = files::give_to_kernel(fd, Why::Panicked));
}

/// Nothing could be begun: the descriptor has changed, or the session has had no slot for this thread for as long as anybody waits.
#[cold]
fn missed<T>(fd: c_int, word: Word) -> Answer<T> {
    if table::word(fd) == word && !attach::has_slot() {
        Answer::Failed(libc::EIO)
    } else {
        Answer::Again
    }
}

/// Where the kernel takes no more of a program's memory to lie.
#[cfg(target_arch = "x86_64")]
const MEMORY_END: usize = (1 << 47) - 4096;
#[cfg(not(target_arch = "x86_64"))]
const MEMORY_END: usize = 1 << 52;

/// An offset of the program's, for a call that its descriptor is good for if `allowed`.
fn checked(allowed: bool, at: Option<off_t>) -> Result<Option<u64>, c_int> {
    let at = at.map(|at| u64::try_from(at).map_err(|_| libc::EINVAL));
    let at = at.transpose()?;
    if allowed { Ok(at) } else { Err(libc::EBADF) }
}

/// Memory of the program's, as the kernel looks at it before anything else. What is shorter than a call may be is found out when it
/// is moved.
#[inline]
fn check_memory(address: usize, len: usize) -> Result<(), c_int> {
    let is_one = || {
        address
            .checked_add(len)
            .is_some_and(|end| end <= MEMORY_END)
    };
    if len <= CALL_BYTES_MAX || is_one() {
        Ok(())
    } else {
        Err(libc::EFAULT)
    }
}

/// Whether `len` bytes at an offset end where files can.
#[inline]
fn check_end(offset: u64, len: usize) -> Result<(), Halt> {
    let end = offset.checked_add(len as u64);
    if end.is_some_and(|end| end <= i64::MAX as u64) {
        Ok(())
    } else {
        Err(Halt::Failed(device_error(libc::EINVAL)))
    }
}

/// Whether a managed description is the descriptor's still, and its offset ours. A caller that needs the offset has it locked by now: before that
/// the program may have closed the descriptor, and the description may be that of a file that was opened since. One that is locked is nobody
/// else's ([`table::new_description`]).
#[inline(always)]
pub fn is_served(fd: c_int, word: Word) -> bool {
    word.description().state() == State::Ours && table::word(fd) == word
}

/// A managed description's own offset, for the thread that has it locked.
#[inline(always)]
pub fn own_offset(using: &Use<'_>, description: &Description) -> Result<u64, Halt> {
    description.begin(|| using.inode.size(using.me))
}

/// Writes at an offset of the caller's, or at the description's own.
///
/// # Safety
/// As for `pwrite`.
#[inline]
pub unsafe fn write(
    fd: c_int,
    word: Word,
    source: *const u8,
    len: usize,
    at: Option<off_t>,
) -> Answer<usize> {
    let checked = checked(word.writes(), at);
    let at = match checked.and_then(|at| check_memory(source.addr(), len).map(|()| at)) {
        Ok(at) => at,
        Err(errno) => return Answer::Failed(errno),
    };
    let whole = len;
    let len = len.min(CALL_BYTES_MAX);
    let mut exceeded = false;
    let answer = with(fd, word, |using, description| {
        let lock = at.is_none().then(|| description.lock());
        if !is_served(fd, word) {
            return Err(Halt::Kernel);
        }
        let begin = at.map_or_else(|| own_offset(using, description), Ok)?;
        check_end(begin, whole)?;
        if len == 0 {
            return Ok(0);
        }
        // As with the kernel, an offset is of no account where writes go to the end.
        let offset = (!description.has(table::APPENDS)).then_some(begin);
        let len = within_limit(using, offset, len, &mut exceeded)?;
        if lock.is_some() && offset.is_some() {
            description.write_to(begin + len as u64);
        }
        // SAFETY: the caller's promise.
        let put = unsafe { put(using, source, len, offset) };
        if lock.is_some() {
            let end = put.as_ref().map(|&(start, written)| start + written as u64);
            description.move_to(end.unwrap_or(begin));
        }
        put.map(|(_, written)| written)
    });
    if exceeded {
        limits::exceeded();
    }
    answer
}

/// How much of a write the process's limit on file sizes lets through.
#[inline(always)]
fn within_limit(
    using: &Use<'_>,
    offset: Option<u64>,
    len: usize,
    exceeded: &mut bool,
) -> Result<usize, Halt> {
    let limit = limits::file_size();
    if limit == u64::MAX || len == 0 {
        return Ok(len);
    }
    let offset = match offset {
        Some(offset) => offset,
        None => using.inode.size(using.me)?,
    };
    if offset < limit {
        return Ok((len as u64).min(limit - offset) as usize);
    }
    *exceeded = true;
    Err(Halt::Failed(forebay::Error::Device {
        errno: libc::EFBIG,
        operation: "write",
    }))
}

/// What takes longer may make calls of its own: it is not cancelled in them, and their errors are not the program's.
struct Slow(
    #[allow(dead_code)] NotCancelled,
    #[allow(dead_code)] KeepErrno,
);

impl Slow {
    fn new() -> Self {
        Slow(NotCancelled::new(), KeepErrno::new())
    }
}

/// Writes at an offset, or at the end. Returns where and how much.
///
/// # Safety
/// `source` is valid for `len` bytes.
#[inline(always)]
pub unsafe fn put(
    using: &Use<'_>,
    source: *const u8,
    len: usize,
    offset: Option<u64>,
) -> Result<(u64, usize), Halt> {
    let (inode, me) = (using.inode, using.me);
    let Some(offset) = offset else {
        // SAFETY: the caller's promise.
        return unsafe { append(using, source, len) };
    };
    // SAFETY: the caller's promise.
    match unsafe { inode.write_at_once(me, source, len, offset) } {
        Ok(()) => Ok((offset, len)),
        Err(sequential) => {
            let _slow = Slow::new();
            // SAFETY: the caller's promise.
            let written = unsafe { inode.write_at(me, source, len, offset, sequential)? };
            Ok((offset, written))
        }
    }
}

/// Writes at the end. Returns where and how much.
///
/// # Safety
/// As for [`put`].
#[inline(always)]
pub unsafe fn append(using: &Use<'_>, source: *const u8, len: usize) -> Result<(u64, usize), Halt> {
    let (inode, me) = (using.inode, using.me);
    // SAFETY: the caller's promise.
    match unsafe { inode.append_at_once(me, source, len) } {
        Ok(offset) => Ok((offset, len)),
        Err(sequential) => {
            let _slow = Slow::new();
            // SAFETY: the caller's promise.
            unsafe { inode.append(me, source, len, sequential) }
        }
    }
}

/// Reads at an offset of the caller's, or at the description's own.
///
/// # Safety
/// As for `pread`.
#[inline]
pub unsafe fn read(
    fd: c_int,
    word: Word,
    target: *mut u8,
    len: usize,
    at: Option<off_t>,
) -> Answer<usize> {
    let checked = checked(word.reads(), at);
    let at = match checked.and_then(|at| check_memory(target.addr(), len).map(|()| at)) {
        Ok(at) => at,
        Err(errno) => return Answer::Failed(errno),
    };
    let whole = len;
    let len = len.min(CALL_BYTES_MAX);
    with(fd, word, |using, description| {
        let lock = at.is_none().then(|| description.lock());
        if !is_served(fd, word) {
            return Err(Halt::Kernel);
        }
        let offset = at.map_or_else(|| own_offset(using, description), Ok)?;
        check_end(offset, whole)?;
        // SAFETY: the caller's promise.
        let got = unsafe { get(using, target, len, offset)? };
        if lock.is_some() {
            description.move_to(offset + got as u64);
        }
        Ok(got)
    })
}

/// Reads at an offset.
///
/// # Safety
/// `target` is valid for `len` bytes.
#[inline(always)]
pub unsafe fn get(
    using: &Use<'_>,
    target: *mut u8,
    len: usize,
    offset: u64,
) -> Result<usize, Halt> {
    // SAFETY: the caller's promise.
    match unsafe { using.inode.read_at_once(using.me, target, len, offset) } {
        Ok(()) => Ok(len),
        Err(sequential) => {
            let _slow = Slow::new();
            if len == 0 || offset >= FILE_BYTES_MAX {
                // Nothing to read, and nothing that streams could be told by.
                return using.inode.size(using.me).map(|_| 0);
            }
            // SAFETY: the caller's promise.
            unsafe {
                using
                    .inode
                    .read_at(using.me, target, len, offset, sequential)
            }
        }
    }
}
