//! Sessions around which the system changes: their program is replaced, their arena removed, their processes count otherwise.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay::{Config, OpenOptions, Session};
use rustix::process::{Pid, Signal, kill_process};

use crate::doctor::{Stranger, stranger};
use crate::place::{Place, Process, Run, is_managed};
use crate::running::stand_in;
use crate::writer;

const BYTES: usize = 1_000_000;
const PATIENCE: Duration = Duration::from_secs(30);

fn is_soon(what: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if what() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// A command that runs `cat`, which has begun, and so has the session. It ends with the test, which has the other end.
fn begun(mut command: Command) -> Process {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = Process::new(pipes.spawn().expect("forebay runs"));
    run.say("begun\n");
    assert_eq!(run.first_line(), "begun\n");
    run
}

/// By which this process may be in the session.
fn config(place: &Place) -> Config {
    let mut config = Config::builder().build().expect("defaults");
    config.session = place.session.clone();
    config.arena_dir = Some(place.arenas.path().to_owned());
    config.memory = 32 << 20;
    config.dirty_bytes_max = 16 << 20;
    config.dirty_background = 8 << 20;
    config
}

/// The session's keeper, if there is one.
fn keeper(place: &Place) -> Option<Pid> {
    let run = place.run(&["stat", "--session", &place.session, "--json"]);
    let seen = (run.code == 0).then(|| run.json())?;
    let number = seen["sessions"][0]["members"]["keeper"].as_i64()?;
    Pid::from_raw(i32::try_from(number).ok()?)
}

fn state_of(process: Pid) -> Option<char> {
    let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
    let stat = std::fs::read_to_string(stat).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}

/// A program in namespaces of processes of its own, as their first one. `None`: this user may have none.
fn alone(place: &Place, arguments: &[&str]) -> Option<Command> {
    let words = ["--pid", "--fork", "--kill-child", "--mount-proc", "--"];
    let may = Command::new("unshare").args(words).arg("true").output();
    if !may.is_ok_and(|ended| ended.status.success()) {
        crate::here::skipped("no namespaces of processes (unshare)");
        return None;
    }
    let words: Vec<_> = words.iter().chain(arguments).copied().collect();
    Some(place.in_place(Command::new("unshare"), &words))
}

/// A package's new version takes the place of the program while it runs.
#[test]
fn a_keeper_is_followed_though_the_program_was_replaced() {
    let place = Place::new("replaced");
    let program = place.file("forebay");
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), &program).expect("a copy");
    let arguments = ["run", "--linger", "0.3", "--", "cat"];
    let mut command = place.in_place(Command::new(&program), &arguments);
    command.env("FOREBAY_PRELOAD", stand_in(&place));
    let run = begun(command);
    assert!(is_soon(|| keeper(&place).is_some()));
    let newer = place.file("newer");
    std::fs::copy("/bin/false", &newer).expect("a copy");
    std::fs::rename(&newer, &program).expect("replaced");
    let first = keeper(&place).expect("a keeper");
    kill_process(first, Signal::KILL).expect("it is there");
    let next = || keeper(&place).is_some_and(|next| next != first);
    assert!(is_soon(next), "nobody follows");
    run.kill();
}

/// It is not removed while its programs live, and of a dead one what it owes is not given up for nothing.
#[test]
fn a_session_of_another_build_is_told_alive_from_dead() {
    let place = Place::new("build");
    let daemon = place.daemon(&[]);
    let arena = std::fs::OpenOptions::new().write(true).open(place.arena());
    let arena = arena.expect("the arena");
    // The upper half of its first word is its build's.
    arena.write_all_at(&[1, 2, 3, 4], 4).expect("written");
    drop(arena);
    let told = || {
        let remedy = place.stat()["remedy"].as_str().unwrap_or("").to_owned();
        let doctor = place.run(&["doctor"]).stdout;
        let arena = place.arena().display().to_string();
        let lines = doctor.lines().skip_while(|line| !line.contains(&arena));
        let of_ours = lines.skip(1).find(|line| line.contains("remedy: "));
        [remedy, of_ours.expect("a remedy").to_owned()]
    };
    for text in told() {
        assert!(text.contains("end its programs first"), "{text}");
        assert!(!text.contains("remove"), "{text}");
    }
    daemon.kill();
    let is_alive = || told()[0].contains("end its programs first");
    assert!(is_soon(|| !is_alive()), "it is dead");
    for text in told() {
        assert!(text.contains("loses what it owes"), "{text}");
    }
}

/// As a login manager does when its user has logged out.
#[test]
fn a_session_whose_arena_is_removed_writes_everything_and_says_so() {
    let place = Place::new("nameless");
    if !is_managed(place.files.path()) {
        return;
    }
    let file = place.file("data");
    let mut daemon = place.daemon(&[]);
    let mut writer = writer::start(&place, &file, BYTES, false);
    std::fs::remove_file(place.arena()).expect("an arena");
    let line = daemon.first_line();
    assert!(line.contains("has been removed"), "{line}");
    let is_whole = || std::fs::read(&file).expect("the file") == writer::pattern(BYTES);
    assert!(is_soon(is_whole), "it is owed still");
    daemon.signal(Signal::TERM);
    let (status, stderr) = daemon.wait();
    assert_eq!(status.code(), Some(1), "{stderr}");
    let lives = format!("lives on in process {}", writer.id());
    assert!(stderr.contains(&lives), "{stderr}");
    writer.kill();
    assert!(is_whole());
}

#[test]
fn a_session_whose_arena_is_removed_manages_nothing_any_more() {
    let place = Place::new("unmanaged");
    if !is_managed(place.files.path()) {
        return;
    }
    let session = Session::open(config(&place)).expect("a session");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let path = place.file("first");
    let file = session.open_file(&path, &options).expect("a file");
    file.write_at(b"bytes", 0).expect("written");
    std::fs::remove_file(place.arena()).expect("an arena");
    assert!(is_soon(|| file.kernel_reason().is_some()), "it is managed");
    assert_eq!(std::fs::read(&path).expect("the file"), b"bytes");
    let other = session.open_file(place.file("second"), &options);
    let reason = other.expect("a file").kernel_reason();
    assert!(reason.is_some_and(|why| why.contains("removed")));
    drop(file);
}

/// Nobody else is in it, so nothing is left behind.
#[test]
fn a_daemon_whose_arena_is_removed_ends_well() {
    let place = Place::new("empty");
    let mut daemon = place.daemon(&[]);
    std::fs::remove_file(place.arena()).expect("an arena");
    assert!(daemon.first_line().contains("has been removed"));
    daemon.signal(Signal::TERM);
    let (status, stderr) = daemon.wait();
    assert!(status.success(), "{stderr}");
    assert!(stderr.contains("nothing is owed"), "{stderr}");
}

/// Whose arena has that name now has the socket beside it as well.
#[test]
fn a_session_of_the_name_of_one_that_lost_its_arena_keeps_its_socket() {
    let place = Place::new("again");
    let mut first = place.daemon(&[]);
    let socket = place.arena().with_extension("sock");
    assert!(socket.exists());
    std::fs::remove_file(&socket).expect("a socket");
    std::fs::remove_file(place.arena()).expect("an arena");
    assert!(first.first_line().contains("has been removed"));
    let mut second = place.daemon(&[]);
    first.signal(Signal::TERM);
    let (status, stderr) = first.wait();
    assert!(status.success(), "{stderr}");
    assert!(socket.exists(), "the other session's");
    second.signal(Signal::TERM);
    let (status, stderr) = second.wait();
    assert!(status.success(), "{stderr}");
    assert!(!socket.exists(), "its own");
}

#[test]
fn a_daemon_in_the_background_lets_its_caller_go_on() {
    let place = Place::new("background");
    let mut command = place.forebay(&["daemon", "--background", "--until-idle", "600"]);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let caller = Process::new(piped.spawn().expect("forebay runs"));
    let (status, stderr) = caller.wait();
    assert!(status.success(), "{stderr}");
    let line = format!("session {} ready, arena", place.session);
    assert!(stderr.contains(&line), "{stderr}");
    let daemon = keeper(&place).expect("a keeper");
    kill_process(daemon, Signal::TERM).expect("it is there");
    assert!(is_soon(|| !place.arena().exists()), "it does not end");
    let run = place.run(&["daemon", "--background", "--io-engine", "steam"]);
    assert_eq!(run.code, 2, "{run:?}");
}

/// Processes of two namespaces may have one number.
#[test]
fn a_daemon_stays_for_a_member_of_its_own_number() {
    let place = Place::new("numbers");
    let program = env!("CARGO_BIN_EXE_forebay");
    let daemon = |arguments: &[&str]| {
        let words: Vec<_> = [program, "daemon"]
            .iter()
            .chain(arguments)
            .copied()
            .collect();
        let mut command = alone(&place, &words)?;
        let child = command.stderr(Stdio::piped()).spawn();
        let mut daemon = Process::new(child.expect("a daemon"));
        let line = daemon.first_line();
        assert!(line.contains("ready"), "{line}");
        Some(daemon)
    };
    let Some(mut first) = daemon(&["--until-idle", "3"]) else {
        return;
    };
    // On a busy machine it would leave before the member comes; so this process is there until then.
    let other = Session::join(config(&place)).expect("the session");
    let second = daemon(&["--until-idle", "600"]).expect("namespaces");
    let (status, stderr) = second.wait();
    assert!(status.success(), "{stderr}");
    let mut member = daemon(&[]).expect("namespaces");
    let line = member.first_line();
    assert!(line.contains("keeps the session"), "{line}");
    drop(other);
    std::thread::sleep(Duration::from_secs(5));
    assert!(first.is_running(), "it has left a member alone");
    member.kill();
    let (status, stderr) = first.wait();
    assert!(status.success(), "{stderr}");
}

/// It has their ends to take, as nobody else has.
#[test]
fn the_first_process_leaves_no_dead_ones() {
    let place = Place::new("first");
    // On a busy machine one that has just ended may be there for a moment.
    let script = "(sleep 0.1 &)
        for look in $(seq 30); do
            sleep 1
            dead=$(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null)
            [ -n \"$dead\" ] || exit 7
        done
        echo \"$dead\"";
    let program = env!("CARGO_BIN_EXE_forebay");
    let arguments = [program, "run", "--linger", "0.3", "--", "sh", "-c", script];
    let Some(mut command) = alone(&place, &arguments) else {
        return;
    };
    command.env("FOREBAY_PRELOAD", stand_in(&place));
    let run = Run::of(command.output().expect("it runs"));
    assert_eq!((run.code, run.stdout.as_str()), (7, ""), "{run:?}");
}

/// Also where it is not the first: the daemons that it has started are its own.
#[test]
fn daemons_that_have_ended_are_gone() {
    let place = Place::new("ended");
    let mut command = place.forebay(&["run", "--linger", "0.3", "--", "cat"]);
    command.env("FOREBAY_PRELOAD", stand_in(&place));
    let run = begun(command);
    let mut last = None;
    for _ in 0..2 {
        let other = || keeper(&place).filter(|&now| Some(now) != last);
        assert!(is_soon(|| other().is_some()), "no keeper");
        let now = other().expect("a keeper");
        kill_process(now, Signal::KILL).expect("it is there");
        last = Some(now);
        assert!(is_soon(|| state_of(now).is_none()), "{:?}", state_of(now));
    }
    run.kill();
}

#[test]
fn signals_that_were_ignored_end_no_daemon() {
    let place = Place::new("ignored");
    let program = env!("CARGO_BIN_EXE_forebay");
    let script = format!("trap '' HUP INT; exec {program} daemon");
    let mut command = place.in_place(Command::new("sh"), &["-c", &script]);
    let child = command.stderr(Stdio::piped()).spawn();
    let mut daemon = Process::new(child.expect("a daemon"));
    assert!(daemon.first_line().contains("ready"));
    daemon.signal(Signal::HUP);
    daemon.signal(Signal::INT);
    std::thread::sleep(Duration::from_secs(1));
    assert!(daemon.is_running(), "it has ended");
    daemon.signal(Signal::TERM);
    let (status, stderr) = daemon.wait();
    assert!(status.success(), "{stderr}");
}

/// From now on a process of that user can start no thread, nor a process.
fn start_no_more(user: &Stranger, process: &mut Process) {
    let mut limit = user.program("prlimit".as_ref());
    limit.args(["--nproc=1:1", "--pid", &process.id().to_string()]);
    assert!(limit.status().expect("prlimit runs").success());
}

#[test]
fn where_no_thread_is_to_be_had_everything_is_written_all_the_same() {
    let place = Place::new("no-thread");
    let Some(mut user) = stranger(&place) else {
        return;
    };
    user.has_files(&place);
    let reaches = |program: &Path| {
        let mut command = user.program("test".as_ref());
        command.arg("-x").arg(program).status()
    };
    let is_reached = reaches(&writer::program()).is_ok_and(|status| status.success());
    if !is_managed(place.files.path()) || !is_reached {
        return crate::here::skipped("a stranger reaches no file that can be managed");
    }
    let mut daemon = user.forebay(&place, &["daemon".to_owned()]);
    let child = daemon.stderr(Stdio::piped()).spawn();
    let mut daemon = Process::new(child.expect("a daemon"));
    assert!(daemon.first_line().contains("ready"));
    let file = place.file("file");
    let program = user.program(&writer::program());
    let writer = writer::start_as(&place, program, &file, 1_000_000, false);
    let words = ["run", "--", "cat"].map(str::to_owned);
    let mut command = user.forebay(&place, &words);
    command.env("FOREBAY_PRELOAD", stand_in(&place));
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = pipes.stderr(Stdio::piped()).spawn();
    let mut run = Process::new(child.expect("forebay runs"));
    run.say("begun\n");
    assert_eq!(run.first_output(), "begun\n");
    start_no_more(&user, &mut run);
    run.hush();
    let (status, stderr) = run.wait();
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
    assert!(std::fs::read(&file).expect("the file") == writer::pattern(1_000_000));
    writer.kill();
    start_no_more(&user, &mut daemon);
    daemon.signal(Signal::TERM);
    let (status, stderr) = daemon.wait();
    assert!(status.success(), "{stderr}");
}

/// They come when the program has ended, and not everything is written yet.
#[test]
fn signals_that_were_ignored_do_not_end_the_last_of_a_command() {
    let place = Place::new("ignored-last");
    if !is_managed(place.files.path()) {
        return;
    }
    let daemon = place.daemon(&[]);
    let file = place.file("file");
    let writer = writer::start(&place, &file, 8_000_000, false);
    let program = env!("CARGO_BIN_EXE_forebay");
    let script = format!("trap '' HUP INT; exec {program} run -- sh -c 'echo $$; read x'");
    let mut command = place.in_place(Command::new("sh"), &["-c", &script]);
    command.env("FOREBAY_PRELOAD", stand_in(&place));
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = Process::new(pipes.spawn().expect("forebay runs"));
    let child = run.first_line().trim().parse().expect("a number");
    let child = Pid::from_raw(child).expect("a process");
    // It does not see the program's end before they are there.
    run.signal(Signal::STOP);
    run.say("go on\n");
    assert!(is_soon(|| state_of(child) == Some('Z')));
    run.signal(Signal::HUP);
    run.signal(Signal::INT);
    run.signal(Signal::CONT);
    let (status, stderr) = run.wait();
    assert!(status.success(), "{status:?}: {stderr}");
    assert!(std::fs::read(&file).expect("the file") == writer::pattern(8_000_000));
    writer.kill();
    daemon.kill();
}
