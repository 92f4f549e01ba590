//! What programs find in their environment: the options that were given, and the library.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

use forebay_pool::net::DIRECTORY;

/// The loader's list of libraries to load first.
const PRELOAD: &str = "LD_PRELOAD";
/// How the library's file name begins.
const LIBRARY: &[u8] = b"libforebay_preload.so";
/// The arena of the session that was joined: the library goes there and looks for no other.
const ARENA: &str = "FOREBAY__ARENA";

/// Variables that say what the options of this command said.
#[derive(Default, Clone)]
pub struct Exported(Vec<(String, OsString)>);

impl Exported {
    /// One for each option that was given.
    pub fn of(options: &[(&'static str, String)]) -> Self {
        let name = |key: &str| format!("FOREBAY_{}", key.to_ascii_uppercase());
        let mut all: Vec<_> = options
            .iter()
            .map(|(key, text)| (name(key), OsString::from(text)))
            .collect();
        // A relative path means another file elsewhere.
        for name in ["FOREBAY_CONFIG", DIRECTORY] {
            if let Some(path) = std::env::var_os(name).filter(|path| !path.is_empty())
                && let Ok(path) = std::path::absolute(path)
            {
                all.push((name.into(), path.into()));
            }
        }
        Self(all)
    }

    /// Leads to one session, and to one arena of that name.
    pub fn lead_to(&mut self, session: &str, arena: &Path) {
        self.0.push(("FOREBAY_SESSION".into(), session.into()));
        self.0.push((ARENA.into(), arena.into()));
    }

    /// Sets them for a program.
    pub fn apply(&self, command: &mut Command) {
        for (name, value) in &self.0 {
            command.env(name, value);
        }
    }
}

/// The program gets the library, before others that it gets.
pub fn with_library(command: &mut Command, library: &Path) {
    let mut list = library.as_os_str().as_bytes().to_vec();
    for other in listed(|name| !is_ours(name)) {
        list.push(b':');
        list.extend(other);
    }
    command.env(PRELOAD, OsString::from_vec(list));
}

/// The program does not get the library.
pub fn without_library(command: &mut Command) {
    let others = listed(|name| !is_ours(name));
    if others.is_empty() {
        command.env_remove(PRELOAD);
    } else {
        command.env(PRELOAD, OsString::from_vec(others.join(&b':')));
    }
}

/// Whether this process was given the library: it must not manage files with one hand and drain them with the other.
pub fn has_library() -> bool {
    !listed(is_ours).is_empty()
}

fn is_ours(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(LIBRARY)
}

fn listed(wanted: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let list = std::env::var_os(PRELOAD).unwrap_or_default();
    let names = list.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    names
        .filter(|name| !name.is_empty() && wanted(name))
        .map(<[u8]>::to_vec)
        .collect()
}
