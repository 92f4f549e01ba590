//! Views against writers, eviction, truncation and one another: what is held does not change, and is let go of once.

use crate::world::{BLOCK, PAGE, Shape, World, join};

crate::scenarios!(
    views_against_a_writer,
    views_against_eviction,
    views_against_truncation,
    views_against_a_flush,
    views_against_a_direct_write,
    two_views_of_one_block,
    views_of_what_is_read_at_once,
);

fn shape() -> Shape {
    Shape {
        frames: 4,
        headers: 8,
        ..Shape::default()
    }
}

pub fn views_against_a_writer() {
    let world = World::new(shape());
    world.member().write(0, 1, 0, 64 * 1024);
    let _exploring = world.explore();
    let viewer = world.spawn(|member| {
        for _ in 0..2 {
            member.end_view(member.view(0, 0));
        }
    });
    let writer = world.spawn(|member| {
        member.write(0, 2, 100, 5000);
        member.write(0, 3, 2 * PAGE, PAGE as usize);
    });
    join([viewer, writer]);
    world.check_at_rest();
}

/// The frame that is let go of by its header and by its view is free once.
pub fn views_against_eviction() {
    let world = World::new(shape());
    let member = world.member();
    member.write(0, 1, 0, 64 * 1024);
    member.sync(0);
    let _exploring = world.explore();
    let viewer = world.spawn(|member| member.end_view(member.view(0, 0)));
    let thief = world.spawn(|member| {
        member.evict(0);
        member.write(0, 2, BLOCK, 64 * 1024);
        member.write(0, 3, 2 * BLOCK, 64 * 1024);
    });
    join([viewer, thief]);
    world.check_at_rest();
}

pub fn views_against_truncation() {
    let world = World::new(Shape {
        len: BLOCK,
        ..shape()
    });
    world.member().write(0, 1, 0, 64 * 1024);
    let _exploring = world.explore();
    let viewer = world.spawn(|member| member.end_view(member.view(0, 0)));
    let other = world.spawn(|member| {
        member.set_len(0, 3 * PAGE + 17);
        member.set_len(0, BLOCK);
        member.punch(0, PAGE + 100, 1000);
    });
    join([viewer, other]);
    world.check_at_rest();
}

/// A block that the device reads from gets no new frame meanwhile.
pub fn views_against_a_flush() {
    let world = World::new(shape());
    let member = world.member();
    member.write(0, 1, 0, 64 * 1024);
    let held = member.view(0, 0);
    let _exploring = world.explore();
    let flusher = world.spawn(|member| member.flush_late(0));
    let writer = world.spawn(|member| member.write(0, 2, 50, 2 * PAGE as usize));
    let holder = world.spawn(move |member| member.end_view(held));
    join([flusher, writer, holder]);
    world.check_at_rest();
}

pub fn views_against_a_direct_write() {
    let world = World::new(shape());
    world.member().write(0, 1, 0, 64 * 1024);
    let _exploring = world.explore();
    let viewer = world.spawn(|member| member.end_view(member.view(0, 0)));
    let direct = world.spawn(|member| {
        member.write_direct(0, 2, 0, 1);
        member.write_through_kernel(0, 3, 100, 300);
    });
    join([viewer, direct]);
    world.check_at_rest();
}

pub fn two_views_of_one_block() {
    let world = World::new(shape());
    world.member().write(0, 1, 0, 64 * 1024);
    let _exploring = world.explore();
    let viewer = |block| world.spawn(move |member| member.end_view(member.view(0, block)));
    let writer = world.spawn(|member| member.write(0, 2, 0, 100));
    join([viewer(0), viewer(0), writer]);
    world.check_at_rest();
}

/// Blocks that were read at once are kept one after the other: not one that has been written meanwhile, and has left memory again.
pub fn views_of_what_is_read_at_once() {
    let world = World::new(Shape {
        frames: 8,
        ..shape()
    });
    let member = world.member();
    member.write(0, 1, 0, 2 * BLOCK as usize);
    member.sync(0);
    member.evict(0);
    let _exploring = world.explore();
    let viewer = world.spawn(|member| {
        for held in member.view_all(0, 0, 2) {
            member.end_view(Some(held));
        }
    });
    let writer = world.spawn(|member| {
        member.write(0, 2, BLOCK + 100, 2 * PAGE as usize);
        member.sync(0);
        member.evict(0);
    });
    join([viewer, writer]);
    world.check_at_rest();
}
