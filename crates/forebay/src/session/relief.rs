//! A process that stands guard while no keeper answers ([`crate::keeper::relief`]): it joins the session for that.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::config::Config;
use crate::error::{Result, SessionFault};
use crate::keeper::relief;
use crate::session::Session;

/// Stands guard for a keeper's process in the session whose arena is at `path`, until it is not needed any more.
///
/// # Errors
/// The session cannot be joined, and the system's errors.
pub fn stand(listener: OwnedFd, keeper: u32, path: &Path) -> Result<()> {
    let config = Config::builder().build();
    let config = config.map_err(|why| SessionFault::Unavailable.error(why.to_string()))?;
    match Session::join_living(path, config)? {
        Some(session) => relief::stand(session.shared(), listener, keeper),
        None => Ok(()),
    }
}
