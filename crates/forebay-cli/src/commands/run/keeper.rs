//! Joining a session in which somebody keeps, starting one where nobody does.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};

use forebay::memory::place::state::StateDir;
use forebay::session::look::{Life, look};
use forebay::{Config, Session};

use super::environment::Exported;
use crate::{output, sessions};

/// A log that has grown beyond this is begun anew, bytes.
const LOG_BYTES_MAX: u64 = 1024 * 1024;
/// How often a session is joined that ends before we are in it.
const JOIN_TRIES: u32 = 5;

/// Joins the session of the configuration. On return this process is in it, and somebody kept it when we looked, after we
/// had joined: such a keeper stays for as long as we do (`forebay daemon --until-idle`).
///
/// # Errors
/// In words, with the remedy.
pub fn join(config: &Config, exported: &Exported, linger_seconds: f64) -> Result<Session, String> {
    for _ in 0..JOIN_TRIES {
        if let Some(session) = join_living(config)?
            && session.has_keeper()
        {
            return Ok(session);
        }
        start(config, exported, linger_seconds)?;
    }
    Err(format!(
        "session {} ends again and again while it is joined; `forebay stat` says who is in it",
        config.session
    ))
}

fn join_living(config: &Config) -> Result<Option<Session>, String> {
    let found = sessions::arenas_of(config.arena_dir.as_deref(), &config.session)
        .map_err(|failure| failure.to_string())?;
    for arena in found {
        match Session::join_living(&arena.path, config.clone()) {
            Ok(None) => {}
            Ok(joined) => return Ok(joined),
            // What nobody is in is for a daemon to recover, or to complain of.
            Err(error) if is_alive(&arena.path) => return Err(error.to_string()),
            Err(_) => {}
        }
    }
    Ok(None)
}

fn is_alive(arena: &Path) -> bool {
    matches!(look(arena), Ok(Some(seen)) if seen.life == Life::Alive)
}

/// Starts a daemon and waits until it says that the session can be joined.
fn start(config: &Config, exported: &Exported, linger_seconds: f64) -> Result<(), String> {
    let cannot = |what: &str, error: std::io::Error| format!("cannot {what}: {error}");
    let log = open_log(config).map_err(|error| format!("no log can be written: {error}"))?;
    let reader = log.try_clone().map_err(|e| cannot("read the log", e))?;
    let begin = log.metadata().map(|meta| meta.len()).unwrap_or(0);
    let program = std::env::current_exe().map_err(|e| cannot("find this program", e))?;
    let mut command = Command::new(program);
    command
        .args(["daemon", "--background", "--ready-fd", "1", "--until-idle"])
        .arg(linger_seconds.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        // It outlives this command, and must not keep a directory busy.
        .current_dir("/");
    exported.apply(&mut command);
    super::environment::without_library(&mut command);
    let mut daemon = command.spawn().map_err(|e| cannot("start a daemon", e))?;
    let mut ready = String::new();
    if let Some(stdout) = daemon.stdout.take() {
        // It says one line, or ends.
        let _ = BufReader::new(stdout).read_line(&mut ready);
    }
    let said = said_since(reader, begin);
    if ready.is_empty() {
        let _ = daemon.wait();
        return Err(format!(
            "the session's daemon could not start: {}",
            said.lines()
                .last()
                .unwrap_or("it said nothing")
                .trim_start_matches("forebay: ")
        ));
    }
    for line in said.lines().filter(|line| line.contains("recovered ")) {
        output::note(line.trim_start_matches("forebay: "));
    }
    Ok(())
}

/// What a daemon without a terminal says goes to a file beside what recovery keeps.
fn open_log(config: &Config) -> forebay::Result<File> {
    let state = config.kept_dir.parent().unwrap_or(Path::new("/"));
    let log = StateDir::make(state)?.append(&format!("{}.log", config.session))?;
    let cannot = |error: std::io::Error| forebay::Error::device("cut the log", &error);
    if log.metadata().map_err(cannot)?.len() > LOG_BYTES_MAX {
        log.set_len(0).map_err(cannot)?;
    }
    Ok(log)
}

fn said_since(mut log: File, begin: u64) -> String {
    let mut said = String::new();
    let read = log
        .seek(SeekFrom::Start(begin))
        .and_then(|_| log.read_to_string(&mut said));
    match read {
        Ok(_) => said,
        Err(_) => String::new(),
    }
}
