//! What others have changed while nobody of the session had it open.

mod here;

use std::sync::Barrier;
use std::time::Duration;

use forebay::config::{Coherence, Route};
use forebay::flush::Scope;
use forebay::frame::header::State;
use forebay::ids::{FileId, HeaderId};
use forebay::{Config, OpenOptions, Session};

const LEN: usize = 300_000;

/// All writes go to its memory.
fn session(coherence: Coherence) -> Session {
    let config = Config {
        memory: 32 << 20,
        route: Route::Scrap,
        coherence,
        ..Config::tiny()
    };
    Session::open(config).expect("a session")
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

/// A keeper that evicts, and a reader that has come late, lock a header for a moment: its bytes go all the same.
#[test]
fn what_somebody_is_looking_at_is_dropped_as_well() {
    let dir = here::directory();
    let path = dir.path().join("a");
    let session = session(Config::tiny().coherence);
    let options = options();
    let file = session.open_file(&path, &options).expect("a file");
    assert_eq!(file.write_at(&[1; LEN], 0).expect("a write"), LEN);
    file.close().expect("closed");
    std::fs::write(&path, [2; LEN + 1]).expect("changed");
    let arena = &session.shared().arena;
    let held = Barrier::new(2);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let me = session.shared().me().expect("a slot");
            let _operation = me.enter(FileId(0)).expect("an operation");
            let linked = (0..arena.counts().headers)
                .map(HeaderId)
                .find(|&id| arena.header(id).is_some_and(|h| h.state() == State::Linked));
            let linked = linked.expect("the file is in memory");
            let header = arena.header(linked).expect("a header");
            let _guard = header.lock(me, linked).expect("nobody else has it");
            held.wait();
            // Whoever opens the file comes by while this lasts, or finds nothing held: right is either.
            std::thread::sleep(Duration::from_millis(300));
        });
        held.wait();
        let file = session.open_file(&path, &options).expect("a file");
        let mut bytes = vec![0; LEN + 1];
        assert_eq!(file.read_at(&mut bytes, 0).expect("bytes"), LEN + 1);
        let odd = bytes.iter().position(|&byte| byte != 2);
        assert_eq!(odd, None, "bytes from before the change");
    });
}

/// Whoever is short of memory has all files written that his process has; one that owes nothing is not changed by that.
#[test]
fn a_flush_of_nothing_does_not_hide_a_change() {
    let dir = here::directory();
    let path = dir.path().join("a");
    // Nobody tells of changes.
    let session = session(Coherence::Close);
    let options = options();
    let file = session.open_file(&path, &options).expect("a file");
    assert_eq!(file.write_at(&[1; LEN], 0).expect("a write"), LEN);
    let device = file.core().expect("a managed file").device.clone();
    // In memory and on the device, so that the session goes on to know of it.
    file.sync_all().expect("written");
    file.close().expect("closed");
    std::fs::write(&path, [2; LEN / 2]).expect("changed");
    let shared = session.shared();
    let me = shared.me().expect("a slot");
    let mut flusher = shared.own_flusher();
    let outcome = shared.flush_with(&mut flusher, me, FileId(0), &device, Scope::some(16));
    assert_eq!((outcome.pages_written, outcome.errno), (0, None));
    let file = session.open_file(&path, &options).expect("a file");
    let mut bytes = vec![0; LEN];
    assert_eq!(file.read_at(&mut bytes, 0).expect("bytes"), LEN / 2);
    let odd = bytes[..LEN / 2].iter().position(|&byte| byte != 2);
    assert_eq!(odd, None, "bytes from before the change");
}
