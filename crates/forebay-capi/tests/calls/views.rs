//! Views by the C functions.

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

use forebay_capi::file::*;
use forebay_capi::session::*;
use forebay_capi::view::*;

use forebay_model::skipped;

use crate::built::{directory, session_name};
use crate::own::{errno, open_session, said};

pub fn bytes_of(view: *const View) -> Vec<u8> {
    // SAFETY: an open handle, whose bytes are as many as it says.
    unsafe {
        let len = forebay_view_length(view);
        assert!(len >= 0, "{}", said());
        let bytes: *const c_void = forebay_view_bytes(view);
        if len == 0 {
            assert!(bytes.is_null());
            return Vec::new();
        }
        std::slice::from_raw_parts(bytes.cast(), len as usize).to_vec()
    }
}

#[test]
fn a_view_has_the_bytes_as_they_were() {
    let dir = directory();
    let session = open_session(&session_name());
    let path = dir.path().join("data").into_os_string();
    let path = CString::new(path.into_encoded_bytes()).expect("a path");
    let old: Vec<u8> = (0..600_000u32).map(|i| (i / 999) as u8).collect();
    // SAFETY: open handles, and memory of this function's.
    unsafe {
        let file = forebay_open(session, path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
        assert!(!file.is_null(), "{}", said());
        let written = forebay_pwrite(file, old.as_ptr().cast(), old.len(), 0);
        assert_eq!(written, old.len() as isize);
        let views = [
            (0, forebay_view_open(file, 0, usize::MAX)),
            (300_000, forebay_view_open(file, 300_000, 1 << 40)),
        ];
        let beyond = forebay_view_open(file, 1 << 40, 10);
        assert_eq!(bytes_of(beyond), b"");
        assert!(forebay_view_open(file, -1, 10).is_null());
        assert_eq!(errno(), libc::EINVAL, "{}", said());
        assert_eq!(forebay_view_length(null()), -1);
        let new = vec![0xFFu8; old.len()];
        assert_eq!(
            forebay_pwrite(file, new.as_ptr().cast(), new.len(), 0),
            new.len() as isize
        );
        assert_eq!(forebay_truncate(file, 100), 0);
        assert_eq!(forebay_close(file), 0);
        assert_eq!(forebay_session_close(session), 0);
        for (start, view) in views {
            assert_eq!(forebay_view_is_copy(view), 0);
            assert!(bytes_of(view) == old[start..], "the view from {start} on");
            forebay_view_close(view);
        }
        forebay_view_close(beyond);
        forebay_view_close(null_mut());
    }
}

#[test]
fn a_view_of_more_than_there_is_memory_for_is_an_error() {
    let promises = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
    if promises.is_ok_and(|how| how.trim() == "1") {
        return skipped("the kernel promises any amount of memory");
    }
    let dir = directory();
    let session = open_session(&session_name());
    let path = dir.path().join("data").into_os_string();
    let path = CString::new(path.into_encoded_bytes()).expect("a path");
    // SAFETY: open handles, and a path that ends.
    unsafe {
        let file = forebay_open(session, path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
        assert!(!file.is_null(), "{}", said());
        assert_eq!(forebay_truncate(file, 1 << 43), 0, "{}", said());
        assert!(forebay_view_open(file, 0, usize::MAX).is_null());
        assert_eq!(errno(), libc::ENOMEM, "{}", said());
        let view = forebay_view_open(file, 1 << 42, 10);
        assert_eq!(bytes_of(view), [0; 10]);
        forebay_view_close(view);
        assert_eq!(forebay_close(file), 0);
        assert_eq!(forebay_session_close(session), 0);
    }
}
