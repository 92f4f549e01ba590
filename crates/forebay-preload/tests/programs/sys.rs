//! Calls as C programs make them, with errors as numbers.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no null byte")
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn check(result: i64) -> Result<i64, i32> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

pub fn open(path: &Path, flags: i32) -> Result<i32, i32> {
    let path = c(path);
    // SAFETY: a string of ours.
    check(i64::from(unsafe {
        libc::open(path.as_ptr(), flags, 0o644)
    }))
    .map(|fd| fd as i32)
}

pub fn close(fd: i32) -> Result<(), i32> {
    // SAFETY: takes no memory.
    check(i64::from(unsafe { libc::close(fd) })).map(drop)
}

pub fn write(fd: i32, bytes: &[u8]) -> Result<usize, i32> {
    // SAFETY: bytes of ours.
    check(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) } as i64).map(|n| n as usize)
}

pub fn read(fd: i32, len: usize) -> Result<Vec<u8>, i32> {
    let mut bytes = vec![0; len];
    // SAFETY: bytes of ours.
    let got = check(unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), len) } as i64)?;
    bytes.truncate(got as usize);
    Ok(bytes)
}

pub fn pwrite(fd: i32, bytes: &[u8], at: i64) -> Result<usize, i32> {
    // SAFETY: bytes of ours.
    check(unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), at) } as i64)
        .map(|n| n as usize)
}

pub fn pread(fd: i32, len: usize, at: i64) -> Result<Vec<u8>, i32> {
    let mut bytes = vec![0; len];
    // SAFETY: bytes of ours.
    let got = check(unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), len, at) } as i64)?;
    bytes.truncate(got as usize);
    Ok(bytes)
}

pub fn seek(fd: i32, offset: i64, whence: i32) -> Result<i64, i32> {
    // SAFETY: takes no memory.
    check(unsafe { libc::lseek(fd, offset, whence) })
}

pub fn truncate(path: &Path, len: i64) -> Result<(), i32> {
    let path = c(path);
    // SAFETY: a string of ours.
    check(i64::from(unsafe { libc::truncate(path.as_ptr(), len) })).map(drop)
}

pub fn size_of(fd: i32) -> i64 {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the target is ours, initialised where the call succeeds.
    unsafe {
        assert_eq!(libc::fstat(fd, stat.as_mut_ptr()), 0);
        stat.assume_init().st_size
    }
}

pub fn size_at(path: &Path) -> i64 {
    let path = c(path);
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::stat(path.as_ptr(), stat.as_mut_ptr()), 0);
        stat.assume_init().st_size
    }
}

/// Runs `child` in a forked child, which ends with 0 if it returns. Returns the status.
pub fn in_child(child: impl FnOnce()) -> i32 {
    // SAFETY: the test has one thread that works; the child makes calls and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the target is ours.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status
}

/// Bytes that tell where they are.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i / 251) as u8 ^ (i % 251) as u8 ^ seed)
        .collect()
}

pub fn allocate(fd: i32, mode: i32, offset: i64, len: i64) -> Result<(), i32> {
    // SAFETY: takes no memory.
    check(i64::from(unsafe { libc::fallocate(fd, mode, offset, len) })).map(drop)
}

pub fn flags(fd: i32) -> i32 {
    // SAFETY: takes no memory.
    unsafe { libc::fcntl(fd, libc::F_GETFL) }
}

pub fn set_flags(fd: i32, flags: i32) -> Result<(), i32> {
    // SAFETY: takes no memory.
    check(i64::from(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) })).map(drop)
}

pub fn set_limit(resource: libc::__rlimit_resource_t, now: u64, most: u64) {
    let limit = libc::rlimit {
        rlim_cur: now,
        rlim_max: most,
    };
    // SAFETY: a limit of ours.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// The modification time of a file, s since 1970.
pub fn modified(path: &Path) -> i64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).expect("a file").mtime()
}

/// Sets both times of a file, s since 1970.
pub fn set_times(path: &Path, seconds: i64) -> Result<(), i32> {
    let time = libc::timespec {
        tv_sec: seconds,
        tv_nsec: 5,
    };
    let (path, times) = (c(path), [time, time]);
    // SAFETY: times and a string of ours.
    check(i64::from(unsafe {
        libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), 0)
    }))
    .map(drop)
}
