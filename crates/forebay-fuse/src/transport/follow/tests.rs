//! Where threads go, and that they are there: the latter by a mount of this kernel's, which needs root.

use std::collections::BTreeSet;
use std::sync::mpsc::channel;

use rustix::fs::statvfs;

use super::*;
use crate::transport::mounted::{Mounted, locked, may_run, stay_on, within};
use crate::transport::ring::Ring;
use crate::wire::InHeader;

fn among(processors: &[usize]) -> Follow {
    let mut all = CpuSet::new();
    for processor in processors {
        all.set(*processor);
    }
    Follow::among(all)
}

fn numbers(processors: &CpuSet) -> Vec<usize> {
    let all = 0..CpuSet::MAX_CPU;
    all.filter(|number| processors.is_set(*number)).collect()
}

#[test]
fn threads_are_where_the_last_four_looks_were() {
    let follow = among(&[0, 1, 3]);
    let (next, last) = (None, Some(ANYWHERE));
    // Where somebody was seen, whether because of the look before, and what is said then.
    for (at, is_again, place) in [
        (3, false, next),
        (3, true, next),
        (3, true, next),
        (3, true, Some(3)),
        (3, false, Some(3)),
        // He has moved.
        (1, false, next),
        (1, true, next),
        (1, true, next),
        (1, true, Some(1)),
        // There are two.
        (3, false, next),
        (1, true, last),
        (1, false, next),
        (1, true, next),
        (3, true, last),
        (ANYWHERE, false, next),
        (0, true, last),
        (0, false, next),
        (0, true, next),
        (0, true, Some(0)),
    ] {
        assert_eq!(follow.saw(at, is_again), place, "{at}");
        assert_eq!(follow.again.load(Ordering::Relaxed), place.is_none());
    }
    assert_eq!(numbers(&processors(&follow.all, 3)), [3]);
    // Whoever asks may be where this process may not.
    for elsewhere in [2, 4000, ANYWHERE] {
        assert_eq!(numbers(&processors(&follow.all, elsewhere)), [0, 1, 3]);
    }
}

/// `taskset` of a mount's threads holds, whatever the threads do by themselves.
#[test]
fn a_mask_that_somebody_else_has_set_is_kept() {
    let before = sched_getaffinity(None).expect("processors");
    let Some(other) = may_run().into_iter().next_back() else {
        return;
    };
    let mut thread = Thread::calling(before);
    let own = || numbers(&sched_getaffinity(None).expect("processors"));
    thread.go(may_run()[0] as u16);
    assert_eq!(own(), [may_run_first(&before)]);
    stay_on(other);
    thread.go(ANYWHERE);
    assert_eq!(own(), [other]);
    // Before this one has gone anywhere.
    let mut thread = Thread::calling(before);
    thread.go(may_run_first(&before) as u16);
    assert_eq!(own(), [other]);
    sched_setaffinity(None, &before).expect("as before");
}

fn may_run_first(all: &CpuSet) -> usize {
    numbers(all)[0]
}

fn request_of(thread: u32, opcode: u32, operation: &[u8]) -> Request<'_> {
    let header = InHeader {
        pid: thread,
        opcode,
        ..InHeader::default()
    };
    Request {
        header,
        operation,
        payload: &[],
    }
}

#[test]
fn one_request_in_so_many_is_looked_at() {
    let looked = Look {
        whom: Whom::Here(7),
        is_again: false,
    };
    let everywhere = u64::MAX;
    for (seen, apart, every) in [
        (0, Duration::ZERO, LOOK_EVERY),
        (0, LATE, LOOK_EVERY),
        (0, 2 * LATE, LOOK_EVERY_LATE),
        (everywhere, 2 * LATE, LOOK_EVERY),
    ] {
        let follow = among(&[0]);
        follow.seen.store(seen, Ordering::Relaxed);
        for at in 0..4 * LOOK_EVERY {
            let look = follow.look(&request_of(7, opcode::GETATTR, &[]), apart * at);
            let is_due = at.is_multiple_of(every);
            assert_eq!(look, is_due.then_some(looked), "{seen:x}, {apart:?}, {at}");
        }
        // The kernel's own, or those of somebody who cannot be seen.
        for at in 0..2 * LOOK_EVERY {
            let look = follow.look(&request_of(0, opcode::GETATTR, &[]), apart * at);
            assert_eq!(look, None);
        }
    }
}

#[test]
fn who_has_moved_is_followed_with_the_fourth_request_that_is_late() {
    let follow = among(&[0, 1]);
    let request = request_of(7, opcode::GETATTR, &[]);
    let mut now = Duration::ZERO;
    let mut places = Vec::new();
    // Twenty requests from where the threads are, and then each takes as long as from elsewhere.
    for (at, after) in [(0, Duration::ZERO); 20]
        .into_iter()
        .chain([(1, 2 * LATE); 6])
    {
        now += after;
        let look = follow.look(&request, now);
        places.push(look.and_then(|look| follow.saw(at, look.is_again)));
    }
    let mut expected = [None; 26];
    (expected[3], expected[23]) = (Some(0), Some(1));
    assert_eq!(places, expected);
}

#[test]
fn all_threads_go_at_once() {
    let before = sched_getaffinity(None).expect("processors");
    let follow = Follow::among(before);
    let (first, last) = (may_run()[0], *may_run().last().expect("a processor"));
    let place = |number: Pid| numbers(&sched_getaffinity(Some(number)).expect("processors"));
    let (begins, begun) = channel();
    let (ends, ended) = channel::<()>();
    let follow = &follow;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _follower = Follower::new(Some(follow));
            begins.send(gettid()).expect("it waits");
            // Until the other end is dropped.
            let _ = ended.recv();
        });
        let _ends = ends;
        let number = begun.recv().expect("it has begun");
        for at in [first, last] {
            follow.go(at as u16);
            assert_eq!(place(number), [at]);
        }
        // One that begins later is there as well.
        let follower = Follower::new(Some(follow));
        assert_eq!(place(gettid()), [last]);
        drop(follower);
        follow.go(ANYWHERE);
        assert_eq!(place(number), numbers(&before));
        // This one has left.
        assert_eq!(place(gettid()), [last]);
    });
    assert!(follow.threads().all.is_empty());
    sched_setaffinity(None, &before).expect("as before");
}

#[test]
fn reads_ahead_may_be_answered_anywhere() {
    for (size, whom) in [(4096, Whom::Here(7)), (128 << 10, Whom::Anybody)] {
        let read = wire::ReadIn {
            size,
            ..wire::ReadIn::default()
        };
        let bytes = read.bytes();
        let look = among(&[0]).look(&request_of(7, opcode::READ, &bytes), Duration::ZERO);
        assert_eq!(look.map(|look| look.whom), Some(whom));
    }
}

#[test]
fn a_threads_processor_is_told() {
    let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let all = sched_getaffinity(None).expect("processors");
    for number in may_run() {
        stay_on(number);
        assert_eq!(processor_of(own), Some(number as u16));
    }
    sched_setaffinity(None, &all).expect("as before");
    let stat = format!("7 (a) b) 1 2) S{} 5 0 0", " 1".repeat(35));
    assert_eq!(processor_in(stat.as_bytes()), Some(5));
    for real_time in [" 5 50 1", " 5 0 6"] {
        let stat = stat.replace(" 5 0 0", real_time);
        assert_eq!(processor_in(stat.as_bytes()), None, "{real_time}");
    }
    assert_eq!(processor_in(b"7 (a) S 1"), None);
    assert_eq!(processor_in(b""), None);
    assert_eq!(processor_of(u32::MAX), None);
}

#[test]
fn who_asks_from_one_processor_is_answered_there() {
    let all = sched_getaffinity(None).expect("processors");
    let follow = Follow::among(all);
    let Some(mounted) = Mounted::begin(Ring::Never, Some(follow)) else {
        return;
    };
    for processor in may_run() {
        let (path, asked) = (mounted.path().to_owned(), mounted.asked.clone());
        within("all are answered there", move || {
            stay_on(processor);
            let there = BTreeSet::from([(vec![processor], false)]);
            while locked(&asked.answered_by).clone() != there {
                locked(&asked.answered_by).clear();
                for _ in 0..200 {
                    statvfs(&path).expect("a room");
                }
            }
        });
    }
    mounted.end();
}
