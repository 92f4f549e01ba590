//! What can be wrong with a configuration. Every message names the place and the remedy.

use std::path::PathBuf;

/// Why there is no configuration. For the person who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is there, or was asked for by name, and cannot be read.
    #[error("{}: {why}; make it readable, or set FOREBAY_CONFIG to another file", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's message.
        why: String,
    },
    /// The file is not TOML.
    #[error("{}: {why}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The parser's message, with line and column.
        why: String,
    },
    /// An option that does not exist.
    #[error("{origin}: there is no option '{key}'; did you mean '{nearest}'?")]
    UnknownKey {
        /// The key as written.
        key: String,
        /// File or environment variable it was found in.
        origin: String,
        /// The existing key that is spelt most like it.
        nearest: &'static str,
    },
    /// An option with a value that it cannot have.
    #[error("{origin}: {key} cannot be '{value}': {remedy}")]
    Value {
        /// The option.
        key: String,
        /// The value as written.
        value: String,
        /// Where it was found.
        origin: String,
        /// What to write instead.
        remedy: String,
    },
}
