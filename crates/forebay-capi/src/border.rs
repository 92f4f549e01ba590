//! What every call passes on its way in and out: errors as `errno` and a text, panics that go no further, pointers.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay::sys::forks::Owned;

thread_local! {
    /// What the calling thread's last failed call has to say.
    static TEXT: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Why a call fails.
pub(crate) struct Failure {
    pub(crate) errno: i32,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(errno: i32, text: impl Into<String>) -> Self {
        let text = text.into();
        Failure { errno, text }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, text)
    }
}

impl From<forebay::Error> for Failure {
    fn from(error: forebay::Error) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

/// Does the work of a call. Where it fails or panics the answer is `failed`, and `errno` and the thread's text say why.
pub(crate) fn call<T>(failed: T, work: impl FnOnce() -> Result<T, Failure>) -> T {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(answer)) => return answer,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            let text = format!("internal error: {}", text.unwrap_or("a panic"));
            // What the payload does when it is dropped is anything, a second panic too.
            std::mem::forget(payload);
            Failure::new(libc::EIO, text)
        }
    };
    tell(failure);
    failed
}

#[cold]
fn tell(failure: Failure) {
    let text = failure.text.replace('\0', " ");
    let text = CString::new(text).unwrap_or_default();
    // In a thread that is ending there is no place for it any more: `errno` has to do.
    let _ = TEXT.try_with(|place| place.replace(Some(text)));
    // SAFETY: libc's own place for this thread.
    unsafe { *libc::__errno_location() = failure.errno };
}

/// What the calling thread's last failed call of this library has to say: one line of English without an end of line, "" where none
/// has failed. It stays as it is until another call of this library fails in this thread. `errno` is set by the same calls; its value
/// means nothing after a call that has not failed.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_error() -> *const c_char {
    let text = TEXT.try_with(|text| text.borrow().as_ref().map(|text| text.as_ptr()));
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// The library's version, such as "0.1.0". Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// A handle of the caller's.
///
/// # Safety
/// The handle is `NULL`, or was opened by this library and is not closed before the answer's last use.
pub(crate) unsafe fn of<'a, H>(handle: *const H) -> Result<&'a H, Failure> {
    // SAFETY: the caller's promise; the library gives out pointers to whole values only.
    let handle = unsafe { handle.as_ref() };
    handle.ok_or_else(|| Failure::invalid("the handle is NULL"))
}

/// What a handle stands for, in the process that opened it.
#[inline]
pub(crate) fn ours<T>(owned: &Owned<T>) -> Result<&T, Failure> {
    owned.get().ok_or_else(inherited)
}

#[cold]
fn inherited() -> Failure {
    Failure::new(
        libc::ENOTCONN,
        "the handle belongs to the parent of this process: after a fork a child opens sessions and files of its own",
    )
}

/// A text of the caller's.
///
/// # Safety
/// `text` is `NULL` or ends with a zero byte, and stays as it is until the answer's last use.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// Writes a text where the caller wants it, as `snprintf` does: cut to fit, always ended by a zero byte where there is room for one. The
/// answer is the text's whole length.
///
/// # Safety
/// `place` is valid for writes of `size` bytes, or `size` is 0.
pub(crate) unsafe fn put(
    text: &str,
    place: *mut c_char,
    size: usize,
) -> Result<libc::ssize_t, Failure> {
    if size > 0 {
        if place.is_null() {
            return Err(Failure::invalid("the place for the text is NULL"));
        }
        let len = text.len().min(size - 1);
        // SAFETY: `len + 1` bytes are within what the caller has promised, and a text of ours is apart from it.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), len);
            place.add(len).write(0);
        }
    }
    Ok(text.len() as libc::ssize_t)
}

/// What a caller has called with each name of a directory.
pub(crate) type Visit =
    unsafe extern "C" fn(context: *mut c_void, name: *const c_char, is_directory: c_int) -> c_int;

/// Calls it with names and whether they are directories', until it answers something else than 0; answers the same.
///
/// # Safety
/// `visit` takes `context` and a name that is there for as long as the call, and returns.
pub(crate) unsafe fn visit_all(
    names: impl IntoIterator<Item = (Vec<u8>, bool)>,
    visit: Visit,
    context: *mut c_void,
) -> Result<c_int, Failure> {
    for (name, is_directory) in names {
        // No name has a zero byte in it.
        let name = CString::new(name).map_err(|_| Failure::invalid("a name has a zero byte"))?;
        // SAFETY: the caller's promise, and a text that outlives the call.
        let answer = unsafe { visit(context, name.as_ptr(), c_int::from(is_directory)) };
        if answer != 0 {
            return Ok(answer);
        }
    }
    Ok(0)
}

/// `NULL` where there has to be a function.
pub(crate) fn visitor(visit: Option<Visit>) -> Result<Visit, Failure> {
    visit.ok_or_else(|| Failure::invalid("the function to be called is NULL"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> String {
        // SAFETY: a text of this thread's, copied before any other call.
        let text = unsafe { CStr::from_ptr(forebay_error()) };
        text.to_str().expect("UTF-8").to_owned()
    }

    fn errno() -> i32 {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }

    #[test]
    fn a_panic_ends_at_the_border() {
        let answer = call(-1, || panic!("invariant {} does not hold", 7));
        assert_eq!((answer, errno()), (-1, libc::EIO));
        assert_eq!(said(), "internal error: invariant 7 does not hold");
        assert_eq!(call(-1, || std::panic::panic_any(7)), -1);
        assert_eq!(said(), "internal error: a panic");
    }

    #[test]
    fn each_thread_has_its_own_text() {
        call((), || Err(Failure::invalid("of this thread")));
        let other = std::thread::spawn(|| {
            assert_eq!(said(), "");
            call((), || Err(Failure::new(libc::ENOSPC, "of the\0other")));
            assert_eq!(errno(), libc::ENOSPC);
            said()
        });
        assert_eq!(other.join().expect("no panic"), "of the other");
        assert_eq!(said(), "of this thread");
    }

    #[test]
    fn texts_are_cut_to_fit() {
        let mut place = [1u8 as c_char; 4];
        // SAFETY: four bytes of this function's.
        let len = call(-1, || unsafe {
            put("reason", place.as_mut_ptr(), place.len())
        });
        assert_eq!(len, 6);
        assert_eq!(place.map(|c| c as u8), *b"rea\0");
        // SAFETY: nothing is written.
        let len = call(-1, || unsafe { put("reason", std::ptr::null_mut(), 0) });
        assert_eq!(len, 6);
    }
}
