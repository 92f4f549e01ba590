//! `forebay run`: a program with its files managed.
//!
//! Life: the library is found and the session joined, or said why not; then the program runs, with this command as silent
//! as it can be ([`program`]); then what the session owes goes to the devices, because a user may look at the files next, or
//! switch the machine off; then the report; then the end that the program had.

pub(super) mod environment;
pub(super) mod keeper;
mod library;
mod program;
mod report;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay::file::settle::Durability;
use forebay::session::look::Unsettled;
use forebay::sys::inherited;
use forebay::sys::signals::{self, Held};
use forebay::{Config, Session};

use self::environment::Exported;
use self::report::{Report, Sides};
use crate::arguments::Run;
use crate::failure::{Failure, NOT_HAD};
use crate::{itself, output};

/// Signals that end a drain, unless the process that started this one wants them ignored.
const ENDING: [i32; 4] = [1, 2, 3, 15];
/// How often a drain is tried while others go on writing.
const DRAIN_TRIES: u32 = 3;

/// What the program is run with.
struct Front {
    library: PathBuf,
    session: Session,
    /// What a daemon is to have.
    exported: Exported,
}

/// Runs it.
pub fn run(arguments: Run) -> Result<u8, Failure> {
    let (config, mut exported) = settings(&arguments)?;
    let front = match front(&arguments, &config, &mut exported) {
        Ok(front) => Some(front),
        Err(why) if arguments.require => {
            output::note(format_args!("{why}; not run, because of --require"));
            return Ok(NOT_HAD);
        }
        Err(why) => {
            output::note(format_args!("{why}; run without Forebay"));
            None
        }
    };
    let reports = arguments.report.is_some() || arguments.json;
    let before = front
        .as_ref()
        .filter(|_| reports)
        .map(|front| (front.session.stats(), front.session.left_count()));
    let held = signals::hold_back()
        .map_err(|error| Failure::Failed(format!("cannot hold signals back: {error}")))?;
    let begun = Instant::now();
    let started = program::start(&arguments.command, &held, |command| {
        exported.apply(command);
        match &front {
            Some(front) => environment::with_library(command, &front.library),
            None => environment::without_library(command),
        }
    });
    let child = match started {
        Ok(child) => child,
        Err(not_started) => {
            output::note(not_started.why);
            return Ok(not_started.code);
        }
    };
    let mut care = front.as_ref().map(|front| {
        let exported = front.exported.clone();
        keeper::Care::new(&config, exported, arguments.linger, Some(held))
    });
    let end = program::wait(child, &held, || {
        if let (Some(front), Some(care)) = (&front, &mut care) {
            care.look(&front.session);
        }
    });
    let ran = begun.elapsed();
    // From here on nothing takes the place of the end that the program had.
    let drained = front
        .as_ref()
        .map(|front| drain(&front.session, &config, held));
    let mut failures = Vec::new();
    let unsettled = noted(drained.unwrap_or(Ok(Vec::new())), &mut failures);
    if let Some(front) = &front {
        tell(&front.session, &unsettled);
    }
    if reports {
        let sides = front.as_ref().zip(before);
        let sides = sides.map(|(front, before)| Sides::of(&front.session, &before));
        let times = (ran, begun.elapsed() - ran);
        let report = Report::new(&arguments.command, end, times, sides, unsettled.clone());
        let written = report.write(arguments.report.as_deref(), arguments.json);
        noted(written, &mut failures);
    }
    for failure in &failures {
        output::note(failure);
    }
    // The session's threads and locks go in good order, also where a signal ends us.
    drop(front);
    Ok(end.take(unsettled.is_empty() && failures.is_empty()))
}

/// What was done, or nothing and a failure more.
fn noted<T: Default>(result: Result<T, Failure>, failures: &mut Vec<Failure>) -> T {
    result.unwrap_or_else(|failure| {
        failures.push(failure);
        T::default()
    })
}

/// The configuration, and what of it a daemon is to have.
fn settings(arguments: &Run) -> Result<(Config, Exported), Failure> {
    let mut given = arguments.settings.given();
    let dirs = absolute(&arguments.dir)?;
    if !dirs.is_empty() {
        given.push(("dirs", dirs));
    }
    let mut options = arguments.settings.options()?;
    for (key, text) in given.iter().filter(|(key, _)| *key == "dirs") {
        options.set(key, text)?;
    }
    let config = crate::settings::load_to_join(options)?;
    Ok((config, Exported::of(&given)))
}

/// This command's files are nobody's business: begun under the library, it begins again without.
pub fn leave_library() {
    if !environment::has_library() {
        return;
    }
    let mut command = itself::command();
    command.args(std::env::args_os().skip(1));
    environment::without_library(&mut command);
    // Returns only when it fails; then the work is done with the library in the process, which is slower, not wrong.
    let _ = command.exec();
}

fn front(arguments: &Run, config: &Config, exported: &mut Exported) -> Result<Front, String> {
    let library = library::find()?;
    let program = program::find(arguments.command.first().map_or("".as_ref(), |name| name));
    if let Some(why) = library::why_not(&program) {
        // What it starts may well have the library.
        if arguments.require {
            return Err(why);
        }
        output::note(format_args!("{why}; its files are left to the kernel"));
    }
    let session = keeper::join(config, exported, arguments.linger)?;
    let for_daemons = exported.clone();
    if let Some(arena) = session.arena_path() {
        exported.lead_to(&config.session, arena);
    }
    Ok(Front {
        library,
        session,
        exported: for_daemons,
    })
}

/// As the option `dirs` has them.
fn absolute(dirs: &[PathBuf]) -> Result<String, Failure> {
    let mut all = Vec::new();
    for dir in dirs {
        let shown = output::path(dir);
        let real = dir.canonicalize().map_err(|error| {
            Failure::Usage(format!(
                "--dir {shown}: {error}; name a directory that is there"
            ))
        })?;
        match real.to_str() {
            Some(text) if !text.contains(':') => all.push(text.to_owned()),
            _ => {
                return Err(Failure::Usage(format!(
                    "--dir {shown}: a colon, or bytes that are not UTF-8, cannot be passed on; name a directory above"
                )));
            }
        }
    }
    Ok(all.join(":"))
}

/// Says which files could not be written; of those that are gone the next command says nothing.
fn tell(session: &Session, unsettled: &[Unsettled]) {
    for file in unsettled {
        output::note(format_args!(
            "{}: {} not written yet: {}",
            output::path(&file.path),
            output::bytes(file.owed_bytes),
            file.reason
        ));
    }
    session.note_told(unsettled);
}

/// Hands everything that the session owes to the devices: for files below the directories, where some are named. Syncs
/// nothing.
fn drain(session: &Session, config: &Config, held: Held) -> Result<Vec<Unsettled>, Failure> {
    if !session.may_owe() {
        return Ok(Vec::new());
    }
    let name = config.session.clone();
    // The keys pressed now are meant for us. Where no thread is to be had, everything is written first.
    let _ = std::thread::Builder::new().spawn(move || {
        loop {
            let taken = held.wait();
            if ENDING.contains(&taken.signal) && !inherited::ignores(taken.signal) {
                output::note(format_args!(
                    "left while bytes were being flushed; session {name} goes on with it"
                ));
                signals::die_of(taken.signal);
            }
        }
    });
    let mut unsettled = Vec::new();
    for _ in 0..DRAIN_TRIES {
        unsettled =
            session.settle_where(Durability::Written, |path: &Path| config.manages(path))?;
        session.drop_told(&mut unsettled);
        if unsettled.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(unsettled)
}
