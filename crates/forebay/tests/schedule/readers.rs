//! Readers without a lock against writers, eviction and reuse of memory: nobody sees torn or foreign bytes.

use forebay_model::fill;

use crate::world::{BLOCK, PAGE, Shape, World, join};

crate::scenarios!(
    readers_against_a_writer,
    readers_against_reuse,
    readers_against_small_frames_that_move,
    readers_against_fills_and_eviction,
    readers_against_another_header,
    readers_against_truncation,
    readers_against_a_cut_and_an_append,
);

pub fn readers_against_a_writer() {
    let world = World::new(Shape::default());
    world.member().write(0, 1, 0, 2 * PAGE as usize);
    let _exploring = world.explore();
    let writer = world.spawn(|member| {
        member.write(0, 2, 100, 5000);
        member.write(0, 3, 0, 2 * PAGE as usize);
    });
    let reader = |from: u64| {
        world.spawn(move |member| {
            for _ in 0..2 {
                member.read(0, from, PAGE as usize);
            }
        })
    };
    join([writer, reader(0), reader(2000)]);
    world.check_at_rest();
}

/// Two files over one frame: bytes of one must never be read as the other's.
pub fn readers_against_reuse() {
    let world = World::new(Shape {
        files: 2,
        frames: 1,
        headers: 2,
        len: BLOCK,
    });
    let _exploring = {
        let member = world.member();
        member.write(0, 1, 0, 64 * 1024);
        member.sync(0);
        world.explore()
    };
    let reader = world.spawn(|member| {
        for _ in 0..3 {
            member.read(0, 0, PAGE as usize);
        }
    });
    let thief = world.spawn(|member| {
        member.evict(0);
        member.write(1, 2, 0, 64 * 1024);
        member.sync(1);
    });
    let other = world.spawn(|member| {
        member.write(0, 3, 0, 100);
        member.read(1, 0, 100);
    });
    join([reader, thief, other]);
    world.check_at_rest();
}

/// A block's small pages move into a frame under readers and writers of other small pages.
pub fn readers_against_small_frames_that_move() {
    let world = World::new(Shape {
        frames: 4,
        ..Shape::default()
    });
    let member = world.member();
    for page in 0..2 {
        member.write(0, 1 + page, u64::from(page) * 2 * PAGE, PAGE as usize);
    }
    let _exploring = world.explore();
    let mover = world.spawn(|member| member.write(0, 10, 8 * PAGE, 64 * 1024));
    let taker = world.spawn(|member| {
        member.write(0, 20, BLOCK, PAGE as usize);
        member.write(0, 21, BLOCK + 2 * PAGE, 300);
    });
    let reader = world.spawn(|member| {
        for page in [0, 2, 0] {
            member.read(0, page * PAGE, PAGE as usize);
        }
    });
    join([mover, taker, reader]);
    world.check_at_rest();
}

/// What a reader brings from the device is not kept if newer bytes have gone by meanwhile.
pub fn readers_against_fills_and_eviction() {
    let world = World::new(Shape {
        headers: 128,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let filler = world.spawn(|member| {
        member.read(0, 0, 100);
        member.read(0, 0, 100);
    });
    let writer = world.spawn(|member| {
        member.write(0, 1, 0, 200);
        member.sync(0);
        member.evict(0);
        member.read(0, 50, 100);
    });
    let another = world.spawn(|member| {
        member.read(0, 0, 300);
        member.write(0, 2, 100, 200);
    });
    join([filler, writer, another]);
    world.check_at_rest();
}

/// While a reader waits for the device its block is written, flushed, evicted, and described anew by another header, which has
/// lost as many bytes as the first had when the reader looked: none.
pub fn readers_against_another_header() {
    let world = World::new(Shape {
        files: 2,
        headers: 2,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let reader = world.spawn(|member| {
        member.read(0, 0, 100);
        member.read(0, 0, 100);
    });
    let writer = world.spawn(|member| {
        member.write(0, 1, 0, PAGE as usize);
        member.sync(0);
        member.evict(0);
        member.write(1, 2, 0, PAGE as usize);
        member.write(0, 3, PAGE, PAGE as usize);
    });
    join([reader, writer]);
    world.check_at_rest();
}

/// A read that began before the file became shorter gives old bytes or zeros, never another file's.
pub fn readers_against_truncation() {
    let world = World::new(Shape {
        files: 2,
        frames: 2,
        ..Shape::default()
    });
    let member = world.member();
    member.write(1, 1, 0, 64 * 1024);
    member.sync(1);
    member.evict(1);
    member.write(0, 2, BLOCK, 5000);
    let _exploring = world.explore();
    let reader = world.spawn(|member| {
        member.read(0, BLOCK - 100, 70_000);
        member.read(0, BLOCK, PAGE as usize);
    });
    let cutter = world.spawn(|member| {
        member.set_len(0, BLOCK + 300);
        member.set_len(0, 2 * BLOCK);
    });
    let other = world.spawn(|member| member.write(1, 3, 0, 64 * 1024));
    join([reader, cutter, other]);
    world.check_at_rest();
}

/// A file that was never anything but full of bytes is cut and appended to, as a log is: no read has zeros, or bytes behind the end.
pub fn readers_against_a_cut_and_an_append() {
    const KEPT: u64 = 100;
    let world = World::new(Shape {
        headers: 128,
        len: 0,
        ..Shape::default()
    });
    world.member().write(0, 1, 0, BLOCK as usize + 5000);
    let _exploring = world.explore();
    let reader = || {
        world.spawn(|member| {
            for _ in 0..2 {
                let bytes = member.read_bytes(0, 0, 2 * BLOCK as usize);
                let mut wanted = vec![0; bytes.len()];
                fill(1, 0, &mut wanted);
                assert!(bytes == wanted, "a read goes on over a cut");
            }
        })
    };
    let cutter = world.spawn(|member| {
        member.set_len(0, KEPT);
        member.write(0, 1, KEPT, 50);
    });
    join([reader(), reader(), cutter]);
    world.check_at_rest();
}
