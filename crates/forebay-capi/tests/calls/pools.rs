//! The functions of pools: two members in this process, and a server.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::TcpListener;
use std::ptr::{null, null_mut};

use forebay_capi::pool::*;
use forebay_pool::net::{Config, Serving};
use libc::{O_APPEND, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};

use crate::built::{compilers, directory, good, program, shared};
use crate::own::{errno, said};

/// A pool of one server, and where its configuration lies.
struct Place {
    _directory: tempfile::TempDir,
    path: CString,
    serving: Serving,
}

fn place() -> Place {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let text = format!("servers = [\"{}\"]", address.expect("an address"));
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pool.toml");
    std::fs::write(&path, &text).expect("written");
    let config = Config::parse(&text).expect("a pool");
    Place {
        _directory: directory,
        path: CString::new(path.into_os_string().into_encoded_bytes()).expect("a path"),
        serving: Serving::begin(&config, 0).expect("a server"),
    }
}

impl Place {
    fn join(&self) -> *mut Pool {
        // SAFETY: a text that outlives the call.
        let pool = unsafe { forebay_pool_open(self.path.as_ptr(), 20_000) };
        assert!(!pool.is_null(), "{}", said());
        pool
    }
}

fn open(pool: *const Pool, path: &CStr, flags: c_int) -> *mut PoolFile {
    // SAFETY: an open handle and a text that outlives the call.
    unsafe { forebay_pool_file_open(pool, path.as_ptr(), flags, 0o644) }
}

fn write(file: *const PoolFile, bytes: &[u8], at: i64) -> isize {
    // SAFETY: an open handle and bytes that outlive the call.
    unsafe { forebay_pool_pwrite(file, bytes.as_ptr().cast(), bytes.len(), at) }
}

fn read(file: *const PoolFile, at: i64) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    // SAFETY: an open handle and room of this function's.
    let count = unsafe { forebay_pool_pread(file, bytes.as_mut_ptr().cast(), bytes.len(), at) };
    bytes.truncate(usize::try_from(count).unwrap_or_else(|_| panic!("{}", said())));
    bytes
}

fn close(file: *mut PoolFile) {
    // SAFETY: a handle's last use.
    assert_eq!(unsafe { forebay_pool_file_close(file) }, 0, "{}", said());
}

/// Gathers names, and whether they are directories'.
///
/// # Safety
/// `context` is a list of these that nobody else uses, `name` ends with a zero byte.
unsafe extern "C" fn visit(context: *mut c_void, name: *const c_char, directory: c_int) -> c_int {
    // SAFETY: what the test hands on, and a name as the library promises it.
    let (names, name) = unsafe {
        (
            &mut *context.cast::<Vec<(String, c_int)>>(),
            CStr::from_ptr(name),
        )
    };
    names.push((name.to_str().expect("UTF-8").to_owned(), directory));
    0
}

/// Ends at the first name.
extern "C" fn enough(_: *mut c_void, _: *const c_char, _: c_int) -> c_int {
    7
}

fn names(pool: *const Pool, path: &CStr) -> Vec<(String, c_int)> {
    let mut names = Vec::new();
    let context = (&raw mut names).cast();
    // SAFETY: an open handle, a text and a list that outlive the call.
    let done = unsafe { forebay_pool_list(pool, path.as_ptr(), Some(visit), context) };
    assert_eq!(done, 0, "{}", said());
    names.sort();
    names
}

#[test]
fn what_one_member_of_a_pool_writes_another_one_reads() {
    let place = place();
    let (one, two) = (place.join(), place.join());
    // SAFETY: open handles, and texts that outlive the calls.
    unsafe {
        assert_eq!(forebay_pool_mkdir(one, c"mine".as_ptr(), 0o755), 0);
        let file = open(one, c"mine/file", O_RDWR | O_CREAT | O_EXCL);
        assert!(!file.is_null(), "{}", said());
        assert_eq!(write(file, b"ragged and quick", 3), 16);
        // Before anything is synced.
        let other = open(two, c"/mine/file", O_RDONLY);
        assert_eq!(read(other, 0), b"\0\0\0ragged and quick");
        assert_eq!(
            (read(other, 10), read(other, 19)),
            (b"and quick".to_vec(), vec![])
        );
        assert_eq!(forebay_pool_append(file, b"!".as_ptr().cast(), 1), 19);
        assert_eq!(forebay_pool_size(other), 20);
        let tail = open(two, c"mine/file", O_WRONLY | O_APPEND);
        assert_eq!(write(tail, b"?", 0), 1);
        assert_eq!(read(file, 18), b"k!?");
        assert_eq!(forebay_pool_truncate(file, 5), 0);
        assert_eq!(read(other, 0), b"\0\0\0ra");
        assert_eq!(forebay_pool_sync(file), 0, "{}", said());
        assert_eq!(
            forebay_pool_rename(two, c"mine/file".as_ptr(), c"moved".as_ptr()),
            0
        );
        let found = [("mine".to_owned(), 1), ("moved".to_owned(), 0)];
        assert_eq!(names(one, c"/"), found);
        let first = forebay_pool_list(one, c"".as_ptr(), Some(enough), null_mut());
        assert_eq!(first, 7);
        assert_eq!(forebay_pool_remove(one, c"mine".as_ptr()), 0);
        [file, other, tail].into_iter().for_each(close);
        // What was written is synced by the close, and outlives the client that has written it.
        let last = open(one, c"moved", O_WRONLY | O_TRUNC);
        assert_eq!(write(last, b"left behind", 0), 11);
        assert_eq!(forebay_pool_close(one), 0);
        close(last);
        let there = open(two, c"moved", O_RDONLY);
        assert_eq!(read(there, 0), b"left behind");
        close(there);
        assert_eq!(forebay_pool_close(two), 0);
    }
    place.serving.stop();
}

/// Fails with this number, and with a text that has these words.
fn fails(answer: i64, number: i32, words: &str) {
    let errno = errno();
    assert_eq!((answer, errno), (-1, number), "{}", said());
    assert!(said().contains(words), "{}", said());
}

/// -1 for no file.
fn none(file: *mut PoolFile) -> i64 {
    if file.is_null() { -1 } else { 0 }
}

#[test]
fn what_makes_no_sense_in_a_pool_is_an_error_with_a_text() {
    let place = place();
    let pool = place.join();
    // SAFETY: NULL, open handles, and texts that outlive the calls.
    unsafe {
        let nowhere = forebay_pool_open(c"/nowhere/pool.toml".as_ptr(), 0);
        fails(
            if nowhere.is_null() { -1 } else { 0 },
            libc::EINVAL,
            "/nowhere/pool.toml",
        );
        fails(none(open(null(), c"file", O_RDONLY)), libc::EINVAL, "NULL");
        fails(none(open(pool, c"file", O_RDONLY)), libc::ENOENT, "name");
        fails(
            none(open(pool, c"file", O_RDONLY | O_CREAT)),
            libc::EINVAL,
            "O_CREAT",
        );
        fails(
            forebay_pool_mkdir(pool, c"a/b".as_ptr(), 0o755).into(),
            libc::ENOENT,
            "name",
        );
        fails(
            forebay_pool_remove(pool, null()).into(),
            libc::EINVAL,
            "the path is NULL",
        );
        let visits = forebay_pool_list(pool, c"/".as_ptr(), None, null_mut());
        fails(visits.into(), libc::EINVAL, "NULL");
        assert_eq!(forebay_pool_close(null_mut()), 0);
        assert_eq!(forebay_pool_file_close(null_mut()), 0);
        assert_eq!(forebay_pool_close(pool), 0);
    }
    place.serving.stop();
}

#[test]
fn what_a_file_of_a_pool_is_not_open_for_is_an_error() {
    let place = place();
    let pool = place.join();
    let file = open(pool, c"file", O_WRONLY | O_CREAT);
    assert!(!file.is_null(), "{}", said());
    // SAFETY: open handles, texts that outlive the calls, and a byte of this function's.
    unsafe {
        let list = forebay_pool_list(pool, c"file".as_ptr(), Some(visit), null_mut());
        fails(list.into(), libc::ENOTDIR, "directory");
        let again = open(pool, c"file", O_WRONLY | O_CREAT | O_EXCL);
        fails(none(again), libc::EEXIST, "already");
        let mut byte = 0_u8;
        fails(
            forebay_pool_pread(file, (&raw mut byte).cast(), 1, 0) as i64,
            libc::EBADF,
            "read",
        );
        fails(write(file, b"x", -1) as i64, libc::EINVAL, "negative");
        fails(
            forebay_pool_truncate(file, -1).into(),
            libc::EINVAL,
            "negative",
        );
        close(file);
        let file = open(pool, c"file", O_RDONLY);
        fails(write(file, b"x", 0) as i64, libc::EBADF, "write");
        fails(
            forebay_pool_truncate(file, 0).into(),
            libc::EINVAL,
            "resized",
        );
        assert_eq!(forebay_pool_remove(pool, c"file".as_ptr()), 0);
        fails(forebay_pool_size(file), libc::ESTALE, "removed");
        close(file);
        assert_eq!(forebay_pool_close(pool), 0);
    }
    place.serving.stop();
}

#[test]
fn a_child_has_nothing_of_its_parents_pool() {
    let place = place();
    let pool = place.join();
    let file = open(pool, c"file", O_RDWR | O_CREAT);
    assert_eq!(write(file, b"parent", 0), 6);
    // SAFETY: the child calls functions that only refuse, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: handles of the parent's, which the library refuses.
        let refused = unsafe {
            forebay_pool_size(file) == -1
                && errno() == libc::ENOTCONN
                && forebay_pool_mkdir(pool, c"child".as_ptr(), 0o755) == -1
                && errno() == libc::ENOTCONN
                && forebay_pool_file_close(file) == 0
                && forebay_pool_close(pool) == 0
        };
        // SAFETY: the end of this process.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: a child of this process's.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child used what was its parent's");
    assert_eq!(read(file, 0), b"parent");
    close(file);
    // SAFETY: its last use.
    assert_eq!(unsafe { forebay_pool_close(pool) }, 0);
    place.serving.stop();
}

#[test]
fn the_example_of_pools() {
    let place = place();
    for compiler in compilers() {
        let dir = directory();
        let mut arguments = vec!["-std=c99", "-pedantic"];
        let shared = shared();
        arguments.extend(shared.iter().map(String::as_str));
        let mut run = program(compiler, "examples/pool.c", &arguments, dir.path());
        run.arg(place.path.to_str().expect("UTF-8"));
        let output = good(run.args(["notes", "for all hosts"]));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "for all hosts\nnotes\n"
        );
    }
    place.serving.stop();
}
