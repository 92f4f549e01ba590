//! A session, as Python has it.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use forebay::config::Options;
use forebay::sys::forks::Owned;
use forebay::{Config, Error, OpenOptions};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::errors::{closed, inherited, of_engine};
use crate::exporter::object_of;
use crate::file::NativeFile;
use crate::window::Held;

const EINTR: i32 = 4;

/// What `forebay.Session` holds.
#[pyclass(frozen, module = "forebay._forebay")]
pub struct NativeSession {
    owned: Owned<RwLock<Option<forebay::Session>>>,
}

impl NativeSession {
    fn session(&self) -> PyResult<forebay::Session> {
        let owned = self.owned.get().ok_or_else(|| inherited("session"))?;
        let session = owned.read().unwrap_or_else(PoisonError::into_inner).clone();
        session.ok_or_else(|| closed("session"))
    }
}

#[pymethods]
impl NativeSession {
    /// `options` are texts of the configuration; `keep`: threads of this process keep the session.
    #[new]
    fn new(
        py: Python<'_>,
        name: Option<&str>,
        options: Vec<(String, String)>,
        keep: bool,
    ) -> PyResult<Self> {
        let open = || -> forebay::Result<_> {
            let mut read = Options::default();
            for (key, value) in &options {
                read.set(key, value)?;
            }
            if let Some(name) = name {
                read.set("session", name)?;
            }
            if keep {
                forebay::Session::open(Config::load_with(read)?)
            } else {
                forebay::Session::join(Config::load_to_join(read)?)
            }
        };
        let session = py.detach(open).map_err(|e| of_engine(&e, None))?;
        let owned = Owned::new(RwLock::new(Some(session)));
        let owned = owned.map_err(|e| of_engine(&Error::from(e), None))?;
        Ok(NativeSession { owned })
    }

    /// `how` has letters: r, w, a (access), t (truncate), c (create), x (create anew).
    fn open(&self, py: Python<'_>, path: PathBuf, how: &str, mode: u32) -> PyResult<NativeFile> {
        let session = self.session()?;
        let has = |letter| how.contains(letter);
        let mut options = OpenOptions::new();
        options
            .read(has('r'))
            .write(has('w'))
            .append(has('a'))
            .truncate(has('t'))
            .create(has('c'))
            .create_new(has('x'))
            .mode(mode)
            .interruptible(true);
        loop {
            match py.detach(|| session.open_file(&path, &options)) {
                // As Python does: what waits goes on, unless a handler raises.
                Err(error) if error.errno() == EINTR => py.check_signals()?,
                opened => {
                    let file = opened.map_err(|e| of_engine(&e, Some(&path)))?;
                    return NativeFile::new(file, session, path);
                }
            }
        }
    }

    /// A window of `nbytes` zeros, as an object of `kind`.
    fn window<'py>(
        &self,
        py: Python<'py>,
        kind: &Bound<'py, PyType>,
        nbytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let session = self.session()?;
        let window = py.detach(|| session.window(nbytes));
        let window = window.map_err(|e| of_engine(&e, None))?;
        object_of(kind, Held::new(window)?)
    }

    /// Gives the session memory ahead of need.
    fn warm(&self, py: Python<'_>, nbytes: u64) -> PyResult<()> {
        let session = self.session()?;
        let warmed = py.detach(|| session.warm(nbytes));
        warmed.map_err(|e| of_engine(&e, None))
    }

    /// The counters, by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.session()?;
        let stats = py.detach(|| session.stats());
        let counted = PyDict::new(py);
        for (name, value) in [
            ("scrap_bytes", stats.scrap_bytes),
            ("direct_bytes", stats.direct_bytes),
            ("kernel_bytes", stats.kernel_bytes),
            ("read_bytes", stats.read_bytes),
            ("device_read_bytes", stats.device_read_bytes),
            ("ahead_bytes", stats.ahead_bytes),
            ("device_write_bytes", stats.device_write_bytes),
            ("memory_held_bytes", stats.memory_held_bytes),
            ("memory_free_bytes", stats.memory_free_bytes),
            ("viewed_bytes", stats.viewed_bytes),
            ("run_bytes", stats.run_bytes),
            ("dirty_bytes", stats.dirty_bytes),
            ("owed_bytes", stats.owed_bytes),
            ("files_managed", stats.files_managed),
        ] {
            counted.set_item(name, value)?;
        }
        Ok(counted)
    }

    /// Leaves the session, once its files are closed. Nothing happens to what belongs to a parent.
    fn close(&self, py: Python<'_>) {
        let Some(owned) = self.owned.get() else {
            return;
        };
        let taken = py.detach(|| {
            let mut held = owned.write().unwrap_or_else(PoisonError::into_inner);
            held.take()
        });
        py.detach(|| drop(taken));
    }

    /// Whether `close` has been called.
    #[getter]
    fn closed(&self) -> bool {
        let owned = self.owned.get();
        owned.is_none_or(|held| {
            held.read()
                .unwrap_or_else(PoisonError::into_inner)
                .is_none()
        })
    }
}
