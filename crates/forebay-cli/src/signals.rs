//! The signals that end a command which serves.

use forebay::sys::inherited;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// `SIGTERM`; a hangup and an interrupt as well, unless the process that started this one wants them ignored (`nohup`, a script's `&`).
pub fn ending() -> Result<Signals, Failure> {
    let others = [SIGHUP, SIGINT].into_iter();
    let others = others.filter(|&signal| !inherited::ignores(signal));
    Signals::new([SIGTERM].into_iter().chain(others))
        .map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))
}
