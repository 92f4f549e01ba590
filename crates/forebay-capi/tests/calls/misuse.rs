//! Arguments that make no sense are errors with a remedy; handles work from many threads.

use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};

use forebay_capi::file::*;
use forebay_capi::session::*;

use crate::built::{directory, session_name};
use crate::own::{errno, open_session, said};

/// Fails with this number, and with a text that has these words.
fn fails(answer: i64, number: i32, words: &str) {
    let errno = errno();
    assert_eq!((answer, errno), (-1, number), "{}", said());
    assert!(said().contains(words), "{}", said());
}

/// As [`fails`], for what returns a handle.
fn none<T>(answer: *mut T, number: i32, words: &str) {
    fails(if answer.is_null() { -1 } else { 0 }, number, words);
}

fn with_option(option: &str) -> *mut Session {
    let option = CString::new(option).expect("a text");
    let list: [*const c_char; 2] = [option.as_ptr(), null()];
    // SAFETY: a text and a list that outlive the call.
    unsafe { forebay_session_join(null(), list.as_ptr()) }
}

#[test]
fn options_that_do_not_exist_are_named() {
    none(with_option("memroy=1GiB"), libc::EINVAL, "memory");
    none(with_option("memory=lots"), libc::EINVAL, "4GiB");
    none(with_option("memory"), libc::EINVAL, "key=value");
    none(with_option("session=a/b"), libc::EINVAL, "session");
}

#[test]
fn null_is_an_error_and_nothing_to_close() {
    let mut byte = 0u8;
    let place = (&raw mut byte).cast();
    // SAFETY: NULL and a byte of this function's.
    unsafe {
        fails(
            forebay_pread(null(), place, 1, 0) as i64,
            libc::EINVAL,
            "NULL",
        );
        fails(forebay_size(null()), libc::EINVAL, "NULL");
        fails(
            forebay_session_stats(null(), null_mut()).into(),
            libc::EINVAL,
            "NULL",
        );
        none(
            forebay_open(null(), c"file".as_ptr(), 0, 0),
            libc::EINVAL,
            "NULL",
        );
        assert_eq!(forebay_close(null_mut()), 0);
        assert_eq!(forebay_session_close(null_mut()), 0);
    }
}

/// A session with a file of these bytes.
fn opened(dir: &tempfile::TempDir, flags: i32) -> (*mut Session, *mut File, CString) {
    let path = dir.path().join("data").into_os_string();
    let path = CString::new(path.into_encoded_bytes()).expect("a path");
    let session = open_session(&session_name());
    // SAFETY: an open session and a text that outlives the call.
    let file = unsafe { forebay_open(session, path.as_ptr(), flags, 0o600) };
    assert!(!file.is_null(), "{}", said());
    (session, file, path)
}

/// Flags that make no sense together, and names that cannot be had.
///
/// # Safety
/// An open session.
unsafe fn refused_openings(session: *const Session, path: &CString) {
    // SAFETY: the caller's promise, and texts that outlive the calls.
    unsafe {
        for (flags, words) in [
            (libc::O_RDWR | libc::O_DIRECT, "O_APPEND"),
            (libc::O_ACCMODE, "O_RDWR"),
            (libc::O_RDWR | libc::O_EXCL, "O_EXCL"),
            (libc::O_RDONLY | libc::O_CREAT, "O_WRONLY"),
            (libc::O_RDONLY | libc::O_TRUNC, "O_WRONLY"),
        ] {
            none(
                forebay_open(session, path.as_ptr(), flags, 0),
                libc::EINVAL,
                words,
            );
        }
        let both = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        none(
            forebay_open(session, path.as_ptr(), both, 0),
            libc::EEXIST,
            "open",
        );
        none(
            forebay_open(session, c"no/such/file".as_ptr(), 0, 0),
            libc::ENOENT,
            "open",
        );
    }
}

#[test]
fn arguments_that_no_file_accepts() {
    let dir = directory();
    let (session, file, path) = opened(&dir, libc::O_RDWR | libc::O_CREAT);
    let part = libc::iovec {
        iov_base: null_mut(),
        iov_len: usize::MAX / 2,
    };
    let parts = [part, part, part];
    // SAFETY: open handles; what else comes in is refused before it is used.
    unsafe {
        fails(
            forebay_pread(file, null_mut(), 1, 0) as i64,
            libc::EFAULT,
            "NULL",
        );
        assert_eq!(
            forebay_pread(file, null_mut(), 0, 0),
            0,
            "of nothing the address does not matter"
        );
        fails(
            forebay_pwrite(file, path.as_ptr().cast(), 1, -1) as i64,
            libc::EINVAL,
            "negative",
        );
        fails(
            forebay_pwrite(file, path.as_ptr().cast(), usize::MAX, 0) as i64,
            libc::EINVAL,
            "SSIZE_MAX",
        );
        fails(
            forebay_preadv(file, parts.as_ptr(), 3, 0) as i64,
            libc::EINVAL,
            "SSIZE_MAX",
        );
        fails(
            forebay_preadv(file, parts.as_ptr(), -1, 0) as i64,
            libc::EINVAL,
            "1024",
        );
        fails(
            forebay_pwritev(file, null(), 1, 0) as i64,
            libc::EFAULT,
            "NULL",
        );
        assert_eq!(forebay_pwritev(file, null(), 0, 0), 0);
        fails(forebay_truncate(file, -1).into(), libc::EINVAL, "negative");
        fails(forebay_punch(file, 0, 0).into(), libc::EINVAL, "empty");
        fails(
            forebay_advise(file, 0, 0, 77).into(),
            libc::EINVAL,
            "POSIX_FADV",
        );
        assert_eq!(forebay_advise(file, 0, 0, libc::POSIX_FADV_RANDOM), 0);
        refused_openings(session, &path);
        let mut reason = [1 as c_char; 200];
        let len = forebay_kernel_reason(file, reason.as_mut_ptr(), reason.len());
        assert!(len >= 0 && reason[len as usize] == 0, "{len}");
        assert_eq!(forebay_session_close(session), 0);
        assert_eq!(forebay_close(file), 0);
    }
    let mode = std::fs::metadata(dir.path().join("data")).expect("there");
    let mode = std::os::unix::fs::MetadataExt::mode(&mode);
    assert_eq!(mode & 0o777, 0o600);
}

/// The handle that goes to the threads.
#[derive(Clone, Copy)]
struct Handle(*mut File);
// SAFETY: handles are for all threads at once.
unsafe impl Send for Handle {}

#[test]
fn threads_share_handles() {
    let dir = directory();
    let (session, file, _) = opened(&dir, libc::O_RDWR | libc::O_CREAT);
    let handle = Handle(file);
    let work = |number: u8| {
        let handle = { handle };
        std::thread::spawn(move || {
            let Handle(file) = { handle };
            let (mine, mut seen) = ([number; 3000], [0u8; 3000]);
            for round in 0..200i64 {
                let at = (round * 8 + i64::from(number)) * 3000;
                // SAFETY: an open handle and arrays of this function's.
                unsafe {
                    let written = forebay_pwrite(file, mine.as_ptr().cast(), 3000, at);
                    assert_eq!(written, 3000, "{}", said());
                    let read = forebay_pread(file, seen.as_mut_ptr().cast(), 3000, at);
                    assert_eq!(read, 3000, "{}", said());
                }
                assert!(seen == mine, "round {round}");
            }
        })
    };
    let threads: Vec<_> = (0..8).map(work).collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    // SAFETY: no thread uses them any more.
    unsafe {
        assert_eq!(forebay_close(file), 0, "{}", said());
        assert_eq!(forebay_session_close(session), 0);
    }
    let bytes = std::fs::read(dir.path().join("data")).expect("there");
    assert_eq!(bytes.len(), 200 * 8 * 3000);
    let right = bytes
        .chunks(3000)
        .enumerate()
        .all(|(i, part)| part.iter().all(|&b| b == (i % 8) as u8));
    assert!(right, "bytes differ");
}
