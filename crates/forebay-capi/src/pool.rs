//! Pools: memory that other hosts lend, and files in it.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::sys::forks::Owned;
use forebay_pool::client::Kind;
use forebay_pool::files::{Error, Files, Open, OpenOptions};
use forebay_pool::net::Config;

use crate::border::{Failure, call, of, ours, text, visit_all, visitor};
use crate::file::{bytes, bytes_mut, offset_of};

/// A process's membership in a pool: memory that other hosts lend, with files in it that all its hosts see alike. Used by any number of threads at once; closed
/// once, by forebay_pool_close.
pub struct Pool(Owned<Arc<Files>>);

/// An open file of a pool. Used by any number of threads at once, as a file is. Closed once, by forebay_pool_file_close.
pub struct PoolFile(Owned<Opened>);

struct Opened {
    open: Open,
    reads: bool,
    writes: bool,
    appends: bool,
    /// Something was written, or cut off by the opening, that no sync has begun after.
    is_written: AtomicBool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(error.errno(), error.to_string())
    }
}

/// Joins the pool of this name, by the configuration that its servers have: `name` is NAME of NAME.toml, or a path with a slash in it. Waits up to
/// `patience_ms` milliseconds for servers that are starting. Threads of this process belong to it.
///
/// Returns NULL on failure. errno is EINVAL for a configuration that is not there or makes no sense (the text names it), ENOTCONN when the pool does not answer
/// or does not let this process in.
///
/// # Safety
/// `name` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_open(name: *const c_char, patience_ms: u32) -> *mut Pool {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, "the name") }?.to_str();
        let name = name.map_err(|_| Failure::invalid("names of pools are written in UTF-8"))?;
        let config = Config::of_name(name).map_err(|wrong| Failure::invalid(wrong.to_string()))?;
        let joined = Files::join(&config, Duration::from_millis(patience_ms.into()));
        let files = joined.map_err(|why| Failure::new(libc::ENOTCONN, format!("{name}: {why}")))?;
        let owned = Owned::new(Arc::new(files)).map_err(forebay::Error::from)?;
        Ok(Box::into_raw(Box::new(Pool(owned))))
    })
}

/// Gives the handle back. Files that were opened by it stay open; the process leaves the pool when the last of them is closed. NULL is no
/// pool, and nothing is done. In a forked child nothing happens to what is its parent's. Returns 0.
///
/// # Safety
/// `pool` is NULL or a handle that is not closed yet, and no other thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_close(pool: *mut Pool) -> c_int {
    call(-1, || {
        if !pool.is_null() {
            // SAFETY: made of a box by `forebay_pool_open`, and the caller's promise that this is its last use.
            drop(unsafe { Box::from_raw(pool) });
        }
        Ok(0)
    })
}

/// Makes a directory, with these permissions less the umask: each client of the pool may do everything, and mounts go by them. Paths begin at the pool's
/// root.
///
/// Returns 0, or -1 with EEXIST when something is there, ENOENT when the directory around it is not, or an error of the pool's (docs/c.md).
///
/// # Safety
/// `pool` is an open handle, `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_mkdir(
    pool: *const Pool,
    path: *const c_char,
    mode: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        at_path(pool, path, |files, path| {
            files.make_directory(path, (mode & 0o7777) as u16)
        })
    }
}

/// Removes a file, a symbolic link or an empty directory. A client that has the file open finds that it is gone (ESTALE).
///
/// Returns 0, or -1 with ENOENT when it is not there, ENOTEMPTY when it is a directory with names, or an error of the pool's.
///
/// # Safety
/// As for forebay_pool_mkdir.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_remove(pool: *const Pool, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { at_path(pool, path, |files, path| files.delete(path)) }
}

/// Gives a file or a directory another name. A file that has that name is replaced, in one step.
///
/// Returns 0, or -1 with ENOENT, EXDEV for a directory that would go into another one, or an error of the pool's.
///
/// # Safety
/// `pool` is an open handle, `from` and `to` end with zero bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_rename(
    pool: *const Pool,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (files, from, to) = unsafe {
            (
                files_of(pool)?,
                text(from, "the path")?,
                text(to, "the path")?,
            )
        };
        files.rename_path(from.to_bytes(), to.to_bytes())?;
        Ok(0)
    })
}

/// Calls `visit` with each name in a directory, in no order, and with 1 if it is a directory's; the name is there for as long as the call. The list is of one
/// moment. It ends early where `visit` answers something else than 0.
///
/// Returns 0, or what `visit` has answered; or -1 with ENOENT, ENOTDIR, EINVAL where `visit` is NULL, or an error of the pool's.
///
/// # Safety
/// `pool` is an open handle, `path` ends with a zero byte, and `visit` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_list(
    pool: *const Pool,
    path: *const c_char,
    visit: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            name: *const c_char,
            is_directory: c_int,
        ) -> c_int,
    >,
    context: *mut c_void,
) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (files, path) = unsafe { (files_of(pool)?, text(path, "the path")?) };
        let visit = visitor(visit)?;
        let entry = files.find(path.to_bytes())?;
        if entry.kind != Kind::Directory {
            return Err(Error::NotADirectory.into());
        }
        let names = files.list(entry.file)?.into_iter();
        let names = names.map(|(name, entry)| (name, entry.kind == Kind::Directory));
        // SAFETY: the caller's promise.
        unsafe { visit_all(names, visit, context) }
    })
}

/// Opens a file of the pool, and makes it where `flags` say so. `flags` and `mode` are as for forebay_open, the umask as well.
///
/// Returns NULL on failure. errno is EINVAL for other flags, ENOENT, EEXIST, EISDIR, or an error of the pool's.
///
/// # Safety
/// `pool` is an open handle, `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_file_open(
    pool: *const Pool,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> *mut PoolFile {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        let (files, path) = unsafe { (files_of(pool)?, text(path, "the path")?) };
        crate::file::options_of(flags)?;
        let options = OpenOptions {
            create: flags & libc::O_CREAT != 0,
            create_new: flags & libc::O_EXCL != 0,
            truncate: flags & libc::O_TRUNC != 0,
            mode: (mode & 0o7777) as u16,
        };
        let access = flags & libc::O_ACCMODE;
        let opened = Opened {
            open: files.open(path.to_bytes(), options)?,
            reads: access != libc::O_WRONLY,
            writes: access != libc::O_RDONLY,
            appends: flags & libc::O_APPEND != 0,
            is_written: AtomicBool::new(options.truncate),
        };
        let owned = Owned::new(opened).map_err(forebay::Error::from)?;
        Ok(Box::into_raw(Box::new(PoolFile(owned))))
    })
}

/// Closes a file, and syncs it first if something was written: what this process has not synced is lost with it. The handle is gone whatever the answer is. NULL
/// is no file, and nothing is done, as to a parent's handle in a forked child.
///
/// Returns 0, or -1 with an error of the sync's.
///
/// # Safety
/// `file` is NULL or a handle that is not closed yet, and no other thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_file_close(file: *mut PoolFile) -> c_int {
    call(-1, || {
        if file.is_null() {
            return Ok(0);
        }
        // SAFETY: made of a box by `forebay_pool_file_open`, and the caller's promise that this is its last use.
        let file = *unsafe { Box::from_raw(file) };
        if let Some(opened) = file.0.take()
            && opened.is_written.into_inner()
        {
            opened.open.sync()?;
        }
        Ok(0)
    })
}

/// Reads up to `count` bytes from `offset` on into `buffer`: what the last write that has returned before, of any host's, has put there.
///
/// Returns the number of bytes, fewer than `count` only at the file's end, 0 beyond it; or -1 with EBADF when the file is not open for
/// reading, EINVAL for a negative offset or a count beyond SSIZE_MAX, or an error of the pool's.
///
/// # Safety
/// `file` is an open handle; `buffer` is valid for writes of `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_pread(
    file: *const PoolFile,
    buffer: *mut c_void,
    count: usize,
    offset: i64,
) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (file, bytes) = unsafe { (opened(file)?, bytes_mut(buffer, count)?) };
        must(file.reads, libc::EBADF, "read")?;
        Ok(file.open.read_at(bytes, offset_of(offset)?)? as isize)
    })
}

/// Writes `count` bytes at `offset`, as one step; at the end of the file where it was opened with O_APPEND, whatever the offset. All hosts see them from here on;
/// they outlive this host once forebay_pool_sync has returned 0.
///
/// Returns `count`; or -1 with EBADF when the file is not open for writing, EINVAL for a negative offset or a count beyond SSIZE_MAX, EFBIG beyond the largest
/// file, or an error of the pool's.
///
/// # Safety
/// `file` is an open handle; `buffer` is valid for reads of `count` bytes, which nobody changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_pwrite(
    file: *const PoolFile,
    buffer: *const c_void,
    count: usize,
    offset: i64,
) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (file, bytes) = unsafe { (opened(file)?, bytes(buffer, count)?) };
        let offset = offset_of(offset)?;
        file.change(libc::EBADF, "write", |open| match file.appends {
            true => open.append(bytes).map(drop),
            false => open.write_at(bytes, offset),
        })?;
        Ok(count as isize)
    })
}

/// Writes `count` bytes at the file's end, wherever that is, whole and apart from what any host appends.
///
/// Returns the offset, in bytes, at which they lie; or -1 with the errors of forebay_pool_pwrite.
///
/// # Safety
/// As for forebay_pool_pwrite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_append(
    file: *const PoolFile,
    buffer: *const c_void,
    count: usize,
) -> i64 {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (file, bytes) = unsafe { (opened(file)?, bytes(buffer, count)?) };
        let at = file.change(libc::EBADF, "write", |open| open.append(bytes))?;
        Ok(at as i64)
    })
}

/// What this host has written to the file is at the servers, in all copies, when this returns 0; in a pool with a home it is durable there.
///
/// Returns 0, or -1 with an error of the pool's.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_sync(file: *const PoolFile) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        let file = unsafe { opened(file) }?;
        file.is_written.store(false, Ordering::Relaxed);
        let synced = file.open.sync();
        if synced.is_err() {
            file.is_written.store(true, Ordering::Relaxed);
        }
        synced?;
        Ok(0)
    })
}

/// Sets the file's length, bytes: what is beyond is gone, what is new is zeros.
///
/// Returns 0, or -1 with EINVAL when the file is not open for writing or the length is negative, EFBIG beyond the largest file, or an error of the pool's.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_truncate(file: *const PoolFile, length: i64) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        let file = unsafe { opened(file) }?;
        let length =
            u64::try_from(length).map_err(|_| Failure::invalid("the length is negative"))?;
        file.change(libc::EINVAL, "be resized", |open| open.set_len(length))?;
        Ok(0)
    })
}

/// The file's length, bytes, as all hosts see it. -1 with an error of the pool's.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_size(file: *const PoolFile) -> i64 {
    call(-1, || {
        // SAFETY: the caller's promise.
        Ok(unsafe { opened(file) }?.open.size()? as i64)
    })
}

impl Opened {
    /// Does what changes bytes. The mark is set after it: a sync that overtakes the call does not count for it. One that failed may have written some.
    fn change<T>(
        &self,
        errno: c_int,
        what: &str,
        work: impl FnOnce(&Open) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        must(self.writes, errno, what)?;
        let done = work(&self.open);
        self.is_written.store(true, Ordering::Relaxed);
        Ok(done?)
    }
}

fn must(may: bool, errno: c_int, what: &str) -> Result<(), Failure> {
    let refused = || Failure::new(errno, format!("the file is not open to {what}"));
    may.then_some(()).ok_or_else(refused)
}

/// # Safety
/// As for [`of`].
unsafe fn opened<'a>(file: *const PoolFile) -> Result<&'a Opened, Failure> {
    // SAFETY: the caller's promise.
    ours(&unsafe { of(file) }?.0)
}

/// # Safety
/// As for [`of`].
unsafe fn files_of<'a>(pool: *const Pool) -> Result<&'a Arc<Files>, Failure> {
    // SAFETY: the caller's promise.
    ours(&unsafe { of(pool) }?.0)
}

/// # Safety
/// As for [`of`] and [`text`].
unsafe fn at_path(
    pool: *const Pool,
    path: *const c_char,
    work: impl FnOnce(&Files, &[u8]) -> Result<(), Error>,
) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (files, path) = unsafe { (files_of(pool)?, text(path, "the path")?) };
        work(files, path.to_bytes())?;
        Ok(0)
    })
}

/// Handles go from thread to thread, and are used by many at once.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Pool>();
    shared::<PoolFile>();
};
