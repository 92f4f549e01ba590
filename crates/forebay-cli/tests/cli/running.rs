//! `forebay run` around programs: their ends, their signals, the session they find, and what is on the device when the
//! command has ended. The library is a stand-in here: what it does is the business of `tests/run.d`.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay::sys::liveness::is_stopped;
use rustix::process::{Pid, Signal, kill_process};

use crate::place::{Place, Process, Run, is_managed};
use crate::writer;

/// A library that can be loaded and does nothing new: the C library under our library's name.
pub fn stand_in(place: &Place) -> PathBuf {
    let path = place.file("libforebay_preload.so");
    if path.exists() {
        return path;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let libc = maps.lines().find_map(|line| {
        let path = line.split_whitespace().nth(5)?;
        path.rsplit('/')
            .next()?
            .starts_with("libc.so")
            .then_some(path)
    });
    std::os::unix::fs::symlink(libc.expect("the C library"), &path).expect("a link");
    path
}

/// `forebay run` with these arguments, in a session whose daemon leaves soon.
fn command(place: &Place, arguments: &[&str]) -> Command {
    let all: Vec<_> = ["run", "--linger", "0.3"]
        .iter()
        .chain(arguments)
        .copied()
        .collect();
    let mut command = place.forebay(&all);
    command.env("FOREBAY_PRELOAD", stand_in(place));
    command
}

fn run(place: &Place, arguments: &[&str]) -> Run {
    Run::of(command(place, arguments).output().expect("forebay runs"))
}

/// Waits until the daemon has left and its arena is gone.
fn await_end(place: &Place) {
    let begun = Instant::now();
    while place.arena().exists() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "the daemon stays"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn output_and_exit_code_are_the_programs() {
    let place = Place::new("run-codes");
    let ended = run(
        &place,
        &["--", "sh", "-c", "echo out; echo err >&2; exit 7"],
    );
    assert_eq!(
        (ended.code, ended.stdout.as_str(), ended.stderr.as_str()),
        (7, "out\n", "err\n")
    );
    assert_eq!(run(&place, &["--", "no-such-program"]).code, 127);
    assert_eq!(run(&place, &["--", "/etc/passwd"]).code, 126);
    let script = place.file("script");
    std::fs::write(&script, "exit 5\n").expect("written");
    let script = script.to_str().expect("UTF-8");
    Command::new("chmod")
        .args(["+x", script])
        .status()
        .expect("chmod");
    assert_eq!(
        run(&place, &["--", script]).code,
        5,
        "a script without an interpreter is the shell's"
    );
    assert_eq!(
        run(&place, &["--dir", "/no/such/dir", "--", "true"]).code,
        2
    );
    assert_eq!(place.run(&["run"]).code, 2);
    await_end(&place);
}

#[test]
fn a_keeper_that_dies_is_followed_by_another() {
    let place = Place::new("run-keeper");
    let stop = place.file("stop");
    let begun = place.file("begun");
    let script = format!(
        ": > {}; while ! [ -e {} ]; do sleep 0.05; done",
        begun.display(),
        stop.display()
    );
    let child = command(&place, &["--", "sh", "-c", &script])
        .stderr(Stdio::piped())
        .spawn();
    let run = Process::new(child.expect("forebay runs"));
    // A daemon that dies before the program runs leaves it without a session.
    let started = Instant::now();
    while !begun.exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "not begun");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut before = None;
    for round in 0..3 {
        let begun = Instant::now();
        let keeper = loop {
            assert!(begun.elapsed() < Duration::from_secs(60), "round {round}");
            std::thread::sleep(Duration::from_millis(10));
            if !place.arena().exists() {
                continue;
            }
            let stat = place.run(&["stat", "--session", &place.session, "--json"]);
            if stat.code != 0 {
                continue;
            }
            let keeper = stat.json()["sessions"][0]["members"]["keeper"].as_i64();
            if let Some(keeper) = keeper
                && Some(keeper) != before
            {
                break keeper;
            }
        };
        before = Some(keeper);
        let pid = Pid::from_raw(keeper as i32).expect("a process");
        if round < 2 {
            kill_process(pid, Signal::KILL).expect("it is there");
        }
    }
    std::fs::write(&stop, "").expect("written");
    // One that was killed before it was ready is told of.
    let (status, stderr) = run.wait();
    assert!(status.success(), "{stderr}");
    await_end(&place);
}

#[test]
fn the_program_finds_library_options_and_arena() {
    let place = Place::new("run-environment");
    let dir = place.files.path().canonicalize().expect("a directory");
    let dir = dir.to_str().expect("UTF-8");
    let told = "echo $LD_PRELOAD,$FOREBAY_DIRS,$FOREBAY_ROUTE,$FOREBAY__ARENA";
    let arguments = ["--dir", dir, "--route", "scrap", "--", "sh", "-c", told];
    let output = command(&place, &arguments)
        .env("LD_PRELOAD", "libm.so.6")
        .output();
    let ended = Run::of(output.expect("forebay runs"));
    let library = stand_in(&place);
    let expected = format!(
        "{}:libm.so.6,{dir},scrap,{}\n",
        library.display(),
        place.arena().display()
    );
    assert_eq!(ended.stdout, expected, "{ended:?}");
    await_end(&place);
}

#[test]
fn a_signal_that_ends_the_program_ends_the_command() {
    use std::os::unix::process::ExitStatusExt;
    let place = Place::new("run-dies");
    for (name, number) in [("TERM", 15), ("KILL", 9), ("USR1", 10)] {
        let output = command(&place, &["--", "sh", "-c", &format!("kill -{name} $$")]).output();
        assert_eq!(output.expect("forebay runs").status.signal(), Some(number));
    }
    await_end(&place);
}

#[test]
fn signals_reach_the_program() {
    let place = Place::new("run-signals");
    for (name, signal) in [
        ("TERM", Signal::TERM),
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
    ] {
        let script = format!("trap 'exit 9' {name}; echo ready; while :; do sleep 0.02; done");
        let child = command(&place, &["--", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .spawn();
        let mut process = Process::new(child.expect("forebay runs"));
        assert_eq!(process.first_line(), "ready\n");
        process.signal(signal);
        assert_eq!(process.wait().0.code(), Some(9), "{name}");
    }
    await_end(&place);
}

/// Who stops the program alone may let it go on alone: a command that had stopped with it would not.
#[test]
fn a_program_that_is_stopped_alone_goes_on_alone() {
    let place = Place::new("run-stopped-alone");
    let script = "echo $$; while sleep 0.02; do :; done";
    let child = command(&place, &["--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn();
    let mut process = Process::new(child.expect("forebay runs"));
    let number = process.first_line().trim().parse().expect("a number");
    let program = Pid::from_raw(number).expect("a process");
    stop(program);
    // Twice as long as it looks around after.
    std::thread::sleep(Duration::from_millis(500));
    assert!(!is_stopped(process.id()), "the command has stopped");
    kill_process(program, Signal::CONT).expect("it goes on");
    kill_process(program, Signal::KILL).expect("it ends");
    let status = process.wait().0;
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9)
    );
    await_end(&place);
}

/// What a terminal stops it stops as a whole, and lets go on as a whole: the shell is to see that the command has stopped.
#[test]
fn a_command_stops_with_what_a_terminal_stops() {
    let place = Place::new("run-stopped-together");
    // A group of its own: a terminal's stop is ignored in a group with no parent outside it, as this test's may be.
    let child = command(&place, &["--", "sh", "-c", "kill -TSTP $$; exit 7"])
        .process_group(0)
        .spawn();
    let mut process = Process::new(child.expect("forebay runs"));
    let begun = Instant::now();
    while !is_stopped(process.id()) {
        assert!(begun.elapsed() < Duration::from_secs(30), "it goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    process.signal(Signal::CONT);
    let children = format!("/proc/{0}/task/{0}/children", process.id());
    let children = std::fs::read_to_string(children).expect("children");
    for child in children.split_whitespace() {
        let child = Pid::from_raw(child.parse().expect("a number")).expect("a process");
        let _ = kill_process(child, Signal::CONT);
    }
    assert_eq!(process.wait().0.code(), Some(7));
    await_end(&place);
}

#[test]
fn commands_that_start_at_once_share_one_keeper() {
    let place = Place::new("run-at-once");
    let started: Vec<_> = (0..4)
        .map(|_| {
            let mut command = command(&place, &["--", "cat"]);
            command.stdin(Stdio::piped()).spawn().expect("forebay runs")
        })
        .collect();
    let begun = Instant::now();
    let members = loop {
        let members = place.run(&["stat", "--session", &place.session, "--json"]);
        if members.code == 0 {
            let members = members.json()["sessions"][0]["members"].clone();
            // The four, and one daemon: those that came second have left again.
            if members["processes"].as_array().map(Vec::len) == Some(5) {
                break members;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{members:?}");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(members["keeper"].is_u64(), "{members}");
    for mut child in started {
        // It reads to the end: now.
        drop(child.stdin.take());
        assert!(child.wait().expect("ended").success());
    }
    await_end(&place);
}

#[test]
fn a_command_within_a_command_joins_the_same_session() {
    let place = Place::new("run-nested");
    let program = env!("CARGO_BIN_EXE_forebay");
    let inner = format!(
        "echo $FOREBAY__ARENA $LD_PRELOAD; {program} run -- sh -c 'echo $FOREBAY__ARENA $LD_PRELOAD'"
    );
    let ended = run(&place, &["--", "sh", "-c", &inner]);
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert_eq!((ended.code, lines.len()), (0, 2), "{ended:?}");
    assert_eq!(lines[0], lines[1]);
    await_end(&place);
}

#[test]
fn without_library_the_program_runs_plainly_or_not_at_all() {
    let place = Place::new("run-plain");
    let without = |require: &[&str]| {
        let all: Vec<_> = ["run"]
            .iter()
            .chain(require)
            .chain(&["--", "sh", "-c", "echo $LD_PRELOAD ran"])
            .copied()
            .collect();
        let output = place
            .forebay(&all)
            .env("FOREBAY_PRELOAD", place.file("nowhere.so"))
            .output();
        Run::of(output.expect("forebay runs"))
    };
    let plain = without(&[]);
    assert_eq!((plain.code, plain.stdout.as_str()), (0, "ran\n"));
    assert!(
        plain.stderr.contains("nowhere.so") && plain.stderr.contains("without Forebay"),
        "{plain:?}"
    );
    let required = without(&["--require"]);
    assert_eq!((required.code, required.stdout.as_str()), (125, ""));
    assert!(required.stderr.contains("nowhere.so"), "{required:?}");
    assert!(!place.arena().exists());
}

#[test]
fn without_a_session_the_program_runs_plainly_or_not_at_all() {
    let place = Place::new("run-no-session");
    // No arena can be where a file of the name is a directory.
    std::fs::create_dir_all(place.arena()).expect("a directory");
    use std::os::unix::fs::PermissionsExt;
    let parent = place.arena().parent().expect("a parent").to_owned();
    std::fs::set_permissions(&parent, std::fs::Permissions::from_mode(0o700)).expect("changed");
    let plain = run(&place, &["--", "echo", "ran"]);
    assert_eq!(
        (plain.code, plain.stdout.as_str()),
        (0, "ran\n"),
        "{plain:?}"
    );
    assert!(plain.stderr.contains("without Forebay"), "{plain:?}");
    let required = run(&place, &["--require", "--", "echo", "ran"]);
    assert_eq!(
        (required.code, required.stdout.as_str()),
        (125, ""),
        "{required:?}"
    );
}

/// A command that keeps a session alive, and who keeps it.
fn kept(place: &Place) -> (Process, Pid) {
    // Not killed at the end but told to stop: what it runs would live on.
    let command = command(place, &["--", "sleep", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let command = Process::new(command.expect("forebay runs"));
    let begun = Instant::now();
    let stat = ["stat", "--session", &place.session, "--json"];
    loop {
        let stat = place.run(&stat);
        let keeper = match stat.code {
            0 => stat.json()["sessions"][0]["members"]["keeper"].as_i64(),
            _ => None,
        };
        if let Some(keeper) = keeper.and_then(|pid| Pid::from_raw(pid as i32)) {
            return (command, keeper);
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "no session");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn end(place: &Place, mut command: Process) {
    command.signal(Signal::TERM);
    command.wait();
    await_end(place);
}

/// A program is killed with bytes in memory, and its file renamed: when the command has ended, the file has them.
#[test]
fn what_is_owed_is_on_the_device_when_the_command_ends() {
    let place = Place::new("run-drain");
    if !is_managed(place.files.path()) {
        return;
    }
    let (first, _) = kept(&place);
    let (file, renamed) = (place.file("file"), place.file("renamed"));
    let writer = writer::start(&place, &file, 1_000_000, false);
    std::fs::rename(&file, &renamed).expect("renamed");
    writer.kill();
    let ended = run(&place, &["--", "true"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    assert_eq!(
        std::fs::read(&renamed).expect("readable"),
        writer::pattern(1_000_000)
    );
    assert_eq!(place.dirty_bytes(), 0);
    end(&place, first);
}

/// Waits until the keeper has written what it writes of its own accord (whole blocks of a sequence): what a living keeper has in
/// flight nobody takes from it.
fn await_calm(place: &Place) {
    let (begun, mut calm, mut seen) = (Instant::now(), 0, place.dirty_bytes());
    while calm < 10 {
        assert!(begun.elapsed() < Duration::from_secs(20), "never calm");
        std::thread::sleep(Duration::from_millis(20));
        let now = place.dirty_bytes();
        calm = if now == seen { calm + 1 } else { 0 };
        seen = now;
    }
}

/// Stops a process. A signal reaches its threads one after the other: until the last of them has stopped, it works.
fn stop(process: Pid) {
    kill_process(process, Signal::STOP).expect("stopped");
    let begun = Instant::now();
    let runs = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.expect("a thread").path().join("stat"));
        // A thread that has ended meanwhile does not run. Its name, which stands before, may have spaces in it.
        stat.is_ok_and(|text| !text.rsplit(')').next().unwrap_or("").starts_with(" T"))
    };
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    while std::fs::read_dir(&tasks).expect("threads").any(runs) {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "it does not stop"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Of a keeper that is stopped.
fn assert_says_how_to_go_on(place: &Place) {
    let remedy = place.stat()["remedy"].as_str().map(str::to_owned);
    assert!(
        remedy
            .as_ref()
            .is_some_and(|text| text.contains("kill -CONT")),
        "{remedy:?}"
    );
    let doctor = place.run(&["--no-color", "doctor"]).stdout;
    assert!(doctor.contains("kill -CONT"), "{doctor}");
}

/// A program is killed beside a keeper that does nothing: the command flushes by itself, and says how much.
#[test]
fn a_command_drains_without_the_keeper() {
    let place = Place::new("run-drain-alone");
    if !is_managed(place.files.path()) {
        return;
    }
    let (first, keeper) = kept(&place);
    let file = place.file("file");
    let writer = writer::start(&place, &file, 1_000_000, false);
    await_calm(&place);
    stop(keeper);
    writer.kill();
    assert!(place.dirty_bytes() > 0);
    assert_says_how_to_go_on(&place);
    let report = place.file("report.json");
    let option = format!("--report={}", report.display());
    // A keeper that was stopped in the middle of something goes on after a while: then this fails, and does not wait for ever.
    let (done, over) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let late = over.recv_timeout(Duration::from_secs(40)).is_err();
        if late {
            let _ = kill_process(keeper, Signal::CONT);
        }
        late
    });
    let ended = run(&place, &[&option, "--json", "--", "true"]);
    let _ = done.send(());
    assert!(
        !watch.join().expect("a watch"),
        "it has waited for the keeper"
    );
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    assert_eq!(
        std::fs::read(&file).expect("readable"),
        writer::pattern(1_000_000)
    );
    let report = std::fs::read_to_string(&report).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((&report["schema"], &report["exit"]), (&1.into(), &0.into()));
    let written = report["session"]["device_write_bytes"].as_u64();
    assert!(written >= Some(1_000_000), "{report}");
    kill_process(keeper, Signal::CONT).expect("continued");
    end(&place, first);
}

/// Before the program runs, what a dead session of that name has left is saved, and told.
#[test]
fn a_report_that_cannot_be_written_changes_no_exit_code() {
    let place = Place::new("unwritten");
    let report = "--report=/dev/null/report";
    for (script, code) in [("exit 7", 7), ("exit 0", 1)] {
        let run = run(&place, &[report, "--", "sh", "-c", script]);
        assert_eq!(run.code, code, "{run:?}");
        assert!(
            run.stderr.contains("the report cannot be written"),
            "{run:?}"
        );
    }
    let run = command(&place, &[report, "--", "sh", "-c", "kill -TERM $$"]).output();
    let status = run.expect("forebay runs").status;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(15), "{status:?}");
    await_end(&place);
}

#[test]
fn what_a_dead_session_left_is_told() {
    let place = Place::new("run-recovers");
    if !is_managed(place.files.path()) {
        return;
    }
    let daemon = place.daemon(&[]);
    let file = place.file("file");
    let writer = writer::start(&place, &file, 1_000_000, false);
    // Nobody has the file any more, and nobody finds it.
    std::fs::rename(&file, place.file("renamed")).expect("renamed");
    daemon.kill();
    writer.kill();
    place.await_death();
    let ended = run(&place, &["--", "true"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(
        ended.stderr.contains("recovered") && ended.stderr.contains("kept aside"),
        "{ended:?}"
    );
    await_end(&place);
}

/// A shell's script that calls `forebay run` as `$F`; what it says.
fn script(place: &Place, script: &str) -> Run {
    let command = command(place, &[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).current_dir(place.file(""));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_str().expect("UTF-8"))
        .collect();
    shell.env("F", words.join(" "));
    Run::of(shell.output().expect("a shell"))
}

#[test]
fn a_daemon_has_nothing_of_whoever_has_started_it() {
    let place = Place::new("run-inherited");
    // The daemon stays for five seconds.
    let held = "flock lock ${F% 0.3} 5 -- true; flock -n lock echo free";
    assert_eq!(script(&place, held).stdout, "free\n");
    assert!(place.arena().exists(), "there is a daemon");
    let piped =
        "{ ${F% 0.3} 5 -- sh -c 'echo x >&3' 3>&1 >/dev/null; } | cat; flock -n lock echo free";
    assert_eq!(script(&place, piped).stdout, "x\nfree\n");
    await_end(&place);
}

#[test]
fn a_program_is_started_as_without_the_command() {
    let place = Place::new("run-started");
    let pipe = "trap '' PIPE; $F -- sh -c 'yes; echo $? >&2' | head -n 1";
    let ended = script(&place, pipe);
    assert!(ended.stderr.ends_with("1\n"), "{ended:?}");
    let pipe = "$F -- sh -c 'yes; echo $? >&2' | head -n 1";
    assert_eq!(script(&place, pipe).stderr, "141\n");
    for ignores in [true, false] {
        let first = if ignores {
            "env --ignore-signal=CHLD "
        } else {
            ""
        };
        let told = format!("{first}$F -- sed -n 's/SigIgn:.//p;$q7' /proc/self/status; echo $?");
        let ended = script(&place, &told);
        let said: Vec<_> = ended.stdout.lines().collect();
        let mask = u64::from_str_radix(said[0], 16).expect("a mask");
        assert_eq!(mask >> (libc::SIGCHLD - 1) & 1 == 1, ignores, "{ended:?}");
        // How the program has ended is known all the same.
        assert_eq!(said[1], "7");
    }
    for (fd, closed) in ["<&-", ">&-", "2>&-"].into_iter().enumerate() {
        let told = format!("$F -- sh -c '[ -e /proc/$$/fd/{fd} ] || : >closed{fd}' {closed}");
        script(&place, &told);
        assert!(place.file(&format!("closed{fd}")).exists(), "{closed}");
    }
}
