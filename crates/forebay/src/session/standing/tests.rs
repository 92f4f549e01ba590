//! Who waits for whom, and for how long.

use std::sync::Arc;

use super::*;
use crate::config::Config;
use crate::session::Session;

const FILE: (u64, u64) = (7, 4711);
/// Of no test's: files with other numbers.
const OTHER: (u64, u64) = (7, FILE.1 + NEWCOMERS as u64);

/// A session whose arena stays for good: threads' lists of robust mutexes lead into it.
fn session() -> (Session, &'static Arena) {
    let session = Session::open(Config::tiny()).expect("a session");
    let arena = Box::leak(Box::new(Arc::clone(&session.shared().arena)));
    (session, arena)
}

fn call(arena: &'static Arena, file: (u64, u64)) -> Call<'static> {
    thread_local! {
        static MINE: Place = Place::default();
    }
    MINE.with(|place| begin(arena, place, file))
}

#[test]
fn nobody_manages_a_file_beside_a_call_however_long_that_takes() {
    let (session, arena) = session();
    let me = session.shared().me().expect("a slot");
    assert!(Newcomer::come(me, FILE.1).is_some(), "nobody is there");
    let slow = call(arena, FILE);
    // Waited for in vain, and then not for long.
    assert!(Newcomer::come(me, FILE.1).is_none(), "a call is under way");
    assert!(standers::find(arena.superblock(), FILE.1).is_some_and(|call| call.is_in_vain()));
    assert!(Newcomer::come(me, FILE.1).is_none(), "it still is");
    assert!(Newcomer::come(me, OTHER.1).is_some(), "not on this file");
    drop(slow);
    assert!(Newcomer::come(me, FILE.1).is_some(), "none is");
}

/// A call within a call, by a handler of the thread's, leaves what the other says as it is.
#[test]
fn a_call_within_a_call_is_seen_as_well() {
    let (session, arena) = session();
    let me = session.shared().me().expect("a slot");
    let outer = call(arena, FILE);
    let hash = reached::hash(OTHER.0, OTHER.1);
    let before = reached::look(arena.superblock(), hash);
    let inner = call(arena, OTHER);
    assert!(before.has_grown(arena.superblock(), hash));
    assert!(reached::look(arena.superblock(), hash).is_reached());
    drop(inner);
    assert!(!reached::look(arena.superblock(), hash).is_reached());
    assert!(
        Newcomer::come(me, FILE.1).is_none(),
        "the outer one is under way"
    );
    drop(outer);
    assert!(Newcomer::come(me, FILE.1).is_some());
}

#[test]
fn the_dead_are_not_waited_for() {
    let (session, arena) = session();
    let me = session.shared().me().expect("a slot");
    let died = std::thread::spawn(move || std::mem::forget(call(arena, FILE)));
    died.join().expect("an end");
    let find = || standers::find(arena.superblock(), FILE.1).is_some();
    // The kernel marks the record when the thread has ended for libc.
    let begun = Instant::now();
    while find() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    assert!(!find() && Newcomer::come(me, FILE.1).is_some());
    // Its record is the next one's.
    let end = arena.superblock().standers_end.load(Ordering::SeqCst);
    let next = std::thread::spawn(move || drop(call(arena, FILE)));
    next.join().expect("an end");
    assert_eq!(arena.superblock().standers_end.load(Ordering::SeqCst), end);
}

#[test]
fn a_call_waits_for_a_newcomer_that_lives_and_not_for_ever() {
    let (session, arena) = session();
    let me = session.shared().me().expect("a slot");
    let newcomer = Newcomer::come(me, FILE.1).expect("nobody is there");
    // The maker of the entry takes long: it sees afterwards that somebody has gone past it.
    let hash = reached::hash(FILE.0, FILE.1);
    let before = reached::look(arena.superblock(), hash);
    let past = call(arena, FILE);
    assert!(before.has_grown(arena.superblock(), hash));
    drop(past);
    let before = reached::look(arena.superblock(), hash);
    drop(newcomer);
    drop(call(arena, FILE));
    assert!(!before.has_grown(arena.superblock(), hash));
}

#[test]
fn nobody_waits_for_a_newcomer_that_has_died() {
    let (session, arena) = session();
    let me = session.shared().me().expect("a slot");
    let superblock = arena.superblock();
    let dead = threads::take(arena, false).expect("a slot");
    let word = word(superblock, FILE.1);
    word.store(dead.0, Ordering::SeqCst);
    threads::slay(arena, dead);
    let hash = reached::hash(FILE.0, FILE.1);
    let before = reached::look(superblock, hash);
    drop(call(arena, FILE));
    assert_eq!(word.load(Ordering::SeqCst), 0);
    assert!(!before.has_grown(superblock, hash), "it was waited for");
    // The repair opens it as well: its slot is another's then.
    word.store(dead.0, Ordering::SeqCst);
    crate::keeper::repair::if_needed(session.shared(), me);
    assert_eq!(word.load(Ordering::SeqCst), 0);
}
