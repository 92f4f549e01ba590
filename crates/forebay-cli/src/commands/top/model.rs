//! What is shown: the sessions as they were last seen, their rates, and what the user has chosen.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay::Stats;
use forebay::session::look::SeenFile;
use forebay::session::streams::SeenStream;

use crate::commands::stat::{self, Row};
use crate::sessions::Found;

/// Points of a curve that are kept.
const HISTORY: usize = 240;
const INTERVALS_MS: [u64; 6] = [100, 250, 500, 1000, 2000, 5000];

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The end.
    End,
    /// The session above.
    Up,
    /// The session below.
    Down,
    /// The next order of files.
    Sort,
    /// Streams instead of files, or the other way round.
    View,
    /// Stand still, or go on.
    Hold,
    /// A longer time between looks.
    Slower,
    /// A shorter one.
    Faster,
}

/// What is listed of the chosen session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Its files.
    #[default]
    Files,
    /// Its streams.
    Streams,
}

/// Order of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Those that owe most first.
    #[default]
    Owed,
    /// The largest first.
    Size,
    /// By path.
    Path,
}

/// Bytes a second, newest last.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Written by programs.
    pub written: VecDeque<u64>,
    /// Read by programs.
    pub read: VecDeque<u64>,
    /// Written to devices.
    pub device_written: VecDeque<u64>,
    /// Read from devices.
    pub device_read: VecDeque<u64>,
}

/// A session as it was last seen.
pub struct Session {
    /// As `stat` shows it.
    pub row: Row,
    /// All files that it knows.
    pub files: Vec<SeenFile>,
}

/// All of it.
pub struct Model {
    sessions: Vec<Session>,
    rates: HashMap<PathBuf, Rates>,
    last: HashMap<PathBuf, (Instant, Stats)>,
    chosen: Option<PathBuf>,
    order: Order,
    view: View,
    held: bool,
    interval: Duration,
}

impl Model {
    /// With so much time between looks.
    pub fn new(interval: Duration) -> Self {
        Model {
            sessions: Vec::new(),
            rates: HashMap::new(),
            last: HashMap::new(),
            chosen: None,
            order: Order::default(),
            view: View::default(),
            held: false,
            interval,
        }
    }

    /// Takes in what was found `at` a time.
    pub fn take(&mut self, at: Instant, found: Vec<Found>) {
        let seen = found.into_iter().map(|found| {
            let files = found.seen.as_ref().map(|seen| seen.files());
            let files = files.unwrap_or_default();
            let row = stat::row(found, true);
            Session { row, files }
        });
        self.set(at, seen.collect());
    }

    /// As [`Model::take`], of sessions that are known.
    pub fn set(&mut self, at: Instant, sessions: Vec<Session>) {
        self.sessions = sessions;
        for session in &self.sessions {
            let Some(now) = session.row.stats else {
                continue;
            };
            let arena = &session.row.arena;
            let last = self.last.insert(arena.clone(), (at, now));
            let Some((before, last)) = last else { continue };
            let seconds = at.duration_since(before).as_secs_f64().max(1e-3);
            let rates = self.rates.entry(arena.clone()).or_default();
            let mut push = |curve: fn(&mut Rates) -> &mut VecDeque<u64>, of: fn(&Stats) -> u64| {
                let more = of(&now).saturating_sub(of(&last));
                let curve = curve(rates);
                curve.push_back((more as f64 / seconds) as u64);
                if curve.len() > HISTORY {
                    curve.pop_front();
                }
            };
            push(
                |r| &mut r.written,
                |s| s.scrap_bytes + s.direct_bytes + s.kernel_bytes,
            );
            push(|r| &mut r.read, |s| s.read_bytes);
            push(|r| &mut r.device_written, |s| s.device_write_bytes);
            push(|r| &mut r.device_read, |s| s.device_read_bytes);
        }
        let there = |arena: &PathBuf| {
            self.sessions
                .iter()
                .any(|session| session.row.arena == *arena)
        };
        self.rates.retain(|arena, _| there(arena));
        self.last.retain(|arena, _| there(arena));
        if !self.chosen.as_ref().is_some_and(there) {
            self.chosen = self
                .sessions
                .first()
                .map(|session| session.row.arena.clone());
        }
    }

    /// Does what a key asks for.
    pub fn act(&mut self, action: Action) {
        match action {
            Action::End => {}
            Action::Up => self.choose(-1),
            Action::Down => self.choose(1),
            Action::Sort => {
                self.order = match self.order {
                    Order::Owed => Order::Size,
                    Order::Size => Order::Path,
                    Order::Path => Order::Owed,
                }
            }
            Action::View => {
                self.view = match self.view {
                    View::Files => View::Streams,
                    View::Streams => View::Files,
                }
            }
            Action::Hold => self.held = !self.held,
            Action::Slower | Action::Faster => {
                let now = self.interval.as_millis() as u64;
                let next = match action {
                    Action::Slower => INTERVALS_MS.iter().find(|ms| **ms > now),
                    _ => INTERVALS_MS.iter().rev().find(|ms| **ms < now),
                };
                self.interval = next.map_or(self.interval, |ms| Duration::from_millis(*ms));
            }
        }
    }

    fn choose(&mut self, by: isize) {
        let last = self.sessions.len().saturating_sub(1);
        let at = self.chosen_at().saturating_add_signed(by).min(last);
        self.chosen = self
            .sessions
            .get(at)
            .map(|session| session.row.arena.clone());
    }

    /// Place of the chosen session.
    pub fn chosen_at(&self) -> usize {
        let chosen = |session: &Session| Some(&session.row.arena) == self.chosen.as_ref();
        self.sessions.iter().position(chosen).unwrap_or(0)
    }

    /// The chosen session.
    pub fn chosen(&self) -> Option<&Session> {
        self.sessions.get(self.chosen_at())
    }

    /// All sessions.
    pub fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    /// Its rates, if it was seen twice.
    pub fn rates(&self, session: &Session) -> Option<&Rates> {
        self.rates.get(&session.row.arena)
    }

    /// Files of a session in the order that was asked for; those that are open and those that owe something.
    pub fn files<'a>(&self, session: &'a Session) -> Vec<&'a SeenFile> {
        let mut files: Vec<_> = session
            .files
            .iter()
            .filter(|file| file.is_open || file.owed_bytes > 0)
            .collect();
        files.sort_by(|a, b| {
            let by_path = || a.path.cmp(&b.path);
            match self.order {
                Order::Owed => b.owed_bytes.cmp(&a.owed_bytes).then_with(by_path),
                Order::Size => b.size_bytes.cmp(&a.size_bytes).then_with(by_path),
                Order::Path => by_path(),
            }
        });
        files
    }

    /// Streams of a session: those that owe something first, then those that were used last.
    pub fn streams<'a>(&self, session: &'a Session) -> Vec<&'a SeenStream> {
        let mut streams: Vec<_> = session.row.streams.iter().flatten().collect();
        streams.sort_by_key(|stream| (stream.dirty_start.is_none(), stream.age));
        streams
    }

    /// What is listed.
    pub fn view(&self) -> View {
        self.view
    }

    /// The order of files.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Whether it stands still.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Time between looks.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }
}
