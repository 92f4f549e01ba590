//! The checker on arenas that agree and on arenas that were tampered with.

use super::check;
use crate::config::Config;
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
