//! Views as Python objects: they export their bytes, which may be written where the view is private. `forebay.View` derives from this type.

use std::ffi::CStr;
use std::ptr::with_exposed_provenance_mut;

use forebay::sys::forks::Owned;
use forebay::{PrivateView, View};
use forebay_pmem::Whole;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::exporter::{Exports, held_by, release};

/// A view of any kind.
pub enum Viewed {
    /// Its bytes are the session's.
    Shared(View),
    /// What is stored is the process's.
    Private(PrivateView),
    /// Its bytes are a store's.
    Stored(Stored),
    /// Bytes of a store's that may be written.
    Copied(Vec<u8>),
}

/// A view of a store's. A child of this process sees it as long as its parent has it, and gives nothing back.
pub struct Stored {
    first: usize,
    len: usize,
    is_copy: bool,
    _view: Owned<Whole>,
}

impl Stored {
    /// Of a new view.
    pub fn new(view: Whole) -> PyResult<Self> {
        Ok(Stored {
            first: view.as_ptr().expose_provenance(),
            len: view.len(),
            is_copy: view.is_copy(),
            _view: Owned::new(view)?,
        })
    }
}

impl Exports for Viewed {
    const NAME: &CStr = c"forebay._forebay.NativeView";
    const WHAT: &'static str = "view";

    fn place() -> &'static PyOnceLock<Py<PyType>> {
        static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        &TYPE
    }

    fn is_writable(&self) -> bool {
        matches!(self, Viewed::Private(_) | Viewed::Copied(_))
    }

    fn memory(&mut self) -> (*mut u8, usize) {
        match self {
            Viewed::Shared(view) => (view.as_ptr().cast_mut(), view.len()),
            Viewed::Private(view) => (view.as_mut_ptr(), view.len()),
            Viewed::Stored(view) => (with_exposed_provenance_mut(view.first), view.len),
            Viewed::Copied(bytes) => (bytes.as_mut_ptr(), bytes.len()),
        }
    }
}

/// Bytes of a view, whether it is a copy, and whether it may be written.
#[pyfunction]
pub fn view_facts(view: &Bound<'_, PyAny>) -> PyResult<(usize, bool, bool)> {
    Ok(match &held_by::<Viewed>(view)?.value {
        Viewed::Shared(view) => (view.len(), view.is_copy(), false),
        Viewed::Private(view) => (view.len(), view.is_copy(), true),
        Viewed::Stored(view) => (view.len, view.is_copy, false),
        Viewed::Copied(bytes) => (bytes.len(), true, true),
    })
}

/// Gives a view's bytes back, unless arrays or buffers lie over them. Nothing happens to one that has been released.
#[pyfunction]
pub fn view_release(view: &Bound<'_, PyAny>) -> PyResult<()> {
    release::<Viewed>(view)
}
