//! Why a measurement could not be made, by who must act: nobody (the side is not available here),
//! whoever wrote the side (wrong bytes), or whoever started the run (everything else).

use std::io;

/// Shorthand used by the whole harness.
pub type Result<T> = std::result::Result<T, Failure>;

/// Why a run ended without figures.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// This side cannot work on this file system or kernel. The other sides go on; the report says why.
    #[error("not available here: {0}")]
    Unavailable(String),
    /// The file does not hold what was written. Ends the whole run: figures of a side that loses
    /// bytes are worth nothing.
    #[error("wrong bytes: {0}")]
    WrongBytes(String),
    /// The operating system refused.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        error: io::Error,
    },
    /// SIGINT or SIGTERM.
    #[error("interrupted")]
    Interrupted,
    /// A request that makes no sense.
    #[error("{0}")]
    Usage(String),
}

/// Says what was being done when an I/O error came.
pub trait Context<T> {
    /// Turns the error into a [`Failure`]; errors that mean "not offered here" become `Unavailable`.
    fn context(self, what: &str) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: &str) -> Result<T> {
        self.map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                Failure::Unavailable(format!("{what}: {error}"))
            }
            _ => Failure::Io {
                what: what.to_owned(),
                error,
            },
        })
    }
}
