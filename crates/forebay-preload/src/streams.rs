//! Streams of stdio over descriptors that the engine may serve.
//!
//! libc's own streams read and write by calls that pass no hook. A stream of `fopencookie` calls functions of ours instead, which
//! are the hooks of the descriptor's calls: so it is a buffer over a descriptor like any other stream, whether the engine or the
//! kernel has the file. The descriptor's number is put where libc looks for it, so that `fileno` and code that looks without it
//! find it.
//!
//! Such a stream cannot be one of wide characters: with the first call for these it becomes one of libc's own ([`widen`]), and its
//! file the kernel's. Only what can be of use becomes one: streams that write, and those of files that the session manages.

pub mod libcs;
mod locks;

use std::ffi::CStr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering, Ordering::Relaxed,
};

use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};

use crate::files::{self, Why};
use crate::hooks;
use crate::inside::Inside;
use crate::raw::KeepErrno;
use crate::serve::{self, Turn};
use crate::table::{self, FOREIGN};
use crate::{attach, foreign, real};

/// Descriptors above this get streams of libc's own.
const STREAMS: usize = 1 << 16;

/// The stream over each descriptor, should it be one of ours.
static OF_DESCRIPTOR: [AtomicPtr<FILE>; STREAMS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; STREAMS];
/// No descriptor from this one on has had one.
static END: AtomicUsize = AtomicUsize::new(0);
/// Streams whose functions have been called: bytes have been read or written.
static USED: [AtomicBool; STREAMS] = [const { AtomicBool::new(false) }; STREAMS];
/// libc's streams are not what is written below.
static UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Whether calls for wide characters are looked at: there may be streams that cannot be of these, or a standard one that must not be
/// used unseen. A byte, for stubs.
pub static WIDE: AtomicU8 = AtomicU8::new(0);

/// From now on they are.
pub fn watch_wide() {
    WIDE.store(1, Relaxed);
}

/// The beginning of libc's `FILE`, as its public header `bits/types/struct_FILE.h` has it.
#[repr(C)]
struct Stream {
    flags: c_int,
    read_ptr: *mut c_char,
    read_end: *mut c_char,
    read_base: *mut c_char,
    write_base: *mut c_char,
    write_ptr: *mut c_char,
    write_end: *mut c_char,
    buf_base: *mut c_char,
    buf_end: *mut c_char,
    save_base: *mut c_char,
    backup_base: *mut c_char,
    save_end: *mut c_char,
    markers: *mut c_void,
    chain: *mut FILE,
    fileno: c_int,
    flags2: c_int,
    old_offset: libc::c_long,
    column: u16,
    vtable_offset: i8,
    short: [c_char; 1],
    lock: *mut c_void,
    offset: off64_t,
    codecvt: *mut c_void,
    wide_data: *mut c_void,
}

/// Where a stream has its descriptor's number.
pub const FILENO: usize = std::mem::offset_of!(Stream, fileno);

const _: () = assert!(FILENO == 112);
const _: () = assert!(std::mem::offset_of!(Stream, wide_data) == 160);

/// What libc puts there where a stream has no descriptor, but functions.
const FUNCTIONS_INSTEAD: c_int = -2;
const UNBUFFERED: c_int = 2;
const LINE_BUFFERED: c_int = 0x200;

/// How a stream is opened.
#[derive(Clone, Copy)]
pub struct Mode {
    /// For `open`.
    pub flags: c_int,
    /// For `fopencookie`.
    kind: &'static CStr,
    writes: bool,
    /// Begins at the file's end.
    ends: bool,
}

impl Mode {
    /// `None`: libc shall look at it, since it asks for more than bytes, or for nothing that there is.
    ///
    /// # Safety
    /// A string that ends in a null byte.
    pub unsafe fn of(mode: *const c_char) -> Option<Self> {
        // SAFETY: the caller's promise.
        let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
        if mode.windows(5).any(|part| part == b",ccs=") {
            return None;
        }
        let (&first, rest) = mode.split_first()?;
        // libc reads no further either.
        let rest = &rest[..rest.len().min(6)];
        let plus = rest.contains(&b'+');
        let created = libc::O_CREAT
            | if first == b'w' {
                libc::O_TRUNC
            } else {
                libc::O_APPEND
            };
        let (access, kind, flags) = match (first, plus) {
            (b'r', false) => (libc::O_RDONLY, c"r", 0),
            (b'r', true) => (libc::O_RDWR, c"r+", 0),
            (b'w', false) => (libc::O_WRONLY, c"w", created),
            (b'w', true) => (libc::O_RDWR, c"w+", created),
            (b'a', false) => (libc::O_WRONLY, c"a", created),
            (b'a', true) => (libc::O_RDWR, c"a+", created),
            _ => return None,
        };
        let more = [(b'x', libc::O_EXCL), (b'e', libc::O_CLOEXEC)];
        let more = more.iter().filter(|(letter, _)| rest.contains(letter));
        Some(Mode {
            flags: more.fold(access | flags, |flags, (_, flag)| flags | flag),
            kind,
            writes: access != libc::O_RDONLY,
            ends: kind == c"a",
        })
    }

    fn access(&self) -> c_int {
        self.flags & libc::O_ACCMODE
    }
}

/// Whether there may be streams of ours: somebody may manage their files.
pub fn may_be() -> bool {
    attach::is_on() && !Inside::is() && !UNKNOWN.load(Relaxed) && attach::glance().is_some()
}

/// Whether a stream on a file of this name may be of use.
///
/// # Safety
/// As for [`files::known_path`].
pub unsafe fn is_worth(path: *const c_char, mode: &Mode) -> bool {
    let _errno = KeepErrno::new();
    // SAFETY: the caller's promise.
    mode.writes || unsafe { files::known_path(libc::AT_FDCWD, path, 0) }.is_some()
}

/// A stream over a descriptor that has just been opened for it. `None`: libc's own will do.
pub fn over(fd: c_int, mode: &Mode) -> Option<*mut FILE> {
    let word = table::word(fd);
    let serves =
        fd > 2 && (fd as usize) < STREAMS && word.is_file() && !word.description().has(FOREIGN);
    if !serves || UNKNOWN.load(Relaxed) {
        return None;
    }
    make(fd, mode)
}

/// A stream over a descriptor of the program's. `None`: libc's own will do.
///
/// # Errors
/// Error numbers: the descriptor is open in another way.
pub fn adopt(fd: c_int, mode: &Mode) -> Result<Option<*mut FILE>, c_int> {
    if !may_be() || !files::is_known(fd) {
        return Ok(None);
    }
    match serve::turn(fd) {
        Turn::Managed(_) => {}
        Turn::Candidate(word) if word.writes() => {}
        _ => return Ok(None),
    }
    // SAFETY: takes no memory.
    let flags = unsafe { real::fcntl64(fd, libc::F_GETFL, 0) };
    let access = flags & libc::O_ACCMODE;
    if flags < 0 || (access != libc::O_RDWR && access != mode.access()) {
        return Err(libc::EINVAL);
    }
    let appends = mode.flags & libc::O_APPEND != 0 && flags & libc::O_APPEND == 0;
    let Some(stream) = over(fd, mode) else {
        return Ok(None);
    };
    if appends {
        // SAFETY: takes no memory.
        unsafe {
            hooks::dup::fcntl64(
                fd,
                libc::F_SETFL,
                libc::c_long::from(flags | libc::O_APPEND),
            )
        };
    }
    Ok(Some(stream))
}

fn make(fd: c_int, mode: &Mode) -> Option<*mut FILE> {
    let functions = Functions {
        read,
        write,
        seek,
        close,
    };
    let cookie = std::ptr::without_provenance_mut(fd as usize);
    // SAFETY: a string, and functions as libc wants them.
    let file = unsafe { fopencookie(cookie, mode.kind.as_ptr(), functions) };
    if file.is_null() {
        return None;
    }
    let stream = file.cast::<Stream>();
    // SAFETY: made just now, and nobody else's yet; as long as this at least.
    unsafe {
        if (*stream).fileno != FUNCTIONS_INSTEAD {
            // It is left as it is, with its descriptor, which another stream gets.
            UNKNOWN.store(true, Relaxed);
            return None;
        }
        (*stream).fileno = fd;
        locks::unlock_if_alone(&mut *stream);
    }
    if mode.ends {
        // SAFETY: takes no memory.
        unsafe { hooks::seek::lseek64(fd, 0, libc::SEEK_END) };
    }
    USED[fd as usize].store(false, Relaxed);
    END.fetch_max(fd as usize + 1, Relaxed);
    OF_DESCRIPTOR[fd as usize].store(file, Ordering::Release);
    watch_wide();
    Some(file)
}

/// The descriptor of a stream, if it is one of ours.
pub fn descriptor(file: *mut FILE) -> Option<c_int> {
    if END.load(Relaxed) == 0 || file.is_null() {
        return None;
    }
    let _errno = KeepErrno::new();
    // SAFETY: the caller's stream; the function behind ours uses it, too.
    let fd = unsafe { libc::fileno(file) };
    let of = OF_DESCRIPTOR.get(usize::try_from(fd).ok()?)?;
    (of.load(Ordering::Acquire) == file).then_some(fd)
}

/// Whether a descriptor has a stream of ours.
pub fn has(fd: c_int) -> bool {
    let of = usize::try_from(fd)
        .ok()
        .and_then(|fd| OF_DESCRIPTOR.get(fd));
    of.is_some_and(|of| !of.load(Ordering::Acquire).is_null())
}

/// What libc calls.
#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fwide(stream: *mut FILE, mode: c_int) -> c_int;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn fflush_unlocked(file: *mut FILE) -> c_int;
    fn ftrylockfile(file: *mut FILE) -> c_int;
    fn funlockfile(file: *mut FILE);
}

fn of_cookie(cookie: *mut c_void) -> c_int {
    let fd = cookie.addr();
    USED[fd % STREAMS].store(true, Relaxed);
    fd as c_int
}

/// # Safety
/// For libc, with memory of its own or the program's.
unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { hooks::io::read(of_cookie(cookie), to.cast(), len) }
}

/// All of it, or as much as can be.
///
/// # Safety
/// As for [`read`].
unsafe extern "C-unwind" fn write(
    cookie: *mut c_void,
    from: *const c_char,
    len: size_t,
) -> ssize_t {
    let fd = of_cookie(cookie);
    let mut done = 0;
    while done < len {
        // SAFETY: the caller's promise.
        let written = unsafe { hooks::io::write(fd, from.add(done).cast(), len - done) };
        if written < 0 {
            break;
        }
        done += written as usize;
    }
    done as ssize_t
}

/// # Safety
/// As for [`read`].
unsafe extern "C-unwind" fn seek(
    cookie: *mut c_void,
    offset: *mut off64_t,
    whence: c_int,
) -> c_int {
    // SAFETY: libc's variable.
    unsafe {
        let at = hooks::seek::lseek64(cookie.addr() as c_int, *offset, whence);
        if at < 0 {
            return -1;
        }
        *offset = at;
    }
    0
}

/// # Safety
/// As for [`read`].
unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    let fd = cookie.addr();
    if let Some(of) = OF_DESCRIPTOR.get(fd) {
        of.store(std::ptr::null_mut(), Ordering::Release);
    }
    // SAFETY: the stream's descriptor.
    unsafe { hooks::close::close(fd as c_int) }
}

/// The program ends: what its streams have not written yet goes to the files before these are finished.
pub fn flush_all() {
    for of in OF_DESCRIPTOR.iter().take(END.load(Relaxed)) {
        let file = of.load(Ordering::Acquire);
        if file.is_null() {
            continue;
        }
        // SAFETY: open as long as it is in the table. Should a thread hold it that will not end with the program, libc writes it
        // all the same.
        unsafe {
            let locked = ftrylockfile(file) == 0;
            fflush_unlocked(file);
            if locked {
                funlockfile(file);
            }
        }
    }
}

/// A stream is about to be reopened: it is to be one of libc's own. What it has is written.
pub fn retire(file: *mut FILE) {
    let Some(fd) = descriptor(file) else { return };
    // SAFETY: the caller's stream.
    unsafe { libc::fflush(file) };
    OF_DESCRIPTOR[fd as usize].store(std::ptr::null_mut(), Ordering::Release);
    graft(file);
}

/// What libc's own streams have for wide characters, of a stream that stays for good. Null if there is none to be had.
fn wide_data() -> *mut c_void {
    // SAFETY: strings; the stream is nobody else's.
    unsafe {
        let donor = hooks::pass::stdio::open_really(c"/dev/null".as_ptr(), c"r".as_ptr());
        if donor.is_null() {
            return std::ptr::null_mut();
        }
        let descriptor = libc::fileno(donor);
        (*donor.cast::<Stream>()).fileno = -1;
        real::close(descriptor);
        (*donor.cast::<Stream>()).wide_data
    }
}

/// Gives a stream what it needs when it is reopened.
fn graft(file: *mut FILE) {
    let wide_data = wide_data();
    if !wide_data.is_null() {
        // SAFETY: the caller's stream, which this thread is about to use.
        unsafe { (*file.cast::<Stream>()).wide_data = wide_data };
    }
}

/// Calls for wide characters look at this even of streams of bytes, only to find out that they are that.
fn graft_for_looks(file: *mut FILE) {
    static FOR_ALL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if FOR_ALL.load(Ordering::Acquire).is_null() {
        FOR_ALL.store(wide_data(), Ordering::Release);
    }
    let stream = file.cast::<Stream>();
    // SAFETY: the caller's stream, which this thread is about to use.
    unsafe {
        if (*stream).wide_data.addr() == usize::MAX {
            (*stream).wide_data = FOR_ALL.load(Ordering::Acquire);
        }
    }
}

/// The program says that a stream is one of bytes.
pub fn of_bytes(file: *mut FILE) {
    if let Some(fd) = descriptor(file) {
        USED[fd as usize].store(true, Relaxed);
    }
}

/// A call for wide characters is about to be made. On a stream that no byte has been read from or written to, it would turn
/// the stream into one of these: so it becomes one of libc's own, over the same description.
pub fn widen(file: *mut FILE) {
    let Some(fd) = descriptor(file) else { return };
    let stream = file.cast::<Stream>();
    // SAFETY: the caller's stream, which this thread is about to use.
    let (used, flags) = unsafe {
        let stream = &*stream;
        let has_bytes =
            stream.read_end != stream.read_base || stream.write_ptr != stream.write_base;
        (has_bytes || USED[fd as usize].load(Relaxed), stream.flags)
    };
    let _errno = KeepErrno::new();
    if used {
        return graft_for_looks(file);
    }
    // SAFETY: takes no memory, each of them; strings; the caller's stream.
    unsafe {
        let (status, on_exec) = (
            real::fcntl64(fd, libc::F_GETFL, 0),
            real::fcntl64(fd, libc::F_GETFD, 0),
        );
        let kept = real::fcntl64(fd, libc::F_DUPFD_CLOEXEC, 3);
        if status < 0 || kept < 0 {
            return;
        }
        let given =
            files::give_to_kernel(fd, Why::Stdio).and_then(|()| foreign::begin(fd, Why::Stdio));
        if given.is_err() {
            // It stays the engine's, and a stream of bytes, of which the call makes nothing.
            real::close(kept);
            fwide(file, -1);
            return graft_for_looks(file);
        }
        OF_DESCRIPTOR[fd as usize].store(std::ptr::null_mut(), Ordering::Release);
        graft(file);
        let mode = match (status & libc::O_ACCMODE, status & libc::O_APPEND != 0) {
            (libc::O_RDONLY, _) => c"r",
            (libc::O_WRONLY, false) => c"w",
            (libc::O_WRONLY, true) => c"a",
            (_, false) => c"r+",
            (_, true) => c"a+",
        };
        let reopened =
            hooks::pass::stdio::reopen_really(c"/dev/null".as_ptr(), mode.as_ptr(), file);
        let close_on_exec = if on_exec & libc::FD_CLOEXEC != 0 {
            libc::O_CLOEXEC
        } else {
            0
        };
        real::dup3(kept, fd, close_on_exec);
        real::close(kept);
        if !reopened.is_null() {
            libcs::begins(fd);
        }
        if !reopened.is_null() && flags & UNBUFFERED != 0 {
            libc::setvbuf(file, std::ptr::null_mut(), libc::_IONBF, 0);
        } else if !reopened.is_null() && flags & LINE_BUFFERED != 0 {
            libc::setvbuf(file, std::ptr::null_mut(), libc::_IOLBF, 0);
        }
    }
}
