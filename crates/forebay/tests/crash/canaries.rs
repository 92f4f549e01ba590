//! Bugs that are planted in the engine and have to be found.

use forebay::sim::{Bug, plant};

use crate::scene::Scene;
use crate::{deaths, repairs, scenes};

/// Seeds with which a bug has to be found. What is done after a death is chosen by them, and not every choice shows the harm.
const SEEDS: std::ops::Range<u64> = 1..9;

fn must_be_found(bug: Bug, find: impl Fn(u64) -> Vec<String>) {
    assert!(find(SEEDS.start).is_empty(), "fails without {bug:?}");
    plant(Some(bug));
    let found = SEEDS.into_iter().any(|seed| !find(seed).is_empty());
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
    must_be_found(Bug::ValidFirst, |seed| {
        deaths::failures(&scenes, u64::MAX, seed)
    });
}

#[test]
fn announcing_after_copying_is_found() {
    let scenes = named(&["over clean pages"]);
    must_be_found(Bug::DirtyLast, |seed| {
        deaths::failures(&scenes, u64::MAX, seed)
    });
}

#[test]
fn a_size_before_its_bytes_is_found() {
    let scenes = named(&["append to a synced page", "next 4 KiB of a sequence"]);
    must_be_found(Bug::SizeFirst, |seed| {
        deaths::failures(&scenes, u64::MAX, seed)
    });
}

#[test]
fn clean_at_submission_is_found() {
    let scenes = named(&["flush of a map"]);
    must_be_found(Bug::CleanAtSubmit, |seed| {
        deaths::failures(&scenes, u64::MAX, seed)
    });
}

#[test]
fn forgotten_flights_are_found() {
    let scenes = named(&["flush of a map"]);
    must_be_found(Bug::ForgetFlights, |seed| {
        deaths::failures(&scenes, u64::MAX, seed)
    });
}

#[test]
fn a_stock_that_outlives_a_rebuild_is_found() {
    let scenes = named(&["a stock is drawn from"]);
    must_be_found(Bug::StaleStock, |seed| deaths::failures(&scenes, 40, seed));
}

#[test]
fn an_opened_gate_is_found() {
    let scenes = named(&["over dirty pages"]);
    must_be_found(Bug::OpenGate, |seed| {
        repairs::failures(&scenes, 2, 60, seed)
    });
}
