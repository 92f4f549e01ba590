//! Views: the bytes of a range as they were, where they lie.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use forebay::sys::forks::Owned;
use forebay_pmem::Whole;

use crate::border::{Failure, call, of, ours};
use crate::file::{File, offset_of, opened};
use crate::store::{self, StoreFile};

/// The bytes of a range of a file, as they were when the view was taken. Writes, truncations, the file's close and the session's change nothing of
/// it. Used by any number of threads at once; given back once, by forebay_view_close.
pub struct View(Owned<Shown>);

/// Whose bytes they are.
enum Shown {
    Session(forebay::View),
    Store(Whole),
}

impl Shown {
    fn bytes(&self) -> &[u8] {
        match self {
            Shown::Session(view) => view,
            Shown::Store(view) => view,
        }
    }
}

/// A new handle.
fn opened_view(shown: Shown) -> Result<*mut View, Failure> {
    let owned = Owned::new(shown).map_err(forebay::Error::from)?;
    Ok(Box::into_raw(Box::new(View(owned))))
}

/// Takes a view of `count` bytes from `offset` on, cut at the file's end. What is missing in memory is read first. Where it can be it is no copy: then it
/// counts as the session's memory until it is closed. At most half of that may be so, and further views are copies.
///
/// Returns NULL on failure. errno is EBADF when the file is not open for reading, EINVAL for a negative offset, ENOMEM when it must be a copy and there is not
/// so much memory, or what the device says.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_view_open(
    file: *const File,
    offset: i64,
    count: usize,
) -> *mut View {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        let file = unsafe { opened(file) }?;
        let start = offset_of(offset)?;
        let view = file.view(start..start.saturating_add(count as u64))?;
        opened_view(Shown::Session(view))
    })
}

/// As forebay_view_open, of a file of a store: the bytes where they lie in persistent memory, where that is side by side, and a copy where it is not. Writes
/// there go elsewhere until the view is closed. A store stays open until the last view of it is closed, whatever else is closed before.
///
/// Returns NULL on failure. errno is EBADF when the file is not open for reading, EINVAL for a negative offset, ENOMEM when it must be a copy and there is not
/// so much memory, EIO where the store is damaged.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_view_open(
    file: *const StoreFile,
    offset: i64,
    count: usize,
) -> *mut View {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        let file = unsafe { store::opened(file) }?;
        let view = file.view(offset_of(offset)?, count)?;
        opened_view(Shown::Store(view.whole()?))
    })
}

/// The first byte of a view, which may be read only. Valid until forebay_view_close; NULL for a view without bytes, and on failure.
///
/// # Safety
/// `view` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_view_bytes(view: *const View) -> *const c_void {
    call(null(), || {
        // SAFETY: the caller's promise.
        let view = ours(&unsafe { of(view) }?.0)?.bytes();
        if view.is_empty() {
            return Ok(null());
        }
        Ok(view.as_ptr().cast())
    })
}

/// How many bytes a view has: fewer than were asked for at the file's end only.
///
/// Returns -1 on failure.
///
/// # Safety
/// `view` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_view_length(view: *const View) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        Ok(ours(&unsafe { of(view) }?.0)?.bytes().len() as isize)
    })
}

/// Returns 1 where a view is a copy, since the kernel serves the file, as much is held in views as may be, or a store has not the bytes side by side; 0 where it is not; -1 on failure.
///
/// # Safety
/// `view` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_view_is_copy(view: *const View) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        let is_copy = match ours(&unsafe { of(view) }?.0)? {
            Shown::Session(view) => view.is_copy(),
            Shown::Store(view) => view.is_copy(),
        };
        Ok(c_int::from(is_copy))
    })
}

/// Gives a view back; its bytes must not be read any more. NULL is no view, and nothing is done. In a forked child nothing is done either: its parent
/// has the view.
///
/// # Safety
/// `view` is NULL or a handle that is not closed yet, and no other thread uses it or its bytes any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_view_close(view: *mut View) {
    call((), || {
        if !view.is_null() {
            // SAFETY: made of a box by `forebay_view_open`, and the caller's promise that this is its last use.
            drop(unsafe { Box::from_raw(view) });
        }
        Ok(())
    });
}
