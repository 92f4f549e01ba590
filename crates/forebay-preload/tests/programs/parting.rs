//! Leaving the session while the calls fail that leaving takes: whoever is told that he has left has left, and who is told that he has not
//! loses nothing and may try again.
//!
//! `strace` makes calls fail. It is attached to a program that is about to leave, and counts from then on: not the loader's calls.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::rights::{LEN, descriptors, finish, half, shared_mappings};
use crate::scene::{Scene, said};
use crate::sys::*;

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    if role == "tries-to-leave" {
        tries_to_leave(argument, dir);
    }
    role == "tries-to-leave"
}

const READY: &str = "@ready";
const BEGINS: &str = "@leaves now";
/// How often it tries.
const TRIES: u32 = 4;

/// Leaves the session, and tries again where that fails. Where it is to fail `ever`, that is no mistake.
fn tries_to_leave(fails: &str, dir: &Path) {
    let before = descriptors(dir);
    let fd = half(dir, "file", 1);
    assert!(shared_mappings().len() >= 2, "it is in the session");
    // SAFETY: takes no memory. Where only parents may trace, anybody may trace this one.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    println!("{READY}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("input");
    // SAFETY: bytes of the program's.
    unsafe { libc::write(2, BEGINS.as_ptr().cast(), BEGINS.len()) };
    let mut has_left = false;
    for turn in 0..TRIES {
        // SAFETY: a string of the program's. Nobody has such a directory: what fails otherwise is what comes before.
        assert_eq!(unsafe { libc::chroot(c"/nowhere".as_ptr()) }, -1);
        let error = std::io::Error::last_os_error().raw_os_error();
        has_left = ![Some(libc::ENOMEM), Some(libc::EAGAIN)].contains(&error);
        if has_left {
            break;
        }
        // What it has open is as it was, and new files are had.
        assert_eq!(pread(fd, LEN, 0), Ok(pattern(1, LEN)[..LEN / 2].to_vec()));
        let other = half(dir, &format!("other{turn}"), 2);
        finish(other, 2);
    }
    if has_left {
        assert_eq!(shared_mappings(), [""; 0]);
        assert_eq!(descriptors(dir), before);
    }
    assert!(has_left || fails == "ever", "it never leaves");
    finish(fd, 1);
    println!("{}", if has_left { "@left" } else { "@stayed" });
}

/// What a process calls while it leaves, and what can fail with nothing done: a close that fails has closed.
const STEPS: [&str; 11] = [
    "mmap",
    "mremap",
    "munmap",
    "membarrier",
    "pwritev2",
    "statx",
    "ftruncate",
    "fcntl",
    "sendmsg",
    "poll",
    "recvmsg",
];

/// Whether a process has no thread that is not traced.
fn is_traced(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("threads");
    threads.flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        status.lines().any(|line| {
            line.strip_prefix("TracerPid:")
                .is_some_and(|tracer| tracer.trim() != "0")
        })
    })
}

/// `strace`, attached to a program. `None`: it cannot be.
fn attached(program: &Child, scene: &Scene, options: &[String]) -> Option<Child> {
    let mut tracer = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(scene.path("trace"))
        .args(options)
        .args(["-p", &program.id().to_string()])
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    while !is_traced(program.id()) {
        if tracer.try_wait().expect("a state").is_some() {
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Some(tracer)
}

/// What becomes of the program under `strace`, with these options of its own.
fn traced(scene: &Scene, fails: &str, options: &[String]) -> Option<Output> {
    let mut role = scene.role("tries-to-leave", fails);
    let role = role.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = role.stderr(Stdio::piped()).spawn().expect("a program");
    let mut output = BufReader::new(program.stdout.take().expect("output"));
    let mut line = String::new();
    while !line.ends_with(&format!("{READY}\n")) {
        line.clear();
        assert_ne!(output.read_line(&mut line).expect("output"), 0);
    }
    let tracer = attached(&program, scene, options);
    let mut input = program.stdin.take().expect("input");
    input.write_all(b"go\n").expect("input");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut output, &mut rest).expect("output");
    let mut ended = program.wait_with_output().expect("an end");
    ended.stdout = rest.into_bytes();
    tracer?.wait().expect("its end");
    Some(ended)
}

/// How many calls of each kind its thread makes before it begins to leave, and until it has: the kernel knows of the call only then.
fn steps(trace: &str) -> Vec<(&'static str, usize, usize)> {
    let thread_of = |line: &str| line.split(' ').next().map(str::to_owned);
    let begins = trace.lines().find(|line| line.contains(BEGINS));
    let thread = begins.and_then(thread_of);
    let own = trace.lines().filter(|line| thread_of(line) == thread);
    let own: Vec<_> = own.collect();
    let at = |what: &str| own.iter().position(|line| line.contains(what));
    let begins = at(BEGINS).expect("a beginning");
    let ends = at(" chroot(").expect("an end");
    let count = |lines: &[&str], step: &str| {
        let call = format!(" {step}(");
        lines.iter().filter(|line| line.contains(&call)).count()
    };
    let counts = |step: &&'static str| {
        let before = count(&own[..begins], step);
        (*step, before, count(&own[begins..ends], step))
    };
    STEPS.iter().map(counts).collect()
}

/// What the program has said, and that its file is whole.
fn said_whole(scene: &Scene, inject: &str, output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{inject}: {errors}");
    let bytes = fs::read(scene.path("file")).expect("a file");
    assert!(bytes == pattern(1, LEN), "{inject}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Each call that it makes while it leaves fails once. Either it has left all the same, or it is told, with nothing lost, and leaves when it
/// tries again.
#[test]
fn a_step_of_leaving_that_fails_leaves_nothing_behind() {
    let scene = Scene::new("steps", 0);
    let Some(output) = traced(&scene, "never", &[]) else {
        return crate::here::skipped("there is no strace, or nothing may be traced");
    };
    said(output);
    let trace = fs::read_to_string(scene.path("trace")).expect("a trace");
    let mut tried = 0;
    for (step, before, many) in steps(&trace) {
        // The first and the last of a kind, and all of those that memory is given up by.
        let is_memory = step.starts_with('m');
        for turn in (1..=many).filter(|&turn| is_memory || turn == 1 || turn == many) {
            let error = if is_memory { "ENOMEM" } else { "EAGAIN" };
            let inject = format!("inject={step}:error={error}:when={}", before + turn);
            let options = ["-e".to_owned(), inject.clone()];
            let output = traced(&scene, "once", &options).expect("a tracer");
            let said = said_whole(&scene, &inject, output);
            assert!(said.contains("@left"), "{inject}: {said}");
            tried += 1;
        }
    }
    assert!(tried > 10, "{tried} steps");
}

/// Where memory cannot be unmapped from some call on, something else takes its place, or the program is told that it has not left.
#[test]
fn who_cannot_unmap_is_not_told_that_he_has_left() {
    let scene = Scene::new("steps-ever", 0);
    let Some(output) = traced(&scene, "never", &[]) else {
        return crate::here::skipped("there is no strace, or nothing may be traced");
    };
    said(output);
    let trace = fs::read_to_string(scene.path("trace")).expect("a trace");
    let mut ends = Vec::new();
    for (step, before, many) in steps(&trace) {
        if !["mmap", "mremap", "munmap"].contains(&step) {
            continue;
        }
        for turn in 1..=many {
            let inject = format!("inject={step}:error=ENOMEM:when={}+", before + turn);
            let options = ["-e".to_owned(), inject.clone()];
            let output = traced(&scene, "ever", &options).expect("a tracer");
            ends.push((step, said_whole(&scene, &inject, output).contains("@left")));
        }
    }
    assert!(
        ends.contains(&("munmap", true)) && ends.contains(&("mmap", false)),
        "{ends:?}"
    );
}
