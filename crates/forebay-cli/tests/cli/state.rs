//! What lies where others could have put it: logs, configurations, descriptors that were handed over.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::doctor::stranger;
use crate::place::{Place, Process, Run};

fn fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo").success());
}

/// The directory in which the daemon's log is, made for this test.
fn state(place: &Place) -> PathBuf {
    let state = place.file("state/forebay");
    fs::create_dir_all(&state).expect("a directory");
    state
}

fn log(place: &Place) -> PathBuf {
    state(place).join(format!("{}.log", place.session))
}

/// `forebay run --require -- true`, which needs a session; it ends, or the test fails.
fn run(place: &Place) -> String {
    let mut command = place.forebay(&["run", "--require", "--linger", "0.1", "--", "true"]);
    command.env("FOREBAY_PRELOAD", crate::running::stand_in(place));
    let child = command.stderr(Stdio::piped()).spawn().expect("forebay");
    let (status, said) = Process::new(child).wait();
    assert!(!status.success(), "{said}");
    said
}

#[test]
fn a_log_that_is_a_link_is_not_written() {
    let place = Place::new("log-link");
    let victim = place.file("victim");
    let before = vec![b'v'; 2 << 20];
    fs::write(&victim, &before).expect("a file");
    symlink(&victim, log(&place)).expect("a link");
    let said = run(&place);
    assert!(said.contains("not safe to use"), "{said}");
    assert!(
        fs::read(&victim).expect("a file") == before,
        "written or cut"
    );
}

#[test]
fn a_log_that_is_a_pipe_is_not_waited_for() {
    let place = Place::new("log-pipe");
    fifo(&log(&place));
    let said = run(&place);
    assert!(said.contains("not safe to use"), "{said}");
}

/// A service without a home keeps its state where all users could have been first.
#[test]
fn a_directory_of_somebody_elses_is_not_trusted() {
    let place = Place::new("log-stranger");
    if forebay::memory::place::dir::user_id() != 0 {
        return crate::here::skipped("being two users takes root");
    }
    let above = place.file("state");
    fs::create_dir(&above).expect("a directory");
    fs::set_permissions(&above, Permissions::from_mode(0o1777)).expect("its mode");
    let theirs = state(&place);
    chown(&theirs, Some(1_987_654_321), None).expect("its owner");
    let said = run(&place);
    assert!(said.contains("1987654321"), "{said}");
    assert_eq!(fs::read_dir(theirs).expect("a directory").count(), 0);
}

#[test]
fn a_configuration_that_is_a_pipe_is_not_waited_for() {
    let place = Place::new("config-pipe");
    let path = place.file("config.toml");
    fifo(&path);
    let mut command = place.forebay(&["config"]);
    command.env("FOREBAY_CONFIG", &path);
    let child = command.stderr(Stdio::piped()).spawn().expect("forebay");
    let (status, said) = Process::new(child).wait();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("no plain file"), "{said}");
    let mut none = place.forebay(&["config"]);
    none.env("FOREBAY_CONFIG", "/dev/null");
    let run = Run::of(none.output().expect("forebay"));
    assert_eq!(run.code, 0, "{run:?}");
}

/// A pipe belongs to whoever made it: opening it again by its number is refused to others, writing to it is not.
#[test]
fn another_users_pipe_is_told() {
    let place = Place::new("ready-pipe");
    let Some(mut stranger) = stranger(&place) else {
        return;
    };
    let words = ["daemon", "--ready-fd", "1"].map(String::from);
    let mut command = stranger.forebay(&place, &words);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("a daemon");
    let mut line = String::new();
    let told = BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line);
    let mut daemon = Process::new(child);
    told.expect("told");
    assert!(line.contains("ready"), "{line:?}");
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().0.success());
}
