//! Views as Python objects: they export their bytes, which may be written where the view is private. `forebay.View` derives from this type.

use std::ffi::CStr;

use forebay::{PrivateView, View};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::errors::closed;
use crate::exporter::{Exports, checked};

/// A view of either kind.
pub enum Viewed {
    /// Its bytes are the session's.
    Shared(View),
    /// What is stored is the process's.
    Private(PrivateView),
}

impl Exports for Viewed {
    const NAME: &CStr = c"forebay._forebay.NativeView";
    const WHAT: &'static str = "view";

    fn place() -> &'static PyOnceLock<Py<PyType>> {
        static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        &TYPE
    }

    fn is_writable(&self) -> bool {
        matches!(self, Viewed::Private(_))
    }

    fn memory(&mut self) -> (*mut u8, usize) {
        match self {
            Viewed::Shared(view) => (view.as_ptr().cast_mut(), view.len()),
            Viewed::Private(view) => (view.as_mut_ptr(), view.len()),
        }
    }
}

/// Bytes of a view, whether it is a copy, and whether it may be written.
#[pyfunction]
pub fn view_facts(view: &Bound<'_, PyAny>) -> PyResult<(usize, bool, bool)> {
    let held = *checked::<Viewed>(view)?;
    if held.is_null() {
        return Err(closed("view"));
    }
    // SAFETY: what an object holds, with the GIL held.
    Ok(match unsafe { &(*held).value } {
        Viewed::Shared(view) => (view.len(), view.is_copy(), false),
        Viewed::Private(view) => (view.len(), view.is_copy(), true),
    })
}

/// Gives a view's bytes back, unless arrays or buffers lie over them. Nothing happens to one that has been released.
#[pyfunction]
pub fn view_release(view: &Bound<'_, PyAny>) -> PyResult<()> {
    let place = checked::<Viewed>(view)?;
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
    *place = std::ptr::null_mut();
    // SAFETY: made of a box in `object_of`, and the object has forgotten it.
    let held = unsafe { Box::from_raw(held) };
    view.py().detach(move || drop(held));
    Ok(())
}
