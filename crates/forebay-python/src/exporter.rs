//! Types of objects that export memory by the buffer protocol: arrays lie over it without a copy.
//!
//! A type of Python's stable interface may export buffers from 3.11 on. Python itself has taken the same slots since 3.9, so the types are made by hand
//! here (decision 0027). Whoever has a buffer keeps the object, and the object keeps what it holds: memory goes when the last array over it has gone.
//!
//! A buffer names an [`Export`] as its object, not the object that was asked. Some keep what a buffer names and give the buffer itself back at once: tensors
//! of `torch.frombuffer`, and numpy's `ndarray(buffer=memoryview(...))`. So what is counted are exports that live. `ndarray(buffer=...)` of the object itself
//! keeps neither, only the object: of that nobody hears the end, and it is noted for good ([`Held::is_lent`]).

use std::ffi::{CStr, c_int, c_uint, c_void};
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
/// `PyBUF_WRITABLE`
const WRITABLE: c_int = 1;
/// `PyBUF_ANY_CONTIGUOUS`: how numpy asks for the memory of an `ndarray(buffer=...)`.
const ANY_CONTIGUOUS: c_int = 0x80 | 0x18;

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
    /// Exports that live. They keep the object, and by that this number.
    exports: usize,
    /// Somebody may keep the address who keeps the object alone, and never says when that ends.
    is_lent: bool,
    /// It was released while it was lent: nobody gets at it by the object any more, and it goes with the object.
    is_over: bool,
}

impl<T: Exports> Held<T> {
    /// An error while arrays or buffers lie over the memory, or may.
    pub fn must_be_alone(&self) -> PyResult<()> {
        let what = T::WHAT;
        if self.exports > 0 {
            return Err(PyBufferError::new_err(format!(
                "arrays or buffers lie over this {what}: let them go first"
            )));
        }
        if self.is_lent {
            return Err(PyBufferError::new_err(format!(
                "an array of numpy.ndarray(buffer=...) may lie over this {what}, which does not tell when it goes: make arrays by numpy.frombuffer"
            )));
        }
        Ok(())
    }
}

/// What a buffer names as its object, for as long as anybody keeps that.
#[repr(C)]
struct Export {
    head: PyObject,
    /// The object whose memory it is, kept. NULL in one that Python code has made by this type.
    owner: *mut PyObject,
    /// Its number of exports.
    exports: *mut usize,
}

/// The type of exports.
fn export_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let make = || {
        let slots = [slot(ffi::Py_tp_dealloc, end_export as *mut c_void)];
        type_of(
            py,
            c"forebay._forebay.Export",
            size_of::<Export>(),
            0,
            slots,
        )
    };
    Ok(TYPE.get_or_try_init(py, make)?.bind(py))
}

/// `tp_dealloc`
///
/// # Safety
/// Python's to keep: an export, and the GIL.
unsafe extern "C" fn end_export(object: *mut PyObject) {
    // SAFETY: Python calls this once, with an export that nobody has any more, and the GIL held. Its owner lives, since the export keeps it; what it holds
    // stays where it is while the number is not zero, and nobody else looks at the number while the GIL is held.
    unsafe {
        let Export { owner, exports, .. } = *object.cast::<Export>();
        free(object);
        if !owner.is_null() {
            *exports -= 1;
            ffi::Py_DECREF(owner);
        }
    }
}

/// The type.
pub fn native<T: Exports>(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let make = || {
        let slots = [
            slot(GET_BUFFER, export::<T> as *mut c_void),
            slot(RELEASE_BUFFER, take_back as *mut c_void),
            slot(ffi::Py_tp_dealloc, deallocate::<T> as *mut c_void),
        ];
        let size = size_of::<Object<T>>();
        type_of(py, T::NAME, size, ffi::Py_TPFLAGS_BASETYPE as _, slots)
    };
    Ok(T::place().get_or_try_init(py, make)?.bind(py))
}

fn slot(slot: c_int, pfunc: *mut c_void) -> ffi::PyType_Slot {
    ffi::PyType_Slot { slot, pfunc }
}

fn type_of<const N: usize>(
    py: Python<'_>,
    name: &CStr,
    size: usize,
    flags: c_uint,
    slots: [ffi::PyType_Slot; N],
) -> PyResult<Py<PyType>> {
    let mut slots: Vec<_> = slots.into_iter().chain([slot(0, null_mut())]).collect();
    let mut spec = ffi::PyType_Spec {
        name: name.as_ptr(),
        basicsize: size as c_int,
        itemsize: 0,
        flags: ffi::Py_TPFLAGS_DEFAULT as c_uint | flags,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: a name that stays, slots of the types that Python expects, ended by zero; Python copies the rest.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec))? };
    Ok(made.cast_into::<PyType>().map_err(PyErr::from)?.unbind())
}

/// Gives back the memory of an object of a type that was made here, and the type, which each object of a type like that keeps.
///
/// # Safety
/// Nobody has the object any more; the GIL is held.
unsafe fn free(object: *mut PyObject) {
    // SAFETY: the caller's promise; each of these types has a function for it.
    unsafe {
        let kind = ffi::Py_TYPE(object);
        let free = ffi::PyType_GetSlot(kind, ffi::Py_tp_free);
        let free: ffi::freefunc = std::mem::transmute(free);
        free(object.cast());
        ffi::Py_DECREF(kind.cast());
    }
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
    // goes, which it does not while exports live; where they are read only, Python sees to that.
    unsafe {
        (*buffer).obj = null_mut();
        let py = Python::assume_attached();
        let held = held_of::<T>(object).as_mut().filter(|held| !held.is_over);
        let exported = held.ok_or_else(|| closed(T::WHAT)).and_then(|held| {
            let export = export_of(py, object, &mut held.exports)?;
            Ok((held, export))
        });
        let (held, export) = match exported {
            Ok(exported) => exported,
            Err(error) => {
                error.restore(py);
                return -1;
            }
        };
        let (start, len) = held.value.memory();
        let read_only = c_int::from(!held.value.is_writable());
        let (start, len) = (start.cast(), len as isize);
        let filled = PyBuffer_FillInfo(buffer, export.as_ptr(), start, len, read_only, flags);
        held.is_lent |= filled == 0 && flags & !WRITABLE == ANY_CONTIGUOUS;
        // Here `export` goes: the buffer has it now, or nobody.
        filled
    }
}

/// `bf_releasebuffer`: nothing, since the export tells. That there is one has `numpy.frombuffer` keep the buffer, not the object alone.
extern "C" fn take_back(_: *mut PyObject, _: *mut PyBuffer) {}

/// A new export of an object, counted by its number.
///
/// # Safety
/// `exports` is the number in what `object` holds; the GIL is held.
unsafe fn export_of<'py>(
    py: Python<'py>,
    object: *mut PyObject,
    exports: &mut usize,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: a type of ours, so that its objects begin as ours do; nobody else knows the new one.
    unsafe {
        let made = ffi::PyType_GenericAlloc(export_type(py)?.as_type_ptr(), 0);
        let made = Bound::from_owned_ptr_or_err(py, made)?;
        ffi::Py_INCREF(object);
        *exports += 1;
        let export = made.as_ptr().cast::<Export>();
        (*export).owner = object;
        (*export).exports = exports;
        Ok(made)
    }
}

/// `tp_dealloc`
///
/// # Safety
/// Python's to keep: an object of the type, and the GIL.
unsafe extern "C" fn deallocate<T: Exports>(object: *mut PyObject) {
    // SAFETY: Python calls this once, with an object of the type that nobody has any more, no export either, and the GIL held.
    unsafe {
        let held = std::mem::replace(held_of::<T>(object), null_mut());
        if !held.is_null() {
            let held = Box::from_raw(held);
            let _ = catch_unwind(AssertUnwindSafe(move || drop(held)));
        }
        free(object);
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
        let held = Held {
            value,
            exports: 0,
            is_lent: false,
            is_over: false,
        };
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
    let held = unsafe { held.as_mut() }.filter(|held| !held.is_over);
    held.ok_or_else(|| closed(T::WHAT))
}

/// Takes out what an object holds, unless arrays or buffers lie over it, or may: nobody gets at it by the object then.
pub fn take<T: Exports>(object: &Bound<'_, PyAny>) -> PyResult<Box<Held<T>>> {
    held_by::<T>(object)?.must_be_alone()?;
    let held = std::mem::replace(checked::<T>(object)?, null_mut());
    // SAFETY: made of a box in `object_of` or `put_back`, and the object has forgotten it.
    Ok(unsafe { Box::from_raw(held) })
}

/// Has an object hold again what was taken out of it.
pub fn put_back<T: Exports>(object: &Bound<'_, PyAny>, held: Box<Held<T>>) -> PyResult<()> {
    *checked::<T>(object)? = Box::into_raw(held);
    Ok(())
}

/// Gives back what an object holds, unless arrays or buffers lie over it; with the object where that cannot be known. Nothing happens to one that holds
/// nothing.
pub fn release<T: Exports>(object: &Bound<'_, PyAny>) -> PyResult<()> {
    // SAFETY: NULL, or what an object holds, with the GIL held.
    let Some(held) = (unsafe { checked::<T>(object)?.as_mut() }) else {
        return Ok(());
    };
    if held.exports == 0 && held.is_lent {
        held.is_over = true;
        return Ok(());
    }
    let held = take::<T>(object)?;
    object.py().detach(move || drop(held));
    Ok(())
}
