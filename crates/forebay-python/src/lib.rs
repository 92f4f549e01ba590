//! The native half of the Python package: sessions and files with positional calls. Positions, modes and everything that Python can do by itself
//! are in `python/forebay`.
//!
//! The GIL is released while bytes move, and while anything waits. What was made before a fork is refused in the child
//! ([`forebay::sys::forks`]). Errors are `OSError` with a number, a text and the file's name.

mod buffer;
mod errors;
mod exporter;
mod file;
mod handle;
mod pool;
mod position;
mod session;
mod store;
mod view;
mod window;

use pyo3::prelude::*;

/// `forebay._forebay`
#[pymodule(gil_used = true)]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<session::NativeSession>()?;
    module.add_class::<file::NativeFile>()?;
    module.add_class::<pool::NativePool>()?;
    module.add_class::<pool::NativePoolFile>()?;
    module.add_class::<store::NativeStore>()?;
    module.add_class::<store::NativeStoreFile>()?;
    let py = module.py();
    module.add("NativeView", exporter::native::<view::Viewed>(py)?)?;
    module.add_function(wrap_pyfunction!(view::view_facts, module)?)?;
    module.add_function(wrap_pyfunction!(view::view_release, module)?)?;
    module.add("NativeWindow", exporter::native::<window::Held>(py)?)?;
    module.add_function(wrap_pyfunction!(window::window_facts, module)?)?;
    module.add_function(wrap_pyfunction!(window::window_commit, module)?)?;
    module.add_function(wrap_pyfunction!(window::window_refill, module)?)?;
    module.add_function(wrap_pyfunction!(window::window_detach, module)?)?;
    module.add_function(wrap_pyfunction!(window::window_slide, module)?)?;
    module.add_function(wrap_pyfunction!(window::window_release, module)?)?;
    module.add("NativeStoreWindow", exporter::native::<store::Lent>(py)?)?;
    module.add_function(wrap_pyfunction!(store::store_create, module)?)?;
    module.add_function(wrap_pyfunction!(store::store_window_facts, module)?)?;
    module.add_function(wrap_pyfunction!(store::store_window_commit, module)?)?;
    module.add_function(wrap_pyfunction!(store::store_window_release, module)?)
}
