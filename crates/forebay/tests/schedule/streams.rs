//! The tracker against writeback and eviction: whatever the order, nothing that is owed is in no dirty range, and no
//! stream is left without a block.

use forebay::evict;
use forebay::file::streams::write_coldest;
use forebay::ids::FileId;
use forebay::stream::tracking;

use crate::explore::dice;
use crate::world::{BLOCK, Member, Shape, World, join};

crate::scenarios!(
    writers_against_writeback,
    writers_against_eviction,
    two_files_share_the_lists,
    truncation_against_writeback,
    a_death_under_a_tree_lock,
);

/// As the keeper above the background limit.
fn write_back(member: &Member) {
    let shared = member.world.session.shared();
    let mut flusher = shared.own_flusher();
    write_coldest(shared, member.me(), &mut flusher);
}

pub fn writers_against_writeback() {
    let world = World::new(Shape::default());
    let _exploring = world.explore();
    let writer = |seed: u32| {
        world.spawn(move |member| {
            for (index, block) in [0, 2, 1].into_iter().enumerate() {
                let at = block * BLOCK + u64::from(seed) * 500;
                member.write(0, seed + index as u32, at, 300);
            }
        })
    };
    let keeper = world.spawn(|member| {
        write_back(member);
        write_back(member);
    });
    join([writer(10), writer(20), keeper]);
    world.check_at_rest();
}

fn writers_against_eviction() {
    let world = World::new(Shape::default());
    let _exploring = world.explore();
    let writer = world.spawn(|member| {
        for seed in 1..4 {
            member.write(0, seed, u64::from(seed - 1) * BLOCK + 7, 100);
            member.read(0, 0, 3000);
        }
        member.sync(0);
    });
    let evictor = world.spawn(|member| {
        evict::evict(member.me(), 3, 0);
        write_back(member);
        evict::evict(member.me(), 3, 0);
    });
    let reader = world.spawn(|member| {
        for block in [2, 1, 0] {
            member.read(0, block * BLOCK, 5000);
        }
    });
    join([writer, evictor, reader]);
    world.check_at_rest();
}

fn two_files_share_the_lists() {
    let world = World::new(Shape {
        files: 2,
        headers: 6,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let writer = |file: usize| {
        world.spawn(move |member| {
            for block in [0, 2, 1] {
                member.write(file, 1 + block as u32, block * BLOCK, 200);
            }
            member.sync(file);
        })
    };
    let keeper = world.spawn(|member| {
        write_back(member);
        evict::evict(member.me(), 4, 0);
    });
    join([writer(0), writer(1), keeper]);
    world.check_at_rest();
}

fn truncation_against_writeback() {
    let world = World::new(Shape::default());
    let member = world.member();
    (0..3).for_each(|block| member.write(0, 1 + block as u32, block * BLOCK, 300));
    let _exploring = world.explore();
    let cutter = world.spawn(|member| {
        member.set_len(0, BLOCK + 100);
        member.write(0, 10, 2 * BLOCK, 300);
    });
    let keeper = world.spawn(|member| {
        write_back(member);
        evict::evict(member.me(), 4, 0);
    });
    join([cutter, keeper]);
    world.check_at_rest();
}

/// The lock of a tree is held by somebody who dies; the others write and sync meanwhile.
fn a_death_under_a_tree_lock() {
    let world = World::new(Shape::default());
    let n = dice() % 400;
    let _exploring = world.explore();
    let victim = world.spawn_mortal(n, |member| {
        for block in 0..3 {
            member.write(0, 1 + block as u32, block * BLOCK + 4000, 300);
        }
        write_back(member);
        evict::evict(member.me(), 2, 0);
    });
    let writer = world.spawn(|member| {
        member.write(0, 10, BLOCK, 100);
        member.sync(0);
        member.write(0, 11, 2 * BLOCK, 100);
        evict::evict(member.me(), 2, 0);
    });
    join([victim, writer]);
    world.check_after_death();
}

impl World {
    /// What must be true of trees and lists when everybody has ended; those in doubt are made anew first, as the keeper does.
    pub fn check_streams(&self, member: &Member) {
        let (arena, me) = (member.me().arena, member.me());
        let surprises = arena
            .stream_lists()
            .surprises
            .load(forebay::sync::Ordering::Relaxed);
        assert_eq!(surprises, 0, "owed, and in no dirty range");
        for file in (0..arena.counts().files).map(FileId) {
            let operation = me.enter(file).expect("nobody stops it");
            tracking::mend(me, file, arena.file_unchecked(file));
            drop(operation);
        }
        let problems = forebay::keeper::check::check(arena)
            .err()
            .unwrap_or_default();
        let of_streams: Vec<_> = problems
            .iter()
            .filter(|text| is_about_streams(text))
            .collect();
        assert!(of_streams.is_empty(), "{of_streams:?}");
    }
}

fn is_about_streams(problem: &str) -> bool {
    ["stream", "dirty range"]
        .iter()
        .any(|word| problem.contains(word))
}
