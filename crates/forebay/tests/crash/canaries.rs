//! Bugs that are planted in the engine and have to be found.

use forebay::sim::{Bug, plant};

use crate::scene::Scene;
use crate::{deaths, repairs, scenes};

fn must_be_found(bug: Bug, find: impl Fn() -> Vec<String>) {
    assert!(find().is_empty(), "fails without {bug:?}");
    plant(Some(bug));
    let found = find();
    plant(None);
    assert!(!found.is_empty(), "nobody noticed {bug:?}");
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
    must_be_found(Bug::ValidFirst, || deaths::failures(&scenes, u64::MAX));
}

#[test]
fn announcing_after_copying_is_found() {
    let scenes = named(&["over clean pages"]);
    must_be_found(Bug::DirtyLast, || deaths::failures(&scenes, u64::MAX));
}

#[test]
fn a_size_before_its_bytes_is_found() {
    let scenes = named(&["append to a synced page", "next 4 KiB of a sequence"]);
    must_be_found(Bug::SizeFirst, || deaths::failures(&scenes, u64::MAX));
}

#[test]
fn clean_at_submission_is_found() {
    let scenes = named(&["flush of a map"]);
    must_be_found(Bug::CleanAtSubmit, || deaths::failures(&scenes, u64::MAX));
}

#[test]
fn forgotten_flights_are_found() {
    let scenes = named(&["flush of a map"]);
    must_be_found(Bug::ForgetFlights, || deaths::failures(&scenes, u64::MAX));
}

#[test]
fn an_opened_gate_is_found() {
    let scenes = named(&["over dirty pages"]);
    must_be_found(Bug::OpenGate, || repairs::failures(&scenes, 2, 60));
}
