//! The checker on arenas that agree and on arenas that were tampered with.

use super::check;
use crate::config::Config;
use crate::file::OpenOptions;
use crate::ids::{FrameId, HeaderId};
use crate::memory::regions::Owner;
use crate::session::Session;
use crate::sync::Ordering;

#[test]
fn a_new_session_is_in_order() {
    let session = Session::open(Config::tiny()).unwrap();
    let report = check(&session.shared().arena).unwrap();
    assert_eq!(report, super::Report::default());
}

#[test]
fn a_frame_without_a_header_is_named() {
    let session = Session::open(Config::tiny()).unwrap();
    let arena = &session.shared().arena;
    let owner = arena.frame_owner(FrameId(3)).unwrap();
    owner.store(Owner::Linked(HeaderId(9)).pack(), Ordering::Relaxed);
    let problems = check(arena).unwrap_err();
    assert!(problems[0].starts_with("frame 3 is Linked"), "{problems:?}");
}

#[test]
fn files_that_are_not_counted_are_named() {
    let session = Session::open(Config::tiny()).unwrap();
    let arena = &session.shared().arena;
    let entries = &arena.superblock().entries;
    let dir = tempfile::tempdir().unwrap();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = session.open_file(dir.path().join("a"), &options).unwrap();
    file.write_at(b"bytes", 0).unwrap();
    assert!(entries.load(Ordering::Relaxed) >= 1);
    check(arena).unwrap();
    let counted = entries.swap(0, Ordering::Relaxed);
    let problems = check(arena).unwrap_err();
    assert!(problems[0].starts_with("0 entries"), "{problems:?}");
    entries.store(counted, Ordering::Relaxed);
}
