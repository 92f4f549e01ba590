//! Why a command could not be carried out, and the exit codes.
//!
//! A message says what happened and what to do about it, in one paragraph; it is printed once, by `main`.

use std::fmt;

use forebay::Error;
use forebay::config::ConfigError;
use forebay::session::look::Unseen;

/// Everything done.
pub const DONE: u8 = 0;
/// Something could not be done, or a check failed.
pub const FAILED: u8 = 1;
/// The command line, the environment or the configuration file is wrong; nothing was done.
pub const USAGE: u8 = 2;
/// Recovery kept some bytes aside; the others are saved.
pub const KEPT_ASIDE: u8 = 3;
/// `run --require`: the library or the session cannot be had; nothing was run.
pub const NOT_HAD: u8 = 125;

/// Why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// What was asked for cannot be meant.
    Usage(String),
    /// What was asked for cannot be done.
    Failed(String),
}

impl Failure {
    /// See the constants of this module.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Failed(_) => FAILED,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Failed(message) => f.write_str(message),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<Unseen> for Failure {
    fn from(unseen: Unseen) -> Self {
        unseen.why.into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Configuration(error) => error.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}
