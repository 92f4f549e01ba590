//! Bugs that are planted in the engine and have to be found.

use forebay::sim::{Bug, plant};

use crate::scene::Scene;
use crate::{deaths, repairs, scenes};

/// Seeds with which a bug has to be found. What is done after a death is chosen by them, and not every choice shows the harm.
const SEEDS: std::ops::Range<u64> = 1..9;

/// By a death that does no harm without the bug.
fn must_be_found(bug: Bug, scenes: &[Scene], samples: u64) {
    plant(Some(bug));
    let found = SEEDS
        .into_iter()
        .find_map(|seed| Some((seed, deaths::first_failure(scenes, samples, seed)?)));
    plant(None);
    let (seed, death) = found.unwrap_or_else(|| panic!("nobody noticed {bug:?}"));
    assert!(
        deaths::does_no_harm(scenes, death, seed),
        "fails without {bug:?}: {death:?}, FOREBAY_SEED={seed}"
    );
}

fn named(names: &[&str]) -> Vec<Scene> {
    let all = scenes::all();
    let found: Vec<_> = all
        .into_iter()
        .filter(|scene| names.contains(&scene.name))
        .collect();
    assert_eq!(found.len(), names.len(), "{names:?}");
    found
}

#[test]
fn publishing_before_copying_is_found() {
    let scenes = named(&["over absent pages"]);
    must_be_found(Bug::ValidFirst, &scenes, u64::MAX);
}

#[test]
fn announcing_after_copying_is_found() {
    let scenes = named(&["over clean pages"]);
    must_be_found(Bug::DirtyLast, &scenes, u64::MAX);
}

#[test]
fn a_size_before_its_bytes_is_found() {
    let scenes = named(&["append to a synced page", "next 4 KiB of a sequence"]);
    must_be_found(Bug::SizeFirst, &scenes, u64::MAX);
}

#[test]
fn clean_at_submission_is_found() {
    let scenes = named(&["flush of a map"]);
    must_be_found(Bug::CleanAtSubmit, &scenes, u64::MAX);
}

#[test]
fn forgotten_flights_are_found() {
    let scenes = named(&["flush of a map"]);
    must_be_found(Bug::ForgetFlights, &scenes, u64::MAX);
}

#[test]
fn a_stock_that_outlives_a_rebuild_is_found() {
    let scenes = named(&["a stock is drawn from"]);
    must_be_found(Bug::StaleStock, &scenes, 40);
}

#[test]
fn an_opened_gate_is_found() {
    let scenes = named(&["over dirty pages"]);
    let find = |seed| repairs::failures(&scenes, 2, 60, seed);
    assert!(find(SEEDS.start).is_empty(), "fails without the bug");
    plant(Some(Bug::OpenGate));
    let found = SEEDS.into_iter().any(|seed| !find(seed).is_empty());
    plant(None);
    assert!(found, "nobody noticed");
}
