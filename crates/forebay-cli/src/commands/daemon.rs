//! `forebay daemon`: keeps a session in the foreground.
//!
//! Life: handlers for signals, then the session, then the line that says so, then nothing until a signal; then everything
//! owed goes to the devices and the process leaves. What is true at the end is not concluded from what was done but looked
//! up: whether the arena is still there, and whether anybody is in it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::keeper::recover::{Saved, recover};
use forebay::session::ArenaPlace;
use forebay::session::look::{Life, Unsettled, look};
use forebay::sys::file::inherited_for_writing;
use forebay::{Config, Session};
use signal_hook::iterator::Signals;

use super::run::environment::Exported;
use super::run::keeper;
use crate::arguments::Daemon;
use crate::failure::{DONE, FAILED, Failure};
use crate::{itself, limits, output, sessions, signals};

/// How often the end tries to owe nothing: programs that are still writing could keep it from that for ever.
const SETTLE_TRIES: u32 = 10;
/// How long apart.
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// Memory that is touched before the next look at signals, bytes.
const WARM_STEP: u64 = 256 << 20;
/// How often a daemon that is idle tries to write what it owes before it leaves that behind.
const IDLE_TRIES: u32 = 20;
/// How often a daemon that leaves when nobody is there looks who is.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Keeps the session until a signal.
pub fn run(arguments: Daemon) -> Result<u8, Failure> {
    let config = arguments.settings.config()?;
    if arguments.background && arguments.ready_fd.is_none() {
        return in_background(&arguments, &config);
    }
    let ready = arguments.ready_fd.map(ready_to_tell).transpose()?;
    if arguments.background {
        // It fails only for the leader of a process group, which has what it would give.
        let _ = rustix::process::setsid();
    }
    limits::raise();
    let mut signals = signals::ending()?;
    recover_first(&config)?;
    let mut session = Session::open(config.clone())?;
    let is_told = arguments.warm && warm(&session, config.memory, &mut signals)?;
    let place = session.place()?;
    if !is_told {
        announce(&session, &config, &place, ready)?;
    }
    let mut lost = Vec::new();
    match arguments.until_idle {
        Some(_) if session.is_kept_elsewhere() => return Ok(DONE),
        _ if is_told => {}
        None => {
            let mut is_told = false;
            while signals.pending().next().is_none() {
                std::thread::sleep(LOOK_PAUSE);
                sessions::note_lost_name(&session, &mut is_told);
            }
        }
        Some(seconds) => {
            let idle_max = Duration::from_secs_f64(seconds);
            wait_until_idle(&mut session, &mut signals, idle_max, &mut lost)?;
        }
    }
    leave_at_once_on_next(signals, &config.session);
    let unsettled = settle(&session, &mut lost)?;
    let left_alone = session.has_lost_its_name().then(|| session.others());
    drop(session);
    for file in &lost {
        output::note(format_args!(
            "{}: its device has failed to make bytes durable: {}; compare, or write the file again",
            output::path(&file.path),
            file.reason
        ));
    }
    note_owed(&unsettled);
    let code = match (place.path, left_alone) {
        (Some(_), Some(others)) => conclude_nameless(&config, &unsettled, &others)?,
        (Some(arena), None) => conclude(&arena, &config, &unsettled)?,
        (None, _) => DONE,
    };
    Ok(if lost.is_empty() { code } else { FAILED })
}

/// Touches so much of the session's memory, in steps, between which a signal ends it. Whether one has.
fn warm(session: &Session, bytes: u64, signals: &mut Signals) -> Result<bool, Failure> {
    let mut warmed = 0;
    while warmed < bytes {
        if signals.pending().next().is_some() {
            return Ok(true);
        }
        warmed = (warmed + WARM_STEP).min(bytes);
        session.warm(warmed)?;
    }
    Ok(false)
}

/// Starts the same command in the background, and waits until the session is ready.
fn in_background(arguments: &Daemon, config: &Config) -> Result<u8, Failure> {
    let mut command = itself::command();
    command.args(["daemon", "--background", "--ready-fd", "1"]);
    if let Some(seconds) = arguments.until_idle {
        command.arg("--until-idle").arg(seconds.to_string());
    }
    if arguments.warm {
        command.arg("--warm");
    }
    Exported::of(&arguments.settings.given()).apply(&mut command);
    let (said, _) = keeper::launch(command, config).map_err(Failure::Failed)?;
    for line in said.lines() {
        output::note(line.trim_start_matches("forebay: "));
    }
    Ok(DONE)
}

/// Returns at a signal, or when nobody else has been in the session for so long and it owes nothing that another try could bring to
/// its device; or when another process keeps the session: it would take this one for one to wait for.
///
/// A process may come while this one is about to leave, and rely on the keeper that it sees. A process that relies on
/// one joins first and looks then; a keeper that leaves stops keeping first and looks then who is there. So at least
/// one of the two sees the other.
fn wait_until_idle(
    session: &mut Session,
    signals: &mut Signals,
    idle_max: Duration,
    lost: &mut Vec<Unsettled>,
) -> Result<(), Failure> {
    let mut last_seen = Instant::now();
    let (mut tries, mut is_told) = (0, false);
    while signals.pending().next().is_none() {
        std::thread::sleep(LOOK_PAUSE);
        sessions::note_lost_name(session, &mut is_told);
        if session.is_kept_elsewhere() {
            return Ok(());
        }
        if !session.others().is_empty() {
            tries = 0;
            last_seen = Instant::now();
        } else if last_seen.elapsed() >= idle_max {
            last_seen = Instant::now();
            // What cannot be written now is tried again, so that space that is made in time is enough. In the end it waits in
            // the arena, for the next command of the session or for `forebay recover`.
            tries += 1;
            let unsettled = session.settle_all()?;
            Unsettled::gather_unsynced(lost, &unsettled);
            if !session.are_gone(&unsettled) && tries < IDLE_TRIES {
                continue;
            }
            session.stop_keeping();
            if session.others().is_empty() {
                return Ok(());
            }
            session.keep()?;
        }
    }
    Ok(())
}

/// Opening the session would recover a dead one of its name without a word.
fn recover_first(config: &Config) -> Result<(), Failure> {
    let name = &config.session;
    for found in sessions::find(config.arena_dir.as_deref(), Some(name))? {
        if !found.seen.is_ok_and(|seen| seen.life == Life::Dead) {
            continue;
        }
        let report = recover(&found.arena, config)?;
        for saved in &report.files {
            output::note(told(saved));
        }
        if !report.removed {
            return Err(Failure::Failed(format!(
                "what the dead session {name} owes cannot be saved yet; it is safe in {} until the machine stops: remove \
                 the cause and run `forebay recover --session {name}`",
                output::path(&found.arena)
            )));
        }
    }
    Ok(())
}

fn told(saved: &Saved) -> String {
    match saved {
        Saved::Written { path, bytes } => {
            format!(
                "recovered {}: {} written",
                output::path(path),
                output::bytes(*bytes)
            )
        }
        Saved::Kept {
            path, kept, reason, ..
        } => {
            format!(
                "recovered {}: kept aside in {}, because {reason}",
                output::path(path),
                output::path(kept)
            )
        }
        Saved::Failed { path, reason } => {
            format!("not recovered {}: {reason}", output::path(path))
        }
    }
}

fn announce(
    session: &Session,
    config: &Config,
    place: &ArenaPlace,
    ready: Option<File>,
) -> Result<(), Failure> {
    let path = place.path.as_deref().unwrap_or(Path::new("(heap)"));
    let rung = place.kind.and_then(|kind| serde_json::to_value(kind).ok());
    let rung = rung
        .as_ref()
        .and_then(|word| word.as_str())
        .unwrap_or("unknown");
    let seen = look(path)?;
    let budget = seen
        .as_ref()
        .and_then(|seen| seen.budget_bytes())
        .unwrap_or(0);
    let line = format!(
        "session {} ready, arena {} ({rung}, {budget} bytes)",
        config.session,
        output::path(path)
    );
    output::note(&line);
    if budget < config.memory / 16 * 15 {
        output::note(format_args!(
            "the arena has room for {} of the {} asked for; `forebay doctor` says what makes more room",
            output::bytes(budget),
            output::bytes(config.memory)
        ));
    }
    let keeper = seen.and_then(|seen| seen.members().keeper);
    if let Some(keeper) = keeper.filter(|_| session.is_kept_elsewhere()) {
        output::note(format_args!(
            "process {keeper} keeps the session; this one stands by and takes over when it ends"
        ));
    }
    if let Some(mut ready) = ready {
        writeln!(ready, "forebay: {line}").map_err(|error| {
            Failure::Failed(format!(
                "cannot write to the descriptor of --ready-fd: {error}; see who reads it"
            ))
        })?;
    }
    Ok(())
}

/// A descriptor of its own, taken before the session has any: its file may be another user's, and is not opened again.
fn ready_to_tell(fd: u32) -> Result<File, Failure> {
    let copy = inherited_for_writing(fd).map_err(|error| {
        Failure::Usage(format!(
            "cannot write to descriptor {fd}: {error}; --ready-fd is a descriptor open for writing, such as 3 with 3>FILE"
        ))
    })?;
    Ok(copy.into())
}

/// The user who asks twice is in a hurry. Nothing is lost: the arena outlives this process. Where no thread is to be had, he has to wait.
fn leave_at_once_on_next(mut signals: Signals, session: &str) {
    let session = session.to_owned();
    let _ = std::thread::Builder::new().spawn(move || {
        if signals.forever().next().is_some() {
            output::note(format_args!(
                "left at once; what session {session} owes waits for `forebay recover --session {session}`"
            ));
            std::process::exit(i32::from(FAILED));
        }
    });
}

/// Writes what is owed. Returns what still is; `lost` are files whose device has failed to make something durable, be it that another try went
/// well: the kernel tells such an error once.
fn settle(session: &Session, lost: &mut Vec<Unsettled>) -> Result<Vec<Unsettled>, Failure> {
    let progress = output::Progress::new();
    let mut unsettled = Vec::new();
    for _ in 0..SETTLE_TRIES {
        // Every header is looked at: sums may be late.
        let dirty = session.stats().dirty_bytes;
        progress.show(format_args!("flushing {}", output::bytes(dirty)));
        unsettled = session.settle_all()?;
        Unsettled::gather_unsynced(lost, &unsettled);
        if unsettled.is_empty() && session.stats().dirty_bytes == 0 {
            break;
        }
        std::thread::sleep(SETTLE_PAUSE);
    }
    Ok(unsettled)
}

fn note_owed(unsettled: &[Unsettled]) {
    for file in unsettled {
        output::note(format_args!(
            "{}: {} still owed: {}",
            output::path(&file.path),
            output::bytes(file.owed_bytes),
            file.reason
        ));
    }
}

fn note_others(name: &str, others: &[u32]) {
    let others: Vec<_> = others.iter().map(ToString::to_string).collect();
    output::note(format_args!(
        "session {name} lives on in process {}",
        others.join(", ")
    ));
}

/// What is left of a session whose arena was removed below it: what the processes in it have.
fn conclude_nameless(
    config: &Config,
    unsettled: &[Unsettled],
    others: &[u32],
) -> Result<u8, Failure> {
    let name = &config.session;
    if !others.is_empty() {
        note_others(name, others);
        return Err(Failure::Failed(format!(
            "session {name} has no arena that could be recovered: what it still owes is lost if those processes are killed; end them"
        )));
    }
    if !unsettled.is_empty() {
        return Err(Failure::Failed(format!(
            "session {name} ended, and what it owed to the files above is lost, since its arena had been removed"
        )));
    }
    output::note(format_args!("session {name} ended, nothing is owed"));
    Ok(DONE)
}

/// What is left of the session now that this process is out of it.
fn conclude(arena: &Path, config: &Config, unsettled: &[Unsettled]) -> Result<u8, Failure> {
    let name = &config.session;
    let Some(seen) = look(arena)? else {
        if !unsettled.is_empty() {
            return Err(Failure::Failed(format!(
                "session {name} was ended by another process meanwhile, which has written what is owed above, or kept it aside: compare"
            )));
        }
        output::note(format_args!("session {name} ended, nothing is owed"));
        return Ok(DONE);
    };
    if seen.life == Life::Alive || seen.life == Life::Busy {
        note_others(name, &seen.members().processes);
        return Ok(if unsettled.is_empty() { DONE } else { FAILED });
    }
    drop(seen);
    if unsettled.is_empty() {
        // A program of the session wrote and left while we did.
        let report = recover(arena, config)?;
        for saved in &report.files {
            output::note(told(saved));
        }
        let written = |saved: &Saved| matches!(saved, Saved::Written { .. });
        if report.removed && report.files.iter().all(written) {
            output::note(format_args!("session {name} ended, nothing is owed"));
            return Ok(DONE);
        }
        if report.removed {
            return Err(Failure::Failed(format!(
                "session {name} ended, and some bytes are not in their files but kept aside: compare, and copy what is missing"
            )));
        }
    }
    Err(Failure::Failed(format!(
        "session {name} still owes bytes; they are safe in {} until the machine stops: see to the files above, then run \
         `forebay recover --session {name}`",
        output::path(arena)
    )))
}
