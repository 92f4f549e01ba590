//! A daemon's life, and what `stat` sees of it.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::place::{Place, Process, is_managed};
use crate::writer;

const BYTES: usize = 1_000_000;

/// A daemon that a shell becomes.
fn by_shell(place: &Place, script: &str) -> Process {
    let mut command = place.in_place(std::process::Command::new("sh"), &["-c", script]);
    let child = command
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("a daemon");
    Process::new(child)
}

#[test]
fn a_daemon_keeps_a_session_until_it_is_told_to_stop() {
    let place = Place::new("daemon");
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = place.daemon(&[]);
        assert!(place.arena().exists());
        let stat = place.stat();
        assert_eq!(
            (&stat["state"], &stat["remedy"]),
            (&"alive".into(), &serde_json::Value::Null)
        );
        assert_eq!(stat["members"]["keeper"], daemon.id());
        assert_eq!(stat["memory_budget_bytes"], 32 << 20);
        let run = place.run(&["stat"]);
        assert!(
            run.stdout.contains(&place.session) && run.stdout.contains("alive"),
            "{run:?}"
        );
        daemon.signal(signal);
        let (status, stderr) = daemon.wait();
        assert!(status.success(), "{stderr}");
        assert!(stderr.contains("nothing is owed"), "{stderr}");
        assert!(!place.arena().exists(), "the arena is removed");
    }
    let run = place.run(&["stat", "--session", &place.session]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("forebay daemon"), "{run:?}");
}

/// A limit on the length of files that whoever starts a daemon has is not the limit of the session's programs.
#[test]
fn a_daemon_takes_no_limit_on_files_over() {
    let place = Place::new("long-files");
    if !is_managed(place.files.path()) {
        return;
    }
    let script = format!(
        "ulimit -S -f 64; exec {} daemon",
        env!("CARGO_BIN_EXE_forebay")
    );
    let mut daemon = by_shell(&place, &script);
    let line = daemon.first_line();
    assert!(line.contains("ready"), "{line}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.id()));
    let ignored = status.expect("a process").lines().find_map(|line| {
        let mask = line.strip_prefix("SigIgn:")?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    let bit = 1 << (Signal::XFSZ.as_raw() - 1);
    assert_ne!(
        ignored.expect("a mask") & bit,
        0,
        "what is longer is an error"
    );
    let file = place.file("long");
    let writer = writer::start(&place, &file, BYTES, false);
    writer.kill();
    daemon.signal(Signal::TERM);
    let (status, stderr) = daemon.wait();
    assert!(status.success(), "{stderr}");
    assert!(std::fs::read(&file).expect("the file") == writer::pattern(BYTES));
}

#[test]
fn the_ready_line_names_session_arena_and_rung() {
    let place = Place::new("ready");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    // Inherited by the shell as its descriptor 3, whatever number it has here.
    let program = env!("CARGO_BIN_EXE_forebay");
    let script = format!(
        "exec 3>/proc/{}/fd/{}; exec {program} daemon --ready-fd 3",
        std::process::id(),
        writer.as_raw_fd()
    );
    let mut daemon = by_shell(&place, &script);
    let line = daemon.first_line();
    drop(writer);
    let arena = place.arena();
    let expected = format!(
        "forebay: session {} ready, arena {} (configured, {} bytes)\n",
        place.session,
        arena.display(),
        32 << 20
    );
    assert_eq!(line, expected);
    let mut told = vec![0; expected.len()];
    reader.read_exact(&mut told).expect("told");
    assert_eq!(String::from_utf8_lossy(&told), expected);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().0.success());
    let run = place.run(&["daemon", "--ready-fd", "77"]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(
        !place.arena().exists(),
        "a daemon that does not start leaves nothing"
    );
}

#[test]
fn what_a_killed_writer_left_is_flushed_when_the_daemon_ends() {
    let place = Place::new("flush");
    if !is_managed(place.files.path()) {
        return;
    }
    let mut daemon = place.daemon(&[]);
    let file = place.file("data");
    let writer = writer::start(&place, &file, BYTES, false);
    let stat = place.stat();
    assert!(
        stat["stats"]["dirty_bytes"].as_u64() >= Some(BYTES as u64),
        "{stat}"
    );
    assert_eq!(
        stat["members"]["processes"].as_array().map(Vec::len),
        Some(2),
        "{stat}"
    );
    assert_eq!(stat["owing"][0]["path"], file.to_str().expect("UTF-8"));
    writer.kill();
    daemon.signal(Signal::TERM);
    let (status, stderr) = daemon.wait();
    assert!(status.success(), "{stderr}");
    assert!(std::fs::read(&file).expect("the file") == writer::pattern(BYTES));
    assert!(!place.arena().exists(), "{stderr}");
}

#[test]
fn a_daemon_leaves_the_session_to_those_who_are_still_in_it() {
    let place = Place::new("others");
    if !is_managed(place.files.path()) {
        return;
    }
    let mut daemon = place.daemon(&[]);
    let file = place.file("data");
    let mut writer = writer::start(&place, &file, BYTES, false);
    daemon.signal(Signal::TERM);
    let (status, stderr) = daemon.wait();
    assert!(status.success(), "{stderr}");
    let lives = format!("lives on in process {}", writer.id());
    assert!(stderr.contains(&lives), "{stderr}");
    assert!(std::fs::read(&file).expect("the file") == writer::pattern(BYTES));
    assert_eq!(place.stat()["state"], "alive");
    writer.kill();
}

/// It takes seconds to touch all of a session's memory, and may take longer than anybody wants to wait.
#[test]
fn a_daemon_that_is_told_to_stop_while_it_touches_memory_stops() {
    let place = Place::new("warming");
    let mut command = place.forebay(&["daemon", "--warm", "--memory", "3GiB"]);
    let child = command
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("a daemon");
    let mut daemon = Process::new(child);
    let begun = Instant::now();
    while !place.arena().exists() {
        assert!(begun.elapsed() < Duration::from_secs(30), "no arena");
        std::thread::sleep(Duration::from_millis(1));
    }
    daemon.signal(Signal::TERM);
    let (status, stderr) = daemon.wait();
    assert!(status.success(), "{stderr}");
    assert!(!stderr.contains("ready"), "it warmed to the end: {stderr}");
    assert!(!place.arena().exists(), "the arena is removed");
}

#[test]
fn a_second_daemon_stands_by() {
    let place = Place::new("standby");
    let mut first = place.daemon(&[]);
    let mut second = place.daemon(&[]);
    let line = second.first_line();
    assert!(
        line.contains(&format!("process {} keeps", first.id())),
        "{line}"
    );
    first.signal(Signal::TERM);
    assert!(first.wait().0.success());
    assert_eq!(place.stat()["state"], "alive");
    second.signal(Signal::TERM);
    let (status, stderr) = second.wait();
    assert!(
        status.success() && stderr.contains("nothing is owed"),
        "{stderr}"
    );
    assert!(!place.arena().exists());
}

/// To where nobody looks for it. (A file without any name is found by whoever has it open.)
fn move_away(place: &Place, file: &Path) {
    let elsewhere = place.file("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    std::fs::rename(file, elsewhere.join("data")).expect("moved");
}

#[test]
fn a_daemon_that_cannot_pay_says_what_is_owed_and_to_whom() {
    let place = Place::new("owed");
    if !is_managed(place.files.path()) {
        return;
    }
    let first = place.daemon(&[]);
    let file = place.file("data");
    let writer = writer::start(&place, &file, BYTES, false);
    // The next keeper has to find the file by itself, and it is another one by then.
    first.kill();
    move_away(&place, &file);
    std::fs::write(&file, "another").expect("written");
    let mut second = place.daemon(&[]);
    writer.kill();
    second.signal(Signal::TERM);
    let (status, stderr) = second.wait();
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("still owed"), "{stderr}");
    assert!(stderr.contains("forebay recover --session"), "{stderr}");
    assert!(place.arena().exists(), "the bytes are still there");
    assert_eq!(std::fs::read(&file).expect("the file"), b"another");
    let run = place.run(&["recover"]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(!place.arena().exists());
}

#[test]
fn a_daemon_does_not_wait_for_a_file_that_is_gone() {
    let place = Place::new("gone");
    if !is_managed(place.files.path()) {
        return;
    }
    let first = place.daemon(&[]);
    let file = place.file("data");
    let writer = writer::start(&place, &file, BYTES, false);
    first.kill();
    move_away(&place, &file);
    let idle = Duration::from_secs(2);
    let second = place.daemon(&["--until-idle", "2"]);
    writer.kill();
    let begun = Instant::now();
    let (status, stderr) = second.wait();
    // It tries twenty times, so long apart, where that may help.
    assert!(begun.elapsed() < idle * 15, "{stderr}");
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("still owed"), "{stderr}");
    assert!(place.arena().exists(), "the bytes are still there");
    assert_eq!(place.run(&["recover"]).code, 3);
}

#[test]
fn stat_watches_and_sees_a_session_die() {
    let place = Place::new("watch");
    let daemon = place.daemon(&[]);
    let mut command = place.forebay(&[
        "stat",
        "--json",
        "--watch",
        "0.02",
        "--session",
        &place.session,
    ]);
    let child = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("stat");
    let mut watch = Process::new(child);
    let state = |line: String| -> serde_json::Value {
        let json: serde_json::Value = serde_json::from_str(&line).expect("JSON on each line");
        json["sessions"][0]["state"].clone()
    };
    assert_eq!(state(watch.first_line()), "alive");
    assert_eq!(state(watch.first_line()), "alive");
    daemon.kill();
    let died = (0..1000).any(|_| state(watch.first_line()) == "dead");
    assert!(died);
    let run = place.run(&["stat", "--session", &place.session]);
    assert_eq!(run.code, 0);
    assert!(
        run.stdout.contains("dead") && run.stdout.contains("forebay recover --session"),
        "{run:?}"
    );
    assert!(place.arena().exists(), "looking changes nothing");
    assert_eq!(place.run(&["recover"]).code, 0);
}

#[test]
fn looking_does_not_keep_the_last_one_from_removing_the_arena() {
    let place = Place::new("looking");
    let mut command = place.forebay(&[
        "stat",
        "--json",
        "--watch",
        "0.01",
        "--session",
        &place.session,
    ]);
    for _ in 0..5 {
        let mut daemon = place.daemon(&[]);
        let child = command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        let watch = Process::new(child.expect("stat"));
        daemon.signal(Signal::TERM);
        let (status, stderr) = daemon.wait();
        assert!(status.success(), "{stderr}");
        watch.kill();
        let left = place.run(&["stat", "--session", &place.session]);
        assert_eq!(left.code, 1, "{left:?}");
    }
}

/// A file that went to the kernel is named with the reason.
#[test]
fn files_in_the_kernel_are_named() {
    let place = Place::new("named");
    if !is_managed(place.files.path()) {
        return;
    }
    let mut config = forebay::Config::builder().build().expect("defaults");
    config.session = place.session.clone();
    config.arena_dir = Some(place.arenas.path().to_owned());
    config.memory = 32 << 20;
    config.dirty_bytes_max = 16 << 20;
    config.dirty_background = 8 << 20;
    let session = forebay::Session::open(config).expect("a session");
    let before = session.left_count();
    let path = place.file("given");
    let mut options = forebay::OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = session.open_file(&path, &options).expect("a file");
    file.write_at(b"bytes", 0).expect("written");
    file.to_kernel().expect("given");
    let left = session.left_since(before);
    assert_eq!((left.len(), &left[0].path, left[0].times), (1, &path, 1));
    assert_eq!(session.left_since(session.left_count()), Vec::new());
    let stat = place.stat();
    let left = &stat["left"][0];
    assert_eq!(left["path"], path.to_str().expect("text"));
    assert_eq!(left["reason"], "the program asked for it");
    let human = place.run(&["stat", "--session", &place.session]).stdout;
    let line = format!("{}: the program asked for it", path.display());
    assert!(human.contains(&line), "{human}");
}

#[test]
fn top_shows_sessions_in_a_terminal_and_nowhere_else() {
    let place = Place::new("top");
    let run = place.run(&["top"]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("stat --watch"), "{run:?}");
    let _daemon = place.daemon(&[]);
    // `script` gives it a terminal; the key comes through that.
    let command = format!(
        "stty rows 30 cols 120; {} top --interval 0.1",
        env!("CARGO_BIN_EXE_forebay")
    );
    let mut script = place.in_place(
        std::process::Command::new("script"),
        &["-qec", &command, "/dev/null"],
    );
    let child = script
        .env("TERM", "xterm")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut child = match child {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("script is not there; no terminal can be had");
            return;
        }
        child => child.expect("a terminal"),
    };
    let mut said = child.stdout.take().expect("output");
    let mut shown = Vec::new();
    let mut part = [0; 4096];
    while !String::from_utf8_lossy(&shown).contains(&place.session) {
        match said.read(&mut part).expect("output") {
            0 => panic!("it ended: {}", String::from_utf8_lossy(&shown)),
            read => shown.extend_from_slice(&part[..read]),
        }
    }
    use std::io::Write;
    let mut keys = child.stdin.take().expect("input");
    keys.write_all(b"q").expect("a key");
    keys.flush().expect("a key");
    while said.read(&mut part).expect("output") > 0 {}
    assert!(child.wait().expect("an end").success());
}

#[test]
fn stat_shows_streams_if_asked() {
    let place = Place::new("streams");
    let _daemon = place.daemon(&[]);
    let file = place.file("streamed");
    let _writer = writer::start(&place, &file, BYTES, false);
    let json = place.run(&["stat", "--session", &place.session, "--streams", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(report["sessions"][0]["dirty_tracking"], "stream");
    let streams = report["sessions"][0]["streams"]
        .as_array()
        .expect("streams")
        .clone();
    assert_eq!(streams.len(), 1, "{streams:?}");
    assert_eq!(streams[0]["path"], file.to_str().expect("a name"));
    assert_eq!(
        (&streams[0]["start_bytes"], &streams[0]["dirty_start_bytes"]),
        (&0.into(), &0.into())
    );
    assert!(
        streams[0]["end_bytes"].as_u64() >= Some(BYTES as u64),
        "{streams:?}"
    );
    let text = place.run(&["stat", "--session", &place.session, "--streams"]);
    assert!(text.stdout.contains("may be dirty"), "{text:?}");
    let plain = place.run(&["stat", "--session", &place.session]);
    assert!(!plain.stdout.contains("may be dirty"), "{plain:?}");
}
