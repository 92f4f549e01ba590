//! Paths as text: they are bytes, and JSON is text. What is no text is shown as well as can be.

use std::path::Path;

/// For `#[serde(serialize_with = "...")]`: serde refuses a path that is no text.
///
/// # Errors
/// The serializer's.
pub fn as_text<S: serde::Serializer>(path: impl AsRef<Path>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.as_ref().to_string_lossy())
}
