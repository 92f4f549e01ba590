//! `forebay guard`: stands guard where a daemon is stopped or has died ([`forebay::keeper::relief`]). A copy of the daemon executes it.

use forebay::session::relief;
use forebay::sys::file::inherited_for_writing;

use crate::arguments::Guard;
use crate::failure::{DONE, Failure};

/// Until it is not needed any more.
pub fn run(arguments: &Guard) -> Result<u8, Failure> {
    let listener = inherited_for_writing(arguments.listener)
        .map_err(|why| Failure::Usage(format!("there is no listener here: {why}")))?;
    relief::stand(listener, arguments.keeper, &arguments.arena)?;
    Ok(DONE)
}
