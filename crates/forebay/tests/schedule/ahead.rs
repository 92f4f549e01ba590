//! Reading ahead against everything that changes a block meanwhile: what it brings is never older than memory or device.

use std::sync::Arc;

use forebay::flush::ring;
use forebay::frame::header::Identity;
use forebay::ids::BlockIndex;
use forebay::keeper::ahead::Prefetcher;
use forebay::memory::asks::Ask;

use crate::stepped::Late;
use crate::world::{BLOCK, Member, PAGE, Shape, World, join};

crate::scenarios!(
    ahead_of_a_reader,
    ahead_against_a_writer_and_eviction,
    ahead_against_truncation,
    ahead_against_a_direct_write,
    ahead_against_its_own_death,
    ahead_with_little_memory,
);

fn world() -> Arc<World> {
    World::new(Shape {
        headers: 128,
        frames: 4,
        ..Shape::default()
    })
}

/// What a reader would ask for.
fn ask(member: &Member, part: Ask) {
    let core = &member.file(0).core;
    let (file, block) = (core.id, part.block);
    assert!(core.entry().asks.ask(part));
    let files = &member.me().arena.superblock().ahead_files;
    ring::push(files, Identity { file, block });
}

fn read_ahead(member: &Member) {
    let shared = member.world.session.shared();
    let mut prefetcher = Prefetcher::new(Box::new(Late::default()), 2);
    prefetcher.take_office(member.me());
    prefetcher.round(shared, member.me(), false);
    prefetcher.round(shared, member.me(), false);
    prefetcher.leave(shared, member.me());
}

fn keeper(world: &Arc<World>, blocks: &[u32]) -> shuttle::thread::JoinHandle<()> {
    let member = world.member();
    for &block in blocks {
        ask(&member, Ask::whole(BlockIndex(block)));
    }
    world.spawn(read_ahead)
}

/// A reader waits for what is being read, or takes it back, and finds the same bytes.
pub fn ahead_of_a_reader() {
    let world = world();
    let member = world.member();
    member.write(0, 1, 100, 5000);
    member.write(0, 2, BLOCK, PAGE as usize);
    member.sync(0);
    member.evict(0);
    let _exploring = world.explore();
    let keeper = keeper(&world, &[0, 1]);
    let reader = world.spawn(|member| {
        member.read(0, 0, 6000);
        member.read(0, BLOCK - 100, 5000);
    });
    let evictor = world.spawn(|member| member.evict(0));
    join([keeper, reader, evictor]);
    world.check_at_rest();
}

/// Newer bytes go by while the device is read: written, flushed, evicted.
pub fn ahead_against_a_writer_and_eviction() {
    let world = world();
    let _exploring = world.explore();
    let keeper = keeper(&world, &[0]);
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
    join([keeper, writer, another]);
    world.check_at_rest();
}

pub fn ahead_against_truncation() {
    let world = world();
    let member = world.member();
    member.write(0, 2, BLOCK, 5000);
    member.sync(0);
    member.evict(0);
    let _exploring = world.explore();
    let keeper = keeper(&world, &[1, 2]);
    let cutter = world.spawn(|member| {
        member.set_len(0, BLOCK + 300);
        member.set_len(0, 2 * BLOCK);
    });
    let reader = world.spawn(|member| {
        member.read(0, BLOCK - 100, 5000);
    });
    join([keeper, cutter, reader]);
    world.check_at_rest();
}

pub fn ahead_against_a_direct_write() {
    let world = world();
    let _exploring = world.explore();
    let keeper = keeper(&world, &[0, 1]);
    let writer = world.spawn(|member| {
        member.write_direct(0, 1, 0, 2);
        member.read(0, BLOCK - 100, 300);
    });
    let reader = world.spawn(|member| {
        member.read(0, 0, 300);
        member.read(0, BLOCK, 300);
    });
    join([keeper, writer, reader]);
    world.check_at_rest();
}

pub fn ahead_against_its_own_death() {
    let world = world();
    let member = world.member();
    member.write(0, 1, 0, 300);
    member.sync(0);
    member.evict(0);
    for block in [0, 1] {
        ask(&member, Ask::whole(BlockIndex(block)));
    }
    let _exploring = world.explore();
    let n = crate::explore::dice() % 400;
    let keeper = world.spawn_mortal(n, read_ahead);
    let reader = world.spawn(|member| {
        member.read(0, 0, 5000);
        member.write(0, 3, 100, 50);
        member.read(0, BLOCK, 100);
    });
    join([keeper, reader]);
    world.check_after_death();
}

/// One frame: what is read ahead, what is written and what is read want it.
pub fn ahead_with_little_memory() {
    let world = World::new(Shape {
        headers: 4,
        frames: 1,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let keeper = keeper(&world, &[0, 1]);
    let writer = world.spawn(|member| {
        member.write(0, 1, BLOCK, 64 * 1024);
        member.sync(0);
    });
    let reader = world.spawn(|member| {
        member.read(0, 0, 300);
    });
    join([keeper, writer, reader]);
    world.check_at_rest();
}
