//! The program's memory, which may not be there: what a call points to is looked at through here.

use std::mem::MaybeUninit;

use forebay::memory::copy;
use libc::{c_int, iovec};

use crate::inside::Inside;
use crate::signals;

/// Parts of a vectored call at most (`UIO_MAXIOV`).
const PARTS_MAX: c_int = 1024;
/// As many are kept without asking for memory.
const PARTS_AT_HAND: usize = 8;
const PAGE_BYTES: usize = 4096;

/// Reads a value of the program's; `None` where there is none.
pub fn peek<T: Copy>(at: usize) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the target is ours. Callers ask for plain structures of C, for which any bytes will do.
    unsafe { copy_from(at, value.as_mut_ptr().cast(), size_of::<T>()).then(|| value.assume_init()) }
}

/// Writes a value into memory of the program's, which may not be there.
pub fn poke<T: Copy>(at: usize, value: T) -> bool {
    let _inside = Inside::enter();
    let to = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the source is ours; faults of the target are handled where they are noticed.
    signals::is_attached()
        && unsafe { copy::try_copy((&raw const value).cast(), to, size_of::<T>()) }
}

/// `false` where there is none, and where nobody would notice that: then nothing can be managed either.
///
/// # Safety
/// The target is memory of ours.
unsafe fn copy_from(from: usize, to: *mut u8, len: usize) -> bool {
    let _inside = Inside::enter();
    // SAFETY: faults are handled; the target is as the caller says.
    signals::is_attached()
        && unsafe { copy::try_copy(std::ptr::with_exposed_provenance(from), to, len) }
}

/// Copies as much as is there, and says how much that is.
///
/// # Safety
/// The target is memory of ours, `len` bytes.
pub unsafe fn copy_what_is_there(from: *const u8, to: *mut u8, len: usize) -> usize {
    // SAFETY: the caller's promise.
    if unsafe { copy_from(from.addr(), to, len) } {
        return len;
    }
    let mut done = 0;
    while done < len {
        let step = (len - done).min(PAGE_BYTES - (from.addr() + done) % PAGE_BYTES);
        // SAFETY: within both.
        if !unsafe { copy_from(from.addr() + done, to.add(done), step) } {
            break;
        }
        done += step;
    }
    done
}

/// The parts of a vectored call, as they were when it began.
pub struct Parts {
    few: [iovec; PARTS_AT_HAND],
    many: Vec<iovec>,
    count: usize,
}

impl Parts {
    /// Takes a copy, as the kernel does.
    ///
    /// # Errors
    /// The kernel's error numbers.
    pub fn of(parts: *const iovec, count: c_int) -> Result<Self, c_int> {
        let Some(count) = (0..=PARTS_MAX).contains(&count).then_some(count as usize) else {
            return Err(libc::EINVAL);
        };
        let none = iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let mut taken = Parts {
            few: [none; PARTS_AT_HAND],
            many: Vec::new(),
            count,
        };
        if count > PARTS_AT_HAND {
            taken.many = vec![none; count];
        }
        let len = count * size_of::<iovec>();
        let to = taken.as_mut_slice().as_mut_ptr().cast();
        // SAFETY: room for all of them, which are plain numbers.
        if !unsafe { copy_from(parts.addr(), to, len) } {
            return Err(libc::EFAULT);
        }
        Ok(taken)
    }

    fn as_mut_slice(&mut self) -> &mut [iovec] {
        if self.count > PARTS_AT_HAND {
            &mut self.many
        } else {
            &mut self.few[..self.count]
        }
    }

    /// All of them.
    pub fn as_slice(&self) -> &[iovec] {
        if self.count > PARTS_AT_HAND {
            &self.many
        } else {
            &self.few[..self.count]
        }
    }

    /// Their lengths in sum.
    ///
    /// # Errors
    /// `EINVAL` if that is more than a call can say.
    pub fn total(&self) -> Result<usize, c_int> {
        let lengths = self.as_slice().iter().map(|part| part.iov_len);
        lengths
            .map(isize::try_from)
            .try_fold(0isize, |sum, len| sum.checked_add(len.ok()?))
            .map(|total| total as usize)
            .ok_or(libc::EINVAL)
    }
}
