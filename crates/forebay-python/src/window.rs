//! Windows as Python objects: they export their memory, which may be written. `forebay.Window` derives from this type.
//!
//! The window is in an `Arc` of its own: a call may go on without the GIL while another thread lets the object go.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use forebay::Window;
use forebay::sys::forks::Owned;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::errors::{inherited, of_engine};
use crate::exporter::{Exports, held_by, release};
use crate::file::NativeFile;

/// A window, and its memory as it was when the GIL was last had.
pub struct Held {
    window: Arc<Owned<Mutex<Window>>>,
    first: usize,
    len: usize,
}

impl Held {
    /// Of a new window.
    pub fn new(mut window: Window) -> PyResult<Self> {
        let (first, len) = (window.as_mut_ptr().expose_provenance(), window.len());
        let owned = Owned::new(Mutex::new(window));
        let owned = owned.map_err(|error| of_engine(&forebay::Error::from(error), None))?;
        let window = Arc::new(owned);
        Ok(Held { window, first, len })
    }
}

impl Exports for Held {
    const NAME: &CStr = c"forebay._forebay.NativeWindow";
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
        match self.window.is_ours() {
            true => (std::ptr::with_exposed_provenance_mut(self.first), self.len),
            false => (std::ptr::null_mut(), 0),
        }
    }
}

/// Does something with a window while others have the GIL.
fn with<T: Send>(
    window: &Bound<'_, PyAny>,
    work: impl FnOnce(&mut Window) -> forebay::Result<T> + Send,
) -> PyResult<T> {
    let shared = Arc::clone(&held_by::<Held>(window)?.value.window);
    let done = window.py().detach(|| {
        let held = shared.get()?;
        let mut window = held.lock().unwrap_or_else(PoisonError::into_inner);
        Some(work(&mut window))
    });
    let result = done.ok_or_else(|| inherited("window"))?;
    result.map_err(|error| of_engine(&error, None))
}

/// Bytes of a window, and how many have gone without a copy.
#[pyfunction]
pub fn window_facts(window: &Bound<'_, PyAny>) -> PyResult<(usize, u64)> {
    let attached = with(window, |window| Ok(window.attached_bytes()))?;
    Ok((held_by::<Held>(window)?.value.len, attached))
}

/// Gives bytes `start` to `stop` to a file at `offset`. Returns how many: all, unless an error came after some.
#[pyfunction]
pub fn window_commit(
    window: &Bound<'_, PyAny>,
    file: &Bound<'_, NativeFile>,
    offset: u64,
    start: usize,
    stop: usize,
) -> PyResult<usize> {
    let shared = Arc::clone(&held_by::<Held>(window)?.value.window);
    let held = shared.get().ok_or_else(|| inherited("window"))?;
    file.get().with(window.py(), |file| {
        let mut window = held.lock().unwrap_or_else(PoisonError::into_inner);
        window.commit(file, offset, start..stop)
    })
}

/// Makes what was given writable again, with its bytes.
#[pyfunction]
pub fn window_refill(window: &Bound<'_, PyAny>) -> PyResult<()> {
    with(window, Window::refill)
}

/// Has zeros where blocks were given.
#[pyfunction]
pub fn window_detach(window: &Bound<'_, PyAny>) -> PyResult<()> {
    with(window, Window::detach)
}

/// Empties a window and moves it to where a byte at `offset` lies in a file, unless arrays or buffers lie over it.
#[pyfunction]
pub fn window_slide(window: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
    let shared = Arc::clone(&held_by::<Held>(window)?.value.window);
    let held = shared.get().ok_or_else(|| inherited("window"))?;
    loop {
        held_by::<Held>(window)?.must_be_alone()?;
        // With the GIL, so that nobody gets the memory that is about to go.
        let mut slid = match held.try_lock() {
            Ok(slid) => slid,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Another call is under way. Whoever has the GIL meanwhile may take a buffer.
                window.py().detach(|| drop(held.lock()));
                continue;
            }
        };
        let done = slid.slide(offset);
        done.map_err(|error| of_engine(&error, None))?;
        held_by::<Held>(window)?.value.first = slid.as_mut_ptr().expose_provenance();
        return Ok(());
    }
}

/// Gives a window back, unless arrays or buffers lie over it. Nothing happens to one that has been given back.
#[pyfunction]
pub fn window_release(window: &Bound<'_, PyAny>) -> PyResult<()> {
    release::<Held>(window)
}
