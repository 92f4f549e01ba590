//! Limits and pressure in a real memory cgroup of version 1 or 2.
//!
//! Making a cgroup needs root and a hierarchy with the memory controller; without, the test is skipped. The test runs itself again inside the cgroup.

mod here;

use forebay::limits::BLOCK_BYTES;
use forebay::memory::cgroup::{Pressure, System, Watch, available, headroom};
use forebay::{Config, OpenOptions, Session};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 128 * MIB;
/// Set in the process that runs in the cgroup.
const INSIDE: &str = "FOREBAY__TEST_LIMITED";

/// A cgroup that goes away with this value.
struct Group(PathBuf);

impl Group {
    /// Makes a cgroup with a limit; an error message where that cannot be done.
    fn new(limit: u64) -> Result<Self, String> {
        let version_1 = Path::new("/sys/fs/cgroup/memory");
        let (top, file) = if version_1.is_dir() {
            (version_1, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = top.join(format!("forebay-test-{}-{number}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let group = Self(dir);
        group.write(file, &limit.to_string())?;
        Ok(group)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.0.join(file);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Runs a test of this program again in a cgroup of its own. How it has ended; `None` where no cgroup can be made.
fn run_inside(test: &str, limit: u64) -> Option<ExitStatus> {
    let group = match Group::new(limit) {
        Ok(group) => group,
        Err(why) => {
            here::skipped(format!("no memory cgroup can be made ({why})"));
            return None;
        }
    };
    // The shell joins the cgroup and becomes the test: nothing else of this process moves.
    let join = format!(
        "echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"",
        group.0.display()
    );
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(join)
        .arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--include-ignored"]);
    let status = command.env(INSIDE, "1").status().unwrap();
    drop(group);
    Some(status)
}

#[test]
fn a_real_cgroup_limits_and_presses() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    if let Some(status) = run_inside("a_real_cgroup_limits_and_presses", LIMIT) {
        assert!(status.success(), "{status}");
    }
}

/// Of a session and a program that takes memory, together.
const SHARED_LIMIT: u64 = 512 * MIB;
const CACHED: u64 = 300 * MIB;
/// More than is left beside two thirds of that.
const TAKEN: u64 = 350 * MIB;

#[test]
#[ignore = "by the clock: a keeper that gets no time for a third of a second is too late"]
fn clean_memory_goes_before_a_program_is_killed() {
    if std::env::var_os(INSIDE).is_some() {
        return take_what_is_cached();
    }
    let test = "clean_memory_goes_before_a_program_is_killed";
    if let Some(status) = run_inside(test, SHARED_LIMIT) {
        assert!(status.success(), "{status}");
    }
}

fn backed(session: &Session) -> u32 {
    let superblock = session.shared().arena.superblock();
    superblock
        .frames_backed
        .load(forebay::sync::Ordering::Relaxed)
}

fn take_what_is_cached() {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = CACHED + 32 * MIB;
    config.session = format!("test-limits-{}", std::process::id());
    let memory = config.memory;
    let session = Session::open(config).expect("a session");
    // A thread that finds none free makes room in place of what is clean, where the keeper is late with more.
    session.warm(memory).expect("memory");
    let dir = here::directory();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = session
        .open_file(dir.path().join("a"), &options)
        .expect("a file");
    // So small that none goes past memory.
    let some = [7; 4096];
    for at in (0..CACHED).step_by(some.len()) {
        assert_eq!(file.write_at(&some, at).expect("written"), some.len());
    }
    file.sync_all().expect("synced");
    let before = backed(&session);
    let held = u64::from(before) * BLOCK_BYTES as u64;
    assert!(held > CACHED / 3 * 2, "{before} frames");
    // 200 MiB in a second: slow enough for a busy machine, and too fast for who looks twice a second.
    let mut taken = Vec::new();
    for _ in 0..TAKEN / MIB {
        taken.push(vec![1u8; MIB as usize]);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::hint::black_box(&taken);
    println!("{before} frames, then {}", backed(&session));
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, CACHED / 2).expect("read"), 1);
    assert_eq!(byte, [7]);
}

fn inside() {
    let limits = available();
    assert_eq!(
        (limits.total_bytes, limits.cgroup_limit),
        (LIMIT, Some(LIMIT)),
        "{limits:?}"
    );
    assert!(limits.source.contains("forebay-test-"), "{limits:?}");
    assert!(headroom().unwrap() < LIMIT);
    let mut watch = Watch::new(System::here());
    assert_eq!(watch.pressure(), Pressure::None);
    let most = vec![1u8; (LIMIT * 8 / 10) as usize];
    std::hint::black_box(&most);
    assert!(
        matches!(watch.pressure(), Pressure::Some(_)),
        "{:?}",
        watch.pressure()
    );
    let nearly_all = vec![1u8; (LIMIT * 16 / 100) as usize];
    std::hint::black_box(&nearly_all);
    assert_eq!(watch.pressure(), Pressure::High);
    assert!(headroom().unwrap() < LIMIT / 10);
}
