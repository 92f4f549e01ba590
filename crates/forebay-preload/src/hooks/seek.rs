//! Moving in a file.

use std::sync::atomic::AtomicU32;

use forebay::file::core::Halt;
use forebay::file::settle::Durability;
use libc::{c_int, off_t};

use crate::files;
use crate::inside::NotCancelled;
use crate::real;
use crate::serve::{self, Answer, Turn};
use crate::table::{self, Kind, State, Word};

export! {
    /// `lseek`.
    fn lseek64 | lseek | __lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
        // SAFETY: takes no memory.
        unsafe {
            let word = table::word(fd);
            if word == Word::NONE {
                return real::lseek64(fd, offset, whence);
            }
            if word.kind() == Kind::Candidate
                && matches!(whence, libc::SEEK_SET | libc::SEEK_CUR)
                && let Some(at) = seek_candidate(fd, word, offset, whence)
            {
                return at;
            }
        }
        seek_ours(fd, offset, whence)
    }
}

/// Nobody's bytes are asked for: the offset is the kernel's for as long as the description is, even where another process manages the file.
/// `None`: it is not.
#[inline]
fn seek_candidate(fd: c_int, word: Word, offset: off_t, whence: c_int) -> Option<off_t> {
    let description = word.description();
    let _lock = description.lock();
    if description.state() != State::Kernels || table::word(fd) != word {
        return None;
    }
    // SAFETY: takes no memory.
    Some(unsafe { real::lseek64(fd, offset, whence) })
}

/// From here on a file system may have no place for bytes.
const FAR: off_t = 1 << 40;

#[inline(never)]
fn seek_ours(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    loop {
        match serve::turn_to_begin(fd) {
            // SAFETY: takes no memory.
            Turn::Real => return unsafe { real::lseek64(fd, offset, whence) },
            Turn::Failed(errno) => return serve::fail(errno) as off_t,
            Turn::Candidate(word) => {
                if matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) {
                    if let Some(at) = seek_candidate(fd, word, offset, whence) {
                        return at;
                    }
                } else {
                    // SAFETY: takes no memory.
                    let seek = || unsafe { real::lseek64(fd, offset, whence) };
                    if let Some(at) = serve::by_kernel(fd, word, true, seek) {
                        return at;
                    }
                }
                if let Err(errno) = files::attach(fd, word) {
                    return serve::fail(errno) as off_t;
                }
            }
            Turn::Managed(word) => match seek_managed(fd, word, offset, whence) {
                Answer::Done(at) => return at,
                Answer::Failed(errno) => return serve::fail(errno) as off_t,
                Answer::Again => {}
            },
        }
    }
}

fn seek_managed(fd: c_int, word: Word, offset: off_t, whence: c_int) -> Answer<off_t> {
    serve::with(fd, word, |using, description| {
        let _lock = description.lock();
        if !serve::is_served(fd, word) {
            return Err(Halt::Kernel);
        }
        let invalid = || Halt::Failed(device_error(libc::EINVAL));
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => serve::own_offset(using, description)? as off_t,
            libc::SEEK_END => using.inode.size(using.me)? as off_t,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                // The kernel knows where holes are, of what it has.
                let _cancel = NotCancelled::new();
                let seen = AtomicU32::new(using.inode.error_sequence());
                using.inode.settle(using.me, Durability::Written, &seen)?;
                // SAFETY: takes no memory. The kernel's own offset is of no account.
                let at = unsafe { real::lseek64(fd, offset, whence) };
                if at < 0 {
                    return Err(Halt::Failed(device_error(crate::raw::errno())));
                }
                description.move_to(at as u64);
                return Ok(at);
            }
            _ => return Err(invalid()),
        };
        let at = base.checked_add(offset).ok_or_else(invalid)?;
        // How far a descriptor may be moved is the file system's to say.
        // SAFETY: takes no memory. The kernel's own offset is of no account.
        if at < 0 || at >= FAR && unsafe { real::lseek64(fd, at, libc::SEEK_SET) } < 0 {
            return Err(invalid());
        }
        description.move_to(at as u64);
        Ok(at)
    })
}

/// An error with this number.
pub fn device_error(errno: c_int) -> forebay::Error {
    debug_assert!(errno != 0);
    forebay::Error::Device {
        errno,
        operation: "seek",
    }
}
