//! What the screen says of sessions that are made up.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay::Stats;
use forebay::session::look::SeenFile;
use forebay::session::streams::{SeenStream, StreamKind};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::model::{Action, Model, Session};
use super::screen;
use crate::commands::stat::Row;

const MIB: u64 = 1 << 20;

fn file(path: &str, size_mib: u64, owed_mib: u64, is_open: bool) -> SeenFile {
    SeenFile {
        path: PathBuf::from(path),
        size_bytes: size_mib * MIB,
        is_open,
        owed_bytes: owed_mib * MIB,
        flush_errno: 0,
        kernel_reason: 0,
        state: String::new(),
    }
}

fn session(name: &str, written_mib: u64, files: Vec<SeenFile>) -> Session {
    let stats = Stats {
        scrap_bytes: written_mib * MIB,
        memory_held_bytes: 512 * MIB,
        memory_free_bytes: 256 * MIB,
        owed_bytes: 128 * MIB,
        dirty_bytes: 127 * MIB,
        ..Stats::default()
    };
    let row = Row {
        session: name.into(),
        arena: PathBuf::from(format!("/dev/shm/{name}.arena")),
        arena_bytes: 0,
        state: "alive",
        remedy: None,
        members: Default::default(),
        place: None,
        io_engine: None,
        memory_budget_bytes: Some(1024 * MIB),
        keeper_silent_ms: None,
        stats: Some(stats),
        files: files.len(),
        owing: Vec::new(),
        left: Vec::new(),
        streams: Some(Vec::new()),
        tracking: None,
    };
    Session { row, files }
}

/// The lines of a screen of 120 by `height`.
fn lines(model: &Model, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(120, height)).expect("a screen");
    let drawn = terminal
        .draw(|frame| screen::draw(frame, model))
        .expect("a picture");
    let cells = drawn.buffer.content().chunks(120);
    cells
        .map(|line| line.iter().map(|cell| cell.symbol()).collect())
        .collect()
}

fn line_with<'a>(lines: &'a [String], what: &str) -> &'a str {
    let found = lines.iter().find(|line| line.contains(what));
    found.unwrap_or_else(|| panic!("no line says {what}: {lines:#?}"))
}

fn files() -> Vec<SeenFile> {
    vec![
        file("/data/small-and-owing", 4, 3, true),
        file("/data/large", 900, 0, true),
        file("/data/left-long-ago", 5, 0, false),
        file("/data/owing-most", 8, 8, false),
    ]
}

#[test]
fn rates_come_of_two_looks() {
    let mut model = Model::new(Duration::from_secs(1));
    let begun = Instant::now();
    model.set(begun, vec![session("one", 100, Vec::new())]);
    assert!(line_with(&lines(&model, 30), "alive").contains(" - "));
    model.set(
        begun + Duration::from_secs(2),
        vec![session("one", 300, Vec::new())],
    );
    let drawn = lines(&model, 30);
    assert!(
        line_with(&drawn, "alive").contains("100 MiB/s"),
        "{drawn:#?}"
    );
    assert!(line_with(&drawn, "written 100 MiB/s").contains("at most 100 MiB/s"));
    assert!(line_with(&drawn, "in use").contains("256 MiB of 1.0 GiB"));
    assert!(line_with(&drawn, "owed  ").contains("128 MiB of 1.0 GiB"));
    // A counter that begins anew, with another session of the name, is no rate.
    model.set(
        begun + Duration::from_secs(3),
        vec![session("one", 0, Vec::new())],
    );
    assert!(line_with(&lines(&model, 30), "alive").contains("0 B/s"));
}

#[test]
fn files_are_ordered_as_asked() {
    let mut model = Model::new(Duration::from_secs(1));
    model.set(Instant::now(), vec![session("one", 0, files())]);
    let order = |model: &Model| {
        let session = model.chosen().expect("a session");
        let names = model.files(session).into_iter();
        names
            .map(|file| file.path.file_name().expect("a name").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(order(&model), ["owing-most", "small-and-owing", "large"]);
    model.act(Action::Sort);
    assert_eq!(order(&model), ["large", "owing-most", "small-and-owing"]);
    model.act(Action::Sort);
    assert_eq!(order(&model), ["large", "owing-most", "small-and-owing"]);
    assert!(line_with(&lines(&model, 30), "files:").contains("3 open or owing of 4, by path"));
}

#[test]
fn streams_that_owe_something_come_first() {
    let stream = |path: &str, dirty: Option<u64>, seconds| SeenStream {
        path: PathBuf::from(path),
        start: 4 * MIB,
        end: 9 * MIB,
        dirty_start: dirty,
        dirty_end: dirty.map(|start| start + MIB),
        age: Duration::from_secs(seconds),
        kind: StreamKind::Again,
    };
    let mut one = session("one", 0, files());
    one.row.streams = Some(vec![
        stream("/clean", None, 1),
        stream("/old", Some(5 * MIB), 30),
        stream("/young", Some(6 * MIB), 2),
    ]);
    let mut model = Model::new(Duration::from_secs(1));
    model.set(Instant::now(), vec![one]);
    model.act(Action::View);
    let drawn = lines(&model, 30);
    line_with(&drawn, "streams: 3, of which 2 may owe something");
    let at = |what: &str| {
        drawn
            .iter()
            .position(|line| line.contains(what))
            .expect(what)
    };
    assert!(at("/young") < at("/old") && at("/old") < at("/clean"));
    let old = line_with(&drawn, "/old");
    assert!(
        old.contains("4.0 MiB to 9.0 MiB")
            && old.contains("5.0 MiB to 6.0 MiB")
            && old.contains("30.0 s"),
        "{old}"
    );
    model.act(Action::View);
    line_with(&lines(&model, 30), "files:");
}

#[test]
fn the_choice_stays_with_its_session() {
    let mut model = Model::new(Duration::from_secs(1));
    let two = || vec![session("one", 0, Vec::new()), session("two", 0, files())];
    model.set(Instant::now(), two());
    model.act(Action::Down);
    model.act(Action::Down);
    let name = |model: &Model| model.chosen().map(|session| session.row.session.clone());
    assert_eq!(name(&model).as_deref(), Some("two"));
    let mut three = two();
    three.insert(0, session("zero", 0, Vec::new()));
    model.set(Instant::now(), three);
    assert_eq!(name(&model).as_deref(), Some("two"));
    assert!(line_with(&lines(&model, 30), "/data/large").contains("900 MiB"));
    model.set(Instant::now(), vec![session("one", 0, Vec::new())]);
    assert_eq!(name(&model).as_deref(), Some("one"));
    model.set(Instant::now(), Vec::new());
    assert!(model.is_empty());
    line_with(&lines(&model, 30), "forebay run");
}

#[test]
fn a_small_screen_is_no_reason_to_fail() {
    let mut model = Model::new(Duration::from_secs(1));
    model.set(Instant::now(), vec![session("one", 0, files())]);
    for height in [1, 5, 12] {
        assert_eq!(lines(&model, height).len(), usize::from(height));
    }
}

#[test]
fn a_session_that_cannot_be_read_says_why() {
    let mut odd = session("odd", 0, Vec::new());
    odd.row.stats = None;
    odd.row.state = "unreadable";
    odd.row.remedy = Some("remove it".into());
    let mut model = Model::new(Duration::from_secs(1));
    model.set(Instant::now(), vec![odd]);
    line_with(&lines(&model, 30), "remove it");
}

#[test]
fn looks_become_rarer_and_more_frequent() {
    let mut model = Model::new(Duration::from_millis(1000));
    model.act(Action::Slower);
    assert_eq!(model.interval(), Duration::from_secs(2));
    for _ in 0..10 {
        model.act(Action::Faster);
    }
    assert_eq!(model.interval(), Duration::from_millis(100));
    model.act(Action::Hold);
    assert!(model.is_held());
}
