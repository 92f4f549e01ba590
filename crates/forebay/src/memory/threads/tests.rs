//! Taking a slot and giving it back, interrupted.

use super::{
    LIFE, LIFE_MASK, Me, TAKEN, await_operations, bury, dead, dead_of, is_dead, is_gone, release,
    slay, take,
};
use crate::config::Config;
use crate::ids::{FileId, ThreadId};
use crate::member::presence::has_keeper;
use crate::session::Session;
use crate::sim::crash_after;
use crate::sync::Ordering::Relaxed;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// A thread that dies while it takes a slot, has one, or gives it back, is not taken for alive: nobody could ever recover such a session.
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

/// A session with one slot that no living thread has: a free one, or that of a thread that has died.
/// Also another one, which is taken.
fn with_one_left(is_dead: bool) -> (Session, ThreadId) {
    let session = Session::open(Config::tiny()).expect("a session");
    let arena = &*session.shared().arena;
    let ids: Vec<_> = std::iter::from_fn(|| take(arena, false)).collect();
    let [other, .., id] = ids[..] else {
        panic!("too few")
    };
    release(Me { arena, id });
    if is_dead {
        let theirs = Arc::clone(&session.shared().arena);
        let thread = std::thread::spawn(move || take(&theirs, true));
        assert_eq!(thread.join().expect("no panic"), Some(id));
    }
    (session, other)
}

/// A slot that is lost is one for as long as the session lives, and programs with many threads are killed again and again.
#[test]
fn who_dies_leaves_the_slot_to_others() {
    for is_dead in [false, true] {
        let mut finished = false;
        let mut step = 0;
        while !finished {
            let (session, _) = with_one_left(is_dead);
            let arena = Arc::clone(&session.shared().arena);
            let theirs = Arc::clone(&arena);
            let take_and_release = move || {
                let id = take(&theirs, true).expect("a slot");
                let arena = &*theirs;
                release(Me { arena, id });
            };
            let thread = std::thread::spawn(move || crash_after(step, take_and_release));
            finished = thread.join().expect("no panic").is_some();
            let id = take(&arena, true);
            let id = id.unwrap_or_else(|| panic!("lost by a death before step {step}"));
            let arena = &*arena;
            release(Me { arena, id });
            step += 1;
        }
        assert!(step > 5);
    }
}

/// The same of a death in burying a thread.
#[test]
fn who_dies_burying_leaves_both_slots_to_others() {
    let mut finished = false;
    let mut step = 0;
    while !finished {
        let (session, other) = with_one_left(true);
        let arena = Arc::clone(&session.shared().arena);
        let [seen] = dead(&arena)[..] else {
            panic!("one has died")
        };
        release(Me {
            arena: &arena,
            id: other,
        });
        let theirs = Arc::clone(&arena);
        let thread = std::thread::spawn(move || {
            let id = take(&theirs, true).expect("a slot");
            let me = Me { arena: &theirs, id };
            crash_after(step, || bury(me, seen))
        });
        finished = thread.join().expect("no panic").is_some();
        let found = [(); 2].map(|()| take(&arena, true));
        assert!(
            found.iter().all(Option::is_some),
            "lost by a death before step {step}"
        );
        for id in found.into_iter().flatten() {
            release(Me { arena: &arena, id });
        }
        step += 1;
    }
    assert!(step > 3);
}

/// A session that nobody keeps, and one thread's slot.
fn unkept() -> (Session, ThreadId) {
    let session = Session::open(Config::tiny()).expect("a session");
    let mine = session.shared().me().expect("a slot").id;
    session.shared().arena.superblock().keeper.store(0, Relaxed);
    (session, mine)
}

/// The next one in the slot of a keeper that was killed does not keep: clients would wait for it, and no other would begin.
#[test]
fn who_is_buried_keeps_no_more() {
    let (session, mine) = unkept();
    let arena = &*session.shared().arena;
    let it = take(arena, false).expect("a slot");
    arena.superblock().keeper.store(it.0, Relaxed);
    assert!(has_keeper(arena));
    slay(arena, it);
    bury(Me { arena, id: mine }, dead_of(arena, it).expect("dead"));
    assert_eq!(take(arena, false), Some(it));
    assert!(!has_keeper(arena));
}

/// Somebody looks for the dead, and is slow: what one had is seen to, and the next in its slot dies with a lock.
#[test]
fn who_is_buried_is_the_one_that_was_looked_at() {
    let (session, mine) = unkept();
    let arena = &*session.shared().arena;
    let me = Me { arena, id: mine };
    let first = take(arena, false).expect("a slot");
    slay(arena, first);
    let [seen] = dead(arena)[..] else {
        panic!("one has died")
    };
    bury(me, seen);
    assert_eq!(take(arena, false), Some(first));
    slay(arena, first);
    bury(me, seen);
    assert!(is_dead(arena, first), "buried unseen");
    bury(me, dead_of(arena, first).expect("dead"));
    assert!(!is_dead(arena, first));
}

#[test]
fn who_inherits_a_slot_does_not_keep() {
    let (session, _) = unkept();
    let arena = Arc::clone(&session.shared().arena);
    let theirs = Arc::clone(&arena);
    let thread = std::thread::spawn(move || take(&theirs, true).expect("a slot"));
    let dead = thread.join().expect("no panic");
    arena.superblock().keeper.store(dead.0, Relaxed);
    while take(&arena, false).is_some() {}
    assert!(!has_keeper(&arena));
    assert_eq!(take(&arena, true), Some(dead));
    assert!(!has_keeper(&arena));
    release(Me {
        arena: &arena,
        id: dead,
    });
}

/// A recovery begins with declaring every slot dead, and then needs one.
#[test]
fn who_takes_a_slot_that_was_slain_lives() {
    let (session, _) = unkept();
    let arena = &*session.shared().arena;
    let free = take(arena, true).expect("a slot");
    release(Me { arena, id: free });
    slay(arena, free);
    assert_eq!(take(arena, true), Some(free));
    assert!(!is_dead(arena, free));
    assert_eq!(dead_of(arena, free), None);
    assert!(!is_gone(arena, free), "it has been buried alive");
    release(Me { arena, id: free });
}

/// A state that no thread has put there would be taken for a living thread's for ever: nobody could recover the session.
#[test]
fn a_state_without_a_thread_is_no_life() {
    let (session, mine) = unkept();
    let arena = &*session.shared().arena;
    let never = ThreadId(arena.counts().threads - 1);
    let used = take(arena, true).expect("a slot");
    release(Me { arena, id: used });
    for id in [never, used] {
        for life in [0, LIFE, 9 * LIFE, LIFE_MASK] {
            let slot = arena.thread(id).expect("a slot");
            slot.state.store(life | TAKEN, Relaxed);
            assert!(is_gone(arena, id) && is_dead(arena, id), "life {life:#x}");
            bury(Me { arena, id: mine }, dead_of(arena, id).expect("dead"));
            assert!(!is_dead(arena, id), "buried");
        }
    }
    assert!(!is_gone(arena, mine));
}

/// A recovery declares all dead that there are, and takes a slot then: should its thread wait for anything, it looks which threads are dead.
#[test]
fn who_takes_a_slot_once_all_are_dead_lives() {
    let (session, mine) = unkept();
    let arena = &*session.shared().arena;
    let all = (1..arena.counts().threads).map(ThreadId);
    all.filter(|&id| id != mine).for_each(|id| slay(arena, id));
    let next = take(arena, false).expect("a slot");
    assert!(!is_gone(arena, next));
    release(Me { arena, id: next });
}

/// A thread that waits for the operations that are under way waits for just these, and nobody for it.
#[test]
fn who_waits_for_operations_closes_no_gate() {
    let (session, mine) = unkept();
    let arena = &*session.shared().arena;
    let [at_work, waiting] = [(); 2].map(|()| Me {
        arena,
        id: take(arena, false).expect("a slot"),
    });
    let me = Me { arena, id: mine };
    assert!(await_operations(waiting));
    let file = FileId(0);
    let operation = at_work.enter(file).expect("no gate is closed");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let alone = await_operations(waiting);
            ended.store(true, SeqCst);
            alone
        });
        // It gives up after seconds, which so many turns may take on a busy machine.
        let begun = Instant::now();
        let turns = (0..2000).take_while(|_| begun.elapsed() < Duration::from_millis(300));
        turns.for_each(|_| {
            drop(me.enter(file).expect("no gate is closed"));
            std::thread::yield_now();
        });
        assert!(!ended.load(SeqCst), "somebody is in an operation still");
        operation.park();
        let begun = Instant::now();
        // One that goes from one operation to the next is seen in between.
        while !ended.load(SeqCst) {
            drop(me.enter(file).expect("no gate is closed"));
            assert!(begun.elapsed() < Duration::from_secs(60), "it waits on");
        }
        assert!(waits.join().expect("no panic"));
    });
}

/// Nothing tells of a thread in a frozen cgroup that it does not run.
#[test]
fn a_sync_waits_for_one_that_does_not_go_on_for_a_while_only() {
    let (session, mine) = unkept();
    let arena = &*session.shared().arena;
    let id = take(arena, false).expect("a slot");
    let (other, me) = (Me { arena, id }, Me { arena, id: mine });
    let file = FileId(0);
    let (end, ended) = channel::<()>();
    let (begin, begun) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            other.at_sync(file, || {
                begin.send(()).expect("somebody waits");
                let _ = ended.recv();
            });
        });
        begun.recv().expect("a sync");
        let waits = Instant::now();
        me.await_syncs(file);
        assert!(waits.elapsed() > Duration::from_secs(1));
        drop(end);
    });
}
