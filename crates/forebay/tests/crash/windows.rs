//! Deaths at each step of a commit: of making a window, giving blocks to a file, refilling, detaching and letting go.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay::memory::{pins, regions};
use forebay::sim::{Bug, plant};
use forebay::sync::Ordering;
use forebay_model::{Op, SplitMix64};

use crate::common::windows::Windows;
use crate::deaths::{chosen, seed, under_way};
use crate::scene::{Act, Scene, World, look};
use crate::scenes::{again, quiet, set_len, sync, write};

const BLOCK: u64 = 256 * 1024;
/// The number of whoever holds frames in an arena on the heap.
const HOLDER: u32 = 1;
/// Four of eight frames may be held.
const WINDOW: usize = 3 * BLOCK as usize;

fn pinned(world: &World) -> u32 {
    let superblock = world.engine.session.shared().arena.superblock();
    superblock.frames_pinned.load(Ordering::Acquire)
}

/// As many windows with fates of their own.
const SEEDS: u64 = 4;

/// A write by a window over each kind of block.
fn scenes() -> Vec<Scene> {
    let befores = [
        ("nothing", vec![]),
        ("a short file", vec![write(0, 100)]),
        ("small frames", vec![write(100, 5000), write(70_000, 300)]),
        ("a synced file", vec![write(0, 2 * BLOCK + 100), sync()]),
        (
            "what has left memory",
            vec![write(0, BLOCK), sync(), Op::Evict { file: 0 }],
        ),
        ("a hole", vec![set_len(3 * BLOCK)]),
    ];
    let acts = [again(0, BLOCK, 1), again(BLOCK - 100, 2 * BLOCK + 200, 2)];
    let all = befores.into_iter().flat_map(|(name, before)| {
        acts.clone().map(move |act| Scene {
            act: Act::Op(act),
            ..quiet(name, before.clone(), |_| {})
        })
    });
    all.collect()
}

fn world(scene: &Scene, n: u64) -> World {
    let mut world = World::new(scene);
    world.engine.windows = Some(Windows::new(n % SEEDS, WINDOW));
    world
}

/// Accesses of the act with the window that death `n` meets.
fn accesses_with(scene: &Scene, n: u64) -> u64 {
    let before = forebay::sim::count();
    let mut world = world(scene, n);
    let begun = forebay::sim::count() - before;
    assert!(world.die(&scene.act, u64::MAX - 1).is_some());
    forebay::sim::count() - before - begun
}

fn one(scene: &Scene, n: u64, seed: u64) {
    let mut world = world(scene, n);
    if world.die(&scene.act, n).is_some() {
        return;
    }
    let mut windows = world.engine.windows.take().expect("a window");
    windows.forget();
    let mut dice = SplitMix64::new(seed ^ n);
    if dice.below(2) == 0 {
        unpin_and_write(&world);
    }
    look(&mut world, &under_way(&scene.act), &mut dice);
    let shared = world.engine.session.shared();
    pins::unpin_all_of(shared.me().expect("a slot"), HOLDER);
    assert_eq!(pinned(&world), 0, "{}, death {n}", scene.name);
    world.audit("without windows");
}

/// What others may do before the death is repaired: the pins of the dead are taken back, and whoever needs memory writes to all that is free.
fn unpin_and_write(world: &World) {
    let shared = world.engine.session.shared();
    let me = shared.me().expect("a slot");
    pins::unpin_all_of(me, HOLDER);
    let _operation = me.enter_arena();
    let taken: Vec<_> = std::iter::from_fn(|| regions::take_frame(me)).collect();
    for frame in &taken {
        let bytes = me.arena.frame_bytes(*frame).expect("a frame");
        // SAFETY: the frame is this thread's, has memory for as long as the arena lives, and a byte may be anything.
        unsafe { bytes.write_bytes(0xEE, BLOCK as usize) };
    }
    for frame in taken {
        regions::free_frame(me, frame);
    }
}

/// Dies in each scene about `samples` times, and looks as `one` does.
fn deaths(scenes: &[Scene], samples: u64, seed: u64, one: impl Fn(&Scene, u64)) {
    let mut dice = SplitMix64::new(seed);
    for scene in scenes {
        let most = (0..SEEDS).map(|n| accesses_with(scene, n)).max();
        for n in chosen(most.unwrap_or(0), samples, &mut dice) {
            let place = format!("{}, death {n}, FOREBAY_SEED={seed}", scene.name);
            let done = catch_unwind(AssertUnwindSafe(|| one(scene, n)));
            if let Err(why) = done {
                eprintln!("{place}");
                std::panic::resume_unwind(why);
            }
        }
    }
}

/// A frame whose giver has died in the middle must not stay one that its header has left: the last pin would free it under the header.
#[test]
fn a_frame_that_stays_half_given_is_found() {
    let seed = seed();
    let scenes = scenes();
    let scene = scenes.iter().find(|scene| scene.name == "a short file");
    let scene = scene.expect("a scene");
    let most = (0..SEEDS).map(|n| accesses_with(scene, n)).max();
    plant(Some(Bug::HalfAttached));
    let fails = |n| catch_unwind(AssertUnwindSafe(|| one(scene, n, seed))).is_err();
    let found = (1..most.unwrap_or(0)).find(|&n| fails(n));
    plant(None);
    let found = found.expect("a death that nobody repairs goes unnoticed");
    one(scene, found, seed);
}

#[test]
fn commits_begun() {
    let seed = seed();
    deaths(&scenes(), 5, seed, |scene, n| one(scene, n, seed));
}

#[test]
#[ignore = "every access: minutes"]
fn every_death_in_a_commit() {
    let seed = seed();
    deaths(&scenes(), u64::MAX, seed, |scene, n| one(scene, n, seed));
}
