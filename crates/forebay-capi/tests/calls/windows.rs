//! Windows by the C functions.

use std::ffi::CString;
use std::ptr::{null, null_mut};

use forebay_capi::file::*;
use forebay_capi::session::*;
use forebay_capi::window::*;

use crate::built::{directory, session_name};
use crate::own::{errno, open_session, said};

const MIB: usize = 1 << 20;
/// A huge page: what goes without a copy.
const PIECE: usize = 2 * MIB;
/// The window's bytes.
const LEN: usize = 2 * PIECE;

#[test]
fn what_a_window_has_given_is_the_files() {
    let dir = directory();
    let session = open_session(&session_name());
    let path = dir.path().join("data").into_os_string();
    let path = CString::new(path.into_encoded_bytes()).expect("a path");
    // SAFETY: open handles, and memory of this function's or of a window that is open.
    unsafe {
        let file = forebay_open(session, path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o600);
        assert!(!file.is_null(), "{}", said());
        let window = forebay_window_open(session, LEN);
        assert!(!window.is_null(), "{}", said());
        let bytes = || {
            let first: *mut u8 = forebay_window_bytes(window).cast();
            assert!(!first.is_null(), "{}", said());
            std::slice::from_raw_parts_mut(first, LEN)
        };
        assert!(bytes().iter().all(|&byte| byte == 0));
        bytes().fill(1);
        let given = |offset: i64| {
            let given = forebay_window_commit(window, file, offset, 0, LEN);
            assert_eq!(given, LEN as isize, "{}", said());
            forebay_window_attached(window)
        };
        assert_eq!(given(0), LEN as i64);
        // What was given is copied, until it is the window's again.
        bytes().fill(2);
        assert_eq!(given(LEN as i64), LEN as i64);
        assert_eq!(forebay_window_refill(window), 0);
        assert!(bytes().iter().all(|&byte| byte == 2));
        assert_eq!(given(2 * LEN as i64), 2 * LEN as i64);
        assert_eq!(forebay_window_detach(window), 0);
        assert!(bytes().iter().all(|&byte| byte == 0));
        // Off by a hundred bytes: the ends are copied.
        assert_eq!(forebay_window_slide(window, 3 * LEN as i64 + 100), 0);
        bytes().fill(4);
        assert_eq!(given(3 * LEN as i64 + 100), (2 * LEN + PIECE) as i64);
        let mut read = vec![0u8; 4 * LEN + 100];
        let all = forebay_pread(file, read.as_mut_ptr().cast(), read.len(), 0);
        assert_eq!(all, read.len() as isize);
        let expected = [(0, 1), (LEN, 2), (2 * LEN, 2), (3 * LEN + 100, 4)];
        for (at, byte) in expected {
            assert!(read[at..at + LEN].iter().all(|&is| is == byte), "at {at}");
        }
        let wrong = [
            forebay_window_commit(window, file, -1, 0, 1),
            forebay_window_commit(window, file, 0, LEN, 1),
            forebay_window_commit(window, file, 0, usize::MAX, 2),
            forebay_window_commit(null(), file, 0, 0, 1),
            forebay_window_slide(window, -1) as isize,
        ];
        for answer in wrong {
            assert_eq!((answer, errno()), (-1, libc::EINVAL), "{}", said());
        }
        assert!(forebay_window_open(session, 0).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(forebay_close(file), 0);
        assert_eq!(forebay_session_close(session), 0);
        // It outlives its session.
        bytes().fill(5);
        forebay_window_close(window);
        forebay_window_close(null_mut());
    }
    let outside = std::fs::read(dir.path().join("data")).expect("there");
    assert_eq!(outside.len(), 4 * LEN + 100);
    assert!(outside[3 * LEN + 100..].iter().all(|&byte| byte == 4));
}
