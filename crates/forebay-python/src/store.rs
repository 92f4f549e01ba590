//! Stores in persistent memory, their files, and windows, as Python has them.

use std::ffi::{CStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::Arc;
use std::time::Duration;

use forebay::sys::forks::Owned;
use forebay_pmem::files::{FileOptions, Files, Open};
use forebay_pmem::{
    CreateOptions, Errno, OpenError, OpenOptions, Store, Time, Window, create_with,
};
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::buffer::{Buffer, filled};
use crate::errors::{inherited, nowhere};
use crate::exporter::{Exports, held_by, object_of, put_back, release, take};
use crate::handle::Handle;
use crate::position::{From, Position};
use crate::view::{Stored, Viewed};

fn failed(error: Errno, path: &Path) -> PyErr {
    match error {
        Errno::ENOMEM => PyMemoryError::new_err(error.to_string()),
        _ => PyOSError::new_err((error.0, error.to_string(), path.as_os_str().to_owned())),
    }
}

fn not_opened(error: &OpenError, path: &Path) -> PyErr {
    PyOSError::new_err((
        error.errno(),
        error.to_string(),
        path.as_os_str().to_owned(),
    ))
}

/// Makes a store.
#[pyfunction]
pub fn store_create(
    py: Python<'_>,
    path: PathBuf,
    size: Option<u64>,
    sparse: bool,
    force: bool,
    inodes: Option<u64>,
) -> PyResult<()> {
    let options = CreateOptions {
        size,
        sparse,
        force,
        inodes,
        ..CreateOptions::default()
    };
    py.detach(|| create_with(&path, &options))
        .map_err(|error| not_opened(&error, &path))
}

/// What `forebay.Store` holds.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct NativeStore {
    files: Handle<Arc<Files>>,
    path: PathBuf,
}

impl NativeStore {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        path: &Path,
        work: impl FnOnce(&Arc<Files>) -> Result<T, Errno> + Send,
    ) -> PyResult<T> {
        let result = self.files.with(py, work)?;
        result.map_err(|error| failed(error, path))
    }
}

#[pymethods]
impl NativeStore {
    /// Opens. `flush_interval`: seconds. Files that are made are of this user and group.
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        read_only: bool,
        flush_interval: Option<f64>,
        uid: u32,
        gid: u32,
    ) -> PyResult<Self> {
        let flush_interval = flush_interval.map(Duration::try_from_secs_f64).transpose();
        let flush_interval =
            flush_interval.map_err(|wrong| PyValueError::new_err(wrong.to_string()))?;
        let options = OpenOptions {
            flush_interval,
            read_only,
        };
        let opened = py.detach(|| Store::open(&path, options));
        let store = opened.map_err(|error| not_opened(&error, &path))?;
        let files = Handle::new(Files::new(store, uid, gid), "store")?;
        Ok(NativeStore { files, path })
    }

    /// `how` as of a session.
    fn open(
        &self,
        py: Python<'_>,
        path: PathBuf,
        how: &str,
        mode: u32,
    ) -> PyResult<NativeStoreFile> {
        let has = |letter| how.contains(letter);
        let options = FileOptions {
            read: has('r'),
            write: has('w'),
            append: has('a'),
            truncate: has('t'),
            create: has('c'),
            create_new: has('x'),
            mode,
        };
        let bytes = path.as_os_str().as_bytes();
        let open = self.with(py, &path, |files| files.open(bytes, options))?;
        let open = Handle::new(open, "file")?;
        Ok(NativeStoreFile {
            open,
            position: Position::default(),
            path,
        })
    }

    /// Names in a directory.
    fn list(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        let bytes = path.as_os_str().as_bytes();
        let entries = self.with(py, &path, |files| files.list(bytes))?;
        let names = entries.into_iter().map(|entry| entry.name);
        Ok(names.map(OsString::from_vec).collect())
    }

    /// Mode, number, links, user, group, size, and times in nanoseconds: access, change of bytes, change.
    fn stat(&self, py: Python<'_>, path: PathBuf) -> PyResult<Facts> {
        let bytes = path.as_os_str().as_bytes();
        let is = self.with(py, &path, |files| files.find(bytes))?;
        let ns =
            |time: Time| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
        let times = (ns(is.accessed), ns(is.modified), ns(is.changed));
        Ok((
            (is.mode, is.inode, is.links, is.uid, is.gid, is.size),
            times,
        ))
    }

    fn make_directory(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        let bytes = path.as_os_str().as_bytes();
        self.with(py, &path, |files| files.make_directory(bytes, mode))
    }

    /// A file, or an empty directory.
    fn remove(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let bytes = path.as_os_str().as_bytes();
        self.with(py, &path, |files| files.remove(bytes))
    }

    fn rename(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<()> {
        let (old, new) = (from.as_os_str().as_bytes(), to.as_os_str().as_bytes());
        self.with(py, &from, |files| files.rename(old, new))
    }

    /// Everything that was done is durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, &self.path, |files| files.store().sync())
    }

    /// Syncs, and closes once its files are closed. Nothing happens to what belongs to a parent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = self.files.close(py, Files::close);
        closed
            .unwrap_or(Ok(()))
            .map_err(|error| failed(error, &self.path))
    }
}

/// What [`NativeStore::stat`] answers.
type Facts = ((u32, u64, u32, u32, u32, u64), (i128, i128, i128));

/// What `forebay.StoreFile` holds.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct NativeStoreFile {
    open: Handle<Open>,
    position: Position,
    path: PathBuf,
}

impl NativeStoreFile {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Open) -> Result<T, Errno> + Send,
    ) -> PyResult<T> {
        let result = self.open.with(py, work)?;
        result.map_err(|error| failed(error, &self.path))
    }
}

#[pymethods]
impl NativeStoreFile {
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
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
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        self.with(py, |file| file.read_at(bytes, offset))
    }

    /// The bytes of a range as they are now, as an object of `kind`; to the file's end without a length. `writable` ones are a copy.
    fn view<'py>(
        &self,
        py: Python<'py>,
        kind: &Bound<'py, PyType>,
        offset: u64,
        length: Option<usize>,
        writable: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let length = length.unwrap_or(usize::MAX);
        let view = match writable {
            true => Viewed::Copied(self.with(py, |file| file.view(offset, length)?.copied())?),
            false => {
                let whole = self.with(py, |file| file.view(offset, length)?.whole())?;
                Viewed::Stored(Stored::new(whole)?)
            }
        };
        object_of(kind, view)
    }

    /// A window of up to `nbytes` at `offset`, as an object of `kind`.
    fn window<'py>(
        &self,
        py: Python<'py>,
        kind: &Bound<'py, PyType>,
        offset: u64,
        nbytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let lent = self.with(py, |file| {
            let mut window = file.window(offset, nbytes)?;
            window.keep_from_children();
            Ok((window, Arc::clone(file.files())))
        })?;
        object_of(kind, Lent::new(lent, self.path.clone())?)
    }

    /// Writes an object's bytes, at the end where the file was opened for appending. Returns how many: all, unless the store became full after some.
    fn write_at(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let buffer = Buffer::of(data)?;
        let bytes = buffer.bytes();
        self.with(py, |file| file.write_at(bytes, offset))
    }

    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let buffer = Buffer::of(data)?;
        let bytes = buffer.bytes();
        self.with(py, |file| file.append(bytes))
    }

    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyAny>> {
        filled(py, size, |bytes| {
            self.with(py, |file| {
                self.position.advance(|at| file.read_at(bytes, at))
            })
        })
    }

    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        self.with(py, |file| {
            self.position.advance(|at| file.read_at(bytes, at))
        })
    }

    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, at_end: bool) -> PyResult<usize> {
        let buffer = Buffer::of(data)?;
        let bytes = buffer.bytes();
        self.with(py, |file| match at_end {
            true => self.position.follow(|| file.append_some(bytes)),
            false => self.position.advance(|at| file.write_at(bytes, at)),
        })
    }

    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let from = From::of(whence)?;
        let to = self.with(py, |file| self.position.seek(offset, from, || file.size()))?;
        to.ok_or_else(|| nowhere(&self.path))
    }

    /// Everything that was done in the store is durable.
    fn sync(&self, py: Python<'_>, _data_only: bool) -> PyResult<()> {
        self.with(py, Open::sync)
    }

    /// Whoever may see what was written sees it at once: there is nothing to hand on.
    fn flush(&self) {}

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.with(py, |file| file.set_len(size))
    }

    fn punch(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.with(py, |file| file.punch(offset, length))
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, Open::size)
    }

    /// Whether this process has opened it, and not a parent.
    #[getter]
    fn is_ours(&self) -> bool {
        self.open.is_ours()
    }

    /// Closes, after the calls that are under way. Nothing happens to what belongs to a parent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = self.open.close(py, Open::close);
        closed
            .unwrap_or(Ok(()))
            .map_err(|error| failed(error, &self.path))
    }
}

/// What `forebay.StoreWindow` holds: a window, its file's store, and its memory. It is committed with the object empty, so that nobody gets memory that is
/// about to be the file's.
pub struct Lent {
    owned: Owned<(Window, Arc<Files>)>,
    first: usize,
    len: usize,
    path: PathBuf,
}

impl Lent {
    fn new(lent: (Window, Arc<Files>), path: PathBuf) -> PyResult<Self> {
        let mut lent = Lent {
            owned: Owned::new(lent)?,
            first: 0,
            len: 0,
            path,
        };
        lent.look();
        Ok(lent)
    }

    /// Where the memory is now.
    fn look(&mut self) {
        if let Some((window, _)) = self.owned.get_mut() {
            self.first = window.as_mut_ptr().expose_provenance();
            self.len = window.len();
        }
    }

    /// Gives the first `count` bytes. How many, unless an error came before the first.
    fn commit(&mut self, count: usize) -> Option<Result<usize, Errno>> {
        let (window, _) = self.owned.get_mut()?;
        let before = window.len();
        let done = window.commit_first(count).map(|()| count);
        let given = before - window.len();
        self.look();
        Some(if given == 0 { done } else { done.or(Ok(given)) })
    }
}

impl Exports for Lent {
    const NAME: &CStr = c"forebay._forebay.NativeStoreWindow";
    const WHAT: &'static str = "window";

    fn place() -> &'static PyOnceLock<Py<PyType>> {
        static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        &TYPE
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn memory(&mut self) -> (*mut u8, usize) {
        // A child has nothing there.
        match self.owned.is_ours() && self.len > 0 {
            true => (with_exposed_provenance_mut(self.first), self.len),
            false => (null_mut(), 0),
        }
    }
}

/// Bytes of a window.
#[pyfunction]
pub fn store_window_facts(window: &Bound<'_, PyAny>) -> PyResult<usize> {
    Ok(held_by::<Lent>(window)?.value.len)
}

/// Gives the first `count` bytes to the file, unless arrays or buffers lie over them. Returns how many: all, unless an error came after some.
#[pyfunction]
pub fn store_window_commit(window: &Bound<'_, PyAny>, count: usize) -> PyResult<usize> {
    let len = held_by::<Lent>(window)?.value.len;
    if count > len {
        let text = format!("the window has {len} bytes, not {count}");
        return Err(PyOSError::new_err((Errno::EINVAL.0, text)));
    }
    let mut held = take::<Lent>(window)?;
    let done = window.py().detach(|| held.value.commit(count));
    let path = held.value.path.clone();
    put_back(window, held)?;
    let done = done.ok_or_else(|| inherited("window"))?;
    done.map_err(|error| failed(error, &path))
}

/// Gives a window back, unless arrays or buffers lie over it. Nothing happens to one that has been given back.
#[pyfunction]
pub fn store_window_release(window: &Bound<'_, PyAny>) -> PyResult<()> {
    release::<Lent>(window)
}
