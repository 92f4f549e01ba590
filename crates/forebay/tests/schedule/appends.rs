//! Appends in several steps against those who take no append lock.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use forebay::sim;
use forebay::sync::Ordering;

use crate::world::{BLOCK, Shape, World, join};

crate::scenarios!(
    an_append_against_a_longer_write,
    a_short_append_against_a_longer_write,
);

/// The file's length before.
const BEFORE: u64 = BLOCK - 1000;
/// Bytes that are appended first.
const OWED: usize = 10;

/// What was acknowledged beyond the end stays: an append comes before it or after it.
pub fn an_append_against_a_longer_write() {
    // It crosses into another block.
    for at in [BLOCK - 900, BLOCK + 100] {
        append_against_write(3000, at);
    }
}

/// The same where both go the short way: into a page that owes bytes already, and on from these.
pub fn a_short_append_against_a_longer_write() {
    append_against_write(300, BEFORE + OWED as u64);
}

fn append_against_write(len: usize, at: u64) {
    const WRITTEN: usize = 500;
    let world = World::new(Shape {
        len: BEFORE,
        ..Shape::default()
    });
    world.member().append(0, &[7; OWED]);
    let places = Arc::new(Mutex::new(Vec::new()));
    // 1: the write has ended.
    let ended = Arc::new(AtomicU32::new(0));
    let exploring = world.explore();
    let appender = {
        let (places, ended) = (Arc::clone(&places), Arc::clone(&ended));
        world.spawn(move |member| {
            let mut done = 0;
            while done < len {
                let late = ended.load(Relaxed) == 1;
                let (at, written) = member.try_append(0, &vec![7; len - done]).expect("room");
                places.lock().expect("no panic").push((at, written, late));
                done += written;
            }
        })
    };
    let writer = {
        let ended = Arc::clone(&ended);
        world.spawn(move |member| {
            member.write(0, 1, at, WRITTEN);
            ended.store(1, Relaxed);
        })
    };
    join([appender, writer]);
    drop(exploring);
    sim::set_exploring(false);
    let size = world.files[0].core.entry().size.load(Ordering::Acquire);
    world.flush_all();
    let mut device = world.files[0].sim.contents();
    device.resize(size as usize, 0);
    let mut wanted = vec![0; WRITTEN];
    forebay_model::fill(1, at, &mut wanted);
    let written = at as usize..at as usize + WRITTEN;
    assert!(
        device[written.clone()] == wanted,
        "a write was appended over"
    );
    for (at, len, late) in places.lock().expect("no panic").iter().copied() {
        let piece = at as usize..at as usize + len;
        assert!(!late || piece.start >= written.end, "not at the end");
        let odd = piece.filter(|byte| !written.contains(byte) && device[*byte] != 7);
        assert_eq!(odd.count(), 0, "the append at {at}");
    }
}
