//! An open file, as Python has it: positional calls, each with the GIL released.

use std::path::PathBuf;

use forebay::{Error, File, Session};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use crate::buffer::{Buffer, filled};
use crate::errors::{nowhere, of_engine};
use crate::exporter::object_of;
use crate::handle::Handle;
use crate::position::{From, Position};
use crate::view::Viewed;

/// What `forebay.File` holds.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct NativeFile {
    opened: Handle<Opened>,
    position: Position,
    path: PathBuf,
}

struct Opened {
    // Dropped first: the session is kept for its files.
    file: File,
    _session: Session,
}

impl NativeFile {
    pub fn new(file: File, session: Session, path: PathBuf) -> PyResult<Self> {
        let opened = Opened {
            file,
            _session: session,
        };
        match Handle::new(opened, "file") {
            Ok(opened) => Ok(NativeFile {
                opened,
                position: Position::default(),
                path,
            }),
            Err(error) => Err(of_engine(&Error::from(error), Some(&path))),
        }
    }

    /// Does something with the file while others have the GIL.
    pub fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&File) -> forebay::Result<T> + Send,
    ) -> PyResult<T> {
        let result = self.opened.with(py, |opened| work(&opened.file))?;
        result.map_err(|error| of_engine(&error, Some(&self.path)))
    }
}

#[pymethods]
impl NativeFile {
    /// Up to `size` bytes from `offset` on, as new `bytes`; fewer only at the file's end, and before bytes that cannot be read.
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        size: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Memory for what there is, not for what is asked for.
        let size = if size > SMALL_BYTES {
            let told = self.size(py)?;
            if told == 0 {
                // Of what the kernel makes up only reads tell how much it is.
                let range = offset..offset.saturating_add(size as u64);
                let view = self.with(py, |file| file.view(range))?;
                return Ok(PyBytes::new(py, &view).into_any());
            }
            let rest = told.saturating_sub(offset);
            size.min(usize::try_from(rest).unwrap_or(usize::MAX))
        } else {
            size
        };
        filled(py, size, |bytes| {
            self.with(py, |file| file.read_at(bytes, offset))
        })
    }

    /// The bytes of a range as they are now, as an object of `kind`; to the file's end without a length. What is stored into a `writable` one is
    /// the process's.
    fn view<'py>(
        &self,
        py: Python<'py>,
        kind: &Bound<'py, PyType>,
        offset: u64,
        length: Option<u64>,
        writable: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let range = offset..offset.saturating_add(length.unwrap_or(u64::MAX));
        let view = self.with(py, |file| match writable {
            true => file.view_private(range).map(Viewed::Private),
            false => file.view(range).map(Viewed::Shared),
        })?;
        object_of(kind, view)
    }

    /// Reads into an object's memory. Returns how many bytes: fewer than there is room for only at the file's end, and before bytes that cannot be
    /// read.
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

    /// Writes an object's bytes. Returns how many: all, unless an error came after some.
    fn write_at(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let buffer = Buffer::of(data)?;
        let bytes = buffer.bytes();
        self.with(py, |file| file.write_at(bytes, offset))
    }

    /// Writes an object's bytes at the file's end. Returns the offset.
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let buffer = Buffer::of(data)?;
        let bytes = buffer.bytes();
        self.with(py, |file| file.append(bytes))
    }

    /// Up to `size` bytes from the position on, as new `bytes`.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyAny>> {
        filled(py, size, |bytes| {
            self.with(py, |file| {
                self.position.advance(|at| file.read_at(bytes, at))
            })
        })
    }

    /// As [`NativeFile::readinto_at`], from the position on.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        self.with(py, |file| {
            self.position.advance(|at| file.read_at(bytes, at))
        })
    }

    /// As [`NativeFile::write_at`], at the position, or at the file's end.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, at_end: bool) -> PyResult<usize> {
        let buffer = Buffer::of(data)?;
        let bytes = buffer.bytes();
        self.with(py, |file| match at_end {
            true => self.position.follow(|| file.append_some(bytes)),
            false => self.position.advance(|at| file.write_at(bytes, at)),
        })
    }

    /// Moves the position, and says where to.
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let from = From::of(whence)?;
        let to = self.with(py, |file| self.position.seek(offset, from, || file.len()))?;
        to.ok_or_else(|| nowhere(&self.path))
    }

    /// `fsync`, or `fdatasync`.
    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        self.with(py, |file| {
            if data_only {
                file.sync_data()
            } else {
                file.sync_all()
            }
        })
    }

    /// Hands everything to the device. Nothing happens to what belongs to a parent.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        if !self.opened.is_ours() {
            return Ok(());
        }
        self.with(py, File::flush)
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.with(py, |file| file.set_len(size))
    }

    fn punch(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.with(py, |file| file.punch(offset, length))
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, File::len)
    }

    fn kernel_reason(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |file| Ok(file.kernel_reason()))
    }

    /// Whether this process has opened it, and not a parent.
    #[getter]
    fn is_ours(&self) -> bool {
        self.opened.is_ours()
    }

    /// Closes, after the calls that are under way. Nothing happens to what belongs to a parent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = self.opened.close(py, |opened| opened.file.close());
        closed
            .unwrap_or(Ok(()))
            .map_err(|error| of_engine(&error, Some(&self.path)))
    }
}

/// Reads of more than this ask first how much there is.
const SMALL_BYTES: usize = 64 << 10;
