//! What outsiders see after a close, a sync, and the end of a program; and descriptors that are not to be had.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::deaths::keeper_process;
use crate::scene::Scene;
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
const BLOCK: usize = 100_000;

/// Tells the test how far it is, and waits for its word.
fn step(name: &str) {
    println!("@{name}");
    std::io::stdout().flush().expect("output");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("input");
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    let a = dir.join("a");
    match role {
        "outsiders" => {
            let fd = open(&a, RDWR).expect("open");
            write(fd, &pattern(1, BLOCK)).expect("write");
            step("written");
            // SAFETY: takes no memory.
            assert_eq!(unsafe { libc::fsync(fd) }, 0);
            step("synced");
            write(fd, &pattern(2, BLOCK)).expect("write");
            close(fd).expect("close");
            step("closed");
            let fd = open(&a, libc::O_WRONLY | libc::O_APPEND).expect("open");
            write(fd, &pattern(3, BLOCK)).expect("write");
        }
        "quits" => {
            let fd = open(&a, RDWR).expect("open");
            write(fd, &pattern(1, BLOCK)).expect("write");
            // SAFETY: ends the program at once.
            unsafe { libc::_exit(0) };
        }
        // A child, which has one thread.
        "leaves-open" => assert_eq!(in_child(|| leave_open(argument, dir)), 0),
        "few-descriptors" => {
            leave_descriptors(argument.parse().expect("a number"));
            let mut open_files = Vec::new();
            while let Ok(fd) = open(&dir.join(format!("f{}", open_files.len())), RDWR) {
                let number = open_files.len() as u8;
                for turn in 0..3 {
                    write(fd, &pattern(number ^ turn, BLOCK)).expect("write");
                }
                open_files.push(fd);
            }
            println!("@{}", open_files.len());
            for (number, fd) in open_files.iter().enumerate() {
                for turn in 0..3u8 {
                    let at = i64::from(turn) * BLOCK as i64;
                    assert_eq!(
                        pread(*fd, BLOCK, at),
                        Ok(pattern(number as u8 ^ turn, BLOCK))
                    );
                }
                close(*fd).expect("close");
            }
        }
        _ => return false,
    }
    true
}

/// Writes a program in two parts, and ends: the descriptor that it has not closed is its own, or the one of its output.
fn leave_open(how: &str, dir: &Path) {
    let program = std::fs::read("/bin/true").expect("a program");
    let (first, rest) = program.split_at(3000);
    let path = c(&dir.join("exe"));
    // SAFETY: a string of ours, and bytes that stay.
    unsafe {
        let mut fd = libc::open(
            path.as_ptr(),
            libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
            0o755,
        );
        assert_eq!(write(fd, first), Ok(first.len()));
        if how.starts_with("output") {
            assert_eq!(libc::dup2(fd, 1), 1);
            close(fd).expect("close");
            fd = 1;
        }
        assert_eq!(write(fd, rest), Ok(rest.len()));
        if how.ends_with("at-once") {
            libc::_exit(0);
        }
        libc::exit(0);
    }
}

/// Lets this process have as many descriptors more than it has inherited: how many those are is the affair of whoever runs the test.
fn leave_descriptors(more: usize) {
    // SAFETY: asks whether there is such a descriptor.
    let is_free = |fd: &i32| unsafe { libc::fcntl(*fd, libc::F_GETFD) } == -1;
    let last = (0..).filter(is_free).nth(more - 1).expect("a free number");
    set_limit(libc::RLIMIT_NOFILE, last as u64 + 1, last as u64 + 1);
}

#[test]
fn outsiders_see_what_is_closed_or_synced() {
    let scene = Scene::new("outsiders", 0);
    let mut program = scene
        .role("outsiders", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a program");
    let mut input = program.stdin.take().expect("input");
    let mut lines = BufReader::new(program.stdout.take().expect("output")).lines();
    let mut await_step = |name: &str| {
        loop {
            let line = lines.next().expect("a line").expect("text");
            if line.ends_with(&format!("@{name}")) {
                return;
            }
        }
    };
    let seen = || std::fs::read(scene.path("a")).expect("a file").len();
    await_step("written");
    assert_eq!(seen(), 0, "it is in memory only");
    writeln!(input).expect("go on");
    await_step("synced");
    assert_eq!(seen(), BLOCK);
    writeln!(input).expect("go on");
    await_step("closed");
    assert_eq!(seen(), 2 * BLOCK);
    writeln!(input).expect("go on");
    assert!(program.wait().expect("an end").success());
    // The end of a program closes what it has left open.
    assert_eq!(seen(), 3 * BLOCK);
}

#[test]
fn a_program_that_quits_has_closed_its_files() {
    let scene = Scene::new("quits", 0);
    let status = scene.role("quits", "").status().expect("a program");
    assert!(status.success() && scene.bytes_to_memory() > 0);
    for _ in 0..12_000 {
        if std::fs::read(scene.path("a")).expect("a file") == pattern(1, BLOCK) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("nobody has written what it left");
}

#[test]
fn few_descriptors() {
    let scene = Scene::new("few", 0);
    let opens = |more: usize| -> usize {
        let said = scene.play("few-descriptors", &more.to_string());
        assert!(
            std::fs::read(scene.path("f0"))
                .expect("a file")
                .starts_with(&pattern(0, BLOCK))
        );
        let count = said.split_once('@').and_then(|(_, it)| it.lines().next());
        count.expect("a number").parse().expect("a number")
    };
    // So few that the program would miss the engine's: its files are the kernel's.
    assert_eq!(opens(9), 9);
    assert_eq!(scene.bytes_to_memory(), 0);
    // With some more, the engine has three for each file, and nine.
    let many = opens(80);
    assert!((17..80).contains(&many), "{many}");
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn what_a_program_has_left_open_can_be_executed() {
    let mut scene = Scene::new("left-open", 0);
    // By itself: what other tests fork here would have its descriptors for a moment.
    drop(scene.session.take());
    let mut keeper = keeper_process(&scene.name);
    let mut failed = Vec::new();
    for how in ["at-once", "in-order", "output-at-once", "output-in-order"] {
        for round in 0..10 {
            let writer = scene.role("leaves-open", how);
            let mut shell = scene.command("/bin/sh");
            let shell = shell.args(["-c", r#""$0" "$@" >said && ./exe"#]);
            let shell = shell.arg(writer.get_program()).args(writer.get_args());
            let set = writer.get_envs();
            let shell = shell.envs(set.filter_map(|(name, value)| Some((name, value?))));
            if !shell.status().expect("a shell").success() {
                failed.push((how, round, "in the session"));
            }
            scene.play("leaves-open", how);
            let outside = std::process::Command::new(scene.path("exe")).status();
            if !outside.is_ok_and(|status| status.success()) {
                failed.push((how, round, "outside"));
            }
        }
    }
    keeper.kill().expect("a keeper");
    keeper.wait().expect("its end");
    assert!(failed.is_empty(), "{} failed: {failed:?}", failed.len());
}
