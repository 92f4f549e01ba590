//! Views as Python objects: they export their bytes by the buffer protocol, read-only, so that arrays lie over them without a copy.
//!
//! A type of Python's stable interface may export buffers from 3.11 on. Python itself has taken the same slots since 3.9, so the type is made by hand
//! here (decision 0027). `forebay.View` derives from it. Whoever has a buffer keeps the object, and the object keeps the view: a view goes when the
//! last array over it has gone.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use forebay::View;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::buffer::{PyBuffer, PyBuffer_FillInfo};
use crate::errors::closed;

/// `Py_bf_getbuffer`, `Py_bf_releasebuffer`
const GET_BUFFER: c_int = 1;
const RELEASE_BUFFER: c_int = 2;

/// What an object of the type is in memory. Zeros, as Python makes it, is one that has been released.
#[repr(C)]
struct Object {
    head: PyObject,
    /// Changed with the GIL held.
    held: *mut Held,
}

struct Held {
    view: View,
    /// Buffers that Python has and has not given back.
    exports: usize,
}

static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The type.
pub fn native_view(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let kind = TYPE.get_or_try_init(py, || make_type(py))?;
    Ok(kind.bind(py))
}

fn make_type(py: Python<'_>) -> PyResult<Py<PyType>> {
    let slot = |slot, pfunc| ffi::PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(GET_BUFFER, export as *mut c_void),
        slot(RELEASE_BUFFER, take_back as *mut c_void),
        slot(ffi::Py_tp_dealloc, deallocate as *mut c_void),
        slot(0, null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"forebay._forebay.NativeView".as_ptr(),
        basicsize: size_of::<Object>() as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: a name that stays, slots of the types that Python expects, ended by zero; Python copies the rest.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec))? };
    Ok(made.cast_into::<PyType>().map_err(PyErr::from)?.unbind())
}

/// What an object of the type holds, or NULL once it has been released.
///
/// # Safety
/// `object` is of the type; the GIL is held.
unsafe fn held_of<'a>(object: *mut PyObject) -> &'a mut *mut Held {
    // SAFETY: the caller's promise: an object of the type begins so, and nobody else is at it.
    unsafe { &mut (*object.cast::<Object>()).held }
}

/// `bf_getbuffer`
///
/// # Safety
/// Python's to keep: an object of the type, and the GIL.
unsafe extern "C" fn export(object: *mut PyObject, buffer: *mut PyBuffer, flags: c_int) -> c_int {
    // SAFETY: Python calls this with an object of the type, room for the structure, and the GIL held. The bytes stay where they are until the view
    // goes, which it does not while buffers are out; that they are read only, Python sees to.
    unsafe {
        let held = *held_of(object);
        if held.is_null() {
            (*buffer).obj = null_mut();
            closed("view").restore(Python::assume_attached());
            return -1;
        }
        let bytes: &[u8] = &(*held).view;
        let start = bytes.as_ptr().cast_mut().cast();
        let filled = PyBuffer_FillInfo(buffer, object, start, bytes.len() as isize, 1, flags);
        if filled == 0 {
            (*held).exports += 1;
        }
        filled
    }
}

/// `bf_releasebuffer`
///
/// # Safety
/// Python's to keep: an object of the type, and the GIL.
unsafe extern "C" fn take_back(object: *mut PyObject, _: *mut PyBuffer) {
    // SAFETY: as for `export`; a buffer is out, so the object holds its view.
    unsafe {
        let held = *held_of(object);
        if !held.is_null() {
            (*held).exports -= 1;
        }
    }
}

/// `tp_dealloc`
///
/// # Safety
/// Python's to keep: an object of the type, and the GIL.
unsafe extern "C" fn deallocate(object: *mut PyObject) {
    // SAFETY: Python calls this once, with an object of the type that nobody has any more, and the GIL held. The object's memory is given back as its
    // type says, and the type, which each object of a type like this one keeps, after it.
    unsafe {
        let held = std::mem::replace(held_of(object), null_mut());
        if !held.is_null() {
            let held = Box::from_raw(held);
            let _ = catch_unwind(AssertUnwindSafe(move || drop(held)));
        }
        let kind = ffi::Py_TYPE(object);
        let free = ffi::PyType_GetSlot(kind, ffi::Py_tp_free);
        let free: ffi::freefunc = std::mem::transmute(free);
        free(object.cast());
        ffi::Py_DECREF(kind.cast());
    }
}

/// An object of `kind`, which derives from the type, that holds a view.
pub fn object_of<'py>(kind: &Bound<'py, PyType>, view: View) -> PyResult<Bound<'py, PyAny>> {
    let py = kind.py();
    if !kind.is_subclass(native_view(py)?)? {
        return Err(PyTypeError::new_err("a view is a NativeView"));
    }
    // SAFETY: a type, which derives from ours, so that its objects begin as ours do; nobody else knows the new one.
    unsafe {
        let made = ffi::PyType_GenericAlloc(kind.as_type_ptr(), 0);
        let made = Bound::from_owned_ptr_or_err(py, made)?;
        let held = Held { view, exports: 0 };
        *held_of(made.as_ptr()) = Box::into_raw(Box::new(held));
        Ok(made)
    }
}

fn checked<'a>(object: &Bound<'_, PyAny>) -> PyResult<&'a mut *mut Held> {
    if !object.is_instance(native_view(object.py())?)? {
        return Err(PyTypeError::new_err("this is no view"));
    }
    // SAFETY: an object of the type; the GIL is held for as long as the callers of this use the answer.
    Ok(unsafe { held_of(object.as_ptr()) })
}

/// Bytes of a view, and whether it is a copy.
#[pyfunction]
pub fn view_facts(view: &Bound<'_, PyAny>) -> PyResult<(usize, bool)> {
    let held = *checked(view)?;
    if held.is_null() {
        return Err(closed("view"));
    }
    // SAFETY: what an object holds, with the GIL held.
    let view = unsafe { &(*held).view };
    Ok((view.len(), view.is_copy()))
}

/// Gives a view's bytes back, unless arrays or buffers lie over them. Nothing happens to one that has been released.
#[pyfunction]
pub fn view_release(view: &Bound<'_, PyAny>) -> PyResult<()> {
    let place = checked(view)?;
    let held = *place;
    if held.is_null() {
        return Ok(());
    }
    // SAFETY: what an object holds, with the GIL held.
    if unsafe { (*held).exports } > 0 {
        return Err(PyBufferError::new_err(
            "arrays or buffers lie over this view; it is released with the last of them",
        ));
    }
    *place = null_mut();
    // SAFETY: made of a box in `object_of`, and the object has forgotten it.
    let held = unsafe { Box::from_raw(held) };
    view.py().detach(move || drop(held));
    Ok(())
}
