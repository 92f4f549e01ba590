//! Bugs that are planted in the engine and have to be found.

use forebay::sim::{Bug, plant};

use crate::scene::Scene;
use crate::{deaths, repairs, scenes};

/// Seeds with which a bug has to be found. What is done after a death is chosen by them, and not every choice shows the harm.
const SEEDS: std::ops::Range<u64> = 1..9;

/// `find` is told how many deaths to try, at most, and a seed. Without the bug as few are tried as in everyday runs, which try them all by and by.
fn must_be_found(bug: Bug, samples: u64, find: impl Fn(u64, u64) -> Vec<String>) {
    let few = find(samples.min(deaths::SAMPLES), SEEDS.start);
    assert!(few.is_empty(), "fails without {bug:?}");
    plant(Some(bug));
    let found = SEEDS
        .into_iter()
        .any(|seed| !find(samples, seed).is_empty());
    plant(None);
    assert!(found, "nobody noticed {bug:?}");
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
    must_be_found(Bug::ValidFirst, u64::MAX, |samples, seed| {
        deaths::failures(&scenes, samples, seed)
    });
}

#[test]
fn announcing_after_copying_is_found() {
    let scenes = named(&["over clean pages"]);
    must_be_found(Bug::DirtyLast, u64::MAX, |samples, seed| {
        deaths::failures(&scenes, samples, seed)
    });
}

#[test]
fn a_size_before_its_bytes_is_found() {
    let scenes = named(&["append to a synced page", "next 4 KiB of a sequence"]);
    must_be_found(Bug::SizeFirst, u64::MAX, |samples, seed| {
        deaths::failures(&scenes, samples, seed)
    });
}

#[test]
fn clean_at_submission_is_found() {
    let scenes = named(&["flush of a map"]);
    must_be_found(Bug::CleanAtSubmit, u64::MAX, |samples, seed| {
        deaths::failures(&scenes, samples, seed)
    });
}

#[test]
fn forgotten_flights_are_found() {
    let scenes = named(&["flush of a map"]);
    must_be_found(Bug::ForgetFlights, u64::MAX, |samples, seed| {
        deaths::failures(&scenes, samples, seed)
    });
}

#[test]
fn a_stock_that_outlives_a_rebuild_is_found() {
    let scenes = named(&["a stock is drawn from"]);
    must_be_found(Bug::StaleStock, 40, |samples, seed| {
        deaths::failures(&scenes, samples, seed)
    });
}

#[test]
fn an_opened_gate_is_found() {
    let scenes = named(&["over dirty pages"]);
    must_be_found(Bug::OpenGate, 60, |samples, seed| {
        repairs::failures(&scenes, 2, samples, seed)
    });
}
