//! A program that is in the session by the library, and opens a file by the library and by the system at once.
//!
//! What it opens by the system is an outsider's: it waits until the file is with the kernel. [`member`] is this program, started again, which
//! joins the session whose keeper the test has.

mod here;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay::config::Coherence;
use forebay::{Config, File, OpenOptions, Session};

/// Bytes that end within a page.
const LEN: usize = 1_000_001;
/// Where something is written by the system.
const AT: usize = 300_000;
/// Shorter than an outsider is made to wait who is not seen to.
const LONG: Duration = Duration::from_secs(10);
/// The session and the directory of a [`member`].
const SESSION: &str = "FOREBAY__TEST_BY_SYSTEM";
const DIR: &str = "FOREBAY__TEST_BY_SYSTEM_DIR";

fn config(name: &str) -> Config {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 32 << 20;
    config.dirty_bytes_max = 16 << 20;
    config.dirty_background = 8 << 20;
    // What is seen by the system is seen because the file has been given to the kernel.
    config.flush_after = None;
    config.flush_interval = None;
    config.coherence = Coherence::Strict;
    config.session = name.to_owned();
    config
}

/// A session that makes those wait who open files, where that can be had, and its name.
fn strict() -> Option<(Session, String)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if let Err(why) = forebay::sys::fanotify::Group::new() {
        here::skipped(format!("no permission events: {why}"));
        return None;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("system-{}-{number}", std::process::id());
    let session = Session::open(config(&name)).expect("a session");
    Some((session, name))
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at / 7) as u8 ^ seed).collect()
}

fn open(session: &Session, path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    session.open_file(path, &options).expect("a file")
}

/// A file that is managed, and owes what it has.
fn owing(session: &Session, path: &Path) -> File {
    let file = open(session, path);
    let kept = file.kernel_reason();
    assert!(kept.is_none(), "{kept:?}");
    file.write_at(&pattern(1), 0).expect("written");
    file
}

/// By both ways, on one file, in this process.
fn both_ways(session: &Session, path: &Path) {
    let file = owing(session, path);
    let begun = Instant::now();
    let by_system = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("opened");
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    let mut seen = vec![0; LEN];
    by_system.read_exact_at(&mut seen, 0).expect("its length");
    assert!(seen == pattern(1), "old bytes by the system");

    by_system
        .write_all_at(b"by the system", AT as u64)
        .expect("written");
    by_system
        .write_all_at(b"more", LEN as u64)
        .expect("written");
    by_system.sync_all().expect("synced");
    let mut expected = pattern(1);
    expected[AT..AT + 13].copy_from_slice(b"by the system");
    expected.extend_from_slice(b"more");
    let mut seen = vec![0; LEN + 4];
    assert_eq!(file.read_at(&mut seen, 0).expect("read"), LEN + 4);
    assert!(seen == expected, "old bytes by the library");

    file.write_at(b"by the library", 5).expect("written");
    expected[5..19].copy_from_slice(b"by the library");
    by_system.read_exact_at(&mut seen, 0).expect("its length");
    assert!(seen == expected, "the library's later bytes");
    drop(file);
    assert!(std::fs::read(path).expect("read") == expected, "in the end");
}

#[test]
fn who_has_the_keeper_sees_by_the_system_what_it_has_written() {
    let Some((session, _)) = strict() else { return };
    let dir = here::directory();
    both_ways(&session, &dir.path().join("a"));
}

/// ... where another process has written it.
#[test]
fn who_has_the_keeper_sees_by_the_system_what_others_have_written() {
    let Some((session, name)) = strict() else {
        return;
    };
    let dir = here::directory();
    let path = dir.path().join("a");
    let file = owing(&session, &path);
    does("looks", &name, dir.path());
    let mut seen = vec![0; 4];
    file.read_at(&mut seen, 0).expect("read");
    assert_eq!(seen, b"seen");
}

#[test]
fn a_member_sees_by_the_system_what_it_has_written() {
    let Some((session, name)) = strict() else {
        return;
    };
    let dir = here::directory();
    does("both", &name, dir.path());
    drop(session);
}

/// Opening by the library, also again and again, leaves a file where it is.
#[test]
fn the_engines_own_openings_are_no_outsiders() {
    let Some((session, name)) = strict() else {
        return;
    };
    let dir = here::directory();
    let path = dir.path().join("a");
    let file = owing(&session, &path);
    for _ in 0..20 {
        let other = open(&session, &path);
        let mut seen = vec![0; LEN];
        other.read_at(&mut seen, 0).expect("read");
        assert!(seen == pattern(1) && other.kernel_reason().is_none());
    }
    does("reads", &name, dir.path());
    let kept = file.kernel_reason();
    assert!(kept.is_none(), "{kept:?}");
}

/// Has a member do something, and end well.
fn does(what: &str, session: &str, dir: &Path) {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args(["member", "--exact", "--nocapture"])
        .env(SESSION, format!("{what} {session}"))
        .env(DIR, dir)
        .output()
        .expect("a member");
    assert!(output.status.success(), "{what}: {output:?}");
}

#[test]
fn member() {
    let Ok(told) = std::env::var(SESSION) else {
        return;
    };
    let (what, name) = told.split_once(' ').expect("two words");
    let dir = PathBuf::from(std::env::var_os(DIR).expect("a directory"));
    let session = Session::join(config(name)).expect("a session");
    match what {
        "both" => both_ways(&session, &dir.join("a")),
        "looks" => {
            let path = dir.join("a");
            assert!(std::fs::read(&path).expect("read") == pattern(1));
            let file = std::fs::OpenOptions::new().write(true).open(&path);
            let file = file.expect("opened");
            file.write_all_at(b"seen", 0).expect("written");
        }
        "reads" => {
            let file = open(&session, &dir.join("a"));
            let mut seen = vec![0; LEN];
            file.read_at(&mut seen, 0).expect("read");
            assert!(seen == pattern(1) && file.kernel_reason().is_none());
        }
        other => panic!("{other}"),
    }
}
