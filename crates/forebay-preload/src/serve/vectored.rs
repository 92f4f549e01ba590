//! Calls on several parts of memory.

use forebay::file::core::Halt;
use forebay::limits::BLOCK_BYTES;
use libc::{c_int, off_t};

use super::{
    Answer, CALL_BYTES_MAX, Slow, append, check_end, check_memory, checked, get, is_served,
    own_offset, put, with, within_limit,
};
use crate::files::{self, Why};
use crate::hooks::limits;
use crate::hooks::seek::device_error;
use crate::inodes::Use;
use crate::program;
use crate::table::{self, Word};

/// Reads or writes several parts, one after the other in the file, as one operation on the offset. What one part cannot have
/// ends the call.
///
/// # Safety
/// As for `preadv` and `pwritev`.
pub unsafe fn vectored(
    fd: c_int,
    word: Word,
    parts: &[libc::iovec],
    at: Option<off_t>,
    how: How,
) -> Answer<usize> {
    let writes = how.writes;
    let allowed = if writes { word.writes() } else { word.reads() };
    let checked = checked(allowed, at);
    let at = match checked.and_then(|at| check_parts(parts).map(|()| at)) {
        Ok(at) => at,
        Err(errno) => return Answer::Failed(errno),
    };
    let mut exceeded = false;
    let mut has_room = true;
    let answer = with(fd, word, |using, description| {
        let _slow = Slow::new();
        let lock = at.is_none().then(|| description.lock());
        if !is_served(fd, word) {
            return Err(Halt::Kernel);
        }
        let begin = at.map_or_else(|| own_offset(using, description), Ok)?;
        let whole = within_call(parts, CALL_BYTES_MAX).map(|(_, len)| len).sum();
        check_end(begin, whole)?;
        if whole == 0 {
            return Ok(0);
        }
        let appends = writes && (how.appends || description.has(table::APPENDS));
        let most = if writes {
            within_limit(using, (!appends).then_some(begin), whole, &mut exceeded)?
        } else {
            CALL_BYTES_MAX
        };
        if lock.is_some() && writes && !appends {
            description.write_to(begin + most as u64);
        }
        // SAFETY: the caller's promise.
        let done = unsafe {
            if appends {
                append_parts(using, parts, most, &mut has_room)
            } else if how.at_once && !writes {
                read_at_once(using, parts, begin)
            } else {
                move_parts(using, parts, begin, writes, most)
            }
        };
        if lock.is_some() {
            description.move_to(done.as_ref().map_or(begin, |&(end, _)| end));
        }
        done.map(|(_, moved)| moved)
    });
    if exceeded {
        limits::exceeded();
    }
    if !has_room && files::give_to_kernel(fd, Why::Unserved).is_ok() {
        // The kernel appends them as one without room of ours.
        return Answer::Again;
    }
    answer
}

/// Parts as the kernel looks at them before anything else.
fn check_parts(parts: &[libc::iovec]) -> Result<(), c_int> {
    if parts
        .iter()
        .any(|part| isize::try_from(part.iov_len).is_err())
    {
        return Err(libc::EINVAL);
    }
    let (mut parts, most) = (parts.iter(), CALL_BYTES_MAX);
    parts.try_for_each(|part| check_memory(part.iov_base.addr(), part.iov_len.min(most)))
}

/// How parts are moved.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Into the file.
    pub writes: bool,
    /// At its end, whatever the description says.
    pub appends: bool,
    /// Only what is in memory (`RWF_NOWAIT`).
    pub at_once: bool,
}

/// Parts that fit what is left of a call.
fn within_call(parts: &[libc::iovec], most: usize) -> impl Iterator<Item = (*mut u8, usize)> {
    let mut left = most;
    parts.iter().map_while(move |part| {
        let len = part.iov_len.min(left);
        left -= len;
        (left > 0 || len > 0).then_some((part.iov_base.cast(), len))
    })
}

/// # Safety
/// The parts are valid.
unsafe fn move_parts(
    using: &Use<'_>,
    parts: &[libc::iovec],
    begin: u64,
    writes: bool,
    most: usize,
) -> Result<(u64, usize), Halt> {
    let mut done = 0;
    for (bytes, len) in within_call(parts, most).filter(|(_, len)| *len > 0) {
        let offset = begin + done as u64;
        // SAFETY: the caller's promise.
        let moved = unsafe {
            if writes {
                put(using, bytes, len, Some(offset)).map(|(_, written)| written)
            } else {
                get(using, bytes, len, offset)
            }
        };
        match moved {
            Ok(moved) if moved == len => done += moved,
            Ok(moved) => return Ok((offset + moved as u64, done + moved)),
            // The kernel moves all of them, from the beginning.
            Err(halt) if done == 0 || matches!(halt, Halt::Kernel) => return Err(halt),
            Err(_) => break,
        }
    }
    Ok((begin + done as u64, done))
}

/// Appends parts as one: nobody else's bytes come between. Where there is no memory to join them in, it says so and fails.
///
/// # Safety
/// The parts are valid.
unsafe fn append_parts(
    using: &Use<'_>,
    parts: &[libc::iovec],
    most: usize,
    has_room: &mut bool,
) -> Result<(u64, usize), Halt> {
    let total: usize = within_call(parts, most).map(|(_, len)| len).sum();
    let mut joined: Vec<u8> = Vec::new();
    if joined.try_reserve_exact(total).is_err() {
        *has_room = false;
        return Err(Halt::Failed(device_error(libc::ENOMEM)));
    }
    for (bytes, len) in within_call(parts, most) {
        // SAFETY: the target has room for all of them.
        let there = unsafe {
            let to = joined.as_mut_ptr().add(joined.len());
            let there = program::copy_what_is_there(bytes, to, len);
            joined.set_len(joined.len() + there);
            there
        };
        if there < len {
            break;
        }
    }
    if joined.is_empty() && total > 0 {
        return Err(Halt::Fault);
    }
    // SAFETY: ours.
    let (start, written) = unsafe { append(using, joined.as_ptr(), joined.len())? };
    Ok((start + written as u64, written))
}

/// Reads what is in memory: `EAGAIN` where that is nothing of what there is.
///
/// # Safety
/// The parts are valid.
unsafe fn read_at_once(
    using: &Use<'_>,
    parts: &[libc::iovec],
    begin: u64,
) -> Result<(u64, usize), Halt> {
    let (inode, me) = (using.inode, using.me);
    let size = inode.size(me)?;
    let mut done = 0;
    for (bytes, len) in within_call(parts, CALL_BYTES_MAX) {
        let mut from = 0;
        while from < len {
            let offset = begin + done as u64;
            let in_block = BLOCK_BYTES - (offset % BLOCK_BYTES as u64) as usize;
            let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let step = (len - from).min(in_block).min(left);
            // SAFETY: within the part.
            let read = || unsafe { inode.read_at_once(me, bytes.add(from), step, offset) };
            if step == 0 || read().is_err() {
                return match done {
                    0 if step > 0 => Err(Halt::Failed(device_error(libc::EAGAIN))),
                    _ => Ok((offset, done)),
                };
            }
            done += step;
            from += step;
        }
    }
    Ok((begin + done as u64, done))
}
