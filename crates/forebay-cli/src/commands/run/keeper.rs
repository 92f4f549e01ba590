//! Joining a session in which somebody keeps, starting one where nobody does.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay::memory::place::state::StateDir;
use forebay::session::look::{Life, look};
use forebay::sys::signals::Held;
use forebay::sys::spawn::keep_standard_descriptors;
use forebay::{Config, Session};

use super::environment::Exported;
use crate::{itself, output, sessions};

/// A log that has grown beyond this is begun anew, bytes.
const LOG_BYTES_MAX: u64 = 1024 * 1024;
/// How long after the first try another keeper is started again, where none has come; longer with each.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How often a session is joined that ends before we are in it.
const JOIN_TRIES: u32 = 5;

/// The daemons that this process has started, until they have ended.
static STARTED: Mutex<Vec<Child>> = Mutex::new(Vec::new());

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
        start(config, exported, linger_seconds, None)?;
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

/// Sees to it that a session that this process is in has a keeper: where one has died, another is started.
pub struct Care {
    config: Config,
    exported: Exported,
    linger_seconds: f64,
    held: Option<Held>,
    /// Tries in a row, and when the next one may be.
    tries: u32,
    next: Instant,
    at_work: Option<JoinHandle<()>>,
    /// It was said that the session's arena has been removed.
    is_told: bool,
}

impl Care {
    /// For the session of a configuration; `held` are the signals that a daemon shall not hold back, where this command does.
    pub fn new(
        config: &Config,
        exported: Exported,
        linger_seconds: f64,
        held: Option<Held>,
    ) -> Self {
        Care {
            config: config.clone(),
            exported,
            linger_seconds,
            held,
            tries: 0,
            next: Instant::now(),
            at_work: None,
            is_told: false,
        }
    }

    /// Looks whether there is one. Waits for nobody.
    pub fn look(&mut self, session: &Session) {
        // Of one that has ended nothing is left but what we know of it.
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        started.retain_mut(|daemon| matches!(daemon.try_wait(), Ok(None)));
        drop(started);
        sessions::note_lost_name(session, &mut self.is_told);
        if session.has_keeper() {
            self.tries = 0;
            return;
        }
        if self.is_at_work() || self.tries > 0 && Instant::now() < self.next {
            return;
        }
        self.tries += 1;
        self.next = Instant::now() + TRY_AGAIN * self.tries.min(60);
        let (config, exported) = (self.config.clone(), self.exported.clone());
        let (linger_seconds, held) = (self.linger_seconds, self.held);
        let first = self.tries == 1;
        let work = std::thread::Builder::new().spawn(move || {
            if let Err(why) = start(&config, &exported, linger_seconds, held)
                && first
            {
                output::note(format_args!(
                    "the session's keeper has died, and there is no other yet: {why}"
                ));
            }
        });
        self.at_work = work.ok();
    }

    fn is_at_work(&self) -> bool {
        let work = self.at_work.as_ref();
        work.is_some_and(|work| !work.is_finished())
    }
}

/// Starts a daemon and waits until it says that the session can be joined.
fn start(
    config: &Config,
    exported: &Exported,
    linger_seconds: f64,
    held: Option<Held>,
) -> Result<(), String> {
    let mut command = itself::command();
    command
        .args(["daemon", "--background", "--ready-fd", "1", "--until-idle"])
        .arg(linger_seconds.to_string());
    exported.apply(&mut command);
    if let Some(held) = held {
        held.spare(&mut command);
    }
    let (said, daemon) = launch(command, config)
        .map_err(|why| format!("the session's daemon could not start: {why}"))?;
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    started.push(daemon);
    drop(started);
    for line in said.lines().filter(|line| line.contains("recovered ")) {
        output::note(line.trim_start_matches("forebay: "));
    }
    Ok(())
}

/// Starts a command of this program in the background, and waits until it says on its standard output that it is ready. What it says
/// otherwise goes to the session's log; returned is what it has said there so far, and the process.
///
/// # Errors
/// The last that it has said.
pub fn launch(mut command: Command, config: &Config) -> Result<(String, Child), String> {
    let log = open_log(config).map_err(|error| format!("no log can be written: {error}"))?;
    let reader = log.try_clone();
    let reader = reader.map_err(|error| format!("the log cannot be read: {error}"))?;
    let begin = log.metadata().map(|meta| meta.len()).unwrap_or(0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        // It outlives this command, and must not keep a directory busy.
        .current_dir("/");
    super::environment::without_library(&mut command);
    keep_standard_descriptors(&mut command);
    let mut child = command
        .spawn()
        .map_err(|error| format!("it cannot be executed: {error}"))?;
    let mut ready = String::new();
    if let Some(stdout) = child.stdout.take() {
        // It says one line, or ends.
        let _ = BufReader::new(stdout).read_line(&mut ready);
    }
    let said = said_since(reader, begin);
    if ready.is_empty() {
        let _ = child.wait();
        let last = said.lines().last().unwrap_or("it said nothing");
        return Err(last.trim_start_matches("forebay: ").to_owned());
    }
    Ok((said, child))
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
