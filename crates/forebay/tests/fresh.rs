//! What others have changed while nobody of the session had it open.

mod here;

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use forebay::config::{Coherence, Route};
use forebay::device::DeviceFile;
use forebay::flush::Scope;
use forebay::frame::header::State;
use forebay::ids::{FileId, HeaderId, ThreadId};
use forebay::keeper::unfinished;
use forebay::member::again;
use forebay::memory::files::EXCEEDING;
use forebay::sync::Ordering::AcqRel;
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
    let core = file.core().expect("a managed file");
    let (id, device) = (core.id, core.device.clone());
    // In memory and on the device, so that the session goes on to know of it.
    file.sync_all().expect("written");
    file.close().expect("closed");
    std::fs::write(&path, [2; LEN / 2]).expect("changed");
    let shared = session.shared();
    let me = shared.me().expect("a slot");
    let mut flusher = shared.own_flusher();
    let outcome = shared.flush_with(&mut flusher, me, id, &device, Scope::some(16));
    assert_eq!((outcome.pages_written, outcome.errno), (0, None));
    let file = session.open_file(&path, &options).expect("a file");
    let mut bytes = vec![0; LEN];
    assert_eq!(file.read_at(&mut bytes, 0).expect("bytes"), LEN / 2);
    let odd = bytes[..LEN / 2].iter().position(|&byte| byte != 2);
    assert_eq!(odd, None, "bytes from before the change");
}

/// A file that nobody has open. Nobody hears of outsiders.
fn closed(path: &Path) -> (Session, FileId, Arc<dyn DeviceFile>) {
    let session = session(Coherence::Close);
    let file = session.open_file(path, &options()).expect("a file");
    assert_eq!(file.write_at(&[1; LEN], 0).expect("a write"), LEN);
    let core = file.core().expect("a managed file");
    let (id, device) = (core.id, core.device.clone());
    file.sync_all().expect("written");
    file.close().expect("closed");
    (session, id, device)
}

fn append(path: &Path) {
    let file = std::fs::OpenOptions::new().append(true).open(path);
    file.expect("the file")
        .write_all(b"more")
        .expect("appended");
}

/// As a repair marks a file that the dead have changed and that nobody has open.
fn leave_in_doubt(session: &Session, file: FileId) {
    let entry = session.shared().arena.file_unchecked(file);
    entry.begin_intent(ThreadId::NOBODY);
    entry.flags.fetch_or(EXCEEDING, AcqRel);
}

/// As a keeper does.
fn finish(session: &Session, file: FileId) {
    let shared = session.shared();
    again::adopt(shared, |id, _| id == file);
    unfinished::finish_unused_files(shared, shared.me().expect("a slot"));
    let entry = shared.arena.file_unchecked(file);
    assert!(!entry.lacks_length(), "it has been finished");
}

/// Nobody can tell whose doing it is that such a file is longer, and nobody made the outsider wait.
#[test]
fn what_an_outsider_appends_after_a_death_at_a_change_stays() {
    let dir = here::directory();
    let path = dir.path().join("a");
    let (session, id, _device) = closed(&path);
    append(&path);
    leave_in_doubt(&session, id);
    finish(&session, id);
    let found = std::fs::read(&path).expect("read");
    assert_eq!(found.len(), LEN + 4);
}

/// The same, where a program opens the file before a keeper has come to it.
#[test]
fn what_an_outsider_appends_after_a_death_is_there_for_who_opens_the_file() {
    let dir = here::directory();
    let path = dir.path().join("a");
    let (session, id, _device) = closed(&path);
    append(&path);
    leave_in_doubt(&session, id);
    let file = session.open_file(&path, &options()).expect("a file");
    assert_eq!(file.len().expect("a length"), LEN as u64 + 4);
    let mut end = [0; 8];
    assert_eq!(file.read_at(&mut end, LEN as u64).expect("bytes"), 4);
    assert_eq!(&end[..4], b"more");
    file.write_at(&[2; 10], 0).expect("a write");
    file.sync_all().expect("written");
    file.close().expect("closed");
    let found = std::fs::read(&path).expect("read");
    assert!(found.len() == LEN + 4 && found.ends_with(b"more"));
}

/// What a write that failed has left beyond the end goes, unless an outsider has come to the file since.
#[test]
fn what_an_outsider_appends_to_what_a_failed_write_has_left_stays() {
    for (appends, wanted) in [(false, LEN), (true, LEN + 5004)] {
        let dir = here::directory();
        let path = dir.path().join("a");
        let (session, id, device) = closed(&path);
        let shared = session.shared();
        let me = shared.me().expect("a slot");
        let left = || device.set_len(LEN as u64 + 5000);
        shared.change(me, id, &device, left).expect("longer");
        if appends {
            append(&path);
        }
        let entry = shared.arena.file_unchecked(id);
        entry.flags.fetch_or(EXCEEDING, AcqRel);
        finish(&session, id);
        let found = std::fs::read(&path).expect("read").len();
        assert_eq!(found, wanted, "an outsider appends: {appends}");
    }
}
