//! Writes past memory against everything else on the same blocks.

use forebay_model::fill;

use crate::world::{BLOCK, Member, PAGE, Shape, World, join};

crate::scenarios!(
    reads_past_memory_against_everything,
    direct_against_scrap,
    direct_against_a_flight,
    direct_against_fills,
    direct_against_direct,
    direct_over_the_end_against_readers,
    direct_over_an_end_that_is_owed_against_readers,
    kernel_over_the_end_against_readers,
    bounced_against_scrap,
    kernel_against_scrap,
);

fn direct_against_scrap() {
    let world = World::new(Shape {
        len: 2 * BLOCK,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let direct = world.spawn(|member| member.write_direct(0, 1, 0, 1));
    let scrap = world.spawn(|member| {
        member.write(0, 2, 3000, 3000);
        member.write(0, 3, PAGE, PAGE as usize);
    });
    let reader = world.spawn(|member| {
        for _ in 0..3 {
            member.read(0, 2500, 4000);
        }
    });
    join([direct, scrap, reader]);
    world.check_at_rest();
}

/// Older bytes under way to the device must not land after newer ones.
pub fn direct_against_a_flight() {
    let world = World::new(Shape {
        len: 2 * BLOCK,
        ..Shape::default()
    });
    world.member().write(0, 1, 100, 9000);
    let _exploring = world.explore();
    let flusher = world.spawn(|member| member.flush_late(0));
    let direct = world.spawn(|member| {
        member.write_direct(0, 2, 0, 1);
        member.read(0, 4000, 200);
    });
    let syncer = world.spawn(|member| {
        member.sync(0);
        member.read(0, 4000, 200);
    });
    join([flusher, direct, syncer]);
    world.check_at_rest();
}

fn direct_against_fills() {
    let world = World::new(Shape {
        headers: 128,
        len: 2 * BLOCK,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let direct = world.spawn(|member| {
        member.write_direct(0, 1, 0, 1);
        member.read(0, 100, 100);
    });
    let reader = |offset: u64| {
        world.spawn(move |member| {
            for _ in 0..3 {
                member.read(0, offset, 200);
            }
        })
    };
    join([direct, reader(0), reader(150)]);
    world.check_at_rest();
}

fn direct_against_direct() {
    let world = World::new(Shape::default());
    let _exploring = world.explore();
    let first = world.spawn(|member| member.write_direct(0, 1, 0, 2));
    let second = world.spawn(|member| member.write_direct(0, 2, 1, 2));
    let reader = world.spawn(|member| {
        for _ in 0..2 {
            member.read(0, BLOCK - 100, 200);
        }
    });
    join([first, second, reader]);
    // Which of two writes at once a device keeps is its own affair, sector by sector.
    forebay::sim::set_exploring(false);
    world.member().sync(0);
}

/// A page in which a file ends has zeros behind the end, in memory. Whoever reads further than the old end sees the bytes that are there now.
fn direct_over_the_end_against_readers() {
    direct_over_the_end(|member| _ = member.read(0, 0, END as usize));
}

/// The same where the page owes bytes.
pub fn direct_over_an_end_that_is_owed_against_readers() {
    direct_over_the_end(|member| {
        member.read(0, 0, END as usize);
        member.write(0, 1, END - 100, 100);
    });
}

/// The same of a write through the kernel's cache.
fn kernel_over_the_end_against_readers() {
    let read = |member: &Member| _ = member.read(0, 0, END as usize);
    over_the_end(read, |member| {
        member.write_through_kernel(0, 2, 500, PAGE as usize)
    });
}

/// The file's length before.
const END: u64 = 1000;

fn direct_over_the_end(before: fn(&Member)) {
    over_the_end(before, |member| member.write_direct(0, 2, 0, 1));
}

fn over_the_end(before: fn(&Member), write: fn(&Member)) {
    let world = World::new(Shape {
        headers: 128,
        len: END,
        ..Shape::default()
    });
    before(&world.member());
    let _exploring = world.explore();
    let writer = world.spawn(write);
    let reader = || {
        world.spawn(|member| {
            for _ in 0..3 {
                let bytes = member.read_bytes(0, 0, PAGE as usize);
                let beyond = bytes.get(END as usize..).unwrap_or(&[]);
                let mut new = vec![0; beyond.len()];
                fill(2, END, &mut new);
                assert!(beyond == new, "the end came before the bytes");
            }
        })
    };
    join([writer, reader(), reader()]);
    world.check_at_rest();
}

/// Frames change hands: those of the one who bounces are the ones that writes take and evictions free.
fn bounced_against_scrap() {
    let world = World::new(Shape {
        len: 3 * BLOCK,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let bounced = world.spawn(|member| {
        member.write_bounced(0, 1, 0, 1);
        member.read(0, 100, 4000);
    });
    let scrap = world.spawn(|member| {
        member.write(0, 2, 3000, 3000);
        member.write(0, 3, 2 * BLOCK, 70_000);
    });
    let evicter = world.spawn(|member| {
        member.sync(0);
        member.evict(0);
        member.read(0, 2 * BLOCK, 4000);
    });
    join([bounced, scrap, evicter]);
    world.check_at_rest();
}

fn kernel_against_scrap() {
    let world = World::new(Shape {
        len: 2 * BLOCK,
        ..Shape::default()
    });
    world.member().write(0, 1, PAGE, 100);
    let _exploring = world.explore();
    let kernel = world.spawn(|member| {
        member.write_through_kernel(0, 2, 3000, 6000);
        member.read(0, 3000, 2000);
    });
    let scrap = world.spawn(|member| {
        member.write(0, 3, 4000, 3000);
        member.sync(0);
        member.evict(0);
        member.read(0, 4000, 3000);
    });
    let reader = world.spawn(|member| {
        for _ in 0..3 {
            member.read(0, 3500, 1000);
        }
    });
    join([kernel, scrap, reader]);
    world.check_at_rest();
}

/// A read that goes past memory, against what is written, flushed, evicted, written direct and read meanwhile.
pub fn reads_past_memory_against_everything() {
    let world = World::new(Shape {
        headers: 128,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let reader = world.spawn(|member| {
        member.read(0, 0, 2 * BLOCK as usize);
        member.read(0, 0, 3 * BLOCK as usize);
    });
    let writer = world.spawn(|member| {
        member.write(0, 1, 100, 200);
        member.sync(0);
        member.evict(0);
        member.read(0, 50, 100);
    });
    let direct = world.spawn(|member| {
        member.write_direct(0, 2, 1, 1);
        member.read(0, BLOCK, 300);
    });
    join([reader, writer, direct]);
    world.check_at_rest();
}
