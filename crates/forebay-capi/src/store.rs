//! Stores in persistent memory: opened in this process, with files by paths, views ([`crate::view`]) and windows ([`window`]).

pub mod window;

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use forebay::sys::forks::Owned;
use forebay_pmem::files::{FileOptions, Files, Open};
use forebay_pmem::{CreateOptions, Errno, OpenError, OpenOptions, create_with};

use crate::border::{Failure, call, of, ours, text, visit_all, visitor};
use crate::file::{bytes, bytes_mut, offset_of, options_of};

/// A store in persistent memory, open in this process and in no other. Used by any number of threads at once; closed once, by forebay_store_close.
pub struct Store(Owned<Arc<Files>>);

/// An open file of a store. Used by any number of threads at once, as a file is. Closed once, by forebay_store_file_close.
pub struct StoreFile(Owned<Open>);

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Failure::new(error.0, error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Failure::new(error.errno(), error.to_string())
    }
}

/// Makes a store of `size` bytes in a file, which is made where it is not there, or in a device; 0: as many bytes as are there. `forebay pmem create` has more
/// options.
///
/// Returns 0, or -1. errno is EEXIST when a store or other bytes are there, EINVAL when it is too small, EBUSY when the store is open, or what the system says.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_create(path: *const c_char, size: u64) -> c_int {
    call(-1, || {
        let options = CreateOptions {
            size: (size > 0).then_some(size),
            ..CreateOptions::default()
        };
        // SAFETY: the caller's promise.
        create_with(unsafe { path_of(path) }?, &options)?;
        Ok(0)
    })
}

/// Opens a store, after a crash too. `flags` are O_RDWR, or O_RDONLY: then nothing is changed, also not what a crash has left. What was done is durable after
/// `flush_ms` milliseconds at the latest, by a thread of this process, or when it is synced; a negative number: only then.
///
/// Returns NULL on failure. errno is EBUSY when another process has it open, or this one; EINVAL for other flags and where no store is, EIO when it is damaged,
/// or what the system says.
///
/// # Safety
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_open(
    path: *const c_char,
    flags: c_int,
    flush_ms: i64,
) -> *mut Store {
    call(null_mut(), || {
        let read_only = match flags & !libc::O_CLOEXEC {
            libc::O_RDWR => false,
            libc::O_RDONLY => true,
            _ => return Err(Failure::invalid("the flags must be O_RDWR or O_RDONLY")),
        };
        let options = OpenOptions {
            flush_interval: u64::try_from(flush_ms).ok().map(Duration::from_millis),
            read_only,
        };
        // SAFETY: the caller's promise.
        let store = forebay_pmem::Store::open(unsafe { path_of(path) }?, options)?;
        // SAFETY: plain calls, which do not fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        let owned = Owned::new(Files::new(store, uid, gid)).map_err(forebay::Error::from)?;
        Ok(Box::into_raw(Box::new(Store(owned))))
    })
}

/// Syncs, and gives the handle back, whatever the answer is. Files and windows that were opened by it keep the store open, and the last of them to be closed
/// closes it; a program that ends before may lose what was done since the last sync. NULL is no store, and nothing is done, as to a parent's handle in a
/// forked child.
///
/// Returns 0, or -1 with EIO when it is not known what is durable.
///
/// # Safety
/// `store` is NULL or a handle that is not closed yet, and no other thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_close(store: *mut Store) -> c_int {
    call(-1, || {
        if store.is_null() {
            return Ok(0);
        }
        // SAFETY: made of a box by `forebay_store_open`, and the caller's promise that this is its last use.
        let store = *unsafe { Box::from_raw(store) };
        store.0.take().map_or(Ok(()), Files::close)?;
        Ok(0)
    })
}

/// Everything that was done in the store before is durable when this returns 0: names, bytes and sizes of all files.
///
/// Returns 0, or -1 with EIO when it is not known what is durable.
///
/// # Safety
/// `store` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_sync(store: *const Store) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        unsafe { files_of(store) }?.store().sync()?;
        Ok(0)
    })
}

/// Makes a directory, with these permissions, of which nothing is taken by the umask: a program that has the store open may do everything, and mounts go
/// by them. Paths begin at the store's root, and so do symbolic links that begin with a slash.
///
/// Returns 0, or -1 with EEXIST when something is there, ENOENT when the directory around it is not, ENOSPC when the store is full, EROFS when it is open for
/// reading only.
///
/// # Safety
/// `store` is an open handle, `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_mkdir(
    store: *const Store,
    path: *const c_char,
    mode: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { at_path(store, path, |files, path| files.make_directory(path, mode)) }
}

/// Removes a file, a symbolic link or an empty directory. A file that is open stays until it is closed.
///
/// Returns 0, or -1 with ENOENT when it is not there, ENOTEMPTY when it is a directory with names, EBUSY for the root.
///
/// # Safety
/// As for forebay_store_mkdir.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_remove(store: *const Store, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { at_path(store, path, Files::remove) }
}

/// Gives a file or a directory another name. What has that name is replaced, in one step, as rename(2) does it.
///
/// Returns 0, or -1 with ENOENT, or another error of rename(2).
///
/// # Safety
/// `store` is an open handle, `from` and `to` end with zero bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_rename(
    store: *const Store,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let to = text(to, "the path");
        at_path(store, from, |files, from| match to {
            Ok(to) => files.rename(from, to.to_bytes()),
            Err(_) => Err(Errno::EINVAL),
        })
    }
}

/// Calls `visit` with each name in a directory, as forebay_pool_list does.
///
/// Returns 0, or what `visit` has answered; or -1 with ENOENT, ENOTDIR, EINVAL where `visit` is NULL.
///
/// # Safety
/// `store` is an open handle, `path` ends with a zero byte, and `visit` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_list(
    store: *const Store,
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
        let (files, path) = unsafe { (files_of(store)?, text(path, "the path")?) };
        let visit = visitor(visit)?;
        let names = files.list(path.to_bytes())?.into_iter();
        let names = names.map(|entry| (entry.name, entry.kind == libc::S_IFDIR));
        // SAFETY: the caller's promise.
        unsafe { visit_all(names, visit, context) }
    })
}

/// Opens a file of the store, and makes it where `flags` say so. `flags` and `mode` are as for forebay_open; nothing is taken from `mode` by the umask.
///
/// Returns NULL on failure. errno is EINVAL for other flags, ENOENT, EEXIST, EISDIR, ELOOP, ENXIO for what is no regular file, ENOSPC, or EROFS.
///
/// # Safety
/// `store` is an open handle, `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_file_open(
    store: *const Store,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> *mut StoreFile {
    call(null_mut(), || {
        // SAFETY: the caller's promise.
        let (files, path) = unsafe { (files_of(store)?, text(path, "the path")?) };
        options_of(flags)?;
        let access = flags & libc::O_ACCMODE;
        let options = FileOptions {
            read: access != libc::O_WRONLY,
            write: access != libc::O_RDONLY,
            append: flags & libc::O_APPEND != 0,
            truncate: flags & libc::O_TRUNC != 0,
            create: flags & libc::O_CREAT != 0,
            create_new: flags & libc::O_EXCL != 0,
            mode,
        };
        let open = files.open(path.to_bytes(), options)?;
        let owned = Owned::new(open).map_err(forebay::Error::from)?;
        Ok(Box::into_raw(Box::new(StoreFile(owned))))
    })
}

/// Closes a file, and the store with it if nobody else has that any more: only then anything is synced. The handle is gone whatever the answer is. NULL is no
/// file, and nothing is done, as to a parent's handle in a forked child.
///
/// Returns 0, or -1 with an error of forebay_store_close.
///
/// # Safety
/// `file` is NULL or a handle that is not closed yet, and no other thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_file_close(file: *mut StoreFile) -> c_int {
    call(-1, || {
        if file.is_null() {
            return Ok(0);
        }
        // SAFETY: made of a box by `forebay_store_file_open`, and the caller's promise that this is its last use.
        let file = *unsafe { Box::from_raw(file) };
        file.0.take().map_or(Ok(()), Open::close)?;
        Ok(0)
    })
}

/// Reads up to `count` bytes from `offset` on into `buffer`.
///
/// Returns the number of bytes, fewer than `count` only at the file's end, 0 beyond it; or -1 with EBADF when the file is not open for reading, EINVAL for a
/// negative offset or a count beyond SSIZE_MAX, EIO where the store is damaged.
///
/// # Safety
/// `file` is an open handle; `buffer` is valid for writes of `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_pread(
    file: *const StoreFile,
    buffer: *mut c_void,
    count: usize,
    offset: i64,
) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (file, bytes) = unsafe { (opened(file)?, bytes_mut(buffer, count)?) };
        Ok(file.read_at(bytes, offset_of(offset)?)? as isize)
    })
}

/// Writes `count` bytes at `offset`; at the end of the file where it was opened with O_APPEND, whatever the offset. Each aligned 2 MiB of the file are
/// written as a whole or not at all, also after a crash.
///
/// Returns the number of bytes: all, unless the store became full after some; or -1 with EBADF when the file is not open for writing, ENOSPC when the store
/// is full, EROFS when it is open for reading only, EINVAL for a negative offset or a count beyond SSIZE_MAX, EFBIG beyond the largest file, EIO when it is not
/// known what is durable.
///
/// # Safety
/// `file` is an open handle; `buffer` is valid for reads of `count` bytes, which nobody changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_pwrite(
    file: *const StoreFile,
    buffer: *const c_void,
    count: usize,
    offset: i64,
) -> isize {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (file, bytes) = unsafe { (opened(file)?, bytes(buffer, count)?) };
        Ok(file.write_at(bytes, offset_of(offset)?)? as isize)
    })
}

/// Writes `count` bytes at the file's end, wherever that is, whole and apart from what others append.
///
/// Returns the offset, in bytes, at which they lie; or -1 with the errors of forebay_store_pwrite. Bytes that were written before an error stay.
///
/// # Safety
/// As for forebay_store_pwrite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_append(
    file: *const StoreFile,
    buffer: *const c_void,
    count: usize,
) -> i64 {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (file, bytes) = unsafe { (opened(file)?, bytes(buffer, count)?) };
        Ok(file.append(bytes)? as i64)
    })
}

/// As forebay_store_sync, of the store that the file is in.
///
/// Returns 0, or -1 with EIO when it is not known what is durable.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_file_sync(file: *const StoreFile) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { done(file, |file| Ok(file.sync()?)) }
}

/// Sets the file's length, bytes: what is beyond is gone, what is new is zeros.
///
/// Returns 0, or -1 with EINVAL when the file is not open for writing or the length is negative, EFBIG beyond the largest file, or an error of
/// forebay_store_pwrite.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_truncate(file: *const StoreFile, length: i64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { done(file, |file| Ok(file.set_len(length_of(length)?)?)) }
}

/// Makes `length` bytes from `offset` on zeros, and gives their space back. The file's length does not change.
///
/// Returns 0, or -1 with EINVAL for an empty or negative range, EBADF when the file is not open for writing.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_punch(
    file: *const StoreFile,
    offset: i64,
    length: i64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        done(file, |file| {
            Ok(file.punch(offset_of(offset)?, length_of(length)?)?)
        })
    }
}

/// The file's length, bytes. -1 on failure.
///
/// # Safety
/// `file` is an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_store_size(file: *const StoreFile) -> i64 {
    call(-1, || {
        // SAFETY: the caller's promise.
        Ok(unsafe { opened(file) }?.size()? as i64)
    })
}

/// # Safety
/// As for [`text`].
unsafe fn path_of<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    // SAFETY: the caller's promise.
    let path = unsafe { text(path, "the path") }?;
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

fn length_of(length: i64) -> Result<u64, Failure> {
    u64::try_from(length).map_err(|_| Failure::invalid("the length is negative"))
}

/// # Safety
/// As for [`of`].
unsafe fn files_of<'a>(store: *const Store) -> Result<&'a Arc<Files>, Failure> {
    // SAFETY: the caller's promise.
    ours(&unsafe { of(store) }?.0)
}

/// # Safety
/// As for [`of`].
pub(crate) unsafe fn opened<'a>(file: *const StoreFile) -> Result<&'a Open, Failure> {
    // SAFETY: the caller's promise.
    ours(&unsafe { of(file) }?.0)
}

/// # Safety
/// As for [`of`].
unsafe fn done(file: *const StoreFile, work: impl FnOnce(&Open) -> Result<(), Failure>) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        work(unsafe { opened(file) }?)?;
        Ok(0)
    })
}

/// # Safety
/// As for [`of`] and [`text`].
unsafe fn at_path(
    store: *const Store,
    path: *const c_char,
    work: impl FnOnce(&Files, &[u8]) -> Result<(), Errno>,
) -> c_int {
    call(-1, || {
        // SAFETY: the caller's promise.
        let (files, path) = unsafe { (files_of(store)?, text(path, "the path")?) };
        let shown = || String::from_utf8_lossy(path.to_bytes());
        work(files, path.to_bytes())
            .map_err(|error| Failure::new(error.0, format!("{}: {error}", shown())))?;
        Ok(0)
    })
}

/// Handles go from thread to thread, and are used by many at once.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Store>();
    shared::<StoreFile>();
};
