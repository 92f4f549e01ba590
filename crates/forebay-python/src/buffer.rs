//! Memory of Python objects: buffers that they export, and new `bytes` to read into.
//!
//! The functions and the structure of the buffer protocol are in Python's stable interface from 3.11 on; they were there before, and
//! looked the same since 3.3, so this module names them by itself for 3.9 and 3.10 (decision 0027).

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// `Py_buffer`
#[repr(C)]
pub struct PyBuffer {
    buf: *mut c_void,
    /// Whose bytes they are.
    pub obj: *mut PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

const SIMPLE: c_int = 0;
const WRITABLE: c_int = 1;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut PyBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut PyBuffer);
    /// Fills a structure in for one run of bytes; `BufferError` where more is asked for.
    pub fn PyBuffer_FillInfo(
        view: *mut PyBuffer,
        object: *mut PyObject,
        bytes: *mut c_void,
        len: isize,
        readonly: c_int,
        flags: c_int,
    ) -> c_int;
}

/// What an object exports, one run of bytes. The object keeps it where it is until this is dropped.
pub struct Buffer<'py> {
    /// Not moved: exporters may keep the address.
    view: Box<PyBuffer>,
    /// It is given back with the GIL held.
    _python: Python<'py>,
}

impl<'py> Buffer<'py> {
    /// For reading.
    pub fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        Self::with(object, SIMPLE)
    }

    /// For writing into.
    pub fn writable(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        Self::with(object, WRITABLE)
    }

    fn with(object: &Bound<'py, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<PyBuffer>::uninit());
        // SAFETY: an object that lives, and room for the structure; Python fills it in or says no.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: it has been filled in.
        let view = unsafe { view.assume_init() };
        Ok(Buffer {
            view,
            _python: object.py(),
        })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        if self.view.len <= 0 {
            return &[];
        }
        // SAFETY: mapped and initialised until the view is given back; that no other thread changes them meanwhile is up to the program, as
        // with Python's own files.
        unsafe { std::slice::from_raw_parts(self.view.buf.cast(), self.view.len as usize) }
    }

    /// The bytes, to be written. Only for what [`Buffer::writable`] gave.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.view.readonly == 0, "asked for a writable buffer");
        if self.view.len <= 0 {
            return &mut [];
        }
        // SAFETY: as for `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.view.buf.cast(), self.view.len as usize) }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: given back once, with the GIL held, as the token says.
        unsafe { PyBuffer_Release(&raw mut *self.view) };
    }
}

/// New `bytes` of up to `len`, filled by `read`, which says how many there are. Nothing is cleared before.
pub fn filled<'py>(
    py: Python<'py>,
    len: usize,
    read: impl FnOnce(&mut [u8]) -> PyResult<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let size = isize::try_from(len)?;
    // SAFETY: without a source Python leaves the bytes as they are; a null pointer is an error that is taken.
    let made = unsafe {
        let new = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        Bound::from_owned_ptr_or_err(py, new)?
    };
    // SAFETY: nobody else knows the new object yet; its bytes are written by what reads, and not looked at before.
    let bytes = unsafe {
        let start = ffi::PyBytes_AsString(made.as_ptr());
        std::slice::from_raw_parts_mut(start.cast::<u8>(), len)
    };
    let count = read(bytes)?;
    if count == len {
        return Ok(made);
    }
    Ok(PyBytes::new(py, &bytes[..count]).into_any())
}
