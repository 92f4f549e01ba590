//! Pools and their files, as Python has them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use forebay::sys::forks::Owned;
use forebay_pool::client::Kind;
use forebay_pool::files::{Error, Files, Open, OpenOptions};
use forebay_pool::net::Config;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::buffer::{Buffer, filled};
use crate::errors::{closed, inherited, nowhere};
use crate::handle::Handle;
use crate::position::{From, Position};

/// `EBADF` and `EINVAL`: what a session's file answers when it is not open for a call.
const EBADF: i32 = 9;
const EINVAL: i32 = 22;

/// How long a pool is waited for, whose servers may be starting.
const PATIENCE: Duration = Duration::from_secs(10);

fn failed(error: Error, path: &[u8]) -> PyErr {
    let path = OsString::from_vec(path.to_vec());
    PyOSError::new_err((error.errno(), error.to_string(), path))
}

/// What `forebay.Pool` holds.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct NativePool {
    owned: Owned<RwLock<Option<Arc<Files>>>>,
}

impl NativePool {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        path: &[u8],
        work: impl FnOnce(&Arc<Files>) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let owned = self.owned.get().ok_or_else(|| inherited("pool"))?;
        let done = py.detach(|| {
            let files = owned.read().unwrap_or_else(PoisonError::into_inner).clone();
            files.map(|files| work(&files))
        });
        let result = done.ok_or_else(|| closed("pool"))?;
        result.map_err(|error| failed(error, path))
    }
}

#[pymethods]
impl NativePool {
    /// Joins.
    #[new]
    fn new(py: Python<'_>, name: &str) -> PyResult<Self> {
        let config =
            Config::of_name(name).map_err(|wrong| PyValueError::new_err(wrong.to_string()))?;
        let joined = py.detach(|| Files::join(&config, PATIENCE));
        let files = joined.map_err(|why| PyOSError::new_err((107, format!("{name}: {why}"))))?;
        Ok(NativePool {
            owned: Owned::new(RwLock::new(Some(Arc::new(files))))?,
        })
    }

    /// `how` as of a session: `r`, `w` and `a` say what the file's calls may do; the pool knows of no such thing.
    fn open(
        &self,
        py: Python<'_>,
        path: PathBuf,
        how: &str,
        mode: u16,
    ) -> PyResult<NativePoolFile> {
        let has = |letter| how.contains(letter);
        let options = OpenOptions {
            create: has('c'),
            create_new: has('x'),
            truncate: has('t'),
            mode,
        };
        let bytes = path.as_os_str().as_bytes();
        let open = self.with(py, bytes, |files| files.open(bytes, options))?;
        Ok(NativePoolFile {
            open: Handle::new(open, "file")?,
            position: Position::default(),
            is_written: AtomicBool::new(options.truncate),
            reads: has('r'),
            writes: has('w') || has('a'),
            appends: has('a'),
            path: bytes.to_vec(),
        })
    }

    /// Names in a directory.
    fn list(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        let bytes = path.as_os_str().as_bytes();
        let names = self.with(py, bytes, |files| {
            let entry = files.find(bytes)?;
            if entry.kind != Kind::Directory {
                return Err(Error::NotADirectory);
            }
            files.list(entry.file)
        })?;
        Ok(names
            .into_iter()
            .map(|(name, _)| OsString::from_vec(name))
            .collect())
    }

    fn make_directory(&self, py: Python<'_>, path: PathBuf, mode: u16) -> PyResult<()> {
        let bytes = path.as_os_str().as_bytes();
        self.with(py, bytes, |files| files.make_directory(bytes, mode))
    }

    /// A file, or an empty directory.
    fn remove(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let bytes = path.as_os_str().as_bytes();
        self.with(py, bytes, |files| files.delete(bytes))
    }

    fn rename(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<()> {
        let (from, to) = (from.as_os_str().as_bytes(), to.as_os_str().as_bytes());
        self.with(py, from, |files| files.rename_path(from, to))
    }

    /// Whether the pool has given this process up, and no call will succeed any more. Not once it is closed.
    fn given_up(&self, py: Python<'_>) -> PyResult<bool> {
        let owned = self.owned.get().ok_or_else(|| inherited("pool"))?;
        Ok(py.detach(|| {
            let files = owned.read().unwrap_or_else(PoisonError::into_inner);
            files.as_ref().is_some_and(|files| files.pool().is_over())
        }))
    }

    /// Leaves, once its files are closed. Nothing happens to what belongs to a parent.
    fn close(&self, py: Python<'_>) {
        let Some(owned) = self.owned.get() else {
            return;
        };
        py.detach(|| {
            let taken = owned.write().unwrap_or_else(PoisonError::into_inner).take();
            // Without the lock: to leave may take a term, and whoever calls meanwhile is told at once.
            drop(taken);
        });
    }
}

/// What `forebay.PoolFile` holds.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct NativePoolFile {
    open: Handle<Open>,
    position: Position,
    /// Something was written, or cut off by the opening, that no sync has begun after. Changed by calls that hold `open`: so whoever closes knows of all of them.
    is_written: AtomicBool,
    reads: bool,
    writes: bool,
    /// What is written goes to the end, wherever it is to go.
    appends: bool,
    path: Vec<u8>,
}

impl NativePoolFile {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Open) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let result = self.open.with(py, work)?;
        result.map_err(|error| failed(error, &self.path))
    }

    /// As [`NativePoolFile::with`], of what changes bytes. A sync that overtakes the call does not count for it: the mark is set after it. One that
    /// failed may have written some.
    fn writing<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Open) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.with(py, |open| {
            let done = work(open);
            self.is_written.store(true, Ordering::Relaxed);
            done
        })
    }

    fn must(&self, py: Python<'_>, may: bool, errno: i32, what: &str) -> PyResult<()> {
        if may {
            return Ok(());
        }
        // One that is closed says so.
        self.with(py, |_| Ok(()))?;
        let path = OsString::from_vec(self.path.clone());
        let text = format!("this file is not open to {what}");
        Err(PyOSError::new_err((errno, text, path)))
    }
}

#[pymethods]
impl NativePoolFile {
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.must(py, self.reads, EBADF, "read")?;
        // Memory for what there is, not for what is asked for.
        let rest = self.size(py)?.saturating_sub(offset);
        let size = size.min(usize::try_from(rest).unwrap_or(usize::MAX));
        filled(py, size, |bytes| {
            self.with(py, |file| file.read_at(bytes, offset))
        })
    }

    fn readinto_at(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
    ) -> PyResult<usize> {
        self.must(py, self.reads, EBADF, "read")?;
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        self.with(py, |file| file.read_at(bytes, offset))
    }

    /// At the end where the file was opened for appending.
    fn write_at(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        self.must(py, self.writes, EBADF, "write")?;
        let buffer = Buffer::of(data)?;
        let bytes = buffer.bytes();
        self.writing(py, |file| match self.appends {
            true => file.append(bytes).map(drop),
            false => file.write_at(bytes, offset),
        })?;
        Ok(bytes.len())
    }

    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        self.must(py, self.writes, EBADF, "write")?;
        let buffer = Buffer::of(data)?;
        let bytes = buffer.bytes();
        self.writing(py, |file| file.append(bytes))
    }

    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyAny>> {
        self.must(py, self.reads, EBADF, "read")?;
        filled(py, size, |bytes| {
            self.with(py, |file| {
                self.position.advance(|at| file.read_at(bytes, at))
            })
        })
    }

    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.must(py, self.reads, EBADF, "read")?;
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        self.with(py, |file| {
            self.position.advance(|at| file.read_at(bytes, at))
        })
    }

    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, at_end: bool) -> PyResult<usize> {
        self.must(py, self.writes, EBADF, "write")?;
        let buffer = Buffer::of(data)?;
        let bytes = buffer.bytes();
        let count = bytes.len();
        self.writing(py, |file| match at_end {
            true => self
                .position
                .follow(|| file.append(bytes).map(|at| (at, count))),
            false => self
                .position
                .advance(|at| file.write_at(bytes, at).map(|()| count)),
        })
    }

    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let from = From::of(whence)?;
        let to = self.with(py, |file| self.position.seek(offset, from, || file.size()))?;
        to.ok_or_else(|| nowhere(OsStr::from_bytes(&self.path)))
    }

    /// What was written is at the servers, and in the pool's home if it has one.
    fn sync(&self, py: Python<'_>, _data_only: bool) -> PyResult<()> {
        self.with(py, |file| {
            self.is_written.store(false, Ordering::Relaxed);
            let synced = file.sync();
            if synced.is_err() {
                self.is_written.store(true, Ordering::Relaxed);
            }
            synced
        })
    }

    /// Other hosts see what was written at once: there is nothing to hand on.
    fn flush(&self) {}

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.must(py, self.writes, EINVAL, "be resized")?;
        self.writing(py, |file| file.set_len(size))
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, Open::size)
    }

    /// Whether this process has opened it, and not a parent.
    #[getter]
    fn is_ours(&self) -> bool {
        self.open.is_ours()
    }

    /// Closes, after the calls that are under way. What was written is synced: it would go with this process else.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = self.open.close(py, |open| {
            match self.is_written.swap(false, Ordering::Relaxed) {
                true => open.sync(),
                false => Ok(()),
            }
        });
        closed
            .unwrap_or(Ok(()))
            .map_err(|error| failed(error, &self.path))
    }
}
