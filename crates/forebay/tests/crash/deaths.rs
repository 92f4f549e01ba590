//! One death at each access.

use forebay::sim;
use forebay_model::{Op, SplitMix64};

use crate::common::watch::Watch;
use crate::scene::{Act, Scene, World, look};
use crate::scenes;

/// Deaths tried of one scene in an everyday run.
pub const SAMPLES: u64 = 24;

/// A fresh seed, or the one that `FOREBAY_SEED` says.
pub fn seed() -> u64 {
    let given = std::env::var("FOREBAY_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    given.unwrap_or_else(forebay_model::fresh_seed)
}

/// Accesses that an act makes when nobody dies.
pub fn accesses(scene: &Scene) -> u64 {
    let mut world = World::new(scene);
    let before = sim::count();
    assert!(world.die(&scene.act, u64::MAX - 1).is_some());
    sim::count() - before
}

/// Every n-th of `total` from a random place on, so that about `samples` are tried.
pub fn chosen(
    total: u64,
    samples: u64,
    dice: &mut SplitMix64,
) -> impl Iterator<Item = u64> + use<> {
    let stride = total.div_ceil(samples).max(1);
    let first = dice.below(stride);
    (first..total).step_by(stride as usize)
}

pub fn under_way(act: &Act) -> Vec<Op> {
    match act {
        Act::Op(op) => vec![op.clone()],
        Act::Quiet(_) => vec![],
    }
}

fn one(scene: &Scene, n: u64, seed: u64) {
    let mut world = World::new(scene);
    if world.die(&scene.act, n).is_some() {
        return;
    }
    let mut dice = SplitMix64::new(seed ^ n);
    look(&mut world, &under_way(&scene.act), &mut dice);
}

/// Dies in each scene, and fails where one does.
pub fn every_death(scenes: &[Scene], samples: u64) {
    let failures = failures(scenes, samples, seed());
    assert!(
        failures.is_empty(),
        "{} scenes fail:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Dies in each scene; the first failure of each.
pub fn failures(scenes: &[Scene], samples: u64, seed: u64) -> Vec<String> {
    let mut dice = SplitMix64::new(seed);
    let failed = { 0..scenes.len() }.filter_map(|at| harm(scenes, at, samples, seed, &mut dice));
    failed.map(|(_, what)| what).collect()
}

/// A scene, by its place in a list, and the access before which somebody dies in it.
pub type Death = (usize, u64);

/// The first death that does harm.
pub fn first_failure(scenes: &[Scene], samples: u64, seed: u64) -> Option<Death> {
    let mut dice = SplitMix64::new(seed);
    let (death, _) =
        { 0..scenes.len() }.find_map(|at| harm(scenes, at, samples, seed, &mut dice))?;
    Some(death)
}

/// Whether one death does none.
pub fn does_no_harm(scenes: &[Scene], (at, n): Death, seed: u64) -> bool {
    Watch::new()
        .run("once more", || one(&scenes[at], n, seed))
        .is_ok()
}

/// The first death in a scene that does harm, and what it does.
fn harm(
    scenes: &[Scene],
    at: usize,
    samples: u64,
    seed: u64,
    dice: &mut SplitMix64,
) -> Option<(Death, String)> {
    let (scene, watch) = (&scenes[at], Watch::new());
    let total = accesses(scene);
    chosen(total, samples, dice).find_map(|n| {
        let place = format!(
            "{:?}, death {n} of {total}, FOREBAY_SEED={seed}",
            scene.name
        );
        let failed = watch.run(&place, || one(scene, n, seed)).err()?;
        Some(((at, n), failed))
    })
}

#[test]
fn writes_into_memory_may_die() {
    every_death(&scenes::writes(), SAMPLES);
}

#[test]
fn writes_past_memory_may_die() {
    every_death(&scenes::past_memory(), SAMPLES);
}

#[test]
fn changes_of_shape_may_die() {
    every_death(&scenes::shapes(), SAMPLES);
}

#[test]
fn who_reads_and_reads_ahead_may_die() {
    every_death(&scenes::reading_ahead(), SAMPLES);
}

#[test]
fn upkeep_may_die() {
    every_death(&[scenes::upkeep(), scenes::keeping()].concat(), SAMPLES);
}

#[test]
fn who_has_or_takes_small_frames_of_a_stock_may_die() {
    every_death(&scenes::stocks(), SAMPLES);
}

#[test]
#[ignore = "every access of every operation; minutes"]
fn every_access_may_be_the_last() {
    every_death(&scenes::all(), u64::MAX);
}
