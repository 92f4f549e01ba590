//! Blocks given from windows against writers, flushes, eviction, truncation, views and one another: the file has what was given, and the
//! window goes on showing it.

use crate::world::{BLOCK, PAGE, Shape, World, join};

crate::scenarios!(
    commits_against_a_writer,
    commits_against_a_flush,
    commits_against_eviction,
    commits_against_truncation,
    commits_against_views,
    commits_against_a_direct_write,
    two_commits_of_one_block,
    commits_against_a_death,
);

/// How often a thread looks at the device while others write to it.
const LOOKS: u32 = 12;

fn shape() -> Shape {
    Shape {
        frames: 8,
        headers: 8,
        ..Shape::default()
    }
}

pub fn commits_against_a_writer() {
    let world = World::new(shape());
    world.member().write(0, 1, 100, 5000);
    let _exploring = world.explore();
    let giver = world.spawn(|member| {
        let given = member.give(0, 2, 0);
        member.end_view(given);
    });
    let writer = world.spawn(|member| {
        member.write(0, 3, 100, 5000);
        member.write(0, 4, 2 * PAGE, PAGE as usize);
        member.read(0, 0, 3 * PAGE as usize);
    });
    join([giver, writer]);
    world.check_at_rest();
}

/// A device reads from a block's frame: it stays the block's meanwhile.
pub fn commits_against_a_flush() {
    let world = World::new(shape());
    world.member().write(0, 1, 0, 64 * 1024);
    let _exploring = world.explore();
    let flusher = world.spawn(|member| member.flush_late(0));
    let giver = world.spawn(|member| {
        let given = member.give(0, 2, 0);
        // Into the frame that the block has had, if it is free already.
        member.write(0, 3, BLOCK, 64 * 1024);
        for _ in 0..LOOKS {
            member.world.check_device();
            shuttle::thread::yield_now();
        }
        member.end_view(given);
    });
    join([flusher, giver]);
    world.check_device();
    world.check_at_rest();
}

pub fn commits_against_eviction() {
    let world = World::new(shape());
    let member = world.member();
    member.write(0, 1, 0, 64 * 1024);
    member.sync(0);
    let _exploring = world.explore();
    let giver = world.spawn(|member| {
        let given = member.give(0, 2, 0);
        member.sync(0);
        member.evict(0);
        member.end_view(given);
    });
    let thief = world.spawn(|member| {
        member.evict(0);
        member.write(0, 3, BLOCK, 64 * 1024);
    });
    join([giver, thief]);
    world.check_at_rest();
}

pub fn commits_against_truncation() {
    let world = World::new(Shape {
        len: BLOCK,
        ..shape()
    });
    world.member().write(0, 1, 0, 64 * 1024);
    let _exploring = world.explore();
    let giver = world.spawn(|member| {
        let given = member.give(0, 2, 0);
        member.end_view(given);
    });
    let other = world.spawn(|member| {
        member.set_len(0, 3 * PAGE + 17);
        member.set_len(0, BLOCK);
        member.punch(0, PAGE + 100, 1000);
    });
    join([giver, other]);
    world.check_at_rest();
}

pub fn commits_against_views() {
    let world = World::new(shape());
    world.member().write(0, 1, 0, 64 * 1024);
    let _exploring = world.explore();
    let viewer = world.spawn(|member| {
        for _ in 0..2 {
            member.end_view(member.view(0, 0));
        }
    });
    let giver = world.spawn(|member| {
        let given = member.give(0, 2, 0);
        member.write(0, 3, 10, 100);
        member.end_view(given);
    });
    join([viewer, giver]);
    world.check_at_rest();
}

pub fn commits_against_a_direct_write() {
    let world = World::new(shape());
    world.member().write(0, 1, 0, 64 * 1024);
    let _exploring = world.explore();
    let giver = world.spawn(|member| {
        let given = member.give(0, 2, 0);
        member.end_view(given);
    });
    let direct = world.spawn(|member| {
        member.write_direct(0, 3, 0, 1);
        member.write_through_kernel(0, 4, 100, 300);
    });
    join([giver, direct]);
    world.check_at_rest();
}

pub fn two_commits_of_one_block() {
    let world = World::new(shape());
    world.member().write(0, 1, 0, 100);
    let _exploring = world.explore();
    let giver = |seed| {
        world.spawn(move |member| {
            let given = member.give(0, seed, 0);
            member.read(0, 0, 100);
            member.end_view(given);
        })
    };
    join([giver(2), giver(3)]);
    world.check_at_rest();
}

/// Whoever gives waits for a writer that has died in the same block.
pub fn commits_against_a_death() {
    let world = World::new(shape());
    world.member().write(0, 1, 100, 300);
    let _exploring = world.explore();
    let victim = world.spawn_mortal(60, |member| member.write(0, 2, 0, 5000));
    let giver = world.spawn(|member| {
        let given = member.give(0, 3, 0);
        member.end_view(given);
    });
    join([victim, giver]);
    world.check_after_death();
}
