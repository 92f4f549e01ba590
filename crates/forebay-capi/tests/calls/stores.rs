//! The functions of stores: by the model, and what views, windows and children have of them.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use forebay_capi::store::window::*;
use forebay_capi::store::*;
use forebay_capi::view::{View, forebay_store_view_open, forebay_view_close, forebay_view_is_copy};
use forebay_pmem::{CreateOptions, check, create_with};
use libc::{O_APPEND, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_WRONLY};

use crate::built::{compilers, directory, good, program, shared};
use crate::model::{Answer, Calls, Function, Request};
use crate::own::{errno, said};
use crate::views::bytes_of;

const MIB: usize = 1 << 20;

fn place(dir: &Path) -> CString {
    let path = dir.join("store").into_os_string();
    CString::new(path.into_encoded_bytes()).expect("a path")
}

fn open_store(path: &CStr, flags: c_int) -> *mut Store {
    // SAFETY: a text that outlives the call.
    let store = unsafe { forebay_store_open(path.as_ptr(), flags, -1) };
    assert!(!store.is_null(), "{}", said());
    store
}

/// A new store of so many MiB in a folder.
fn new_store(dir: &Path, mib: usize) -> *mut Store {
    let path = place(dir);
    // SAFETY: a text that outlives the call.
    let made = unsafe { forebay_store_create(path.as_ptr(), (mib * MIB) as u64) };
    assert_eq!(made, 0, "{}", said());
    open_store(&path, O_RDWR)
}

fn open(store: *const Store, path: &CStr, flags: c_int) -> *mut StoreFile {
    // SAFETY: an open handle and a text that outlives the call.
    unsafe { forebay_store_file_open(store, path.as_ptr(), flags, 0o640) }
}

fn write(file: *const StoreFile, bytes: &[u8], at: i64) -> isize {
    // SAFETY: an open handle and bytes that outlive the call.
    unsafe { forebay_store_pwrite(file, bytes.as_ptr().cast(), bytes.len(), at) }
}

fn read(file: *const StoreFile, at: i64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    // SAFETY: an open handle and room of this function's.
    let count = unsafe { forebay_store_pread(file, bytes.as_mut_ptr().cast(), length, at) };
    bytes.truncate(usize::try_from(count).unwrap_or_else(|_| panic!("{}", said())));
    bytes
}

fn view(file: *const StoreFile, at: i64, length: usize) -> *mut View {
    // SAFETY: an open handle.
    let view = unsafe { forebay_store_view_open(file, at, length) };
    assert!(!view.is_null(), "{}", said());
    view
}

fn close(file: *mut StoreFile) {
    // SAFETY: a handle's last use.
    assert_eq!(unsafe { forebay_store_file_close(file) }, 0, "{}", said());
}

fn close_store(store: *mut Store) {
    // SAFETY: a handle's last use.
    assert_eq!(unsafe { forebay_store_close(store) }, 0, "{}", said());
}

fn is_clean(dir: &Path) {
    let report = check(&dir.join("store")).expect("nobody has it open");
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Fails with this number, and with a text that has these words.
fn fails(answer: i64, number: i32, words: &str) {
    let errno = errno();
    assert_eq!((answer, errno), (-1, number), "{}", said());
    assert!(said().contains(words), "{}", said());
}

fn none<T>(handle: *const T) -> i64 {
    if handle.is_null() { -1 } else { 0 }
}

/// The model's calls, on files of a store.
pub struct Stored {
    store: *mut Store,
    files: BTreeMap<(u8, u8), *mut StoreFile>,
}

impl Stored {
    pub fn new(dir: &Path) -> Self {
        let options = CreateOptions {
            size: Some(1 << 30),
            sparse: true,
            ..CreateOptions::default()
        };
        create_with(&dir.join("store"), &options).expect("made");
        Stored {
            store: open_store(&place(dir), O_RDWR),
            files: BTreeMap::new(),
        }
    }

    fn open(&mut self, request: &Request) -> i64 {
        let path = CString::new(format!("file-{}", request.file)).expect("a path");
        let file = open(self.store, &path, request.flags);
        if file.is_null() {
            return -1;
        }
        self.files.insert((request.file, request.handle), file);
        0
    }
}

impl Calls for Stored {
    fn call(&mut self, request: &Request) -> Answer {
        let Request {
            offset, len, bytes, ..
        } = request;
        let (offset, len) = (*offset, *len);
        let handle = (request.file, request.handle);
        let reads = matches!(request.function, Function::Pread | Function::Preadv);
        let mut room = vec![0; if reads { len as usize } else { 0 }];
        let file = self.files.get(&handle).copied().unwrap_or(null_mut());
        let (source, count) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the handle is open (or NULL, for which only `Open` comes), and buffers are as long as is said.
        let result = unsafe {
            match request.function {
                Function::Open => self.open(request),
                Function::Close => {
                    self.files.remove(&handle);
                    forebay_store_file_close(file).into()
                }
                Function::Pread | Function::Preadv => {
                    forebay_store_pread(file, room.as_mut_ptr().cast(), room.len(), offset) as i64
                }
                Function::Pwrite | Function::Pwritev => {
                    forebay_store_pwrite(file, source, count, offset) as i64
                }
                Function::Append => forebay_store_append(file, source, count),
                Function::Truncate => forebay_store_truncate(file, len).into(),
                Function::Size => forebay_store_size(file),
                Function::Punch => forebay_store_punch(file, offset, len).into(),
                Function::Datasync => forebay_store_sync(self.store).into(),
                Function::Sync => forebay_store_file_sync(file).into(),
            }
        };
        let errno = errno();
        room.truncate(usize::try_from(result).unwrap_or(0));
        Answer {
            result,
            errno,
            bytes: room,
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        // The store first: its files keep it.
        close_store(self.store);
        self.files.values().copied().for_each(close);
    }
}

/// Gathers names, and whether they are directories'.
///
/// # Safety
/// `context` is a list of these that nobody else uses, `name` ends with a zero byte.
unsafe extern "C" fn gather(context: *mut c_void, name: *const c_char, directory: c_int) -> c_int {
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

#[test]
fn a_store_has_names_and_files_and_keeps_them() {
    let dir = directory();
    let store = new_store(dir.path(), 16);
    // SAFETY: open handles, and texts and a list that outlive the calls.
    unsafe {
        assert_eq!(forebay_store_mkdir(store, c"/a".as_ptr(), 0o755), 0);
        let file = open(store, c"a/file", O_RDWR | O_CREAT | O_EXCL);
        assert_eq!(write(file, b"bytes", 3), 5);
        assert_eq!(forebay_store_append(file, b"!".as_ptr().cast(), 1), 8);
        let tail = open(store, c"a/file", O_WRONLY | O_APPEND);
        assert_eq!(write(tail, b"?", 0), 1);
        let moved = forebay_store_rename(store, c"a/file".as_ptr(), c"moved".as_ptr());
        assert_eq!(moved, 0, "{}", said());
        let mut names: Vec<(String, c_int)> = Vec::new();
        let context = (&raw mut names).cast();
        let listed = forebay_store_list(store, c"/".as_ptr(), Some(gather), context);
        assert_eq!(listed, 0, "{}", said());
        names.sort();
        assert_eq!(names, [("a".to_owned(), 1), ("moved".to_owned(), 0)]);
        assert_eq!(forebay_store_remove(store, c"a".as_ptr()), 0);
        close(tail);
        // The file keeps the store.
        close_store(store);
        assert_eq!(read(file, 0, 100), b"\0\0\0bytes!?");
        close(file);
    }
    is_clean(dir.path());
    let store = open_store(&place(dir.path()), O_RDONLY);
    let file = open(store, c"moved", O_RDWR);
    assert_eq!(read(file, 3, 5), b"bytes");
    fails(write(file, b"x", 0) as i64, libc::EROFS, "Read-only");
    let made = open(store, c"new", O_RDWR | O_CREAT);
    fails(none(made), libc::EROFS, "Read-only");
    close(file);
    close_store(store);
}

#[test]
fn what_makes_no_sense_in_a_store_is_an_error_with_a_text() {
    let dir = directory();
    let path = place(dir.path());
    // SAFETY: texts that outlive the calls, NULL, and open handles.
    unsafe {
        let opened = forebay_store_open(path.as_ptr(), O_RDWR, 0);
        fails(none(opened), libc::ENOENT, "cannot be opened");
        let small = forebay_store_create(path.as_ptr(), 10_000);
        fails(small.into(), libc::EINVAL, "at least");
        let store = new_store(dir.path(), 4);
        let again = forebay_store_create(path.as_ptr(), 4 << 20);
        fails(again.into(), libc::EBUSY, "open in another process");
        let opened = forebay_store_open(path.as_ptr(), O_RDWR, 0);
        fails(none(opened), libc::EBUSY, "open in another process");
        let opened = forebay_store_open(path.as_ptr(), O_WRONLY, 0);
        fails(none(opened), libc::EINVAL, "O_RDWR");
        fails(none(open(null(), c"f", O_RDONLY)), libc::EINVAL, "NULL");
        fails(none(open(store, c"f", O_RDONLY)), libc::ENOENT, "No such");
        let flags = open(store, c"f", O_RDONLY | O_CREAT);
        fails(none(flags), libc::EINVAL, "O_CREAT");
        let removed = forebay_store_remove(store, c"none".as_ptr());
        fails(removed.into(), libc::ENOENT, "none: ");
        let renamed = forebay_store_rename(store, c"none".as_ptr(), null());
        fails(renamed.into(), libc::EINVAL, "");
        let listed = forebay_store_list(store, c"/".as_ptr(), None, null_mut());
        fails(listed.into(), libc::EINVAL, "NULL");
        let file = open(store, c"f", O_WRONLY | O_CREAT);
        fails(none(forebay_store_view_open(file, 0, 1)), libc::EBADF, "");
        fails(
            none(forebay_store_window_open(file, 0, 0)),
            libc::EINVAL,
            "",
        );
        fails(
            none(forebay_store_window_open(file, -1, 1)),
            libc::EINVAL,
            "negative",
        );
        fails(
            forebay_store_truncate(file, -1).into(),
            libc::EINVAL,
            "negative",
        );
        fails(forebay_store_punch(file, 0, 0).into(), libc::EINVAL, "");
        fails(write(file, b"x", -1) as i64, libc::EINVAL, "negative");
        close(file);
        close_store(store);
        close_store(null_mut());
        close(null_mut());
        forebay_store_window_close(null_mut());
        let again = forebay_store_create(path.as_ptr(), 4 << 20);
        fails(again.into(), libc::EEXIST, "holds a store");
        std::fs::write(dir.path().join("store"), [7; 9999]).expect("written");
        let opened = forebay_store_open(path.as_ptr(), O_RDWR, 0);
        fails(none(opened), libc::EINVAL, "no store");
    }
}

#[test]
fn a_view_of_a_store_shows_one_moment_and_outlives_all_else() {
    let dir = directory();
    let store = new_store(dir.path(), 64);
    let file = open(store, c"f", O_RDWR | O_CREAT);
    let old: Vec<u8> = (0..3 * MIB).map(|i| (i / 999) as u8).collect();
    assert_eq!(write(file, &old, 0), old.len() as isize);
    let views = [0, 5000, 2 * MIB].map(|at| (at, view(file, at as i64, usize::MAX)));
    for fill in 0..5 {
        assert_eq!(write(file, &vec![fill; 2 * MIB], 100), 2 * MIB as isize);
        // SAFETY: an open handle.
        assert_eq!(unsafe { forebay_store_sync(store) }, 0);
    }
    // The first stretch has gone elsewhere.
    let copied = view(file, MIB as i64, 2 * MIB);
    // SAFETY: open handles.
    unsafe {
        assert_eq!(forebay_view_is_copy(copied), 1);
        assert_eq!(forebay_store_truncate(file, 0), 0);
        assert_eq!(forebay_store_remove(store, c"f".as_ptr()), 0);
        close(file);
        close_store(store);
        // Nobody else gets at what a view shows.
        let opened = forebay_store_open(place(dir.path()).as_ptr(), O_RDWR, 0);
        fails(none(opened), libc::EBUSY, "open");
        for (at, view) in views {
            assert_eq!(forebay_view_is_copy(view), 0);
            assert!(bytes_of(view) == old[at..], "the view from {at} on");
            forebay_view_close(view);
        }
        let copy = bytes_of(copied);
        assert!(copy[..MIB + 100].iter().all(|&byte| byte == 4));
        assert!(copy[MIB + 100..] == old[2 * MIB + 100..]);
        forebay_view_close(copied);
    }
    is_clean(dir.path());
}

/// A window of a file, with all of its bytes.
fn window(
    file: *const StoreFile,
    at: usize,
    count: usize,
) -> (*mut StoreWindow, &'static mut [u8]) {
    // SAFETY: an open handle; the bytes are used until the window is committed or closed.
    unsafe {
        let window = forebay_store_window_open(file, at as i64, count);
        assert!(!window.is_null(), "{}", said());
        let length = forebay_store_window_length(window) as usize;
        let first: *mut u8 = forebay_store_window_bytes(window).cast();
        (window, std::slice::from_raw_parts_mut(first, length))
    }
}

#[test]
fn a_window_becomes_a_part_of_the_file() {
    let dir = directory();
    let store = new_store(dir.path(), 32);
    let file = open(store, c"f", O_RDWR | O_CREAT);
    assert_eq!(write(file, &[1; 10_000], 0), 10_000);
    // SAFETY: open handles.
    unsafe {
        let (filled, bytes) = window(file, 5_000, 3 * MIB);
        assert_eq!(bytes.len(), 3 * MIB);
        bytes.fill(2);
        assert_eq!(read(file, 5_000, 10_000), [1; 5_000]);
        fails(
            forebay_store_window_commit(filled, 3 * MIB + 1) as i64,
            libc::EINVAL,
            "these bytes",
        );
        let place = bytes.as_ptr();
        assert_eq!(
            forebay_store_window_commit(filled, 2 * MIB),
            2 * MIB as isize
        );
        assert_eq!(forebay_store_window_length(filled), 0);
        assert!(forebay_store_window_bytes(filled).is_null());
        let shown = view(file, 5_000, MIB);
        assert_eq!(forebay_capi::view::forebay_view_bytes(shown).cast(), place);
        forebay_view_close(shown);
        forebay_store_window_close(filled);
        let (dropped, bytes) = window(file, 0, MIB);
        bytes.fill(9);
        forebay_store_window_close(dropped);
        // The window keeps the store.
        let (last, bytes) = window(file, 5_000 + 2 * MIB, 5);
        bytes.copy_from_slice(b"bytes");
        close_store(store);
        close(file);
        assert_eq!(forebay_store_window_commit(last, 5), 5, "{}", said());
        forebay_store_window_close(last);
    }
    is_clean(dir.path());
    let store = open_store(&place(dir.path()), O_RDWR);
    let file = open(store, c"f", O_RDONLY);
    let expected = [&[1; 5_000][..], &vec![2; 2 * MIB], b"bytes"].concat();
    assert!(read(file, 0, 4 * MIB) == expected);
    close(file);
    close_store(store);
}

#[test]
fn a_full_store_says_so() {
    let dir = directory();
    let store = new_store(dir.path(), 4);
    let file = open(store, c"f", O_RDWR | O_CREAT);
    let written = write(file, &vec![1; 8 * MIB], 0);
    assert!(written > 0 && written < 4 * MIB as isize, "{written}");
    fails(write(file, &[1; 9], 8 << 20) as i64, libc::ENOSPC, "space");
    // SAFETY: open handles, and bytes that outlive the calls.
    unsafe {
        fails(
            none(forebay_store_window_open(file, 8 << 20, 9)),
            libc::ENOSPC,
            "space",
        );
        let appended = forebay_store_append(file, vec![1; MIB].as_ptr().cast(), MIB);
        fails(appended, libc::ENOSPC, "space");
        assert_eq!(forebay_store_truncate(file, 10), 0);
        // A window is cut to what there is.
        let (cut, bytes) = window(file, 0, 1 << 40);
        assert!(bytes.len() < 4 * MIB);
        bytes.fill(3);
        let count = bytes.len();
        assert_eq!(forebay_store_window_commit(cut, count), count as isize);
        forebay_store_window_close(cut);
        assert_eq!(forebay_store_size(file), count as i64);
    }
    close(file);
    close_store(store);
    is_clean(dir.path());
}

/// The status of a forked child that ends with what `work` answers.
fn of_a_child(work: impl FnOnce() -> bool) -> c_int {
    // SAFETY: the child calls functions that only refuse, and looks at memory.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = if work() { 0 } else { 1 };
        // SAFETY: the end of this process.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a child of this process's.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Whether a child sees a view's last byte so.
fn a_child_sees(view: *const View, last: u8) -> bool {
    // SAFETY: an open handle, whose bytes are as many as it says, and which the parent keeps.
    unsafe {
        let first: *const u8 = forebay_capi::view::forebay_view_bytes(view).cast();
        let at = forebay_capi::view::forebay_view_length(view) as usize - 1;
        of_a_child(|| *first.add(at) == last) == 0
    }
}

#[test]
fn a_child_has_nothing_of_its_parents_store() {
    let dir = directory();
    let store = new_store(dir.path(), 16);
    let file = open(store, c"f", O_RDWR | O_CREAT);
    assert_eq!(write(file, &[1; 20_000], 0), 20_000);
    let shown = view(file, 0, 20_000);
    let (filled, bytes) = window(file, 0, 20_000);
    bytes.fill(2);
    let gone = |answer: i64| answer == -1 && errno() == libc::ENOTCONN;
    // SAFETY: handles of the parent's, which the library refuses, and of which nothing becomes.
    let status = of_a_child(|| unsafe {
        let refused = gone(forebay_store_size(file))
            && gone(write(file, b"child", 0) as i64)
            && gone(forebay_store_window_commit(filled, 5) as i64)
            && gone(forebay_store_mkdir(store, c"child".as_ptr(), 0o755).into())
            && gone(none(forebay_store_view_open(file, 0, 1)));
        forebay_view_close(shown);
        forebay_store_window_close(filled);
        refused && forebay_store_file_close(file) == 0 && forebay_store_close(store) == 0
    });
    assert_eq!(status, 0, "the child used what was its parent's");
    assert!(a_child_sees(shown, 1), "the child does not see the view");
    let place = bytes.as_mut_ptr();
    // SAFETY: nothing is mapped there in the child, so that this ends it.
    let status = of_a_child(|| unsafe {
        place.write_volatile(9);
        true
    });
    assert!(
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV,
        "the child has stored into its parent's window: {status}"
    );
    // SAFETY: open handles, each used for the last time.
    unsafe {
        assert_eq!(forebay_store_window_commit(filled, 20_000), 20_000);
        forebay_store_window_close(filled);
        assert!(bytes_of(shown) == [1; 20_000]);
        forebay_view_close(shown);
    }
    let shown = view(file, 0, 20_000);
    assert!(
        a_child_sees(shown, 2),
        "the child does not see what was a window"
    );
    // SAFETY: its last use.
    unsafe { forebay_view_close(shown) };
    assert!(read(file, 0, 30_000) == [2; 20_000]);
    close(file);
    close_store(store);
    is_clean(dir.path());
}

#[test]
fn the_example_of_stores() {
    for compiler in compilers() {
        for options in [
            &["-std=c99", "-pedantic"][..],
            &["-fsanitize=address,undefined"],
        ] {
            if compiler != "gcc" && options.len() == 1 {
                continue;
            }
            let dir = directory();
            let mut arguments = options.to_vec();
            let shared = shared();
            arguments.extend(shared.iter().map(String::as_str));
            let mut run = program(compiler, "examples/store.c", &arguments, dir.path());
            run.arg(dir.path().join("store"));
            let output = good(run.args(["numbers", "300000"]));
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(
                said,
                "300000 numbers, their sum 44999850000, without a copy\n"
            );
            is_clean(dir.path());
        }
    }
}
