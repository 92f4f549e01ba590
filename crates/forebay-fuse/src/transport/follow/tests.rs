//! Where threads go, and that they are there: the latter by a mount of this kernel's, which needs root.

use std::collections::BTreeSet;

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
    for at in [3, 3, 3] {
        follow.saw(at);
        assert_eq!(follow.place(), ANYWHERE);
    }
    follow.saw(3);
    assert_eq!(follow.place(), 3);
    assert_eq!(numbers(&processors(&follow.all, 3)), [3]);
    for (at, place) in [
        (1, ANYWHERE),
        (1, ANYWHERE),
        (3, ANYWHERE),
        (1, ANYWHERE),
        (1, ANYWHERE),
        (1, ANYWHERE),
        (1, 1),
        (ANYWHERE, ANYWHERE),
        (0, ANYWHERE),
        (0, ANYWHERE),
        (0, ANYWHERE),
        (0, 0),
    ] {
        follow.saw(at);
        assert_eq!(follow.place(), place);
    }
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
    let follow = Follow::among(before);
    let mut follower = Follower::new(Some(&follow));
    let own = || numbers(&sched_getaffinity(None).expect("processors"));
    follower.go(may_run()[0] as u16);
    assert_eq!(own(), [may_run_first(&before)]);
    stay_on(other);
    follower.go(ANYWHERE);
    assert_eq!(own(), [other]);
    // Before this one has gone anywhere.
    let mut follower = Follower::new(Some(&follow));
    follower.go(may_run_first(&before) as u16);
    assert_eq!(own(), [other]);
    sched_setaffinity(None, &before).expect("as before");
}

fn may_run_first(all: &CpuSet) -> usize {
    numbers(all)[0]
}

fn looks(follow: &Follow, thread: u32, opcode: u32, operation: &[u8]) -> Vec<Option<Whom>> {
    let header = InHeader {
        pid: thread,
        opcode,
        ..InHeader::default()
    };
    let request = Request {
        header,
        operation,
        payload: &[],
    };
    (0..2 * LOOK_EVERY).map(|_| follow.whom(&request)).collect()
}

#[test]
fn one_request_in_so_many_is_looked_at() {
    let follow = among(&[0]);
    let looked = looks(&follow, 7, opcode::GETATTR, &[]);
    for (at, look) in looked.into_iter().enumerate() {
        let is_due = at % LOOK_EVERY as usize == 0;
        assert_eq!(look, is_due.then_some(Whom::Here(7)), "{at}");
    }
    // The kernel's own, or those of somebody who cannot be seen.
    let looked = looks(&follow, 0, opcode::GETATTR, &[]);
    assert!(looked.iter().all(Option::is_none));
}

#[test]
fn reads_ahead_may_be_answered_anywhere() {
    let follow = among(&[0]);
    for (size, whom) in [(4096, Whom::Here(7)), (128 << 10, Whom::Anybody)] {
        let read = wire::ReadIn {
            size,
            ..wire::ReadIn::default()
        };
        let looked = looks(&follow, 7, opcode::READ, &read.bytes());
        assert_eq!(looked[0], Some(whom));
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
        // Each thread goes there once it has answered one of the requests, which may go to others for a while.
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
