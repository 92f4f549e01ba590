//! A keeper of which not all threads can be had.

use std::cell::Cell;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::config::{Coherence, Config};
use crate::error::{Result, SessionFault};
use crate::file::OpenOptions;
use crate::session::Session;
use crate::sync::Ordering;
use crate::sys::fanotify::Group;

/// Longer than any program waits that is not forgotten.
const LONG: Duration = Duration::from_secs(20);

thread_local! {
    /// How many of a keeper's threads the calling thread can still begin.
    static LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// Fails for the thread that is one too many.
pub(super) fn refuse() -> Result<()> {
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(1));
    match left {
        0 => Err(SessionFault::Unavailable.error("no more threads")),
        _ => Ok(()),
    }
}

/// Whether it ends by itself; ended it is in any case.
fn ends(mut child: Child) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < LONG {
        if child.try_wait().expect("a child").is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = (child.kill(), child.wait());
    false
}

/// For each thread that cannot be had: nothing is left of the others, and an outsider does not wait for a guard that is not there.
#[test]
fn a_keeper_that_cannot_begin_leaves_nothing_behind() {
    if let Err(why) = Group::new() {
        return forebay_model::skipped(format!("no permission events: {why}"));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config {
        heap_backed: false,
        coherence: Coherence::Strict,
        session: format!("unit-begins-{}", std::process::id()),
        ..Config::tiny()
    };
    let session = Session::join(config.clone()).expect("a session");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    for first in 0..7 {
        LEFT.set(first);
        assert!(Session::open(config.clone()).is_err(), "all but {first}");
        LEFT.set(u32::MAX);
        let superblock = session.shared().arena.superblock();
        assert!(!session.has_keeper(), "after {first} threads");
        assert_eq!(superblock.guard.load(Ordering::Acquire), 0);
        let path = dir.path().join(first.to_string());
        let file = session.open_file(&path, &options).expect("a file");
        if let Some(reason) = file.kernel_reason() {
            return forebay_model::skipped(format!("{}: {reason}", path.display()));
        }
        file.write_at(b"bytes", 0).expect("written");
        let outsider = Command::new("cat").arg(&path).stdout(Stdio::null()).spawn();
        assert!(ends(outsider.expect("cat")), "it hangs after {first}");
        file.close().expect("closed");
    }
    LEFT.set(7);
    drop(Session::open(config).expect("all seven"));
}
