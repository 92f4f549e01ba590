//! Taking a slot and giving it back, interrupted.

use super::{Me, is_gone, release, take};
use crate::config::Config;
use crate::ids::ThreadId;
use crate::session::Session;
use crate::sim::crash_after;
use std::sync::Arc;

/// Whoever dies while it takes a slot, has one, or gives it back, is not taken for alive: nobody could ever recover such a session.
#[test]
fn who_dies_is_gone() {
    let mut finished = false;
    for step in 0.. {
        let session = Session::open(Config::tiny()).expect("a session");
        let arena = Arc::clone(&session.shared().arena);
        let mine = session.shared().me().expect("a slot").id;
        let theirs = Arc::clone(&arena);
        // A thread that ends without letting go, like one that is killed.
        let take_and_release = move || {
            let id = take(&theirs, true).expect("a slot");
            let arena = &*theirs;
            release(Me { arena, id });
        };
        let thread = std::thread::spawn(move || crash_after(step, take_and_release));
        finished = thread.join().expect("no panic").is_some();
        for id in (1..arena.counts().threads).map(ThreadId) {
            assert!(id == mine || is_gone(&arena, id), "died before step {step}");
        }
        if finished {
            break;
        }
    }
    assert!(finished);
}
