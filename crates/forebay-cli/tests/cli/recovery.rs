//! `forebay recover` after everything was killed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

use crate::place::{Place, Process, Run, is_managed};
use crate::writer;

const BYTES: usize = 1_000_000;

/// A session whose keeper and writer were killed with everything dirty; `None` where there is nothing to test.
fn killed(place: &Place) -> Option<PathBuf> {
    if !is_managed(place.files.path()) {
        return None;
    }
    let file = place.file("data");
    let daemon = place.daemon(&[]);
    let writer = writer::start(place, &file, BYTES, false);
    daemon.kill();
    writer.kill();
    place.await_death();
    assert!(std::fs::read(&file).expect("the file") != writer::pattern(BYTES));
    Some(file)
}

#[test]
fn everything_a_killed_writer_wrote_is_saved() {
    let place = Place::new("saved");
    let Some(file) = killed(&place) else { return };
    let stat = place.stat();
    assert_eq!(stat["state"], "dead");
    assert!(
        stat["remedy"]
            .as_str()
            .is_some_and(|text| text.contains("forebay recover")),
        "{stat}"
    );
    let run = place.run(&["doctor"]);
    assert!(
        run.stdout.contains("is dead") && run.stdout.contains(&place.session),
        "{run:?}"
    );
    let run = place.run(&["recover", "--json"]);
    assert_eq!(run.code, 0, "{run:?}");
    let json = run.json();
    assert_eq!(
        (&json["schema"], &json["summary"]["written_files"]),
        (&1.into(), &1.into())
    );
    let saved = &json["arenas"][0]["report"]["files"][0];
    assert_eq!(
        (&saved["outcome"], &saved["path"]),
        (&"written".into(), &file.to_str().unwrap().into())
    );
    assert!(std::fs::read(&file).expect("the file") == writer::pattern(BYTES));
    assert!(!place.arena().exists());
    let run = place.run(&["recover"]);
    assert_eq!((run.code, run.stdout.as_str()), (0, "nothing to recover\n"));
}

#[test]
fn bytes_of_a_file_that_others_changed_are_kept_aside() {
    let place = Place::new("kept");
    let Some(file) = killed(&place) else { return };
    // Later than any change of the session's own could be dated.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    std::fs::write(&file, "mine").expect("written");
    let kept = place.file("aside");
    let run = place.run(&[
        "recover",
        "--kept-dir",
        kept.to_str().unwrap(),
        "--session",
        &place.session,
    ]);
    assert_eq!(run.code, 3, "{run:?}");
    // On a busy machine it may have died in the middle of a flush.
    let reasons = ["changed by another program", "in the middle of a change"];
    assert!(
        run.stdout.contains("kept aside") && reasons.iter().any(|why| run.stdout.contains(why)),
        "{run:?}"
    );
    assert_eq!(std::fs::read(&file).expect("the file"), b"mine");
    let entries = std::fs::read_dir(&kept).expect("the directory");
    let paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    let bytes = paths
        .iter()
        .find(|path| path.extension().is_some_and(|e| e == "bytes"));
    assert!(std::fs::read(bytes.expect("kept bytes")).expect("read") == writer::pattern(BYTES));
    assert!(
        run.stdout.contains(bytes.unwrap().to_str().unwrap()),
        "{run:?}"
    );
    assert!(!place.arena().exists());
}

#[test]
fn what_can_be_kept_nowhere_stays_in_the_arena() {
    let place = Place::new("nowhere");
    let Some(file) = killed(&place) else { return };
    std::fs::remove_file(&file).expect("removed");
    std::fs::write(place.file("kept"), "in the way").expect("written");
    let kept = place.file("kept");
    let run = place.run(&["recover", "--kept-dir", kept.to_str().unwrap()]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(
        run.stdout.contains("failed") && run.stdout.contains("cannot be kept"),
        "{run:?}"
    );
    assert!(run.stderr.contains("run the same command again"), "{run:?}");
    assert!(place.arena().exists());
    let run = place.run(&["recover"]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(!place.arena().exists());
}

#[test]
fn a_daemon_says_what_it_recovered_first() {
    let place = Place::new("first");
    let Some(file) = killed(&place) else { return };
    std::fs::remove_file(&file).expect("removed");
    std::fs::write(place.file("kept"), "in the way").expect("written");
    let kept = place.file("kept");
    let run = place.run(&["daemon", "--kept-dir", kept.to_str().unwrap()]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(
        run.stderr.contains("not recovered") && run.stderr.contains("forebay recover"),
        "{run:?}"
    );
    assert!(place.arena().exists(), "{run:?}");
    let mut command = place.forebay(&["daemon"]);
    let child = command
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("a daemon");
    let mut daemon = Process::new(child);
    let line = daemon.first_line();
    assert!(line.contains("kept aside"), "{line}");
    assert!(daemon.first_line().contains("ready"));
    daemon.signal(rustix::process::Signal::TERM);
    let (status, stderr) = daemon.wait();
    assert!(status.success(), "{stderr}");
}

/// The others may find the arena gone at any step of theirs.
#[test]
fn of_several_recoveries_at_once_none_fails() {
    let place = Place::new("several");
    for _ in 0..4 {
        let Some(file) = killed(&place) else { return };
        let start = |_| {
            let mut command = place.forebay(&["recover"]);
            command.stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::piped());
            command.spawn().expect("forebay runs")
        };
        let all: Vec<_> = (0..4).map(start).collect();
        for child in all {
            let run = Run::of(child.wait_with_output().expect("an end"));
            assert_eq!(run.code, 0, "{run:?}");
        }
        assert!(std::fs::read(&file).expect("the file") == writer::pattern(BYTES));
        assert!(!place.arena().exists());
        std::fs::remove_file(&file).expect("removed");
    }
}

#[test]
fn another_name_is_suggested() {
    let place = Place::new("suggested");
    place.daemon(&[]).kill();
    // What the daemon has started for itself ends a moment after it, and is in the session until then.
    let begun = std::time::Instant::now();
    let run = loop {
        let run = place.run(&["recover", "--session", "nobody"]);
        if run.stderr.contains(&place.session) || begun.elapsed().as_secs() > 30 {
            break run;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    assert_eq!(
        (run.code, run.stdout.as_str()),
        (0, "nothing to recover\n"),
        "{run:?}"
    );
    assert!(run.stderr.contains(&place.session), "{run:?}");
    assert_eq!(place.run(&["recover"]).code, 0);
}

#[test]
fn an_arena_can_be_named_by_its_path() {
    let place = Place::new("path");
    let Some(file) = killed(&place) else { return };
    let arena = place.arena();
    let run = place.run(&["recover", arena.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(
        run.stdout.contains("written") && run.stdout.contains(file.to_str().unwrap()),
        "{run:?}"
    );
    assert!(std::fs::read(&file).expect("the file") == writer::pattern(BYTES));
    let run = place.run(&["recover", arena.to_str().unwrap()]);
    assert_eq!(run.code, 2, "no such file: {run:?}");
    std::fs::write(&file, "no arena at all, but long enough").expect("written");
    let run = place.run(&["recover", file.to_str().unwrap()]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(file.exists(), "what is no arena is left alone");
    let run = place.run(&["recover", place.files.path().to_str().unwrap()]);
    assert_eq!(run.code, 2, "{run:?}");
}

/// An arena that was begun and not finished is empty, or zeros, and many a file is that.
#[test]
fn what_is_no_arena_is_never_removed() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new("no-arena");
    let mut image = vec![0; 4 << 20];
    image[1024..1200].fill(0xef);
    let user = format!("forebay-{}", forebay::memory::place::dir::user_id());
    std::fs::create_dir(place.file(&user)).expect("a directory");
    let of_user = |name: &str| format!("{user}/{name}");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.file(&user), open).expect("a mode");
    for name in ["note.txt", "disk.img", "some.arena", &of_user("some.arena")] {
        let file = place.file(name);
        for bytes in [&[][..], &image, &image[..4096]] {
            std::fs::write(&file, bytes).expect("written");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("mode");
            let run = place.run(&["recover", file.to_str().unwrap()]);
            assert_eq!(run.code, 1, "{name}, {} bytes: {run:?}", bytes.len());
            assert!(
                std::fs::read(&file).expect("it is there") == bytes,
                "{name}"
            );
        }
    }
    // In its place, under an arena's name and for its owner alone, it is one.
    let arena = place.arena();
    place.daemon(&[]).kill();
    place.await_death();
    assert!(arena.exists());
    for bytes in [&[][..], &[0; 2 << 20]] {
        std::fs::write(&arena, bytes).expect("written");
        let run = place.run(&["recover", arena.to_str().unwrap()]);
        assert_eq!(run.code, 0, "{run:?}");
        assert!(!arena.exists());
        std::fs::write(&arena, bytes).expect("written");
        std::fs::set_permissions(&arena, std::fs::Permissions::from_mode(0o600)).expect("mode");
    }
}

#[test]
fn a_living_session_is_refused() {
    let place = Place::new("living");
    let mut daemon = place.daemon(&[]);
    let run = place.run(&["recover", "--session", &place.session]);
    assert_eq!(run.code, 1, "{run:?}");
    let refusal = format!("the session is in use by process {};", daemon.id());
    assert!(run.stdout.contains(&refusal), "{run:?}");
    assert_eq!(place.stat()["state"], "alive");
    daemon.kill();
}

/// As a user of nobody else's, so that the sessions of whoever runs the tests are left alone.
#[test]
fn all_dead_sessions_of_a_user_are_recovered() {
    let place = Place::new("all");
    let Some(mut user) = crate::doctor::stranger(&place) else {
        return;
    };
    let session = |name: &str| ["daemon", "--session", name].map(str::to_owned);
    for name in ["one", "two"] {
        let mut command = user.forebay(&place, &session(name));
        let child = command
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("a daemon");
        let mut daemon = Process::new(child);
        let line = daemon.first_line();
        assert!(line.contains("ready"), "{line}");
        daemon.kill();
    }
    let run = user.run(&place, &["recover", "--all", "--json"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(run.json()["summary"]["arenas"], 2, "{run:?}");
    let run = user.run(&place, &["recover", "--all"]);
    assert_eq!(
        (run.code, run.stdout.as_str()),
        (0, "nothing to recover\n"),
        "{run:?}"
    );
}

/// The JSON that a command prints, which ends with `code`.
fn json_of(mut command: Command, code: i32) -> serde_json::Value {
    let run = Run::of(command.output().expect("forebay runs"));
    assert_eq!(run.code, code, "{run:?}");
    run.json()
}

#[test]
fn names_that_are_no_text_are_told_as_well_as_can_be() {
    let place = Place::new("no-text");
    if !is_managed(place.files.path()) {
        return;
    }
    let odd = OsStr::from_bytes(b"na\xffme");
    let told = |path: &serde_json::Value| {
        let path = path.as_str().expect("text");
        assert!(path.contains("na\u{fffd}me"), "{path}");
    };
    let daemon = place.daemon(&[]);
    let file = place.files.path().join(odd);
    let writer = writer::start(&place, &file, BYTES, false);
    let stat = ["stat", "--json", "--streams", "--session", &place.session];
    let seen = json_of(place.forebay(&stat), 0);
    told(&seen["sessions"][0]["owing"][0]["path"]);
    told(&seen["sessions"][0]["streams"][0]["path"]);
    let mut evict = place.forebay(&["evict", "--json"]);
    evict.arg(&file);
    told(&json_of(evict, 0)["files"][0]["path"]);
    // To where the next keeper does not find it.
    daemon.kill();
    let elsewhere = place.file("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    std::fs::rename(&file, elsewhere.join(odd)).expect("moved");
    let daemon = place.daemon(&[]);
    writer.kill();
    let report = place.file("report");
    let option = format!("--report={}", report.display());
    let mut run = place.forebay(&["run", "--json", &option, "--", "true"]);
    run.env("FOREBAY_PRELOAD", crate::running::stand_in(&place));
    let run = Run::of(run.output().expect("forebay runs"));
    let report = std::fs::read_to_string(report).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert!(
        !report["errors"].as_array().expect("a list").is_empty(),
        "{run:?} {report}"
    );
    told(&report["errors"][0]["path"]);
    daemon.kill();
    place.await_death();
    let arena = place.arena();
    let moved = place.arenas.path().join(odd);
    std::fs::rename(arena.parent().expect("a directory"), &moved).expect("moved");
    let mut recover = place.forebay(&["recover", "--json"]);
    recover.arg(moved.join(arena.file_name().expect("a name")));
    let recovered = json_of(recover, 3);
    told(&recovered["arenas"][0]["arena"]);
    told(&recovered["arenas"][0]["report"]["arena"]);
    told(&recovered["arenas"][0]["report"]["files"][0]["path"]);
}
