//! Changing how long a file is and what space it has.

use std::sync::atomic::{AtomicU32, Ordering};

use forebay::device::DeviceFile;
use forebay::file::core::Halt;
use forebay::file::settle::Durability;
use libc::{c_char, c_int, off_t};

use crate::files::{self, Why};
use crate::hooks::limits;
use crate::hooks::seek::device_error;
use crate::inside::NotCancelled;
use crate::raw::KeepErrno;
use crate::real;
use crate::serve::{self, Answer, Turn};
use crate::table::{self, Kind, State, Word};

export! {
    /// `ftruncate`.
    fn ftruncate64 | ftruncate(fd: c_int, len: off_t) -> c_int {
        if table::word(fd) == Word::NONE {
            // SAFETY: takes no memory.
            return unsafe { real::ftruncate64(fd, len) };
        }
        truncate_descriptor(fd, len)
    }

    /// `truncate`: a file that the session has bytes of is cut by the engine.
    fn truncate64 | truncate(path: *const c_char, len: off_t) -> c_int {
        // SAFETY: the caller's path.
        unsafe {
            let cut = || real::truncate64(path, len);
            let Some(result) = files::cut_unless_known(libc::AT_FDCWD, path, cut) else {
                return truncate_known(path, len);
            };
            if result == 0 && files::is_known_now(path) {
                return truncate_known(path, len);
            }
            result
        }
    }

    /// `fallocate`.
    fn fallocate64 | fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
        // SAFETY: takes no memory.
        let real = || unsafe { real::fallocate64(fd, mode, offset, len) };
        if table::word(fd) == Word::NONE {
            return real();
        }
        allocate(fd, mode, offset, len, real)
    }

    /// `posix_fallocate`: answers with the error number.
    fn posix_fallocate64 | posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int {
        // SAFETY: takes no memory.
        let real = || unsafe { real::posix_fallocate64(fd, offset, len) };
        if table::word(fd) == Word::NONE {
            return real();
        }
        if offset < 0 || len <= 0 {
            return libc::EINVAL;
        }
        let _errno = KeepErrno::new();
        if allocate(fd, 0, offset, len, || match real() {
            0 => 0,
            errno => serve::fail(errno) as c_int,
        }) == 0 {
            return 0;
        }
        crate::raw::errno()
    }
}

/// `ftruncate` of a descriptor of ours.
pub fn truncate_descriptor(fd: c_int, len: off_t) -> c_int {
    loop {
        match serve::turn(fd) {
            // SAFETY: takes no memory.
            Turn::Real => return unsafe { real::ftruncate64(fd, len) },
            Turn::Failed(errno) => return serve::fail(errno) as c_int,
            Turn::Candidate(word) => {
                // SAFETY: takes no memory.
                let cut = || unsafe { real::ftruncate64(fd, len) };
                if let Some(result) = serve::by_kernel(fd, word, false, cut) {
                    return result;
                }
            }
            Turn::Managed(word) => match set_len(fd, word, len) {
                Answer::Done(()) => return 0,
                Answer::Failed(errno) => return serve::fail(errno) as c_int,
                Answer::Again => {}
            },
        }
    }
}

/// The kernel has just set the length of a file that nobody managed a moment before. A program that has begun to manage it meanwhile, as the
/// file has just got the name by which it was cut, may have seen its old length: it is set once more, and so has been set at this moment.
pub fn cut_if_managed(fd: c_int, len: off_t) {
    let word = table::word(fd);
    let is_to_be_cut = match word.kind() {
        Kind::Candidate => {
            let is_managed = serve::by_kernel(fd, word, false, || ()).is_none();
            is_managed && table::word(fd) == word && word.writes()
        }
        Kind::Managed => word.writes(),
        // One that could not be managed here has gone to the kernel, with what the program wrote.
        Kind::None => files::Look::at(fd).is_some_and(|look| look.size as i64 > len),
        _ => false,
    };
    if is_to_be_cut {
        let _errno = KeepErrno::new();
        truncate_descriptor(fd, len);
    }
}

fn set_len(fd: c_int, word: Word, len: off_t) -> Answer<()> {
    if !word.writes() || len < 0 {
        return Answer::Failed(libc::EINVAL);
    }
    if len as u64 > limits::file_size() && len > size_of(fd) {
        limits::exceeded();
        return Answer::Failed(libc::EFBIG);
    }
    serve::with(fd, word, |using, description| {
        let _cancel = NotCancelled::new();
        if description.state() != State::Ours {
            return Err(Halt::Kernel);
        }
        using.inode.set_len(using.me, len as u64)
    })
}

/// Truncates by way of a descriptor.
///
/// # Safety
/// As for `truncate`.
unsafe fn truncate_known(path: *const c_char, len: off_t) -> c_int {
    const HOW: c_int = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: the caller's path.
    let mut fd = unsafe { crate::hooks::open::open64(path, HOW, 0) };
    if fd < 0 && crate::raw::errno() == libc::EMFILE {
        // The kernel's call needs no descriptor: one beyond the program's limit serves as well.
        // SAFETY: see above.
        let beyond = limits::above(|_| unsafe { real::open64(path, HOW, 0) });
        fd = beyond.map_or(fd, |fd| crate::hooks::open::enter(fd, HOW));
    }
    if fd < 0 {
        return -1;
    }
    let result = truncate_descriptor(fd, len);
    let _errno = KeepErrno::new();
    // SAFETY: opened above.
    unsafe { crate::hooks::close::close(fd) };
    result
}

/// The length that the program sees.
pub fn size_of(fd: c_int) -> off_t {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the target is ours, initialised where the call succeeds.
    unsafe {
        match crate::hooks::stat::fstat64(fd, stat.as_mut_ptr()) {
            0 => stat.assume_init().st_size,
            _ => 0,
        }
    }
}

/// `fallocate` of a descriptor of ours: holes are punched and space is reserved by the engine; whatever else there is the
/// kernel does, to a file that is its own from then on.
fn allocate(fd: c_int, mode: c_int, offset: off_t, len: off_t, real: impl Fn() -> c_int) -> c_int {
    loop {
        match serve::turn(fd) {
            Turn::Real => return real(),
            Turn::Failed(errno) => return serve::fail(errno) as c_int,
            Turn::Candidate(word) => {
                if let Some(result) = serve::by_kernel(fd, word, false, &real) {
                    return result;
                }
            }
            Turn::Managed(word) => {
                if !is_served(mode) {
                    if let Err(errno) = files::give_to_kernel(fd, Why::Unserved) {
                        return serve::fail(errno) as c_int;
                    }
                    continue;
                }
                match allocate_managed(fd, word, mode, offset, len) {
                    Answer::Done(()) => return 0,
                    Answer::Failed(errno) => return serve::fail(errno) as c_int,
                    Answer::Again => {}
                }
            }
        }
    }
}

/// Whether the engine does what a mode says: reserving, punching, making zeros.
fn is_served(mode: c_int) -> bool {
    const PUNCH: c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO: c_int = libc::FALLOC_FL_ZERO_RANGE;
    const KEEP: c_int = libc::FALLOC_FL_KEEP_SIZE;
    [0, KEEP, PUNCH, ZERO, ZERO | KEEP].contains(&mode)
}

fn allocate_managed(fd: c_int, word: Word, mode: c_int, offset: off_t, len: off_t) -> Answer<()> {
    if offset < 0 || len <= 0 {
        return Answer::Failed(libc::EINVAL);
    }
    if !word.writes() {
        return Answer::Failed(libc::EBADF);
    }
    let Some(end) = offset.checked_add(len) else {
        return Answer::Failed(libc::EFBIG);
    };
    let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    // As with the kernel, what stays as long as it is may be longer than the limit.
    if !keeps_size && end as u64 > limits::file_size() && end > size_of(fd) {
        limits::exceeded();
        return Answer::Failed(libc::EFBIG);
    }
    serve::with(fd, word, |using, description| {
        let _cancel = NotCancelled::new();
        if description.state() != State::Ours {
            return Err(Halt::Kernel);
        }
        let (inode, me) = (using.inode, using.me);
        if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 {
            return inode.punch(me, offset as u64, len as u64);
        }
        if mode & libc::FALLOC_FL_ZERO_RANGE != 0 {
            inode.punch(me, offset as u64, len as u64)?;
        }
        // Everything that is owed is written first, so that the kernel's size is ours and it changes nothing else.
        let seen = AtomicU32::new(description.seen.load(Ordering::Relaxed));
        inode.settle(me, Durability::Written, &seen)?;
        let reserve = |device: &dyn DeviceFile| -> std::io::Result<()> {
            device.reserve(offset as u64, len as u64)?;
            // The kernel's own call dates the file. A program that may write to it may not always do that.
            let _ = device.set_modified(None);
            Ok(())
        };
        inode.core().change(me, reserve).map_err(|error| {
            Halt::Failed(device_error(error.raw_os_error().unwrap_or(libc::EIO)))
        })?;
        if keeps_size {
            inode.core().keep_space(end as u64);
            return Ok(());
        }
        inode.grow(me, end as u64)
    })
}
