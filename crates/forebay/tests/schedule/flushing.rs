//! Flushing: what was acknowledged before a sync began is on the device when it ends, whoever else is at work.

use crate::world::{BLOCK, PAGE, Shape, World, join};

crate::scenarios!(
    two_flushers,
    sync_against_a_writer,
    sync_against_a_growing_file,
    fills_of_ragged_pages_against_writers,
);

fn two_flushers() {
    let world = World::new(Shape {
        len: 2 * BLOCK,
        ..Shape::default()
    });
    let member = world.member();
    member.write(0, 1, 0, 9000);
    member.write(0, 2, BLOCK + 100, 100);
    let _exploring = world.explore();
    let syncer = |late: bool| {
        world.spawn(move |member| {
            if late {
                member.flush_late(0);
            }
            member.sync(0);
        })
    };
    let writer = world.spawn(|member| member.write(0, 3, 4000, 1000));
    join([syncer(false), syncer(true), writer]);
    world.check_at_rest();
}

pub fn sync_against_a_writer() {
    let world = World::new(Shape {
        len: 2 * BLOCK,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let writer = world.spawn(|member| {
        for seed in 1..4 {
            member.write(0, seed, 100 * u64::from(seed), PAGE as usize + 500);
        }
    });
    let syncer = world.spawn(|member| {
        member.sync(0);
        member.sync(0);
    });
    let flusher = world.spawn(|member| {
        member.flush_late(0);
        member.evict(0);
    });
    join([writer, syncer, flusher]);
    world.check_at_rest();
}

/// The page with the end goes another way to the device than those before it.
fn sync_against_a_growing_file() {
    let world = World::new(Shape {
        len: 0,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let writer = world.spawn(|member| {
        let mut end = 0;
        for seed in 1..4 {
            member.write(0, seed, end, 3000);
            end += 3000;
        }
    });
    let syncer = world.spawn(|member| {
        member.sync(0);
        member.evict(0);
        member.read(0, 0, 9000);
        member.sync(0);
    });
    let jumper = world.spawn(|member| {
        member.write(0, 10, BLOCK - 50, 100);
        member.sync(0);
    });
    join([writer, syncer, jumper]);
    world.check_at_rest();
}

fn fills_of_ragged_pages_against_writers() {
    let world = World::new(Shape {
        len: 2 * BLOCK,
        ..Shape::default()
    });
    let member = world.member();
    member.write(0, 1, 0, BLOCK as usize);
    member.sync(0);
    member.evict(0);
    let _exploring = world.explore();
    let writer = world.spawn(|member| {
        member.write(0, 2, 100, 100);
        member.write(0, 3, 1000, 100);
        member.read(0, 0, 2000);
    });
    let flusher = world.spawn(|member| {
        member.flush_late(0);
        member.evict(0);
    });
    let other = world.spawn(|member| {
        member.write(0, 4, 150, 300);
        member.flush_late(0);
    });
    join([writer, flusher, other]);
    world.check_at_rest();
}
