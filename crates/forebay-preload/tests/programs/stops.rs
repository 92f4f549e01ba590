//! Programs that are stopped (SIGSTOP) at moments that nobody has chosen, and others that work on other files meanwhile: those end.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay::member::table;
use forebay::memory::threads;
use forebay::sys::liveness;
use forebay_model::{SplitMix64, fresh_seed};

use crate::scene::Scene;
use crate::sys::*;

const LEN: usize = 300_000;
/// Generous: it only has to be less than for ever.
const LONG: Duration = Duration::from_secs(60);

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    match role {
        "busy" => loop {
            at_work(dir, argument);
        },
        "bystander" => {
            let fd = open(&dir.join(argument), libc::O_RDWR | libc::O_CREAT).expect("open");
            let bytes = pattern(5, LEN);
            assert_eq!(write(fd, &bytes), Ok(LEN));
            assert!(pread(fd, LEN, 0) == Ok(bytes), "what it has written");
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::fsync(fd) }, 0);
            assert_eq!(write(fd, &pattern(6, 5000)), Ok(5000));
            close(fd).expect("close");
        }
        "waits" => waits(dir, argument == "handled"),
        _ => return false,
    }
    true
}

static HEARD: AtomicU32 = AtomicU32::new(0);

extern "C" fn hear(_: i32) {
    HEARD.fetch_add(1, Ordering::SeqCst);
}

/// Writes to a file that somebody else stops meanwhile, and says so.
fn waits(dir: &Path, handles: bool) {
    if handles {
        // SAFETY: a handler that only counts.
        unsafe { libc::signal(libc::SIGUSR1, hear as *const () as libc::sighandler_t) };
    }
    let fd = open(&dir.join("held"), libc::O_RDWR | libc::O_CREAT).expect("open");
    assert_eq!(write(fd, &pattern(1, LEN)), Ok(LEN));
    say("managed");
    std::io::stdin()
        .read_line(&mut String::new())
        .expect("input");
    say("begins");
    assert_eq!(pwrite(fd, &pattern(2, LEN), 0), Ok(LEN));
    say(&format!("heard {}", HEARD.load(Ordering::SeqCst)));
    close(fd).expect("close");
}

fn say(what: &str) {
    println!("@{what}");
    std::io::stdout().flush().expect("output");
}

/// A little of everything that takes locks, gates and the table.
fn at_work(dir: &Path, name: &str) {
    let path = dir.join(format!("{name}-f"));
    let flags = libc::O_RDWR | libc::O_CREAT;
    let fd = open(&path, flags).expect("open");
    for turn in 0..4 {
        pwrite(fd, &pattern(turn, 6000), i64::from(turn) * 100_000).expect("a write");
        pread(fd, 5000, 0).expect("a read");
    }
    let log = open(&path, flags | libc::O_APPEND).expect("open");
    write(log, &pattern(1, 3000)).expect("an append");
    // SAFETY: these take no memory.
    unsafe {
        assert_eq!(libc::fdatasync(fd), 0);
        assert_eq!(libc::ftruncate(fd, 200_000), 0);
    }
    close(log).expect("close");
    close(fd).expect("close");
    let other = dir.join(format!("{name}-new"));
    let fd = open(&other, flags).expect("open");
    write(fd, &pattern(2, 40_000)).expect("a write");
    close(fd).expect("close");
    std::fs::remove_file(&other).expect("removed");
}

fn signal(program: &Child, signal: i32) {
    // SAFETY: takes no memory; a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(program.id() as i32, signal) }, 0);
}

fn wait_for(what: &str, mut look: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !look() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Killed when the test is over, however that ends.
struct Busy(Child);

impl Busy {
    fn start(scene: &Scene, name: &str) -> Self {
        let busy = Busy(scene.start("busy", name));
        let file = scene.path(&format!("{name}-f"));
        wait_for("it does not begin", || file.exists());
        busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stops a busy program again and again, kills another meanwhile now and then, and has a third work on a file of its own.
fn stop_at_random(rounds: u32) {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = SplitMix64::new(seed);
    let scene = Scene::new("stops", 0);
    let stopped = Busy::start(&scene, "stopped");
    for round in 0..rounds {
        let mut killed = (round % 3 == 2).then(|| Busy::start(&scene, "killed"));
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        signal(&stopped.0, libc::SIGSTOP);
        let process = stopped.0.id();
        wait_for("it runs on", || liveness::is_stopped(process));
        drop(killed.take());
        let name = format!("other{round}");
        let begun = Instant::now();
        let mut other = scene.start("bystander", &name);
        while other.try_wait().expect("a look").is_none() && begun.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(2));
        }
        let is_over = other.try_wait().expect("a look").is_some();
        signal(&stopped.0, libc::SIGCONT);
        if !is_over {
            let _ = other.kill();
        }
        let output = other.wait_with_output().expect("an end");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            is_over,
            "round {round}: it waits for a program that is stopped"
        );
        assert!(output.status.success(), "round {round}: {said}");
        let mut wanted = pattern(5, LEN);
        wanted.extend(pattern(6, 5000));
        let bytes = std::fs::read(scene.path(&name)).expect("a file");
        assert!(bytes == wanted, "round {round}: bytes");
    }
}

#[test]
fn programs_at_other_files_end_while_one_is_stopped() {
    stop_at_random(6);
}

/// A call that waits for somebody who is stopped is as one of the kernel's that waits for a disk: what kills the program does, and a handler
/// runs when the call is over.
#[test]
fn a_call_that_waits_for_whoever_is_stopped_can_be_killed() {
    for (how, signals) in [
        ("plain", [libc::SIGTERM].as_slice()),
        ("plain", &[libc::SIGINT]),
        ("handled", &[libc::SIGUSR1, libc::SIGKILL]),
        ("handled", &[libc::SIGUSR1]),
    ] {
        let scene = Scene::new("stuck", 0);
        let mut role = scene.role("waits", how);
        let mut program = role
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program");
        let mut lines = BufReader::new(program.stdout.take().expect("output")).lines();
        let mut hears = |what: &str| {
            let mut lines = lines.by_ref().map_while(Result::ok);
            assert!(lines.any(|line| line.ends_with(what)), "{how}: {what}");
        };
        hears("@managed");
        let shared = scene.session.as_ref().expect("a session").shared();
        let seen = scene.path("held").metadata().expect("a file");
        let file = table::find(&shared.arena, seen.dev(), seen.ino()).expect("a known file");
        let stop = threads::stop_file(shared.me().expect("a slot"), file).expect("it is alone");
        drop(program.stdin.take());
        hears("@begins");
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        for &number in signals {
            signal(&program, number);
        }
        let last = *signals.last().expect("one");
        if last == libc::SIGUSR1 {
            std::thread::sleep(Duration::from_millis(50));
            assert!(program.try_wait().expect("a look").is_none(), "it goes on");
            drop(stop);
            hears("@heard 1");
            assert!(program.wait().expect("an end").success());
        } else {
            wait_for("it does not end", || {
                program.try_wait().expect("a look").is_some()
            });
            println!("signal {last}: ended after {:?}", begun.elapsed());
            assert_eq!(program.wait().expect("an end").signal(), Some(last));
        }
    }
}

#[test]
#[ignore = "minutes"]
fn programs_at_other_files_end_however_often_one_is_stopped() {
    stop_at_random(1000);
}
