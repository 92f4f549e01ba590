//! Windows of stores: memory that a program fills, and that becomes a part of a file without a copy.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay::sys::forks::Owned;
use forebay_pmem::files::Files;

use super::{StoreFile, opened};
use crate::border::{Failure, call, of, ours};
use crate::file::offset_of;

/// Memory of a store that a program fills, and that becomes a part of a file without a copy. Its calls are made one at a time; given back once, by
/// forebay_store_window_close.
pub struct StoreWindow(Owned<Mutex<Lent>>);

struct Lent {
    // Dropped first: the store is kept for it.
    window: forebay_pmem::Window,
    _files: Arc<Files>,
}

/// Makes a window for up to `count` bytes of a file from `offset` on: as many as the store has side by side, which forebay_store_window_length says. Its bytes
/// are whatever lay there before, of removed files too. The file has nothing of them before the commit. A window keeps the store open, and its file there.
///
/// Returns NULL on failure. errno is EINVAL for no bytes, a negative offset and files that were opened with O_APPEND, or what forebay_store_pwrite says.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_window_open(
    file: *const StoreFile,
    offset: i64,
    count: usize,
) -> *mut StoreWindow {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        let file = unsafe { opened(file) }?;
        let mut window = file.window(offset_of(offset)?, count)?;
        window.keep_from_children();
        let lent = Lent {
            window,
            _files: Arc::clone(file.files()),
        };
        let owned = Owned::new(Mutex::new(lent)).map_err(forebay::Error::from)?;
        Ok(Box::into_raw(Box::new(StoreWindow(owned))))
    })
}

/// The first byte of a window, which may be read and written until forebay_store_window_commit and forebay_store_window_close. NULL for a window without
/// bytes, and on failure. A forked child has nothing there, and ends with SIGSEGV if it looks.
///
/// # Safety
/// `window` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_window_bytes(window: *const StoreWindow) -> *mut c_void {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        let mut lent = unsafe { lent(window) }?;
        match lent.window.is_empty() {
            true => Ok(null_mut()),
            false => Ok(lent.window.as_mut_ptr().cast()),
        }
    })
}

/// How many bytes a window has: fewer than were asked for where the store has no more side by side, none after a commit.
///
/// Returns -1 on failure.
///
/// # Safety
/// `window` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_window_length(window: *const StoreWindow) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        Ok(unsafe { lent(window) }?.window.len() as isize)
    })
}

/// Gives the first `count` bytes to the file, where the window was made for, without a copy: as forebay_store_pwrite writes them. The window is empty then,
/// and its memory the file's: a store to its former address would change what the file has, or another one by then, and what views show.
///
/// Returns how many bytes: all, unless an error came after some: then the window has the others, at the address that forebay_store_window_bytes says, and
/// they may be committed again. -1 on failure, with EINVAL for more bytes than there are, or what forebay_store_pwrite says.
///
/// # Safety
/// `window` is an open handle; nobody stores into its bytes during the call or after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_window_commit(
    window: *const StoreWindow,
    count: usize,
) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        let window = &mut unsafe { lent(window) }?.window;
        let before = window.len();
        if count > before {
            return Err(Failure::invalid("the window does not have these bytes"));
        }
        match window.commit_first(count) {
            Ok(()) => Ok(count as isize),
            Err(error) => match before - window.len() {
                0 => Err(error.into()),
                some => Ok(some as isize),
            },
        }
    })
}

/// Gives a window back; what was not committed is nowhere. NULL is no window, and nothing is done. In a forked child nothing is done either: its parent has
/// the window.
///
/// # Safety
/// `window` is NULL or a handle that is not closed yet, and no other thread uses it or its bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_window_close(window: *mut StoreWindow) {
    call((), || {
        if !window.is_null() {
            // SAFETY: made of a box by `forebay_store_window_open`, and the caller's promise that this is its last use.
            drop(unsafe { Box::from_raw(window) });
        }
        Ok(())
    });
}

/// # Safety
/// As for [`of`].
unsafe fn lent<'a>(window: *const StoreWindow) -> Result<MutexGuard<'a, Lent>, Failure> {
    // SAFETY: the caller's promise.
    let window = ours(&unsafe { of(window) }?.0)?;
    Ok(window.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Handles go from thread to thread.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<StoreWindow>();
};
