//! What `forebay doctor` looks at: each check says what it found, why that matters, and what to do.
//!
//! A check fails only where Forebay cannot work at all; what makes it slower, or leaves some files to the kernel, is a
//! warning. Checks change nothing but a temporary file in the directories that they are asked about, and this user's
//! directory for arenas.

pub mod kernel;
pub mod limits;
pub mod memory;
pub mod mounting;
pub mod persistent;
pub mod pools;
pub mod sessions;
pub mod storage;

use serde::Serialize;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, less well than it could.
    Warn,
    /// Does not work.
    Fail,
}

/// A check's outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Name of the check; stable.
    pub check: &'static str,
    /// What was looked at, where there are several: a directory, a session.
    pub subject: Option<String>,
    /// How it ended.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// Why it matters.
    pub why: &'static str,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Check {
    /// All is well.
    pub fn ok(check: &'static str, why: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            subject: None,
            status: Status::Ok,
            found: found.into(),
            why,
            remedy: None,
        }
    }

    /// Works, less well than it could.
    pub fn warn(self, remedy: impl Into<String>) -> Self {
        Self {
            status: Status::Warn,
            remedy: Some(remedy.into()),
            ..self
        }
    }

    /// Does not work.
    pub fn fail(self, remedy: impl Into<String>) -> Self {
        Self {
            status: Status::Fail,
            remedy: Some(remedy.into()),
            ..self
        }
    }

    /// What would make a good state better.
    pub fn hint(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }

    /// Says which of several things was looked at.
    pub fn of(self, subject: impl Into<String>) -> Self {
        Self {
            subject: Some(subject.into()),
            ..self
        }
    }
}

/// The text of a small file of the kernel's or the system's, trimmed.
fn text_of(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}
