//! Those who wait, as the guard's two threads see them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use super::{Guard, Waiting, arrivals, locked};
use crate::config::{Coherence, Config};
use crate::ids::FileId;
use crate::session::Session;
use crate::session::shared::Shared;
use crate::sys::fanotify::{self, Group};
use crate::sys::inotify::Watcher;

/// A session whose arena is a file, which nobody outside can come to.
fn session(name: &str, coherence: Coherence) -> Session {
    let config = Config {
        heap_backed: false,
        coherence,
        session: format!("unit-{name}-{}", std::process::id()),
        ..Config::tiny()
    };
    Session::open(config).expect("a session")
}

/// `None`: those who open files cannot be made to wait here.
fn gate() -> Option<Group> {
    Group::new()
        .inspect_err(|why| forebay_model::skipped(format!("no permission events: {why}")))
        .ok()
}

/// A guard that sees to nobody by itself.
fn guard(shared: &Shared, gate: Option<Group>) -> Guard {
    let bell = Watcher::new().expect("a watcher");
    Guard::over(&shared.arena, gate, bell).expect("a guard")
}

/// Somebody who waits for a file, of whom the kernel knows nothing.
fn waits(file: FileId, inode: (u64, u64)) -> Waiting {
    let nothing: OwnedFd = std::fs::File::open("/dev/null").expect("nothing").into();
    let event = fanotify::Event {
        file: nothing,
        thread: 0,
    };
    Waiting {
        event: arrivals::Told {
            event,
            inode: None,
            record: None,
        },
        file,
        inode,
        since: Instant::now(),
        least: 0,
    }
}

/// The guard's thread looks through those who wait while the worker lets some of them in.
#[test]
fn nobody_who_waits_is_out_of_sight() {
    let session = session("sight", Coherence::Close);
    let shared = session.shared();
    let Some(gate) = gate() else { return };
    let guard = guard(shared, Some(gate));
    let ended = AtomicBool::new(false);
    let mine = FileId(1);
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                guard.admit(shared, |_| false);
            }
        });
        let seen = (0..20_000).all(|_| {
            locked(&guard.waiting).push(waits(mine, (0, 0)));
            let is_seen = guard.has_waiting();
            guard.admit(shared, |who| who.file == mine);
            is_seen && !guard.has_waiting()
        });
        ended.store(true, Relaxed);
        seen
    });
    assert!(seen, "somebody who waits was not seen");
}
