//! A place for one test: directories, the program, daemons and writers in it. What a test starts ends with it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Place {
    /// Directory for arenas, on a memory file system.
    pub arenas: TempDir,
    /// Directory for files, on a disk where there is one.
    pub files: TempDir,
    /// Name of the session, unlike any other test's.
    pub session: String,
}

/// How mounts are to get their requests, where the test does not say: `FOREBAY_TEST_RING`, such as `always` for all of them by io_uring.
fn rings(arguments: &[&str]) -> Vec<String> {
    match std::env::var("FOREBAY_TEST_RING") {
        Ok(ring) if arguments.contains(&"mount") && !arguments.contains(&"--ring") => {
            vec!["--ring".to_owned(), ring]
        }
        _ => Vec::new(),
    }
}

impl Place {
    pub fn new(name: &str) -> Self {
        let dir = |parent: &str| {
            tempfile::Builder::new()
                .prefix("forebay-cli-")
                .tempdir_in(parent)
                .expect("a directory")
        };
        Self {
            arenas: dir("/dev/shm"),
            files: dir(env!("CARGO_TARGET_TMPDIR")),
            session: format!("test-{name}-{}", std::process::id()),
        }
    }

    /// The program, in an environment that says nothing but where this test's things are.
    pub fn forebay(&self, arguments: &[&str]) -> Command {
        self.in_place(Command::new(env!("CARGO_BIN_EXE_forebay")), arguments)
    }

    /// A program with the environment of [`Place::forebay`].
    pub fn in_place(&self, mut command: Command, arguments: &[&str]) -> Command {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FOREBAY") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .args(rings(arguments))
            .env_remove("NO_COLOR")
            .env("HOME", self.files.path())
            .env("XDG_CONFIG_HOME", self.files.path().join("config"))
            .env("XDG_STATE_HOME", self.files.path().join("state"))
            // Whatever pools this machine has.
            .env("FOREBAY_POOLS", self.files.path().join("pools"))
            .env("FOREBAY_ARENA_DIR", self.arenas.path())
            .env("FOREBAY_SESSION", &self.session)
            .env("FOREBAY_MEMORY", "32MiB")
            .env("FOREBAY_FLUSH_INTERVAL", "never")
            .env("FOREBAY_FLUSH_AFTER", "never");
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Run {
        Run::of(self.forebay(arguments).output().expect("forebay runs"))
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// This test's arena.
    pub fn arena(&self) -> PathBuf {
        let user = forebay::memory::place::dir::user_id();
        let name = format!("forebay-{user}/{}.arena", self.session);
        self.arenas.path().join(name)
    }

    /// A daemon that has said that it is ready.
    pub fn daemon(&self, arguments: &[&str]) -> Process {
        let all: Vec<_> = ["daemon"].iter().chain(arguments).copied().collect();
        let mut command = self.forebay(&all);
        let child = command.stderr(Stdio::piped()).spawn().expect("a daemon");
        let mut process = Process { child: Some(child) };
        let line = process.first_line();
        assert!(line.contains("ready"), "{line}");
        process
    }

    /// What a daemon, or a writer that takes its part, has started for itself ends a moment after it, and is in the session until then.
    pub fn await_death(&self) {
        let begun = Instant::now();
        while self.stat()["state"] != "dead" && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What `stat --json` says of this test's session.
    pub fn stat(&self) -> Value {
        let run = self.run(&["stat", "--session", &self.session, "--json"]);
        assert_eq!(run.code, 0, "{run:?}");
        run.json()["sessions"][0].clone()
    }

    pub fn dirty_bytes(&self) -> u64 {
        self.stat()["stats"]["dirty_bytes"]
            .as_u64()
            .expect("a number")
    }
}

/// A finished run of the program.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A program that runs beside the test, and is killed with it.
pub struct Process {
    child: Option<Child>,
}

impl Process {
    pub fn new(child: Child) -> Self {
        Self { child: Some(child) }
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("still running")
    }

    pub fn id(&mut self) -> u32 {
        self.child().id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child().try_wait().expect("a child").is_none()
    }

    /// The first line of its standard error or, where that is not taken, of its standard output.
    pub fn first_line(&mut self) -> String {
        let child = self.child();
        let mut line = String::new();
        // Read byte by byte, so that nothing of the next line is swallowed.
        let source: &mut dyn Read = match &mut child.stderr {
            Some(stderr) => stderr,
            None => child.stdout.as_mut().expect("taken"),
        };
        BufReader::with_capacity(1, source)
            .read_line(&mut line)
            .expect("readable");
        line
    }

    /// As [`Process::first_line`], of its standard output.
    pub fn first_output(&mut self) -> String {
        let stderr = self.child().stderr.take();
        let line = self.first_line();
        self.child().stderr = stderr;
        line
    }

    /// Ends its standard input.
    pub fn hush(&mut self) {
        drop(self.child().stdin.take());
    }

    /// On its standard input.
    pub fn say(&mut self, text: &str) {
        let input = self.child().stdin.as_mut().expect("piped");
        input.write_all(text.as_bytes()).expect("it reads");
    }

    pub fn signal(&mut self, signal: Signal) {
        let pid = Pid::from_child(self.child());
        kill_process(pid, signal).expect("the process is there");
    }

    /// Its end, and the rest of its standard error.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let mut child = self.child.take().expect("still running");
        let begun = Instant::now();
        while child.try_wait().expect("a child").is_none() {
            if begun.elapsed() > PATIENCE {
                let _ = child.kill();
                panic!("it does not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().expect("ended");
        (
            output.status,
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("the process is there");
            child.wait().expect("ended");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether files of this directory can be managed; says so where not, and then there is nothing to test.
pub fn is_managed(dir: &Path) -> bool {
    use std::os::fd::AsFd;
    let file = tempfile::tempfile_in(dir).expect("a file");
    match forebay::device::RealFile::reopen(file.as_fd()) {
        Ok(_) => true,
        Err(reason) => {
            crate::here::skipped(format!("{}: {reason}", dir.display()));
            false
        }
    }
}
