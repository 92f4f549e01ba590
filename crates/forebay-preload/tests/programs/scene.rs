//! A session, a directory, and programs that are started in them.

use std::fs::Metadata;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay::{Config, Session};

use crate::role;

/// The library, as cargo has built it for the tests of this package.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a test has a path");
    let beside = program.parent().expect("a directory");
    let library = beside.join("libforebay_preload.so");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// A session with a keeper in this process, and a directory for files on a file system that the engine manages.
pub struct Scene {
    pub session: Option<Session>,
    pub name: String,
    pub dir: tempfile::TempDir,
    pub small_file_bytes: u64,
    /// Its arena's file.
    arena: Option<PathBuf>,
}

impl Drop for Scene {
    /// A session whose keeper was killed or stopped has left its arena.
    fn drop(&mut self) {
        drop(self.session.take());
        if let Some(arena) = &self.arena {
            for path in [arena.clone(), arena.with_extension("sock")] {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Where files lie: the first directory of `FOREBAY_TEST_DIRS`, or beside the tests.
fn place() -> PathBuf {
    let named = std::env::var("FOREBAY_TEST_DIRS").unwrap_or_default();
    let first = named.split(':').find(|dir| !dir.is_empty());
    first.map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from)
}

pub fn config(name: &str) -> Config {
    let mut config = Config::builder().build().expect("defaults");
    config.manage_stores = true;
    config.memory = 32 << 20;
    config.dirty_bytes_max = 16 << 20;
    config.dirty_background = 8 << 20;
    // So long that what is seen outside is seen because of a close or a sync.
    config.flush_after = Some(Duration::from_secs(3600));
    config.flush_interval = Some(Duration::from_secs(3600));
    config.session = name.to_owned();
    // Tests have the keeper, or join, and look at what the device has.
    config.trusts_members = true;
    config
}

impl Scene {
    /// A new session; files are managed once `small_file_bytes` have been written.
    pub fn new(name: &str, small_file_bytes: u64) -> Self {
        Self::with(name, small_file_bytes, |_| {})
    }

    /// As [`Scene::new`], in a session that is configured so.
    pub fn with(name: &str, small_file_bytes: u64, configure: impl Fn(&mut Config)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("preload-{name}-{}-{number}", std::process::id());
        let mut config = config(&name);
        configure(&mut config);
        let session = Session::open(config).expect("a session");
        let arena = session.place().expect("a place").path;
        Scene {
            arena,
            session: Some(session),
            name,
            dir: tempfile::tempdir_in(place()).expect("a directory"),
            small_file_bytes,
        }
    }

    /// Ends the session, with whatever else is in it gone, and begins another one of its name.
    pub fn renew(&mut self) {
        drop(self.session.take());
        let arena = self.arena.as_deref();
        assert!(
            arena.is_none_or(|arena| !arena.exists()),
            "somebody is in it"
        );
        self.session = Some(Session::open(config(&self.name)).expect("a session"));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command under the library.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        // To the library these would be options that do not exist.
        let ours = std::env::vars_os().map(|(name, _)| name);
        for name in ours.filter(|name| name.as_encoded_bytes().starts_with(b"FOREBAY_TEST_")) {
            command.env_remove(name);
        }
        command
            .current_dir(self.dir.path())
            .env("LD_PRELOAD", library())
            .env("FOREBAY_SESSION", &self.name)
            .env("FOREBAY_MEMORY", "32MiB")
            .env(
                "FOREBAY_SMALL_FILE_BYTES",
                self.small_file_bytes.to_string(),
            )
            .env("FOREBAY_LARGE_FILE_BYTES", "0")
            .env("FOREBAY_CLOSE_BEHIND_BYTES", "1MiB")
            // What is tested is mostly what the engine does, however often it is asked to sync, and wherever writes go.
            .env("FOREBAY_KERNEL_AFTER_SYNCS", "0")
            .env("FOREBAY_KERNEL_AFTER_HOLES", "0")
            .env("FOREBAY_MANAGE_STORES", "true")
            .stdin(Stdio::null());
        command
    }

    /// This program under the library, in a role.
    pub fn role(&self, role: &str, argument: &str) -> Command {
        let mut command = self.command(std::env::current_exe().expect("a path"));
        command
            .args(["--exact", "role::run", "--nocapture", "--test-threads=1"])
            .env(role::ROLE, role)
            .env(role::ARGUMENT, argument)
            .env(role::DIR, self.dir.path());
        command
    }

    /// Runs a role to its end, which must be a good one. Returns what it has said.
    pub fn play(&self, role: &str, argument: &str) -> String {
        said(self.role(role, argument).output().expect("a program"))
    }

    pub fn start(&self, role: &str, argument: &str) -> Child {
        self.role(role, argument)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a program")
    }

    /// Bytes that the session's programs have put into memory so far: whether the engine had anything to do with it.
    pub fn bytes_to_memory(&self) -> u64 {
        let session = self.session.as_ref().expect("a session");
        session.stats().scrap_bytes
    }
}

/// What a program has said, if it has ended well.
pub fn said(output: Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{out}\n{errors}",
        output.status
    );
    out
}

pub fn now_ns() -> i128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("a time after 1970").as_nanos() as i128
}

pub fn mtime_ns(path: &Path) -> i128 {
    mtime_of(&std::fs::metadata(path).expect("a file"))
}

pub fn mtime_of(meta: &Metadata) -> i128 {
    i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
}

/// Tells whoever has started this program something ([`Teller`]), and waits for a word.
pub fn tell(what: std::fmt::Arguments<'_>) {
    println!("@{what}");
    std::io::stdout().flush().expect("output");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("input");
}

/// A program that tells of each step, and goes on when it is told to.
pub struct Teller {
    pub program: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Teller {
    pub fn start(mut command: Command) -> Self {
        let mut program = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program");
        let input = program.stdin.take().expect("input");
        let lines = BufReader::new(program.stdout.take().expect("output")).lines();
        Teller {
            program,
            input,
            lines,
        }
    }

    /// The next thing that it tells, word by word, and `read` understands. `None`: it has ended.
    pub fn next<T>(&mut self, read: impl Fn(&[&str]) -> Option<T>) -> Option<T> {
        let lines = self.lines.by_ref().map_while(Result::ok);
        lines
            .filter_map(|line| {
                let (_, told) = line.split_once('@')?;
                read(&told.split(' ').collect::<Vec<_>>())
            })
            .next()
    }

    pub fn go_on(&mut self) {
        let _ = writeln!(self.input);
    }
}

/// What a program outside the session sees. This process hosts the keeper, so that it is let in at once: of what has been closed, read again and closed it may
/// find less.
pub fn outside(path: &Path) -> Vec<u8> {
    let seen = Command::new("cat").arg(path).output().expect("a program");
    assert!(seen.status.success());
    seen.stdout
}
