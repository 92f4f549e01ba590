//! Operation words and gates: who stops is alone; nobody waits for ever. Truncation, punching and appending on them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use forebay::memory::threads::{stop_file, stop_session};
use forebay::sim;
use forebay::sync::Ordering;

use crate::world::{BLOCK, Member, PAGE, Shape, World, join};

crate::scenarios!(
    stops_are_alone,
    who_works_stops,
    truncation_against_writers_and_flushers,
    truncation_against_a_direct_write,
    punching_against_flushers,
    two_append,
    truncation_against_an_appender,
);

/// How many threads are in an operation, and how many of these are not parked.
#[derive(Default)]
struct Inside {
    within: AtomicU32,
    active: AtomicU32,
}

fn work(member: &Member, inside: &Inside) {
    let me = member.me();
    let Ok(operation) = me.enter(member.file(0).core.id) else {
        return me.wait(1);
    };
    inside.within.fetch_add(1, Relaxed);
    for _ in 0..4 {
        inside.active.fetch_add(1, Relaxed);
        sim::point();
        inside.active.fetch_sub(1, Relaxed);
        operation.park();
        sim::point();
        operation.unpark();
    }
    inside.within.fetch_sub(1, Relaxed);
}

pub fn stops_are_alone() {
    let world = World::new(Shape::default());
    let inside = Arc::new(Inside::default());
    let _exploring = world.explore();
    let worker = || {
        let inside = Arc::clone(&inside);
        world.spawn(move |member| (0..3).for_each(|_| work(member, &inside)))
    };
    let stopper = {
        let inside = Arc::clone(&inside);
        world.spawn(move |member| {
            for _ in 0..2 {
                if let Some(_stop) = stop_session(member.me()) {
                    for _ in 0..10 {
                        assert_eq!(
                            inside.active.load(Relaxed),
                            0,
                            "active in a stopped session"
                        );
                        sim::point();
                    }
                }
                if let Some(_stop) = stop_file(member.me(), member.file(0).core.id) {
                    for _ in 0..4 {
                        assert_eq!(inside.within.load(Relaxed), 0, "at work in a stopped file");
                        sim::point();
                    }
                }
            }
        })
    };
    join([worker(), worker(), stopper]);
}

/// Whoever works on a file stops it too, and may have been the only one that worked on it so far.
pub fn who_works_stops() {
    let world = World::new(Shape::default());
    let inside = Arc::new(Inside::default());
    let _exploring = world.explore();
    let worker = || {
        let inside = Arc::clone(&inside);
        world.spawn(move |member| {
            for _ in 0..3 {
                work(member, &inside);
                if let Some(stop) = stop_file(member.me(), member.file(0).core.id) {
                    for _ in 0..4 {
                        assert_eq!(inside.within.load(Relaxed), 0, "at work in a stopped file");
                        sim::point();
                    }
                    // Whoever has stopped it may work on it, and go on once it is open again.
                    let mine = member.me().enter_stopped(member.file(0).core.id);
                    inside.within.fetch_add(1, Relaxed);
                    drop(stop);
                    sim::point();
                    inside.within.fetch_sub(1, Relaxed);
                    drop(mine);
                }
            }
        })
    };
    join([worker(), worker()]);
}

fn truncation_against_writers_and_flushers() {
    let world = World::new(Shape {
        len: 2 * BLOCK,
        ..Shape::default()
    });
    world.member().write(0, 1, BLOCK, 9000);
    let _exploring = world.explore();
    let cutter = world.spawn(|member| {
        member.set_len(0, BLOCK + 5000);
        member.set_len(0, 2 * BLOCK);
        member.read(0, BLOCK + 4000, 4000);
    });
    let writer = world.spawn(|member| {
        member.write(0, 2, BLOCK + 4000, 2000);
        member.write(0, 3, BLOCK - 100, 200);
    });
    let flusher = world.spawn(|member| {
        member.flush_late(0);
        member.flush_late(0);
    });
    join([cutter, writer, flusher]);
    world.check_at_rest();
}

fn truncation_against_a_direct_write() {
    let world = World::new(Shape::default());
    world.member().write(0, 1, BLOCK, 300);
    let _exploring = world.explore();
    let cutter = world.spawn(|member| member.set_len(0, BLOCK + 100));
    let direct = world.spawn(|member| member.write_direct(0, 2, 1, 1));
    let syncer = world.spawn(|member| {
        member.flush_late(0);
        member.read(0, BLOCK, 400);
    });
    join([cutter, direct, syncer]);
    world.check_at_rest();
}

fn punching_against_flushers() {
    let world = World::new(Shape {
        len: 2 * BLOCK,
        ..Shape::default()
    });
    world.member().write(0, 1, 0, 9000);
    let _exploring = world.explore();
    let puncher = world.spawn(|member| {
        member.punch(0, 1000, 2 * PAGE);
        member.read(0, 500, 9000);
    });
    let flusher = world.spawn(|member| {
        member.flush_late(0);
        member.sync(0);
    });
    let writer = world.spawn(|member| {
        member.write(0, 2, PAGE, 1000);
        member.read(0, 4000, 2000);
    });
    join([puncher, flusher, writer]);
    world.check_at_rest();
}

/// Appended records lie one after the other, each in one piece.
pub fn two_append() {
    const LEN: u64 = 3000;
    let world = World::new(Shape {
        len: 0,
        ..Shape::default()
    });
    let places = Arc::new(Mutex::new(Vec::new()));
    let _exploring = world.explore();
    let appender = |first: u8| {
        let places = Arc::clone(&places);
        world.spawn(move |member| {
            for byte in first..first + 2 {
                let at = member.append(0, &[byte; LEN as usize]);
                places.lock().expect("no panic").push((at, byte));
            }
        })
    };
    let flusher = world.spawn(|member| member.flush_late(0));
    join([appender(1), appender(10), flusher]);
    sim::set_exploring(false);
    let mut places = places.lock().expect("no panic").clone();
    places.sort_unstable();
    let offsets: Vec<u64> = places.iter().map(|&(at, _)| at).collect();
    assert_eq!(offsets, [0, LEN, 2 * LEN, 3 * LEN]);
    world.flush_all();
    let device = world.files[0].sim.contents();
    for (at, byte) in places {
        let record = &device[at as usize..(at + LEN) as usize];
        let odd = record.iter().position(|&b| b != byte);
        assert_eq!(
            odd.map(|i| (i, record[i])),
            None,
            "the record of {byte}s at {at} is not of one piece"
        );
    }
}

/// An append writes where the end is, whoever cuts the file meanwhile: what is left are whole records, and no hole.
pub fn truncation_against_an_appender() {
    const LEN: usize = 3000;
    // The second record lies in two blocks, unless there was a cut before it.
    let world = World::new(Shape {
        len: BLOCK - 4000,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let appender = world.spawn(|member| {
        for byte in 1..4 {
            member.append(0, &[byte; LEN]);
        }
    });
    let cutter = world.spawn(|member| {
        member.set_len(0, 0);
        member.set_len(0, 0);
    });
    let flusher = world.spawn(|member| member.flush_late(0));
    join([appender, cutter, flusher]);
    sim::set_exploring(false);
    let size = world.files[0].core.entry().size.load(Ordering::Acquire) as usize;
    world.flush_all();
    let mut device = world.files[0].sim.contents();
    device.resize(size, 0);
    // The last ones, one after the other.
    let first = 4 - size / LEN;
    let left: Vec<u8> = (first as u8..4).flat_map(|byte| [byte; LEN]).collect();
    let odd = device
        .iter()
        .zip(&left)
        .position(|(is, should)| is != should);
    assert_eq!(
        (size, odd),
        (left.len(), None),
        "a hole, or a record in pieces"
    );
}
