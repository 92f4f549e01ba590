//! Types of objects that export memory by the buffer protocol: arrays lie over it without a copy.
//!
//! A type of Python's stable interface may export buffers from 3.11 on. Python itself has taken the same slots since 3.9, so the types are made by hand
//! here (decision 0027). Whoever has a buffer keeps the object, and the object keeps what it holds: memory goes when the last array over it has gone.

use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

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

/// What an object may hold and export.
pub trait Exports: Send + 'static {
    /// The type's name.
    const NAME: &CStr;
    /// What one is called in errors.
    const WHAT: &'static str;

    /// The type, once it is made.
    fn place() -> &'static PyOnceLock<Py<PyType>>;

    /// Whether whoever has a buffer may write.
    fn is_writable(&self) -> bool;

    /// The memory: where, and how many bytes. It stays there while buffers are out.
    fn memory(&mut self) -> (*mut u8, usize);
}

/// What an object of the type is in memory. Zeros, as Python makes it, is one that holds nothing any more.
#[repr(C)]
struct Object<T> {
    head: PyObject,
    /// Changed with the GIL held.
    held: *mut Held<T>,
}

/// What an object holds.
pub struct Held<T> {
    /// The value.
    pub value: T,
    /// Buffers that Python has and has not given back.
    pub exports: usize,
}

/// The type.
pub fn native<T: Exports>(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let kind = T::place().get_or_try_init(py, || make_type::<T>(py))?;
    Ok(kind.bind(py))
}

fn make_type<T: Exports>(py: Python<'_>) -> PyResult<Py<PyType>> {
    let slot = |slot, pfunc| ffi::PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(GET_BUFFER, export::<T> as *mut c_void),
        slot(RELEASE_BUFFER, take_back::<T> as *mut c_void),
        slot(ffi::Py_tp_dealloc, deallocate::<T> as *mut c_void),
        slot(0, null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: T::NAME.as_ptr(),
        basicsize: size_of::<Object<T>>() as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: a name that stays, slots of the types that Python expects, ended by zero; Python copies the rest.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec))? };
    Ok(made.cast_into::<PyType>().map_err(PyErr::from)?.unbind())
}

/// What an object of the type holds, or NULL once it holds nothing.
///
/// # Safety
/// `object` is of the type; the GIL is held.
unsafe fn held_of<'a, T>(object: *mut PyObject) -> &'a mut *mut Held<T> {
    // SAFETY: the caller's promise: an object of the type begins so, and nobody else is at it.
    unsafe { &mut (*object.cast::<Object<T>>()).held }
}

/// `bf_getbuffer`
///
/// # Safety
/// Python's to keep: an object of the type, and the GIL.
unsafe extern "C" fn export<T: Exports>(
    object: *mut PyObject,
    buffer: *mut PyBuffer,
    flags: c_int,
) -> c_int {
    // SAFETY: Python calls this with an object of the type, room for the structure, and the GIL held. The bytes stay where they are until what is held
    // goes, which it does not while buffers are out; where they are read only, Python sees to that.
    unsafe {
        let held = *held_of::<T>(object);
        if held.is_null() {
            (*buffer).obj = null_mut();
            closed(T::WHAT).restore(Python::assume_attached());
            return -1;
        }
        let (start, len) = (*held).value.memory();
        let read_only = c_int::from(!(*held).value.is_writable());
        let (start, len) = (start.cast(), len as isize);
        let filled = PyBuffer_FillInfo(buffer, object, start, len, read_only, flags);
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
unsafe extern "C" fn take_back<T: Exports>(object: *mut PyObject, _: *mut PyBuffer) {
    // SAFETY: as for `export`; a buffer is out, so the object holds something.
    unsafe {
        let held = *held_of::<T>(object);
        if !held.is_null() {
            (*held).exports -= 1;
        }
    }
}

/// `tp_dealloc`
///
/// # Safety
/// Python's to keep: an object of the type, and the GIL.
unsafe extern "C" fn deallocate<T: Exports>(object: *mut PyObject) {
    // SAFETY: Python calls this once, with an object of the type that nobody has any more, and the GIL held. The object's memory is given back as its
    // type says, and the type, which each object of a type like this one keeps, after it.
    unsafe {
        let held = std::mem::replace(held_of::<T>(object), null_mut());
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

/// An object of `kind`, which derives from the type, that holds `value`.
pub fn object_of<'py, T: Exports>(
    kind: &Bound<'py, PyType>,
    value: T,
) -> PyResult<Bound<'py, PyAny>> {
    let py = kind.py();
    if !kind.is_subclass(native::<T>(py)?)? {
        return Err(PyTypeError::new_err(format!(
            "a {} has a type of its own",
            T::WHAT
        )));
    }
    // SAFETY: a type, which derives from ours, so that its objects begin as ours do; nobody else knows the new one.
    unsafe {
        let made = ffi::PyType_GenericAlloc(kind.as_type_ptr(), 0);
        let made = Bound::from_owned_ptr_or_err(py, made)?;
        let held = Held { value, exports: 0 };
        *held_of(made.as_ptr()) = Box::into_raw(Box::new(held));
        Ok(made)
    }
}

/// Where an object has what it holds. Nobody else looks while the GIL is held.
pub fn checked<'a, T: Exports>(object: &Bound<'_, PyAny>) -> PyResult<&'a mut *mut Held<T>> {
    if !object.is_instance(native::<T>(object.py())?)? {
        return Err(PyTypeError::new_err(format!("this is no {}", T::WHAT)));
    }
    // SAFETY: an object of the type; the GIL is held for as long as the callers of this use the answer.
    Ok(unsafe { held_of(object.as_ptr()) })
}

/// What an object holds; an error once it holds nothing. Nobody else looks while the GIL is held.
pub fn held_by<'a, T: Exports>(object: &Bound<'_, PyAny>) -> PyResult<&'a mut Held<T>> {
    let held = *checked::<T>(object)?;
    // SAFETY: NULL, or what an object holds, with the GIL held.
    unsafe { held.as_mut() }.ok_or_else(|| closed(T::WHAT))
}

/// Takes out what an object holds, unless arrays or buffers lie over it: nobody gets at it by the object then. `None` where it holds nothing.
pub fn take<T: Exports>(object: &Bound<'_, PyAny>) -> PyResult<Option<Box<Held<T>>>> {
    let place = checked::<T>(object)?;
    if place.is_null() {
        return Ok(None);
    }
    if held_by::<T>(object)?.exports > 0 {
        let what = T::WHAT;
        return Err(PyBufferError::new_err(format!(
            "arrays or buffers lie over this {what}: let them go first"
        )));
    }
    let held = std::mem::replace(place, null_mut());
    // SAFETY: made of a box in `object_of` or `put_back`, and the object has forgotten it.
    Ok(Some(unsafe { Box::from_raw(held) }))
}

/// Has an object hold again what was taken out of it.
pub fn put_back<T: Exports>(object: &Bound<'_, PyAny>, held: Box<Held<T>>) -> PyResult<()> {
    *checked::<T>(object)? = Box::into_raw(held);
    Ok(())
}

/// Gives back what an object holds, unless arrays or buffers lie over it. Nothing happens to one that holds nothing.
pub fn release<T: Exports>(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let held = take::<T>(object)?;
    object.py().detach(move || drop(held));
    Ok(())
}
