//! Views as Python objects: they export their bytes, read-only. `forebay.View` derives from this type.

use std::ffi::CStr;

use forebay::View;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::errors::closed;
use crate::exporter::{Exports, checked};

impl Exports for View {
    const NAME: &CStr = c"forebay._forebay.NativeView";
    const WHAT: &'static str = "view";
    const WRITABLE: bool = false;

    fn place() -> &'static PyOnceLock<Py<PyType>> {
        static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        &TYPE
    }

    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_ptr().cast_mut(), self.len())
    }
}

/// Bytes of a view, and whether it is a copy.
#[pyfunction]
pub fn view_facts(view: &Bound<'_, PyAny>) -> PyResult<(usize, bool)> {
    let held = *checked::<View>(view)?;
    if held.is_null() {
        return Err(closed("view"));
    }
    // SAFETY: what an object holds, with the GIL held.
    let view = unsafe { &(*held).value };
    Ok((view.len(), view.is_copy()))
}

/// Gives a view's bytes back, unless arrays or buffers lie over them. Nothing happens to one that has been released.
#[pyfunction]
pub fn view_release(view: &Bound<'_, PyAny>) -> PyResult<()> {
    let place = checked::<View>(view)?;
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
