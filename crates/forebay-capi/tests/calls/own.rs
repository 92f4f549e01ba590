//! Calls of the functions in this process.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::ptr::null;

use forebay_capi::file::*;
use forebay_capi::session::*;

use crate::built::{OPTIONS, session_name};
use crate::model::{Answer, Calls, Function, Request};

/// A session and its open files.
pub struct Own {
    dir: PathBuf,
    session: *mut Session,
    files: BTreeMap<(u8, u8), *mut File>,
}

/// A session of its own, with [`OPTIONS`].
pub fn open_session(name: &str) -> *mut Session {
    let name = CString::new(name).expect("no zero byte");
    let options = OPTIONS.map(|option| CString::new(option).expect("no zero byte"));
    let mut list: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    list.push(null());
    // SAFETY: texts and a list that outlive the call.
    let session = unsafe { forebay_session_open(name.as_ptr(), list.as_ptr()) };
    assert!(!session.is_null(), "{}", said());
    session
}

/// What the last failure of this thread has to say.
pub fn said() -> String {
    // SAFETY: a text of this thread's, copied before any other call.
    let text = unsafe { std::ffi::CStr::from_ptr(forebay_capi::border::forebay_error()) };
    text.to_string_lossy().into_owned()
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl Own {
    pub fn new(dir: &Path) -> Self {
        Own {
            dir: dir.to_owned(),
            session: open_session(&session_name()),
            files: BTreeMap::new(),
        }
    }

    fn open(&mut self, request: &Request) -> i64 {
        let path = self.dir.join(format!("file-{}", request.file));
        let path = CString::new(path.into_os_string().into_encoded_bytes()).expect("a path");
        // SAFETY: an open session and a text that outlives the call.
        let file = unsafe { forebay_open(self.session, path.as_ptr(), request.flags, 0o644) };
        if file.is_null() {
            return -1;
        }
        self.files.insert((request.file, request.handle), file);
        0
    }
}

impl Calls for Own {
    fn call(&mut self, request: &Request) -> Answer {
        let Request {
            offset, len, bytes, ..
        } = request;
        let (offset, len) = (*offset, *len);
        let handle = (request.file, request.handle);
        let mut read = vec![
            0;
            if matches!(request.function, Function::Pread | Function::Preadv) {
                len as usize
            } else {
                0
            }
        ];
        let file = self
            .files
            .get(&handle)
            .copied()
            .unwrap_or(std::ptr::null_mut());
        let (source, count) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the handle is open (or NULL, for which only `Open` comes), and buffers are as long as is said.
        let result = unsafe {
            match request.function {
                Function::Open => self.open(request),
                Function::Close => {
                    self.files.remove(&handle);
                    forebay_close(file).into()
                }
                Function::Pread => {
                    forebay_pread(file, read.as_mut_ptr().cast(), read.len(), offset) as i64
                }
                Function::Preadv => {
                    let parts = parts(read.as_mut_ptr(), &request.lens);
                    forebay_preadv(file, parts.as_ptr(), parts.len() as i32, offset) as i64
                }
                Function::Pwrite => forebay_pwrite(file, source, count, offset) as i64,
                Function::Pwritev => {
                    let parts = parts(bytes.as_ptr().cast_mut(), &request.lens);
                    forebay_pwritev(file, parts.as_ptr(), parts.len() as i32, offset) as i64
                }
                Function::Append => forebay_append(file, source, count),
                Function::Truncate => forebay_truncate(file, len).into(),
                Function::Size => forebay_size(file),
                Function::Punch => forebay_punch(file, offset, len).into(),
                Function::Datasync => forebay_datasync(file).into(),
                Function::Sync => forebay_sync(file).into(),
            }
        };
        let errno = errno();
        read.truncate(usize::try_from(result).unwrap_or(0));
        Answer {
            result,
            errno,
            bytes: read,
        }
    }
}

/// Buffers of these lengths one after the other.
fn parts(mut start: *mut u8, lens: &[u32]) -> Vec<libc::iovec> {
    let mut parts = Vec::new();
    for &len in lens {
        parts.push(libc::iovec {
            iov_base: start.cast(),
            iov_len: len as usize,
        });
        start = start.wrapping_add(len as usize);
    }
    parts
}

impl Drop for Own {
    fn drop(&mut self) {
        // The session first: its files keep it.
        // SAFETY: each handle is closed once, here.
        unsafe {
            assert_eq!(forebay_session_close(self.session), 0);
            for file in self.files.values() {
                assert_eq!(forebay_close(*file), 0, "{}", said());
            }
        }
    }
}
