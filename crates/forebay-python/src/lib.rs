//! The native half of the Python package: sessions and files with positional calls. Positions, modes and everything that Python can do by itself
//! are in `python/forebay`.
//!
//! The GIL is released while bytes move, and while anything waits. What was made before a fork is refused in the child
//! ([`forebay::sys::forks`]). Errors are `OSError` with a number, a text and the file's name.

mod buffer;
mod errors;
mod file;
mod pool;
mod session;
mod view;

use pyo3::prelude::*;

/// `forebay._forebay`
#[pymodule(gil_used = true)]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<session::NativeSession>()?;
    module.add_class::<file::NativeFile>()?;
    module.add_class::<pool::NativePool>()?;
    module.add_class::<pool::NativePoolFile>()?;
    module.add("NativeView", view::native_view(module.py())?)?;
    module.add_function(wrap_pyfunction!(view::view_facts, module)?)?;
    module.add_function(wrap_pyfunction!(view::view_release, module)?)
}
