//! `forebay umount`: ends mounts.

use std::path::Path;
use std::time::Duration;

use forebay_fuse::ending::Waiting;
use forebay_fuse::points::{self, NotEnded, State};

use crate::arguments::Umount;
use crate::failure::{DONE, FAILED, Failure};
use crate::output;

/// How often a user who waits is told what for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends each of them.
pub fn run(arguments: &Umount) -> Result<u8, Failure> {
    let mut code = DONE;
    for point in &arguments.points {
        if let Err(why) = end(point, arguments.lazy) {
            output::note(format_args!("{}: {why}", output::path(point)));
            code = FAILED;
        }
    }
    Ok(code)
}

fn end(point: &Path, lazy: bool) -> Result<(), String> {
    let path = points::resolved(point).map_err(|error| error.to_string())?;
    // Nobody is asked where the answer makes no difference: a process that is stopped gives none.
    let state = match lazy {
        true => points::listed(&path),
        false => points::state(&path),
    };
    let lazy = match state.map_err(|error| format!("the list of mounts cannot be read: {error}"))? {
        State::Free => return Err("nothing is mounted there".into()),
        State::Foreign => return Err("that is no mount of Forebay's; use umount".into()),
        // A program that still has something open there has nothing any more.
        State::Dead => true,
        State::Alive => lazy,
    };
    // Afterwards nobody finds the process any more.
    let waiting = (!lazy).then(|| Waiting::of(&path));
    points::end(&path, lazy).map_err(|not_ended| match not_ended {
        NotEnded::Busy => "it is in use (`fuser -vm` says by whom); --lazy ends it all the same, as soon as it is not".into(),
        NotEnded::Failed(why) => why,
    })?;
    let tell = |waited: Duration| {
        output::note(format_args!(
            "{}: it is unmounted, and its process is still writing what it has, or somebody else still has it mounted, for {} seconds now",
            output::path(point),
            waited.as_secs()
        ));
    };
    waiting.map_or(Ok(()), |waiting| waiting.for_end(PATIENCE, tell))
}
