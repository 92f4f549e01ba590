//! Sessions: opened or joined by name, with the options of the configuration as texts.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use forebay::Config;
use forebay::config::Options;
use forebay::sys::forks::Owned;

use crate::border::{Failure, call, of, ours, text};
use crate::stats::{self, Stats};

/// A process's part in a session: an arena of cached bytes that several processes share. Used by any number of threads at once; closed
/// once, by forebay_session_close.
pub struct Session(pub(crate) Owned<forebay::Session>);

/// Joins the session of this name, or starts it, and keeps it: threads of this process write out what is owed and read ahead, or stand by
/// while another process does. What a session that has died has left is recovered first.
///
/// `name` is NULL for the session that the configuration names ("default" where nothing is said). `options` is NULL, or texts
/// "key=value" and a NULL at the end; keys and values are those of `forebay config`, stronger than the environment (FOREBAY_...), which is
/// stronger than the configuration file.
///
/// Returns NULL on failure. errno is EINVAL for an option that does not exist or does not fit (the text names it and what to write
/// instead), ENOMEM when no memory file system will do for the arena, ENOTCONN when the session cannot be joined.
///
/// # Safety
/// Texts end with a zero byte; `options` ends with NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_session_open(
    name: *const c_char,
    options: *const *const c_char,
) -> *mut Session {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        let options = unsafe { read_options(name, options) }?;
        let config = Config::load_with(options).map_err(forebay::Error::from)?;
        give(forebay::Session::open(config)?)
    })
}

/// As forebay_session_open, without keeping the session: this library starts no threads in this process. Some other process should keep it
/// (`forebay daemon`, a program that has opened it): without one the library works all the same, and calls write out what must be.
///
/// # Safety
/// As for forebay_session_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_session_join(
    name: *const c_char,
    options: *const *const c_char,
) -> *mut Session {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        let options = unsafe { read_options(name, options) }?;
        let config = Config::load_to_join(options).map_err(forebay::Error::from)?;
        give(forebay::Session::join(config)?)
    })
}

fn give(session: forebay::Session) -> Result<*mut Session, Failure> {
    let owned = Owned::new(session).map_err(forebay::Error::from)?;
    Ok(Box::into_raw(Box::new(Session(owned))))
}

/// Gives the handle back. Files that were opened by it stay open, and keep the session with them until the last is closed. NULL is no
/// session, and nothing is done. Returns 0.
///
/// # Safety
/// `session` is NULL or a handle that is not closed yet, and no other thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_session_close(session: *mut Session) -> c_int {
    call(-1, || {
        if !session.is_null() {
            // SAFETY: made of a box by `give`, and the caller's promise that this is its last use.
            drop(unsafe { Box::from_raw(session) });
        }
        Ok(0)
    })
}

/// Fills in the session's counters. `stats->size` must be set to sizeof(struct forebay_stats) before; the library fills in no more than
/// that, and sets `stats->size` to what it has filled in. Walks the arena's tables: not for each request.
///
/// Returns 0, or -1 with EINVAL for a size that no version of the structure has.
///
/// # Safety
/// `session` is an open handle, `stats` points to `stats->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_session_stats(
    session: *const Session,
    stats: *mut Stats,
) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        let session = unsafe { of_session(session) }?;
        // SAFETY: the caller's promise.
        unsafe { stats::fill_in(stats, &session.stats()) }?;
        Ok(0)
    })
}

/// # Safety
/// As for [`of`].
pub(crate) unsafe fn of_session<'a>(
    session: *const Session,
) -> Result<&'a forebay::Session, Failure> {
    // SAFETY: the caller's promise.
    ours(&unsafe { of(session) }?.0)
}

/// # Safety
/// As for [`forebay_session_open`].
unsafe fn read_options(
    name: *const c_char,
    options: *const *const c_char,
) -> Result<Options, Failure> {
    let mut read = Options::default();
    let mut next = options;
    // SAFETY: the caller's promise: a list of pointers that ends with NULL.
    while let Some(&option) = unsafe { next.as_ref() }
        && !option.is_null()
    {
        // SAFETY: the caller's promise.
        let option = utf8(unsafe { text(option, "an option") }?)?;
        let (key, value) = option.split_once('=').ok_or_else(|| {
            Failure::invalid(format!(
                "the option `{option}` is not of the form key=value"
            ))
        })?;
        read.set(key.trim(), value.trim())
            .map_err(forebay::Error::from)?;
        // SAFETY: this one was not the last.
        next = unsafe { next.add(1) };
    }
    if !name.is_null() {
        // SAFETY: the caller's promise.
        let name = utf8(unsafe { text(name, "the name") }?)?;
        read.set("session", name).map_err(forebay::Error::from)?;
    }
    Ok(read)
}

fn utf8(text: &CStr) -> Result<&str, Failure> {
    text.to_str()
        .map_err(|_| Failure::invalid("names and options are written in UTF-8"))
}
