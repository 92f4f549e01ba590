//! Windows: memory that a program fills, and whose whole pieces become a file's without a copy.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay::sys::forks::Owned;

use crate::border::{Failure, call, of, ours};
use crate::file::{File, offset_of, opened};
use crate::session::{Session, of_session};

/// Memory of the session that a program fills and gives to files. What is given costs no copy where it is whole pieces (2 MiB of the file) that
/// lie in the window as they do in the file. Its calls are made one at a time; given back once, by forebay_window_close.
pub struct Window(Owned<Mutex<forebay::Window>>);

/// Makes a window of `count` zeros. It counts as the session's memory, together with what views hold: at most half of that. What does not go into that
/// is memory of the process's own, and to give it to a file is a copy.
///
/// Returns NULL on failure. errno is EINVAL for no bytes or too many, ENOMEM when there are no such addresses.
///
/// # Safety
/// `session` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_window_open(session: *const Session, count: usize) -> *mut Window {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        let window = unsafe { of_session(session) }?.window(count)?;
        let owned = Owned::new(Mutex::new(window)).map_err(forebay::Error::from)?;
        Ok(Box::into_raw(Box::new(Window(owned))))
    })
}

/// The first byte of a window, which may be read and written. Valid until forebay_window_slide and forebay_window_close. A forked child has nothing
/// there, and ends with SIGSEGV if it looks.
///
/// Returns NULL on failure.
///
/// # Safety
/// `window` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_window_bytes(window: *const Window) -> *mut c_void {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        Ok(unsafe { held(window) }?.as_mut_ptr().cast())
    })
}

/// Gives `count` bytes from the window's byte `start` on to a file at `offset`: afterwards the file has them as if forebay_pwrite had written them, and
/// no later store into the window reaches it, from whatever thread. The first store into each page of what was given is slow: the system copies the
/// page. forebay_window_refill and forebay_window_detach spare that.
///
/// Returns how many bytes: all, unless an error came after some; -1 on failure. errno is EINVAL for bytes that the window does not have and for a
/// negative offset, or what forebay_pwrite says.
///
/// # Safety
/// `window` and `file` are open handles; no other thread stores into the bytes during the call, lest it is unknown which of them the file has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_window_commit(
    window: *const Window,
    file: *const File,
    offset: i64,
    start: usize,
    count: usize,
) -> libc::ssize_t {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (mut window, file) = unsafe { (held(window)?, opened(file)?) };
        let end = start.checked_add(count);
        let end = end.ok_or_else(|| Failure::invalid("a window does not have these bytes"))?;
        Ok(window.commit(file, offset_of(offset)?, start..end)? as libc::ssize_t)
    })
}

/// Makes what was given writable again at once, with the bytes that the window shows: to change some of them and give them again. Where the session
/// has no memory for it, blocks stay as they were, and the next commit of them is a copy.
///
/// Returns 0, or -1 on failure.
///
/// # Safety
/// `window` is an open handle, into whose bytes no other thread stores during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_window_refill(window: *const Window) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { done(window, forebay::Window::refill) }
}

/// Has zeros where blocks were given, without a copy: to fill the window anew. All else stays as it is.
///
/// Returns 0, or -1 on failure.
///
/// # Safety
/// As for forebay_window_refill.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_window_detach(window: *const Window) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { done(window, forebay::Window::detach) }
}

/// Empties a window, and moves its first byte to where a byte at `offset` lies in a file's pieces: a commit at this offset is a copy only of what lies
/// in pieces in part. Its bytes are zeros at other addresses then: forebay_window_bytes says where.
///
/// Returns 0, or -1 on failure. errno is EINVAL for a negative offset, or what forebay_window_open says.
///
/// # Safety
/// `window` is an open handle, at whose bytes nobody looks any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_window_slide(window: *const Window, offset: i64) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        unsafe { held(window) }?.slide(offset_of(offset)?)?;
        Ok(0)
    })
}

/// How many bytes have gone to files from a window without a copy.
///
/// Returns -1 on failure.
///
/// # Safety
/// `window` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_window_attached(window: *const Window) -> i64 {
    call(-1, || {
        // SAFETY: the caller's promise.
        Ok(unsafe { held(window) }?.attached_bytes() as i64)
    })
}

/// Gives a window back; its bytes must not be used any more, and what was given to files is theirs. NULL is no window, and nothing is done. In a forked
/// child nothing is done either: its parent has the window.
///
/// # Safety
/// `window` is NULL or a handle that is not closed yet, and no other thread uses it or its bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_window_close(window: *mut Window) {
    call((), || {
        if !window.is_null() {
            // SAFETY: made of a box by `forebay_window_open`, and the caller's promise that this is its last use.
            drop(unsafe { Box::from_raw(window) });
        }
        Ok(())
    });
}

/// # Safety
/// As for [`of`].
unsafe fn held<'a>(window: *const Window) -> Result<MutexGuard<'a, forebay::Window>, Failure> {
    // SAFETY: the caller's promise.
    let window = ours(&unsafe { of(window) }?.0)?;
    Ok(window.lock().unwrap_or_else(PoisonError::into_inner))
}

/// # Safety
/// As for [`of`].
unsafe fn done(
    window: *const Window,
    work: impl FnOnce(&mut forebay::Window) -> forebay::Result<()>,
) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        work(&mut *unsafe { held(window) }?)?;
        Ok(0)
    })
}
