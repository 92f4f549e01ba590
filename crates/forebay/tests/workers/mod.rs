//! Worker processes for tests: this test program, started again, joins a session and does as it is told.
//!
//! A worker is the test `workers::worker` of the same program, run alone with [`SPEC`] in its environment. It tells
//! its progress on standard output, one line a step, each after the operation has returned; so what the lines say
//! is what was acknowledged, however the worker ends. Commands come on standard input.
//!
//! | line of a worker | meaning |
//! |---|---|
//! | `@ready` | it is in the session and its files are open |
//! | `@3` | operation 3 of its list has been acknowledged |
//! | `@at 3 4096` | append 3 was put at 4096 |
//! | `@ok ...` | the answer to a command |
//! | `@bad ...` | something is wrong, and it ends |
//! | `@end` | it has done everything and left |
#![allow(dead_code)]

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use forebay::memory::threads;
use forebay::sim::{self, Bug};
use forebay::{Config, OpenOptions, Session};
use forebay_model::{
    Driver, Op, Outcome, PartitionPlan, Profile, SplitMix64, Target, fill, from_lines, generate,
};
use serde::{Deserialize, Serialize};

use crate::common::{Engine, Store};

/// What a worker is to do, in its environment.
const SPEC: &str = "FOREBAY__TEST_WORKER";
/// How long a worker may take to answer. Generous: machines are small, devices slowed.
const PATIENCE: Duration = Duration::from_secs(90);

/// What a worker does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Work {
    /// Its part of a [`PartitionPlan`] for `workers` workers.
    Partition {
        seed: u64,
        workers: usize,
        me: usize,
        ops: usize,
    },
    /// A whole list of operations by itself.
    Alone { seed: u64, ops: usize },
    /// Appends records to file 0: each begins with its writer, number and length.
    Appends { me: usize, count: usize },
    /// Carries out operations that come on standard input, one a line.
    Commands { files: usize },
    /// Recovers an arena.
    Recover { path: PathBuf },
    /// Nothing, until its input ends.
    Rest,
    /// So many threads take slots and give them back, until it is killed.
    Slots { threads: usize },
    /// A thread that has a slot, and is not the first one, executes `sleep`.
    Execute,
    /// Does to file `me` whatever can be done, for so many milliseconds, whatever comes of it.
    Suffer { me: usize, seed: u64, ms: u64 },
}

/// A worker's orders.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Name of the session.
    pub session: String,
    /// Hosts a keeper (`Session::open`), or only joins.
    pub hosts: bool,
    /// Where the files are.
    pub dir: PathBuf,
    /// Where the arena is, if not in the usual place.
    pub arena_dir: Option<PathBuf>,
    /// What to do.
    pub work: Work,
    /// Memory and dirty limits other than the usual ones: the latter are half of the former.
    pub memory: Option<u64>,
    /// A planted bug, by name.
    pub planted: Option<String>,
    /// Dies as by `kill -9` before its so manieth shared access in a sync, or in its recovery.
    pub dies_at: Option<u64>,
}

thread_local! {
    /// The bug that workers started by this thread have.
    static PLANTED: RefCell<Option<String>> = const { RefCell::new(None) };
    /// Sessions that this thread has named.
    static NAMES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs `test` with a bug planted in this thread and in the workers that it starts; whether the test fails. Its sessions are gone afterwards.
pub fn is_found(bug: Bug, test: impl FnOnce()) -> bool {
    sim::plant(Some(bug));
    PLANTED.set(Some(format!("{bug:?}")));
    NAMES.take();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
    sim::plant(None);
    PLANTED.set(None);
    for session in NAMES.take() {
        let config = config(&session);
        let arena = arena_path(&config);
        let _ = std::fs::remove_file(arena.with_extension("sock"));
        let _ = std::fs::remove_file(arena);
        let _ = std::fs::remove_dir_all(config.kept_dir);
    }
    result.is_err()
}

impl Spec {
    /// A worker on files in `dir`.
    pub fn new(session: &str, dir: &Path, hosts: bool, work: Work) -> Self {
        Spec {
            session: session.to_owned(),
            hosts,
            dir: dir.to_owned(),
            arena_dir: None,
            work,
            memory: None,
            planted: PLANTED.with_borrow(Clone::clone),
            dies_at: None,
        }
    }
}

/// The configuration of test sessions: small, and quick to flush.
pub fn config(session: &str) -> Config {
    let mut config = Config::builder().build().expect("defaults");
    config.manage_stores = true;
    config.memory = 16 << 20;
    config.dirty_bytes_max = 8 << 20;
    config.dirty_background = 2 << 20;
    config.flush_after = Some(Duration::from_millis(5));
    config.flush_interval = Some(Duration::from_millis(20));
    config.session = session.to_owned();
    // Tests look at what the device has.
    config.trusts_members = true;
    config.kept_dir = std::env::temp_dir().join(format!("{session}-kept"));
    config
}

/// Puts what recoveries of a session have kept aside where it belongs, as somebody would who has compared; `place` says where a file
/// is now.
pub fn put_back(config: &Config, place: impl Fn(&Path) -> PathBuf) {
    use std::os::unix::fs::FileExt;
    let Ok(kept) = std::fs::read_dir(&config.kept_dir) else {
        return;
    };
    for path in kept.map(|entry| entry.expect("an entry").path()) {
        if path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a note");
        let note: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let runs: Vec<(u64, u64)> = serde_json::from_value(note["runs"].clone()).expect("runs");
        let kept = std::fs::File::open(path.with_extension("bytes")).expect("kept");
        let file = place(Path::new(note["path"].as_str().expect("text")));
        let file = std::fs::OpenOptions::new().write(true).open(file);
        let file = file.expect("the file");
        file.set_len(note["size"].as_u64().expect("a size"))
            .expect("its length");
        for (offset, len) in runs {
            let mut bytes = vec![0; len as usize];
            kept.read_exact_at(&mut bytes, offset).expect("all bytes");
            file.write_all_at(&bytes, offset).expect("written");
        }
    }
}

/// A session's name that no other test process uses.
pub fn session_name(what: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("test-{what}-{}-{count}", std::process::id());
    NAMES.with_borrow_mut(|names| names.push(name.clone()));
    name
}

/// Where a session's arena is or, where there is none, would be now.
pub fn arena_path(config: &Config) -> PathBuf {
    let dir = config.arena_dir.as_deref();
    let found = forebay::memory::place::dirs_of(dir, &config.session);
    found.first().map_or_else(
        || {
            let placement = forebay::memory::place::place(dir, config.memory).expect("a place");
            placement.arena_path(&config.session)
        },
        |dir| dir.arena_path(&config.session),
    )
}

/// The operations of a worker that works alone.
pub fn alone_ops(seed: u64, ops: usize) -> Vec<Op> {
    generate(seed, &ALONE, ops)
}

/// Everything that a file can be asked; two handles, so that not each reopening is the last close.
pub const ALONE: Profile = Profile {
    files: 2,
    handles: 2,
    ..Profile::TINY
};

/// The plan of workers that share files.
pub fn plan(seed: u64, workers: usize, ops: usize) -> PartitionPlan {
    PartitionPlan::new(seed, &Profile::PARTITION, workers, ops)
}

/// A record of [`Work::Appends`].
pub fn record(me: usize, index: usize) -> Vec<u8> {
    let sizes = [24, 100, 4096, 5000, 333, 70_000, 16, 1000];
    let len = sizes[(me * 3 + index) % sizes.len()];
    let mut bytes = vec![0; len];
    fill((me * 1_000_000 + index) as u32, 0, &mut bytes);
    for (at, word) in [me as u32, index as u32, len as u32]
        .into_iter()
        .enumerate()
    {
        bytes[at * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// A worker process.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    seen: Vec<String>,
}

/// What is left of a worker.
#[derive(Debug)]
pub struct Ended {
    /// All its lines.
    pub lines: Vec<String>,
    /// How it ended.
    pub status: ExitStatus,
}

impl Worker {
    /// Starts a worker.
    pub fn start(spec: &Spec) -> Worker {
        Self::start_with(spec, |_| {})
    }

    /// Starts a worker; `prepare` changes its command first.
    pub fn start_with(spec: &Spec, prepare: impl FnOnce(&mut Command)) -> Worker {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command
            .args([
                "workers::worker",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(SPEC, serde_json::to_string(spec).expect("plain values"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        prepare(&mut command);
        let mut child = command.spawn().expect("a worker can be started");
        let output = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut line = String::new();
            // A line that was cut short by a death was not acknowledged.
            while matches!(reader.read_line(&mut line), Ok(n) if n > 0) && line.ends_with('\n') {
                if let Some(at) = line.find('@') {
                    let _ = sender.send(line[at + 1..].trim_end().to_owned());
                }
                line.clear();
            }
        });
        let input = child.stdin.take();
        Worker {
            child,
            input,
            lines,
            seen: Vec::new(),
        }
    }

    /// Starts a worker and waits until it is in the session.
    pub fn ready(spec: &Spec) -> Worker {
        let mut worker = Self::start(spec);
        worker.await_ready();
        worker
    }

    /// Waits until it is in the session.
    pub fn await_ready(&mut self) {
        let mut line = self.next();
        if let Some(reason) = line.strip_prefix("kernel ") {
            eprintln!("worker {}: served by the kernel: {reason}", self.pid());
            line = self.next();
        }
        assert_eq!(line, "ready");
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets a worker that is ready begin.
    pub fn go(&mut self) {
        self.send("go");
    }

    fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{line}").expect("the worker reads");
    }

    /// The next line.
    pub fn next(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                assert!(!line.starts_with("bad"), "a worker says: {line}");
                self.seen.push(line.clone());
                line
            }
            Err(RecvTimeoutError::Timeout) => panic!("worker {} hangs", self.pid()),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                panic!("worker {} has ended: {status:?}", self.pid())
            }
        }
    }

    /// Has it carry out an operation that it may die of. Whether it lived.
    pub fn try_run(&mut self, op: &Op) -> bool {
        self.send(serde_json::to_string(op).expect("plain").as_str());
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                assert!(line.starts_with("ok "), "a worker says: {line}");
                true
            }
            Err(RecvTimeoutError::Timeout) => panic!("worker {} hangs", self.pid()),
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Has it carry out an operation; its answer as [`answer`] writes it.
    pub fn run(&mut self, op: &Op) -> String {
        self.send(serde_json::to_string(op).expect("plain").as_str());
        let line = self.next();
        line.strip_prefix("ok ").expect("an answer").to_owned()
    }

    /// Ends its input, and waits for its end no longer than this. `None`: it does not end.
    pub fn end_within(&mut self, time: Duration) -> Option<ExitStatus> {
        drop(self.input.take());
        let begun = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            if begun.elapsed() > time {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All that it has said so far.
    pub fn said(&mut self) -> &[String] {
        self.seen.extend(self.lines.try_iter());
        &self.seen
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for its end; all its lines.
    pub fn end(mut self) -> Ended {
        drop(self.input.take());
        let begun = Instant::now();
        loop {
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if begun.elapsed() > PATIENCE => {
                    let stacks = stacks(self.pid());
                    self.kill();
                    panic!("worker {} does not end\n{stacks}", self.pid());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        let status = self.child.wait().expect("a child");
        Ended {
            lines: std::mem::take(&mut self.seen),
            status,
        }
    }

    /// Waits for its end, which must be a good one.
    pub fn finish(self) -> Vec<String> {
        let ended = self.end();
        ended.assert_good();
        ended.lines
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the threads of a process are in the kernel, for messages about hangs.
pub fn stacks(pid: u32) -> String {
    let mut text = String::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        for file in ["comm", "wchan", "syscall"] {
            let read = std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            text += &format!("{} ", read.trim());
        }
        text.push('\n');
    }
    text
}

impl Ended {
    /// Operations of its list that were acknowledged.
    pub fn acknowledged(&self) -> usize {
        let last = self
            .lines
            .iter()
            .rev()
            .find_map(|line| line.parse::<usize>().ok());
        last.map_or(0, |index| index + 1)
    }

    /// Appends that were acknowledged: number and offset.
    pub fn appends(&self) -> Vec<(usize, u64)> {
        let append = |line: &String| {
            let mut words = line.strip_prefix("at ")?.split(' ');
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        };
        self.lines.iter().filter_map(append).collect()
    }

    /// It has done everything, or was killed.
    pub fn assert_good_or_killed(&self) {
        let bad = self.lines.iter().find(|line| line.starts_with("bad"));
        assert!(bad.is_none(), "a worker says: {bad:?}");
        let killed = self.status.signal() == Some(libc::SIGKILL);
        assert!(
            killed || self.status.success(),
            "a worker ended with {}",
            self.status
        );
    }

    /// It has done everything.
    pub fn assert_good(&self) {
        self.assert_good_or_killed();
        assert!(
            self.lines.last().is_some_and(|line| line == "end"),
            "a worker ended early, {}: {:?}",
            self.status,
            self.lines.last()
        );
    }
}

/// An outcome as one line.
pub fn answer(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Bytes(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{} bytes {hex}.", bytes.len())
        }
        other => format!("{other:?}"),
    }
}

/// The line for bytes that a seed has put at an offset.
pub fn bytes_of(seed: u32, offset: u64, len: usize) -> String {
    let mut bytes = vec![0; len];
    fill(seed, offset, &mut bytes);
    answer(&Outcome::Bytes(bytes))
}

fn say(line: &str) {
    // One system call, so that a line is whole or has not been said.
    let text = format!("@{line}\n");
    // SAFETY: the text is ours and as long as said.
    let written = unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
    if written != text.len() as isize {
        std::process::exit(3);
    }
}

fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    matches!(read, Ok(n) if n > 0).then(|| line.trim_end().to_owned())
}

/// The body of a worker process; no test at all without orders.
#[test]
fn worker() {
    let Ok(text) = std::env::var(SPEC) else {
        return;
    };
    let spec: Spec = serde_json::from_str(&text).expect("orders");
    let done = std::panic::catch_unwind(|| work(&spec));
    match done {
        Ok(Ok(())) => say("end"),
        Ok(Err(message)) => {
            say(&format!("bad {}", message.replace('\n', " | ")));
            std::process::exit(2);
        }
        Err(_) => {
            say("bad it panicked");
            std::process::exit(2);
        }
    }
}

fn work(spec: &Spec) -> Result<(), String> {
    if let Some(bug) = &spec.planted {
        sim::plant_everywhere(bug);
    }
    let mut config = config(&spec.session);
    config.arena_dir.clone_from(&spec.arena_dir);
    if let Some(memory) = spec.memory {
        config.memory = memory;
        config.dirty_bytes_max = memory / 2;
        config.dirty_background = memory / 4;
    }
    if let Work::Recover { path } = &spec.work {
        say("ready");
        hear();
        let report = or_die(spec.dies_at, || {
            forebay::keeper::recover::recover(path, &config)
        });
        let report = report.map_err(|e| e.to_string())?;
        say(&format!(
            "ok {}",
            serde_json::to_string(&report).expect("plain")
        ));
        return Ok(());
    }
    let session = if spec.hosts {
        Session::open(config)
    } else {
        Session::join(config)
    };
    let session = session.map_err(|e| e.to_string())?;
    match &spec.work {
        &Work::Partition {
            seed,
            workers,
            me,
            ops,
        } => {
            let plan = plan(seed, workers, ops);
            let engine = engine(session, spec, 2, 1);
            begin();
            plan.drive_worker(me, &mut Telling { engine, count: 0 })
                .map_err(|mismatch| mismatch.to_string())
        }
        &Work::Alone { seed, ops } => {
            let ops = alone_ops(seed, ops);
            let engine = engine(session, spec, 2, 2);
            begin();
            alone(&ops, engine)
        }
        &Work::Appends { me, count } => appends(&session, &spec.dir, me, count),
        &Work::Commands { files } => {
            commands(engine(session, spec, files, 1), spec.dies_at);
            Ok(())
        }
        Work::Recover { .. } => Ok(()),
        Work::Rest => {
            forebay::sim::expect_damage();
            begin();
            hear();
            Ok(())
        }
        &Work::Slots { threads } => take_turns(&session, threads),
        Work::Execute => execute(&session),
        &Work::Suffer { me, seed, ms } => suffer(&session, &spec.dir, me, seed, ms),
    }
}

fn begin() {
    say("ready");
    hear();
}

/// The engine of a worker; all its files are managed, or none of them, by what the file system can do.
fn engine(session: Session, spec: &Spec, files: usize, handles: usize) -> Engine {
    let engine = Engine::over(session, Store::Dir(spec.dir.clone()), files, handles);
    let reason = engine.handle(0, 0).kernel_reason();
    for file in 0..files as u8 {
        let other = engine.handle(file, 0).kernel_reason();
        assert_eq!(other, reason, "why the kernel serves file {file}");
    }
    if let Some(reason) = reason {
        say(&format!("kernel {reason}"));
    }
    engine
}

fn alone(ops: &[Op], mut engine: Engine) -> Result<(), String> {
    let mut driver = Driver::for_ops(ops);
    for (index, op) in ops.iter().enumerate() {
        driver
            .step(op, &mut engine)
            .map_err(|mismatch| mismatch.to_string())?;
        say(&index.to_string());
    }
    driver
        .finish(&mut engine)
        .map_err(|mismatch| mismatch.to_string())
}

fn appends(session: &Session, dir: &Path, me: usize, count: usize) -> Result<(), String> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    let file = session
        .open_file(dir.join("file-0"), &options)
        .map_err(|e| e.to_string())?;
    begin();
    for index in 0..count {
        let bytes = record(me, index);
        let offset = file.append(&bytes).map_err(|e| e.to_string())?;
        say(&format!("at {index} {offset}"));
        let mut back = vec![0; bytes.len()];
        let read = file.read_at(&mut back, offset).map_err(|e| e.to_string())?;
        if read != bytes.len() || back != bytes {
            return Err(format!("append {index} at {offset} reads back differently"));
        }
    }
    file.close().map_err(|e| e.to_string())
}

fn take_turns(session: &Session, count: usize) -> Result<(), String> {
    let arena = &*session.shared().arena;
    let take_turns = || {
        loop {
            if let Some((id, _)) = threads::take_for_good(arena, true) {
                threads::release(threads::Me { arena, id });
            }
        }
    };
    std::thread::scope(|scope| {
        begin();
        (0..count).for_each(|_| drop(scope.spawn(take_turns)));
    });
    Ok(())
}

fn execute(session: &Session) -> Result<(), String> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            session.shared().me().map_err(|e| e.to_string())?;
            begin();
            Err(Command::new("sleep").arg("600").exec().to_string())
        });
        thread.join().expect("no panic")
    })
}

fn suffer(session: &Session, dir: &Path, me: usize, seed: u64, ms: u64) -> Result<(), String> {
    const WINDOW: u64 = 3 << 20;
    forebay::sim::expect_damage();
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let path = dir.join(format!("file-{me}"));
    let open = || session.open_file(&path, &options);
    let mut file = open().map_err(|e| e.to_string())?;
    begin();
    let mut dice = SplitMix64::new(seed);
    let mut bytes = vec![0; 600_000];
    let (begun, mut done, mut refused) = (Instant::now(), 0, 0);
    while begun.elapsed() < Duration::from_millis(ms) {
        let longest = [100, 5000, 600_000][dice.below(3) as usize];
        let (offset, len) = (dice.below(WINDOW), 1 + dice.below(longest) as usize);
        let result = match dice.below(40) {
            0..16 => file.write_at(&bytes[..len], offset).map(drop),
            16..30 => file.read_at(&mut bytes[..len], offset).map(drop),
            30..32 => file.append(&bytes[..len.min(5000)]).map(drop),
            32 => file.set_len(offset),
            33 => file.punch(offset, len as u64),
            34 => file.sync_data(),
            35 => file.sync_all(),
            36 => file.flush(),
            37 => file.len().map(drop),
            38 => file.view(offset..offset + len as u64).map(drop),
            _ => open().map(|new| {
                let _ = std::mem::replace(&mut file, new).close();
            }),
        };
        done += u32::from(result.is_ok());
        refused += u32::from(result.is_err());
    }
    say(&format!("ok {done} done, {refused} refused"));
    let _ = file.close();
    Ok(())
}

/// Dies in the middle, if it is to.
fn or_die<T>(at: Option<u64>, what: impl FnOnce() -> T) -> T {
    let Some(at) = at else { return what() };
    if let Some(done) = sim::crash_after(at, what) {
        return done;
    }
    // SAFETY: a call without memory; it does not return.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    std::process::abort()
}

fn commands(mut engine: Engine, dies_at: Option<u64>) {
    say("ready");
    while let Some(line) = hear() {
        let op = from_lines(&line).expect("an operation").remove(0);
        let outcome = match op {
            Op::SyncAll { .. } | Op::SetLen { .. } | Op::Append { .. } => {
                or_die(dies_at, || engine.run(&op))
            }
            _ => engine.run(&op),
        };
        say(&format!("ok {}", answer(&outcome)));
    }
}

/// An engine that tells each operation that has returned.
struct Telling {
    engine: Engine,
    count: usize,
}

impl Target for Telling {
    fn run(&mut self, op: &Op) -> Outcome {
        let outcome = self.engine.run(op);
        // Failed ones are not acknowledged; the one who drives ends with them, or the model expects them.
        say(&self.count.to_string());
        self.count += 1;
        outcome
    }
}
