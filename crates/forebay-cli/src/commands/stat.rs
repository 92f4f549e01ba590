//! `forebay stat`: the counters of sessions, from outside.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay::Stats;
use forebay::config::DirtyTracking;
use forebay::member::census::Members;
use forebay::member::left::LeftFile;
use forebay::memory::place::PlaceKind;
use forebay::session::look::{Life, SeenFile};
use forebay::session::streams::{SeenStream, SeenTracking, StreamKind};
use forebay::text::as_text;
use serde::Serialize;

use crate::arguments::Stat;
use crate::failure::{DONE, Failure};
use crate::output::{self, Output, SCHEMA, Style, bytes, count, left_lines};
use crate::sessions::{self, Found};

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    schema: u32,
    sessions: Vec<Row>,
}

/// One session.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) session: String,
    #[serde(serialize_with = "as_text")]
    pub(super) arena: PathBuf,
    /// Length of the arena's file; what of it has memory is in `stats`.
    pub(super) arena_bytes: u64,
    /// alive, dead, busy, unfinished, or unreadable.
    pub(super) state: &'static str,
    /// What to do, where something is to be done.
    pub(super) remedy: Option<String>,
    pub(super) members: Members,
    pub(super) place: Option<PlaceKind>,
    /// How the keeper speaks to devices.
    pub(super) io_engine: Option<&'static str>,
    pub(super) memory_budget_bytes: Option<u64>,
    /// Since the keeper's last sign of life.
    pub(super) keeper_silent_ms: Option<u64>,
    pub(super) stats: Option<Stats>,
    /// Files in its table.
    pub(super) files: usize,
    /// Those of them that it owes something.
    pub(super) owing: Vec<SeenFile>,
    /// Files that were left or given to the kernel last, and why.
    pub(super) left: Vec<LeftFile>,
    /// What it tracks; only if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) streams: Option<Vec<SeenStream>>,
    /// By what it tracks; only if asked for.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) tracking: Option<SeenTracking>,
}

/// Shows them, once or again and again.
pub fn run(arguments: &Stat, output: &mut Output) -> Result<u8, Failure> {
    let config = arguments.whose.config()?;
    let session = arguments.whose.session.as_deref();
    let mut before: Option<(Instant, Vec<Row>)> = None;
    loop {
        let found = sessions::find(config.arena_dir.as_deref(), session)?;
        if let (true, Some(name), None) = (found.is_empty(), session, &before) {
            return Err(sessions::none_such(name));
        }
        let rows = found.into_iter().map(|found| row(found, arguments.streams));
        let rows: Vec<_> = rows.collect();
        let now = Instant::now();
        match (&arguments.watch, arguments.json) {
            (None, true) => output.json(&Report {
                schema: SCHEMA,
                sessions: rows,
            }),
            (None, false) => {
                show(output, &rows);
            }
            (Some(_), true) => {
                let report = Report {
                    schema: SCHEMA,
                    sessions: rows,
                };
                output.json_line(&report);
                before = Some((now, report.sessions));
            }
            (Some(_), false) => {
                show_rates(
                    output,
                    &rows,
                    before.as_ref().map(|(at, rows)| (now - *at, rows)),
                );
                before = Some((now, rows));
            }
        }
        let Some(seconds) = arguments.watch else {
            return Ok(DONE);
        };
        if !output.flush() {
            return Ok(DONE);
        }
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
}

pub(super) fn row(found: Found, streams: bool) -> Row {
    let Found {
        session,
        arena,
        bytes,
        seen,
    } = found;
    let (state, remedy) = match &seen {
        Ok(seen) => match seen.life {
            Life::Alive => ("alive", sessions::remedy_for_keeper(seen)),
            Life::Dead => (
                "dead",
                Some(format!("`forebay recover --session {session}` saves it")),
            ),
            Life::Busy => ("busy", None),
            Life::Unfinished => (
                "unfinished",
                Some(format!(
                    "holds nothing; `forebay recover --session {session}` removes it"
                )),
            ),
        },
        Err(unseen) => {
            let remedy = sessions::remedy_for_unseen(unseen);
            ("unreadable", Some(format!("{}; {remedy}", unseen.why)))
        }
    };
    let seen = seen.ok();
    let files = seen.as_ref().map(|seen| seen.files()).unwrap_or_default();
    Row {
        session,
        arena,
        arena_bytes: bytes,
        state,
        remedy,
        members: seen.as_ref().map(|seen| seen.members()).unwrap_or_default(),
        place: seen.as_ref().and_then(|seen| seen.place()),
        io_engine: seen.as_ref().and_then(|seen| seen.io_engine()),
        memory_budget_bytes: seen.as_ref().and_then(|seen| seen.budget_bytes()),
        keeper_silent_ms: seen
            .as_ref()
            .and_then(|seen| seen.silent_for())
            .map(|silent| u64::try_from(silent.as_millis()).unwrap_or(u64::MAX)),
        stats: seen.as_ref().and_then(|seen| seen.stats()),
        files: files.len(),
        owing: files
            .into_iter()
            .filter(|file| file.owed_bytes > 0)
            .collect(),
        left: seen.as_ref().map(|seen| seen.left()).unwrap_or_default(),
        tracking: seen
            .as_ref()
            .and_then(|seen| seen.tracking())
            .filter(|_| streams),
        streams: streams.then(|| seen.as_ref().map(|seen| seen.streams()).unwrap_or_default()),
    }
}

fn show(output: &mut Output, rows: &[Row]) {
    if rows.is_empty() {
        output.line("no sessions");
    }
    for row in rows {
        title(output, row);
        if let Some(stats) = &row.stats {
            detail(output, row, stats);
        }
    }
}

fn title(output: &mut Output, row: &Row) {
    let style = match row.state {
        "alive" => Style::Good,
        "busy" => Style::Doubtful,
        _ => Style::Bad,
    };
    let (name, state) = (
        output.paint(Style::Strong, &row.session),
        output.paint(style, row.state),
    );
    let remedy = row
        .remedy
        .as_ref()
        .map(|text| format!(": {text}"))
        .unwrap_or_default();
    output.line(format_args!("session {name} is {state}{remedy}"));
}

fn detail(output: &mut Output, row: &Row, stats: &Stats) {
    let budget = row.memory_budget_bytes.map(bytes).unwrap_or_default();
    let pids: Vec<_> = row
        .members
        .processes
        .iter()
        .map(ToString::to_string)
        .collect();
    let keeper = match (row.members.keeper, row.state) {
        (Some(pid), _) => match row.io_engine {
            Some(engine) => format!("keeper {pid} by {engine}"),
            None => format!("keeper {pid}"),
        },
        (None, _) => "no keeper".to_owned(),
    };
    let mut field = |name: &str, text: String| output.line(format_args!("  {name:9} {text}"));
    field("arena", output::path(&row.arena));
    if row.state == "alive" {
        let threads = count(row.members.threads as usize, "thread");
        field(
            "processes",
            format!("{} ({keeper}, {threads})", pids.join(" ")),
        );
    }
    let (held, free) = (
        bytes(stats.memory_held_bytes),
        bytes(stats.memory_free_bytes),
    );
    let viewed = match stats.viewed_bytes {
        0 => String::new(),
        viewed => format!(", {} by views", bytes(viewed)),
    };
    let runs = match stats.run_bytes {
        0 => String::new(),
        runs => format!(", {} as huge pages of one file", bytes(runs)),
    };
    field(
        "memory",
        format!("{held} held with tables{viewed}{runs}, {free} of it free; up to {budget}"),
    );
    let owing = count(row.owing.len(), "file");
    field(
        "owed",
        format!(
            "{} dirty, in {owing} of {}",
            bytes(stats.dirty_bytes),
            row.files
        ),
    );
    field(
        "written",
        format!(
            "{} to memory, {} to the device, {} through the kernel",
            bytes(stats.scrap_bytes),
            bytes(stats.direct_bytes),
            bytes(stats.kernel_bytes)
        ),
    );
    field("read", bytes(stats.read_bytes));
    field("device", device(stats));
    let ahead = read_ahead(stats).into_iter();
    ahead.for_each(|ahead| field("ahead", ahead));
    let corruptions = count(stats.corruptions as usize, "word");
    field(
        "repairs",
        format!("{} after deaths, {corruptions} set right", stats.rebuilds),
    );
    detail_files(output, row);
    detail_streams(output, row);
}

fn detail_streams(output: &mut Output, row: &Row) {
    let mut field = |name: &str, text: String| output.line(format_args!("  {name:9} {text}"));
    if let Some(tracking) = &row.tracking {
        field("tracking", tracking_line(tracking));
    }
    for stream in row.streams.iter().flatten() {
        field("stream", stream_line(stream));
    }
}

/// What tells the session which blocks owe something.
fn tracking_line(tracking: &SeenTracking) -> String {
    match tracking.kind {
        DirtyTracking::Page => "page: the marks of each file".to_owned(),
        DirtyTracking::Stream => "stream: trees of streams".to_owned(),
    }
}

/// A stream in words.
fn stream_line(stream: &SeenStream) -> String {
    let dirty = match (stream.dirty_start, stream.dirty_end) {
        (Some(start), Some(end)) => format!("{} to {} may be dirty", bytes(start), bytes(end)),
        _ => "clean".to_owned(),
    };
    let kind = match stream.kind {
        StreamKind::Once => "used once",
        StreamKind::Again => "used again",
    };
    let (path, age) = (output::path(&stream.path), stream.age.as_secs_f64());
    format!(
        "{path}: {} to {}, {dirty}, {kind}, {age:.1} s old",
        bytes(stream.start),
        bytes(stream.end)
    )
}

fn detail_files(output: &mut Output, row: &Row) {
    let mut field = |name: &str, text: String| output.line(format_args!("  {name:9} {text}"));
    for line in left_lines(&row.left) {
        field("kernel", line);
    }
    for file in row.owing.iter().filter(|file| file.flush_errno != 0) {
        let error = std::io::Error::from_raw_os_error(file.flush_errno);
        field(
            "error",
            format!(
                "{}: the last flush failed: {error} ({})",
                output::path(&file.path),
                file.state
            ),
        );
    }
}

fn device(stats: &Stats) -> String {
    let read = bytes(stats.device_read_bytes);
    format!("{read} read, {} written", bytes(stats.device_write_bytes))
}

/// What was read ahead, if anything.
fn read_ahead(stats: &Stats) -> Option<String> {
    (stats.ahead_bytes > 0).then(|| {
        format!(
            "{}, of which {} used, {} dropped unused",
            bytes(stats.ahead_bytes),
            bytes(stats.ahead_used_bytes),
            bytes(stats.ahead_wasted_bytes)
        )
    })
}

/// One line a session: how fast, and how full.
fn show_rates(output: &mut Output, rows: &[Row], before: Option<(Duration, &Vec<Row>)>) {
    if before.is_none() {
        let head = format!(
            "{:16} {:>10} {:>12} {:>12} {:>12} {:>12} {:>12}",
            "session", "state", "written/s", "read/s", "dev write/s", "dev read/s", "dirty"
        );
        let head = output.paint(Style::Strong, head);
        output.line(head);
    }
    for row in rows {
        let now = row.stats.unwrap_or_default();
        let last = before.and_then(|(elapsed, rows)| {
            let same = rows.iter().find(|old| old.arena == row.arena)?;
            Some((elapsed, same.stats?))
        });
        let rate = |of: fn(&Stats) -> u64| match last {
            Some((elapsed, last)) => {
                let more = of(&now).saturating_sub(of(&last));
                bytes((more as f64 / elapsed.as_secs_f64().max(1e-3)) as u64)
            }
            None => "-".to_owned(),
        };
        output.line(format_args!(
            "{:16} {:>10} {:>12} {:>12} {:>12} {:>12} {:>12}",
            row.session,
            row.state,
            rate(|s| s.scrap_bytes + s.direct_bytes + s.kernel_bytes),
            rate(|s| s.read_bytes),
            rate(|s| s.device_write_bytes),
            rate(|s| s.device_read_bytes),
            bytes(now.dirty_bytes)
        ));
    }
    if rows.is_empty() {
        output.line("no sessions");
    }
}
