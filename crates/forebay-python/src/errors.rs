//! Errors of the engine as Python's.

use std::ffi::OsStr;
use std::path::Path;

use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};

/// `ENOTCONN`: what a child that was forked may not use is said as a session's error is.
const ENOTCONN: i32 = 107;

/// `EINVAL`, as of a seek to before the begin.
const EINVAL: i32 = 22;

/// An `OSError`, whose subclass Python chooses by the number. `ValueError` for options that are wrong, `MemoryError` for want of the process's memory.
pub fn of_engine(error: &forebay::Error, path: Option<&Path>) -> PyErr {
    if let forebay::Error::Configuration(wrong) = error {
        return PyValueError::new_err(wrong.to_string());
    }
    let text = error.to_string();
    if let forebay::Error::NoMemory { .. } = error {
        return PyMemoryError::new_err(text);
    }
    match path {
        Some(path) => PyOSError::new_err((error.errno(), text, path.as_os_str().to_owned())),
        None => PyOSError::new_err((error.errno(), text)),
    }
}

/// For a seek to where no byte can be.
pub fn nowhere(path: impl AsRef<OsStr>) -> PyErr {
    PyOSError::new_err((EINVAL, "Invalid argument", path.as_ref().to_owned()))
}

/// For a call with what belongs to the parent of this process.
pub fn inherited(what: &str) -> PyErr {
    let text = format!(
        "this {what} belongs to the parent of this process: after a fork, open sessions and files anew"
    );
    PyOSError::new_err((ENOTCONN, text))
}

/// As Python says it of its own files.
pub fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("I/O operation on a closed {what}"))
}
